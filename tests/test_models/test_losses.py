"""Losses: hand-made cases beside the golden files."""

import math

import pytest
import torch

from mmssm.models.losses import (
    ConfidenceSmoothnessLoss,
    PhaseCrossEntropyLoss,
    TransitionIntensityLoss,
    transition_target,
)

LOSSES = [PhaseCrossEntropyLoss(), ConfidenceSmoothnessLoss()]


@pytest.mark.parametrize('loss', LOSSES, ids=lambda m: type(m).__name__)
def test_sequence_reduction_is_each_sequence_alone(loss):
    logits = torch.randn(3, 7, 4)
    labels = torch.randint(0, 4, (3, 7))
    labels[1, 4:] = -1
    labels[2] = -1
    values = loss(logits, labels, reduction='sequence')
    for i in range(3):
        alone = loss(logits[i : i + 1], labels[i : i + 1])
        torch.testing.assert_close(values[i], alone)
    assert values[2] == 0


def test_no_valid_frame_gives_zero_and_zero_gradient():
    logits = torch.randn(2, 5, 4, requires_grad=True)
    lam = torch.randn(3, 2, 5, requires_grad=True)
    labels = torch.full((2, 5), -1)
    total = sum(loss(logits, labels) for loss in LOSSES)
    total = total + TransitionIntensityLoss()(lam, labels)
    total.backward()
    assert total.item() == 0
    assert logits.grad.eq(0).all() and lam.grad.eq(0).all()


def test_cross_entropy_by_hand():
    logits = torch.tensor([[[2.0, 0.0], [0.0, 0.0]]])
    labels = torch.tensor([[0, -1]])
    expected = math.log(1 + math.exp(-2.0))
    value = PhaseCrossEntropyLoss(label_smoothing=0.0)(logits, labels)
    assert value.item() == pytest.approx(expected, rel=1e-6)


def test_smoothness_is_zero_for_constant_and_for_uncertain_frames():
    loss = ConfidenceSmoothnessLoss()
    labels = torch.zeros(1, 4, dtype=torch.long)
    constant = torch.tensor([5.0, 0.0, 0.0]).expand(1, 4, 3)
    assert loss(constant, labels).item() == pytest.approx(0, abs=1e-6)
    uncertain = constant.clone()
    uncertain[:, 1::2] = 0  # uniform: confidence zero
    assert loss(uncertain, labels).item() == pytest.approx(0, abs=1e-6)
    flips = constant.clone()
    flips[:, 1::2] = torch.tensor([0.0, 5.0, 0.0])
    assert loss(flips, labels).item() > 1


def test_target_by_hand():
    labels = torch.tensor([[0] * 10 + [1] * 20 + [2] * 30])
    target = transition_target(labels, sigma_left=1.0, sigma_right=2.0)[0]
    assert target[9] == 1 and target[29] == 1  # last frames of old phases
    assert target[8].item() == pytest.approx(math.exp(-0.5))
    assert target[7].item() == pytest.approx(math.exp(-2.0))
    assert target[6] == 0  # three sigmas before: the support is open
    assert target[11].item() == pytest.approx(math.exp(-0.5))
    assert target[14].item() == pytest.approx(math.exp(-0.5 * 2.5**2))
    assert target[15] == 0  # three sigmas after


def test_unlabelled_frames_are_no_transition():
    labels = torch.tensor([[0, 0, -1, -1, 1, 1, 1, -1]])
    assert transition_target(labels).eq(0).all()


def test_target_of_short_clips():
    assert transition_target(torch.zeros(2, 0, dtype=torch.long)).shape == (
        2,
        0,
    )
    assert transition_target(torch.zeros(2, 1, dtype=torch.long)).eq(0).all()


def test_unknown_reduction():
    with pytest.raises(ValueError, match="'mean' or 'sequence'"):
        PhaseCrossEntropyLoss()(
            torch.zeros(1, 2, 3), torch.zeros(1, 2).long(), reduction='sum'
        )
