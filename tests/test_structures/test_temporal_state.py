"""The carried state as a value: detach, select, to, reset."""

import dataclasses

import pytest
import torch

from mmssm.models.temporal import SurgicalMamba


@pytest.fixture
def model():
    return SurgicalMamba(
        in_channels=6,
        d_model=16,
        num_layers=2,
        d_state=8,
        headdim=8,
        rotation_rank=2,
        chunk_size_slow=4,
        chunk_size_fast=4,
        dropout=0.0,
    )


def test_detach_cuts_the_graph(model):
    state = model(torch.randn(2, 9, 6)).state
    assert any(t.requires_grad for t in state.tensors())
    assert not any(t.requires_grad for t in state.detach().tensors())


def test_to_casts_every_tensor(model):
    state = model(torch.randn(2, 9, 6)).state.to(torch.float64)
    assert {t.dtype for t in state.tensors()} == {torch.float64}


@torch.no_grad()
def test_select_keeps_the_chosen_streams(model):
    x = torch.randn(3, 18, 6)
    whole = model(x[:, 9:], model(x[:, :9]).state).hidden
    chosen = model(x[:, :9]).state.select([2, 0])
    part = model(x[[2, 0], 9:], chosen).hidden
    torch.testing.assert_close(part, whole[[2, 0]])


@torch.no_grad()
def test_reset_starts_only_the_masked_streams_anew(model):
    x = torch.randn(2, 18, 6)
    state = model(x[:, :9]).state
    kept = model(x[:, 9:], state).hidden
    fresh = model(x[:, 9:]).hidden
    out = model(x[:, 9:], state.reset(torch.tensor([True, False]))).hidden
    torch.testing.assert_close(out[0], fresh[0])
    torch.testing.assert_close(out[1], kept[1])
    assert (out[0] - kept[0]).abs().max() > 1e-5


def test_reset_removes_nan(model):
    state = model(torch.randn(2, 9, 6)).state.detach()
    broken = state.map(lambda t: t.clone().fill_(torch.nan))
    healed = broken.reset(torch.tensor([True, True]))
    assert all(t.eq(0).all() for t in healed.tensors())


@torch.no_grad()
def test_reset_in_the_middle_of_a_clip(model):
    state = model.init_state(2, clip_len=10)
    for x in torch.randn(6, 2, 6):
        state = model.step(x, state).state
    with pytest.raises(ValueError, match='middle of a clip'):
        state.reset(torch.tensor([True, False]))
    fresh = state.reset(torch.tensor([True, True]))
    assert fresh.frame_in_clip == 0
    x = torch.randn(2, 6)
    torch.testing.assert_close(
        model.step(x, fresh).hidden,
        model.step(x, model.init_state(2, clip_len=10)).hidden,
    )


@torch.no_grad()
def test_models_do_not_write_into_a_given_state(model):
    state = model(torch.randn(2, 9, 6)).state
    before = [t.clone() for t in state.tensors()]
    model(torch.randn(2, 9, 6), state)
    model.step(torch.randn(2, 6), state)
    for a, b in zip(state.tensors(), before, strict=True):
        assert torch.equal(a, b)


def test_bad_masks(model):
    state = model.init_state(2)
    with pytest.raises(ValueError, match='torch.bool'):
        state.reset(torch.tensor([1, 0]))
    with pytest.raises(TypeError, match='bool tensor'):
        state.reset([True, False])
    with pytest.raises(ValueError, match='2 streams'):
        state.reset(torch.tensor([True]))


def test_states_are_dataclasses(model):
    state = model.init_state(2, clip_len=5)
    assert dataclasses.is_dataclass(state)
    assert state.batch_size == 2
    assert state.nbytes() == sum(t.nbytes for t in state.tensors())
