"""The recognizer: windows of lanes, carried state, streaming."""

import math

import pytest
import torch

import mmssm.models  # noqa: F401  fills the registry
from mmssm.registry import MODELS
from mmssm.structures import PhaseDataSample

CLIP_LEN, CLASSES = 6, 4


def build(temporal='SurgicalMamba', head='PhaseHead', **kwargs):
    torch.manual_seed(0)
    temporals = {
        'SurgicalMamba': dict(
            type='SurgicalMamba',
            in_channels=8,
            d_model=16,
            num_layers=2,
            d_state=8,
            headdim=8,
            rotation_rank=2,
            chunk_size_slow=4,
            chunk_size_fast=3,
            dropout=0.0,
        ),
        'Framewise': dict(type='Framewise', in_channels=8, d_model=16),
    }
    heads = {
        'PhaseHead': dict(
            type='PhaseHead',
            d_state=8,
            headdim=8,
            chunk_size=4,
            rotation_rank=2,
        ),
        'LinearPhaseHead': dict(type='LinearPhaseHead'),
    }
    return MODELS.build(
        dict(
            type='PhaseRecognizer',
            backbone=dict(type='StridedConvNet', channels=(4, 8)),
            temporal={**temporals[temporal], **kwargs},
            head=dict(
                in_channels=16,
                num_classes=CLASSES,
                dropout=0.0,
                loss_cls=dict(type='PhaseCrossEntropyLoss'),
                loss_smooth=dict(type='ConfidenceSmoothnessLoss'),
                loss_intensity=dict(type='TransitionIntensityLoss'),
                **heads[head],
            ),
            clip_len=CLIP_LEN,
        )
    )


def video(name, frames, seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(
        0, 256, (frames, 3, 16, 16), dtype=torch.uint8, generator=generator
    )
    labels = torch.randint(0, CLASSES, (frames,), generator=generator)
    return name, images, labels


def clips_of(name, images, labels):
    """Cut a video in padded clips: (images, labels, meta)."""
    clips = []
    for start in range(0, len(images), CLIP_LEN):
        part, label = images[start:][:CLIP_LEN], labels[start:][:CLIP_LEN]
        missing = CLIP_LEN - len(part)
        padded = torch.cat([part, part[-1:].expand(missing, -1, -1, -1)])
        label = torch.cat([label, torch.full((missing,), -1)])
        meta = dict(
            video_id=name,
            frame_idx=start,
            num_frames=len(part),
            new_video=start == 0,
            end_of_video=start + CLIP_LEN >= len(images),
        )
        clips.append((padded, label, meta))
    return clips


EMPTY = (
    torch.zeros(CLIP_LEN, 3, 16, 16, dtype=torch.uint8),
    torch.full((CLIP_LEN,), -1),
    dict(
        video_id='',
        frame_idx=0,
        num_frames=0,
        new_video=False,
        end_of_video=False,
    ),
)


def batch_of(lanes):
    """Collate one window of every lane."""
    inputs, samples = [], []
    for lane, clips in enumerate(lanes):
        metas = [meta for _, _, meta in clips]
        sample = PhaseDataSample(
            metainfo={key: [m[key] for m in metas] for key in metas[0]}
            | dict(lane=lane, num_lanes=len(lanes))
        )
        sample.gt_phase = torch.stack([label for _, label, _ in clips])
        samples.append(sample)
        inputs.append(torch.stack([images for images, _, _ in clips]))
    return dict(inputs=inputs, data_samples=samples)


def losses_of(model, lanes):
    return model(**model.data_preprocessor(batch_of(lanes)), mode='loss')


def gradients(model, windows):
    model.zero_grad()
    for lanes in windows:
        losses = losses_of(model, lanes)
        sum(v for k, v in losses.items() if 'loss' in k).backward()
    return {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def windows_of(lane, size=3):
    lane = lane + [EMPTY] * (-len(lane) % size)
    return [lane[i : i + size] for i in range(0, len(lane), size)]


def test_two_lanes_give_the_average_gradient():
    model = build().double()
    # Ends inside a window, ragged clips, an empty tail in one lane.
    lanes = [
        clips_of(*video('a', 20, 1)) + clips_of(*video('b', 9, 2)),
        clips_of(*video('c', 13, 3)),
    ]
    windows = [windows_of(lane) for lane in lanes]
    windows[1].append([EMPTY] * 3)
    assert len(windows[0]) == len(windows[1]) == 2
    together = gradients(model, [list(w) for w in zip(*windows, strict=True)])
    single = [gradients(model, [[w] for w in lane]) for lane in windows]
    assert together.keys() == single[0].keys()
    for name, grad in together.items():
        average = (single[0][name] + single[1][name]) / 2
        torch.testing.assert_close(grad, average, rtol=1e-9, atol=1e-12)


@torch.no_grad()
def test_lane_that_is_empty_from_the_start():
    """More lanes than videos: the others give what they give alone."""
    model = build().eval()
    windows = windows_of(clips_of(*video('a', 20, 1)), size=2)
    scores = []
    for lanes in (1, 3):
        for window in windows:
            batch = [window] + [[EMPTY] * 2] * (lanes - 1)
            data = model.data_preprocessor(batch_of(batch))
            sample = model(**data, mode='predict')[0]
        scores.append(sample.pred_scores)
    torch.testing.assert_close(*scores)


def test_training_resumed_in_the_middle_of_an_epoch(caplog):
    """A checkpoint holds no state of lanes: they go on from zero."""
    model = build()
    _, second = windows_of(clips_of(*video('a', 24, 1)), size=2)
    losses = losses_of(model, [second])
    assert losses['loss_cls'].isfinite()
    fresh = build()
    for _, _, meta in second[:1]:
        meta['new_video'] = True
    torch.testing.assert_close(
        losses['loss_cls'], losses_of(fresh, [second])['loss_cls']
    )


def test_window_of_empty_clips_gives_zero_loss_and_gradient():
    model = build()
    losses_of(model, [clips_of(*video('a', 18, 1))])
    grads = gradients(model, [[[EMPTY, EMPTY, EMPTY]]])
    losses = losses_of(model, [[EMPTY, EMPTY, EMPTY]])
    assert losses['loss_cls'].item() == 0
    # Every parameter is part of the graph, which DDP needs, with zero.
    assert grads.keys() == {n for n, _ in model.named_parameters()}
    assert all(grad.eq(0).all() for grad in grads.values())


def test_padded_frames_change_nothing():
    model = build().eval()
    clips = clips_of(*video('a', 15, 1))
    before = losses_of(model, [clips])
    clips[-1][0][3:] = 0  # only 3 of the last clip's frames are real
    after = losses_of(model, [clips])
    for key, value in before.items():
        torch.testing.assert_close(after[key], value)


@torch.no_grad()
def test_windows_carry_the_state_and_videos_reset_it():
    model = build().eval()
    a, b = video('a', 20, 1), video('b', 14, 2)
    lane = clips_of(*a) + clips_of(*b)
    predictions = {}
    for window in windows_of(lane, size=2):
        data = model.data_preprocessor(batch_of([window]))
        (sample,) = model(**data, mode='predict')
        for i, name in enumerate(sample.metainfo['video_id']):
            count = sample.metainfo['num_frames'][i]
            predictions.setdefault(name, []).append(
                sample.pred_scores[i, :count]
            )
    for name, images, labels in (a, b):
        whole = model.data_preprocessor(
            batch_of([clips_of(name, images, labels)])
        )
        (alone,) = model(**whole, mode='predict')
        expected = alone.pred_scores.flatten(0, 1)[: len(images)]
        torch.testing.assert_close(torch.cat(predictions[name]), expected)


@torch.no_grad()
@pytest.mark.parametrize(
    ('temporal', 'head'),
    [('SurgicalMamba', 'PhaseHead'), ('Framewise', 'LinearPhaseHead')],
)
def test_stream_equals_clip(temporal, head):
    model = build(temporal, head).eval()
    name, images, labels = video('a', 4 * CLIP_LEN + 5, 1)
    data = model.data_preprocessor(batch_of([clips_of(name, images, labels)]))
    (sample,) = model(**data, mode='predict')
    state = model.init_stream()
    scores, intensity = [], []
    for frame in images:
        frame = model.data_preprocessor.normalize(frame[None])
        out = model.step(frame, state)
        state = out.state
        scores.append(out.scores[0])
        intensity.append(out.intensity)
    expected = sample.pred_scores.flatten(0, 1)[: len(images)]
    torch.testing.assert_close(
        torch.stack(scores), expected, rtol=1e-4, atol=1e-5
    )
    if temporal == 'Framewise':
        assert intensity[0] is None and 'pred_intensity' not in sample
    else:
        torch.testing.assert_close(
            torch.cat(intensity),
            sample.pred_intensity.flatten()[: len(images)],
            rtol=1e-4,
            atol=1e-5,
        )


def test_validation_leaves_the_training_lanes_alone():
    first, second = windows_of(clips_of(*video('a', 24, 1)), size=2)
    results = []
    for validate in (False, True):
        model = build()
        losses_of(model, [first])
        if validate:
            with torch.no_grad():
                other = clips_of(*video('b', 12, 2))
                model(
                    **model.data_preprocessor(batch_of([other])),
                    mode='predict',
                )
        results.append(losses_of(model, [second])['loss_cls'])
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_gradient_stops_at_the_window():
    model = build()
    losses_of(model, [clips_of(*video('a', 24, 1))[:2]])
    _, state = model._carry['loss']
    assert not any(t.requires_grad for t in state.tensors())
    assert any(t.any() for t in state.tensors())


def test_carry_is_no_part_of_the_checkpoint():
    model = build()
    losses_of(model, [clips_of(*video('a', 24, 1))[:2]])
    assert not [k for k in model.state_dict() if 'state' in k]


def test_loss_decreases():
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    clips = clips_of(*video('a', 12, 1))
    history = []
    for _ in range(60):
        losses = losses_of(model, [clips])
        total = sum(v for k, v in losses.items() if 'loss' in k)
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        history.append(total.item())
    assert all(map(math.isfinite, history))
    assert history[-1] < 0.6 * history[0]


def test_tensor_mode():
    model = build().eval()
    inputs = model.data_preprocessor(batch_of([clips_of(*video('a', 12, 1))]))[
        'inputs'
    ]
    with torch.no_grad():
        assert model(inputs).shape == (1, 2, CLIP_LEN, CLASSES)


def continuing(sample):
    """The same window, as if it did not start its video."""
    sample.set_metainfo(dict(new_video=[False, False]))
    return sample


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (lambda d: d.update(mode='losses'), "expected 'loss', 'predict'"),
        (
            lambda d: d.update(inputs=d['inputs'][:, :, :4]),
            'must agree',
        ),
        (lambda d: d.update(data_samples=None), 'one per lane'),
        (
            lambda d: d['data_samples'][0].set_metainfo(dict(num_lanes=2)),
            'one window of each lane',
        ),
        (
            lambda d: d.update(
                mode='predict',
                data_samples=[continuing(s) for s in d['data_samples']],
            ),
            'from the first clip of a video on',
        ),
        (
            lambda d: d['data_samples'][0].gt_phase.fill_(CLASSES),
            'model.head.num_classes',
        ),
    ],
)
def test_bad_batches(change, message):
    model = build()
    data = model.data_preprocessor(batch_of([clips_of(*video('a', 12, 1))]))
    call = {**data, 'mode': 'loss'}
    change(call)
    with pytest.raises(ValueError, match=message):
        model(**call)


def test_lanes_of_different_frame_sizes():
    model = build()
    lanes = [clips_of(*video('a', 12, 1)), clips_of(*video('b', 12, 2))]
    data = batch_of(lanes)
    data['inputs'][1] = data['inputs'][1][..., :8]
    with pytest.raises(ValueError, match='different shapes'):
        model.data_preprocessor(data)
