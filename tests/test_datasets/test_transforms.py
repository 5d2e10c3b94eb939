"""Transforms: right pixels, and draws that depend on the seed alone."""

import cv2
import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as F

from mmssm.datasets.transforms import (
    ClipColorJitter,
    ClipPipeline,
    LoadFrames,
    RGBShift,
    TorchVisionTransform,
    VideoFlip,
)

RANDOM = [
    VideoFlip(),
    VideoFlip(direction='vertical'),
    ClipColorJitter(0.4, 0.4, 0.4, prob=0.7),
    RGBShift(20),
    TorchVisionTransform(dict(type='RandomCrop', size=12), scope='frame'),
    TorchVisionTransform(dict(type='RandomCrop', size=12), scope='clip'),
    TorchVisionTransform(dict(type='RandomCrop', size=12), scope='video'),
]

PUBLISHED = [
    dict(
        type='TorchVisionTransform',
        transform=dict(type='Resize', size=26, antialias=True),
    ),
    dict(
        type='TorchVisionTransform',
        transform=dict(
            type='RandomApply',
            transforms=[
                dict(
                    type='RandomAffine',
                    degrees=15,
                    translate=(0.05, 0.05),
                    scale=(0.95, 1.05),
                    interpolation='bilinear',
                )
            ],
            p=0.5,
        ),
        scope='frame',
    ),
    dict(
        type='TorchVisionTransform',
        transform=dict(type='RandomCrop', size=22),
        scope='frame',
    ),
    dict(type='RGBShift', limit=15, prob=0.5),
    dict(type='ClipColorJitter', brightness=0.2, contrast=0.2, prob=0.5),
]


@pytest.fixture
def frames():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(
        0, 256, (6, 3, 16, 20), dtype=torch.uint8, generator=generator
    )


def run(transform, frames, seed=1, frame_idx=0, stage=0):
    results = dict(
        frames=frames.clone(), seed=seed, frame_idx=frame_idx, stage=stage
    )
    return transform(results)['frames']


@pytest.mark.parametrize('transform', RANDOM, ids=repr)
def test_draws_depend_on_the_seed_alone(transform, frames):
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first = run(transform, frames)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(4)
    assert torch.equal(run(transform, frames), first)
    others = [run(transform, frames, seed) for seed in range(2, 22)]
    assert any(not torch.equal(other, first) for other in others)
    stages = [run(transform, frames, stage=stage) for stage in range(20)]
    assert any(not torch.equal(other, first) for other in stages)
    assert first.dtype == torch.uint8


@pytest.mark.parametrize(
    ('scope', 'equal_frames', 'equal_clips'),
    [('frame', False, False), ('clip', True, False), ('video', True, True)],
)
@pytest.mark.parametrize(
    'make',
    [
        lambda scope: ClipColorJitter(0.5, 0.5, 0.5, scope=scope),
        lambda scope: RGBShift(40, prob=1, scope=scope),
        lambda scope: TorchVisionTransform(
            dict(type='RandomCrop', size=8), scope
        ),
        lambda scope: TorchVisionTransform(
            dict(type='ColorJitter', brightness=0.5), scope
        ),
    ],
    ids=['jitter', 'shift', 'crop', 'torchvision-jitter'],
)
def test_scopes(make, scope, equal_frames, equal_clips, frames):
    transform = make(scope)
    same = frames[:1].expand(6, -1, -1, -1)
    first = run(transform, same, frame_idx=0)
    second = run(transform, same, frame_idx=6)
    assert torch.equal(first, first[:1].expand_as(first)) == equal_frames
    assert torch.equal(first, second) == equal_clips


def test_flip_is_a_flip_of_the_whole_video(frames):
    seen = set()
    for seed in range(30):
        for clip in range(3):
            out = run(VideoFlip(), frames, seed, frame_idx=6 * clip)
            flipped = torch.equal(out, frames.flip(3))
            assert flipped or torch.equal(out, frames)
            seen.add((seed, flipped))
    # one answer per video, and both occur
    assert len(seen) == 30
    assert {flipped for _, flipped in seen} == {True, False}
    down = run(VideoFlip(1.0, 'vertical'), frames)
    assert torch.equal(down, frames.flip(2))
    assert torch.equal(run(VideoFlip(0.0), frames), frames)


@pytest.mark.parametrize(
    ('name', 'reference'),
    [
        ('brightness', F.adjust_brightness),
        ('contrast', F.adjust_contrast),
        ('saturation', F.adjust_saturation),
    ],
)
def test_jitter_matches_torchvision(frames, name, reference, monkeypatch):
    factor = 1.3
    monkeypatch.setattr(
        'mmssm.datasets.transforms.augmentation._FrameDraws.draw',
        lambda *_: (np.full((6, 3), 1.0), np.ones((6, 1), dtype=bool)),
    )
    transform = ClipColorJitter(**{name: factor - 1})
    out = run(transform, frames).int()
    expected = reference(frames, factor).int()
    assert (out - expected).abs().max() <= 1


def test_jitter_limits(frames):
    assert torch.equal(run(ClipColorJitter(), frames), frames)
    jitter = ClipColorJitter(brightness=0.5, prob=0.0)
    assert torch.equal(run(jitter, frames), frames)
    grey = torch.full_like(frames, 100)
    means = torch.cat(
        [
            run(ClipColorJitter(brightness=0.5), grey, s)
            .float()
            .mean((1, 2, 3))
            for s in range(50)
        ]
    )
    assert 49 <= means.min() < 60
    assert 140 < means.max() <= 150


def test_rgb_shift(frames):
    grey = torch.full_like(frames, 100)
    out = run(RGBShift(15, prob=1.0), grey).int()
    assert (out - 100).abs().max() <= 15
    # constant over the picture, differing between channels
    assert torch.equal(out, out[..., :1, :1].expand_as(out))
    assert not torch.equal(out[:, 0], out[:, 1])
    shared = run(RGBShift(15, prob=1.0, shared=True), grey)
    assert torch.equal(shared[:, 0], shared[:, 2])
    clipped = run(RGBShift(255, prob=1.0), torch.zeros_like(frames))
    assert clipped.min() == 0
    unchanged = [
        torch.equal(frame, grey[0])
        for seed in range(40)
        for frame in run(RGBShift(60), grey, seed)
    ]
    assert 0.35 < np.mean(unchanged) < 0.65


def test_published_augmentation(frames):
    pipeline = ClipPipeline(
        [dict(t, type=f'mmssm.{t["type"]}') for t in PUBLISHED]
    )
    out = run(pipeline, frames)
    assert out.shape == (6, 3, 22, 22)
    assert out.dtype == torch.uint8
    assert torch.equal(run(pipeline, frames), out)
    assert not torch.equal(run(pipeline, frames, seed=2), out)


def test_deterministic_transform_sees_all_frames(frames):
    resize = TorchVisionTransform(dict(type='CenterCrop', size=(8, 10)))
    out = run(resize, frames)
    assert torch.equal(out, frames[..., 4:12, 5:15])


def test_streaming_pipeline_has_no_loading(frames, tmp_path):
    path = tmp_path / 'frame.png'
    cv2.imwrite(str(path), frames[0].permute(1, 2, 0).numpy()[..., ::-1])
    crop = dict(
        type='mmssm.TorchVisionTransform',
        transform=dict(type='CenterCrop', size=8),
    )
    pipeline = ClipPipeline([dict(type='mmssm.LoadFrames'), crop])
    loaded = pipeline(dict(frame_paths=[str(path)]))['frames']
    streamed = pipeline.without_loading()(dict(frames=frames[:1]))['frames']
    assert torch.equal(loaded, streamed)
    assert len(pipeline.transforms) == 2


def test_load_frames_is_rgb(tmp_path):
    paths = []
    for i in range(3):
        image = np.zeros((4, 6, 3), np.uint8)
        image[..., i] = 200  # blue, green, red for OpenCV
        paths.append(str(tmp_path / f'{i}.png'))
        cv2.imwrite(paths[-1], image)
    frames = LoadFrames()(dict(frame_paths=paths))['frames']
    assert frames.shape == (3, 3, 4, 6)
    assert frames.is_contiguous()
    assert frames.float().mean((2, 3)).argmax(1).tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ('make', 'match'),
    [
        (lambda: TorchVisionTransform(dict(type='Resiez')), 'Resiez'),
        (lambda: TorchVisionTransform(dict(size=3)), 'config'),
        (lambda: TorchVisionTransform(dict(type='Resize')), 'v2.Resize'),
        (
            lambda: TorchVisionTransform(dict(type='RandomCrop', size=3)),
            'scope',
        ),
        (
            lambda: TorchVisionTransform(dict(type='ColorJitter')),
            'random',
        ),
        (
            lambda: TorchVisionTransform(
                dict(type='Compose', transforms=[dict(type='RandomInvert')])
            ),
            'random',
        ),
        (lambda: RGBShift(scope='image'), "'frame', 'clip', 'video'"),
        (lambda: RGBShift(limit=300), 'limit'),
        (lambda: ClipColorJitter(brightness=1.5), 'brightness'),
        (lambda: VideoFlip(prob=2), 'prob'),
        (lambda: VideoFlip(direction='up'), 'direction'),
    ],
)
def test_argument_errors(make, match):
    with pytest.raises((ValueError, TypeError), match=match):
        make()


@pytest.mark.parametrize('transform', RANDOM[:5], ids=repr)
def test_wrong_frames_are_refused(transform, frames):
    for wrong in (frames.float(), frames[0], frames[:, :1], None):
        with pytest.raises(TypeError, match='uint8 tensor'):
            transform(dict(frames=wrong, seed=0, frame_idx=0))


def test_frames_of_different_sizes_are_refused(frames):
    transform = TorchVisionTransform(
        dict(type='RandomResize', min_size=8, max_size=16), scope='frame'
    )
    with pytest.raises(ValueError, match='one size'):
        run(transform, frames)
