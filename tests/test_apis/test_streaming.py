"""Streaming sessions: the numbers of clip mode, and clear refusals."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from mmssm.apis import StreamingSession
from mmssm.apis.loading import without_pretrained
from tests.test_apis.tiny_recognizer import (
    CLASSES,
    CLIP_LEN,
    CONFIG,
    MODEL,
    PALETTE,
    SIZE,
    build_model,
    write_files,
)


@pytest.fixture(scope='module')
def model():
    return build_model()


@pytest.fixture
def session(model):
    return StreamingSession(model, classes=CLASSES)


def make_frames(count, height=SIZE, width=SIZE, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def run(session, frames):
    return np.stack([session.step(f).probabilities for f in frames])


@pytest.mark.parametrize('count', [1, CLIP_LEN - 1, CLIP_LEN, 13])
def test_equals_clip_mode(model, session, count):
    frames = make_frames(count)
    # A video as the dataset gives it: the last clip is padded.
    rows = np.minimum(
        np.arange(-(-count // CLIP_LEN) * CLIP_LEN), count - 1
    ).reshape(1, -1, CLIP_LEN)
    inputs = torch.from_numpy(frames[rows]).permute(0, 1, 2, 5, 3, 4)
    with torch.no_grad():
        logits = model(model.data_preprocessor.normalize(inputs))
    expected = logits.softmax(-1).flatten(0, 2)[:count].numpy()
    streamed = run(session, frames)
    np.testing.assert_allclose(streamed, expected, atol=1e-5)
    # The frames matter, or the comparison would be of constants.
    assert count == 1 or np.ptp(expected, axis=0).max() > 0.05


def test_result_fields(model):
    session = StreamingSession(model, classes=CLASSES, fps=5)
    session.step(make_frames(1)[0])
    result = session.step(make_frames(2)[1])
    assert (result.frame_idx, result.time_s) == (1, 0.2)
    assert result.phase == result.probabilities.argmax()
    assert result.phase_name == CLASSES[result.phase]
    assert result.probabilities.dtype == np.float32
    assert result.probabilities.sum() == pytest.approx(1, abs=1e-6)
    assert 0 < result.intensity < 1
    assert 0 < result.latency_ms < 60_000


def test_reset_starts_a_new_video(session):
    frames = make_frames(7)
    first = run(session, frames)
    continued = run(session, frames)
    session.reset()
    again = run(session, frames)
    assert (again == first).all()
    assert (continued != first).any()


def test_memory_is_constant(session):
    sizes = []
    for frame in make_frames(5 * CLIP_LEN):
        session.step(frame)
        sizes.append(session.state.nbytes())
    # Equal at the same place of every clip: nothing grows with the video.
    by_clip = np.reshape(sizes, (5, CLIP_LEN))
    assert (by_clip == by_clip[0]).all()
    assert not any(t.requires_grad for t in session.state.tensors())


def test_frame_layouts_are_equal(session):
    image = make_frames(1, 8, 24)[0]
    layouts = [
        image,
        image[:, ::-1][:, ::-1],
        torch.from_numpy(image),
        torch.from_numpy(image).permute(2, 0, 1),
        np.asfortranarray(image),
    ]
    results = []
    for layout in layouts:
        session.reset()
        results.append(session.step(layout).probabilities)
    for result in results[1:]:
        assert (result == results[0]).all()


def test_input_is_not_written_to(model):
    def blacken(clip):
        clip['frames'].zero_()
        return clip

    image = make_frames(1)[0]
    before = image.copy()
    session = StreamingSession(model, blacken)
    session.step(image)
    session.step(torch.from_numpy(image))
    assert (image == before).all()


@pytest.mark.parametrize(
    ('frame', 'error', 'message'),
    [
        ([[0]], TypeError, 'is a list; expected a uint8 RGB numpy array'),
        (np.zeros((4, 4), np.uint8), ValueError, 'grey image'),
        (np.zeros((4, 4, 4), np.uint8), ValueError, 'Drop the alpha'),
        (np.zeros((3, 4, 4), np.uint8), ValueError, r'transpose\(1, 2, 0\)'),
        (np.zeros((1, 4, 4, 3), np.uint8), ValueError, 'one frame at a time'),
        (np.zeros((0, 4, 3), np.uint8), ValueError, 'no pixels'),
        (np.full((4, 4, 3), 0.5), TypeError, r'0\.\.1: .*\(frame \* 255\)'),
        (
            torch.full((3, 4, 4), 200.0),
            TypeError,
            r'torch\.float32; expected uint8.*do not normalise',
        ),
        (np.zeros((4, 4, 3), np.int64), TypeError, 'int64; expected uint8'),
        (
            np.array([[[0, np.nan, np.inf]]], np.float32),
            ValueError,
            'has 1 NaN and 1 infinite values',
        ),
        (
            torch.full((3, 4, 4), torch.nan, dtype=torch.bfloat16),
            ValueError,
            'has 48 NaN and 0 infinite values',
        ),
    ],
)
def test_bad_frames(session, frame, error, message):
    with pytest.raises(error, match=message):
        session.step(frame)


def test_refused_frame_leaves_the_stream_as_it_was(session):
    frames = make_frames(4)
    expected = run(session, frames)
    session.reset()
    results = [session.step(f).probabilities for f in frames[:2]]
    with pytest.raises(TypeError):
        session.step(frames[2] / 255)
    with pytest.raises(ValueError, match='size'):
        session.step(frames[2][:16])
    results += [session.step(f).probabilities for f in frames[2:]]
    assert (np.stack(results) == expected).all()


def test_size_may_change_only_if_the_pipeline_resizes(model, session):
    small, large = make_frames(1)[0], make_frames(1, 32, 40)[0]
    session.step(small)
    with pytest.raises(
        ValueError, match=r'frame 1 has size 40x32 .* had 24x24 .*add a Resize'
    ):
        session.step(large)
    session.reset()
    assert session.step(large).frame_idx == 0

    pipeline = CONFIG['test_dataloader']['dataset']['pipeline']
    resizing = StreamingSession(model, pipeline)
    resizing.step(small)
    assert resizing.step(large).frame_idx == 1


class FakeModel(nn.Module):
    """A recognizer in the least words: the mean colour decides."""

    num_classes = 3

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))
        self.data_preprocessor = SimpleNamespace(
            normalize=lambda frames: frames.float() / 255
        )

    def init_stream(self, batch_size):
        return torch.zeros(batch_size)

    def step(self, frames, state):
        scores = (self.gain * frames.mean((2, 3))).softmax(-1)
        return SimpleNamespace(scores=scores, intensity=None, state=state + 1)


def test_any_model_with_the_interface():
    model = FakeModel().train()
    session = StreamingSession(model)
    red = np.zeros((4, 4, 3), np.uint8)
    red[..., 0] = 255
    result = session.step(red)
    assert (result.phase, result.phase_name) == (0, 'phase 0')
    assert result.intensity is None
    assert session.state.item() == 1
    assert not model.training


def test_broken_weights_are_named():
    model = FakeModel()
    model.gain.data.fill_(torch.nan)
    session = StreamingSession(model)
    with pytest.raises(RuntimeError, match='NaN or infinity at frame 0'):
        session.step(np.zeros((4, 4, 3), np.uint8))


def test_bad_arguments(model):
    with pytest.raises(ValueError, match='has 2 names; expected 3'):
        StreamingSession(model, classes=('a', 'b'))
    for fps in (0, float('inf'), float('nan')):
        with pytest.raises(ValueError, match=f'`fps` is {fps}; expected'):
            StreamingSession(model, fps=fps)


def test_training_mode_is_refused():
    model = FakeModel()
    session = StreamingSession(model)
    black = np.zeros((4, 4, 3), np.uint8)
    session.step(black)
    model.train()
    with pytest.raises(RuntimeError, match=r'training mode.*model\.eval\(\)'):
        session.step(black)
    model.eval()
    assert session.step(black).frame_idx == 1
    model.train()
    session.reset()
    assert session.step(black).frame_idx == 0
    assert not model.training


def test_from_config(tmp_path, model):
    config, checkpoint = write_files(tmp_path, model)
    session = StreamingSession.from_config(config, checkpoint)
    assert session.classes == CLASSES
    assert session.fps == 1
    assert [tuple(color) for color in session.palette] == PALETTE
    frames = make_frames(6, 48, 64)
    pipeline = CONFIG['test_dataloader']['dataset']['pipeline']
    expected = run(StreamingSession(model, pipeline), frames)
    assert (run(session, frames) == expected).all()


def test_from_config_takes_names_of_the_config(tmp_path, model):
    config, checkpoint = write_files(tmp_path, model, meta={})
    session = StreamingSession.from_config(str(config), str(checkpoint))
    assert session.classes == CLASSES


def test_no_pretrained_weights_are_fetched():
    pretrained = dict(type='Pretrained', checkpoint='https://a.b/c.pth')
    kaiming = dict(type='Kaiming', layer='Conv2d')
    config = dict(
        backbone=dict(pretrained=True, init_cfg=pretrained),
        necks=[dict(pretrained='c.pth', init_cfg=kaiming)],
    )
    assert without_pretrained(config) == dict(
        backbone=dict(pretrained=False, init_cfg=None),
        necks=[dict(pretrained=None, init_cfg=kaiming)],
    )
    assert config['backbone']['pretrained'] is True


def test_config_and_checkpoint_mismatch(tmp_path, model):
    head = dict(MODEL['head'], num_classes=4)
    temporal = dict(MODEL['temporal'], num_layers=1)
    config, checkpoint = write_files(
        tmp_path, model, model=dict(MODEL, head=head, temporal=temporal)
    )
    with pytest.raises(ValueError, match='does not fit the config') as info:
        StreamingSession.from_config(config, checkpoint)
    message = str(info.value)
    assert 'keys not in the model: temporal.' in message
    assert 'keys of another shape: head.' in message
    assert '(3, 16), expected (4, 16)' in message
    assert 'Use the config that the checkpoint was trained with' in message

    temporal = dict(MODEL['temporal'], num_layers=3)
    config, checkpoint = write_files(
        tmp_path, model, model=dict(MODEL, temporal=temporal)
    )
    with pytest.raises(ValueError, match='keys missing in the checkpoint'):
        StreamingSession.from_config(config, checkpoint)


def test_phase_names_mismatch(tmp_path, model):
    meta = dict(classes=('Cut', 'Enter', 'Leave'))
    config, checkpoint = write_files(tmp_path, model, meta=meta)
    with pytest.raises(ValueError, match='trained on the phases Cut, Enter'):
        StreamingSession.from_config(config, checkpoint)


def test_bad_files(tmp_path, model):
    config, checkpoint = write_files(tmp_path, model)
    with pytest.raises(FileNotFoundError, match='did you mean') as info:
        StreamingSession.from_config(tmp_path / 'tinny.py', checkpoint)
    assert 'tinny.py' in str(info.value) and str(config) in str(info.value)
    with pytest.raises(FileNotFoundError, match=r'no\.pth.* was not found'):
        StreamingSession.from_config(config, tmp_path / 'no.pth')
    text = tmp_path / 'text.mp4'
    for content in ('hello\n', 'a video', '', '{}'):
        text.write_text(content)
        with pytest.raises(ValueError, match=r'text\.mp4 cannot be read as'):
            StreamingSession.from_config(config, text)
    cut = tmp_path / 'cut.pth'
    cut.write_bytes(checkpoint.read_bytes()[:2000])
    with pytest.raises(ValueError, match='cannot be read as a checkpoint'):
        StreamingSession.from_config(config, cut)
    torch.save({'model': model.state_dict()}, cut)
    with pytest.raises(ValueError, match=r'holds no `state_dict`.* convert'):
        StreamingSession.from_config(config, cut)


def test_bare_state_dict_and_ddp_prefix(tmp_path, model):
    config, checkpoint = write_files(tmp_path, model)
    weights = {f'module.{k}': v for k, v in model.state_dict().items()}
    torch.save(weights, checkpoint)
    session = StreamingSession.from_config(config, checkpoint)
    frames = make_frames(2)
    expected = run(StreamingSession(model), frames)
    assert (run(session, frames) == expected).all()


@pytest.mark.parametrize('prefix', ['mmssm::', 'configs/', ''])
def test_packaged_config_from_any_directory(tmp_path, monkeypatch, prefix):
    monkeypatch.chdir(tmp_path)
    name = f'{prefix}surgical_mamba/surgical-mamba_tiny_sample.py'
    # The config is found: it is the checkpoint that is missing.
    with pytest.raises(FileNotFoundError, match=r'no\.pth'):
        StreamingSession.from_config(name, 'no.pth')


def test_config_without_parts(tmp_path, model):
    config, checkpoint = write_files(tmp_path, model, test_dataloader=None)
    with pytest.raises(ValueError, match='neither `test_dataloader` nor'):
        StreamingSession.from_config(config, checkpoint)
    config.write_text('x = 1\n')
    with pytest.raises(ValueError, match='has no `model`'):
        StreamingSession.from_config(config, checkpoint)


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
def test_missing_gpu(tmp_path, model):
    config, checkpoint = write_files(tmp_path, model)
    with pytest.raises(RuntimeError, match="use device='cpu'"):
        StreamingSession.from_config(config, checkpoint, 'cuda')
