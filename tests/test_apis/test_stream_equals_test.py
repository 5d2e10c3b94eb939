"""A stream and a test run of the same frames give the same predictions."""

import cv2
import numpy as np
import pytest
from mmengine.config import Config
from mmengine.runner import Runner

from mmssm.apis import StreamingSession
from mmssm.evaluation.functional import (
    read_predictions,
    score_videos,
    stack_predictions,
)
from tests.test_apis.tiny_recognizer import (
    CLASSES,
    CLIP_LEN,
    CONFIG,
    build_model,
    write_files,
)

LENGTHS = {1: 7, 2: 13, 3: CLIP_LEN}


def write_dataset(root):
    rng = np.random.default_rng(0)
    (root / 'phase_annotations').mkdir(parents=True)
    for number, length in LENGTHS.items():
        folder = root / 'frames' / f'video{number:02d}'
        folder.mkdir(parents=True)
        for frame in range(length):
            image = rng.integers(0, 256, (40, 56, 3), dtype=np.uint8)
            image = cv2.GaussianBlur(image, (0, 0), 8)
            cv2.imwrite(str(folder / f'{frame:05d}.png'), image)
        phases = rng.integers(0, len(CLASSES), length).repeat(25)
        rows = [f'{i}\t{CLASSES[p]}\n' for i, p in enumerate(phases)]
        path = root / 'phase_annotations' / f'video{number:02d}-phase.txt'
        path.write_text('Frame\tPhase\n' + ''.join(rows))


@pytest.mark.parametrize(
    ('lanes', 'clips_per_window'), [(1, 1), (2, 3)], ids=['plain', 'lanes']
)
def test_stream_equals_test(tmp_path, lanes, clips_per_window):
    write_dataset(tmp_path / 'data')
    dataset = dict(
        CONFIG['test_dataloader']['dataset'],
        data_root=str(tmp_path / 'data'),
        split=list(LENGTHS),
        clip_len=CLIP_LEN,
        test_mode=True,
    )
    test_dataloader = dict(
        dataset=dataset,
        sampler=dict(type='VideoOrderSampler', shuffle=False),
        batch_sampler=dict(
            type='LaneBatchSampler', clips_per_window=clips_per_window
        ),
        batch_size=lanes,
        num_workers=0,
    )
    config, checkpoint = write_files(
        tmp_path, build_model(), test_dataloader=test_dataloader
    )
    cfg = Config.fromfile(config)
    cfg.work_dir = str(tmp_path / 'work')
    cfg.load_from = str(checkpoint)
    cfg.experiment_name = f'stream_equals_test_{lanes}'
    cfg.test_cfg = dict()
    cfg.test_evaluator = dict(
        type='PhaseMetric', prediction_dir=str(tmp_path / 'predictions')
    )
    metrics = Runner.from_cfg(cfg).test()

    session = StreamingSession.from_config(config, checkpoint)
    scored = {}
    for number, length in LENGTHS.items():
        name = f'video{number:02d}'
        tested = stack_predictions(
            read_predictions(tmp_path / 'predictions' / f'{name}.jsonl')
        )
        session.reset()
        results = []
        for path in sorted((tmp_path / 'data/frames' / name).iterdir()):
            image = cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB)
            results.append(session.step(image))
        assert len(results) == length
        np.testing.assert_allclose(
            [r.probabilities for r in results],
            tested.probabilities,
            atol=1e-5,
        )
        np.testing.assert_allclose(
            [r.intensity for r in results], tested.intensity, atol=1e-5
        )
        assert [r.phase for r in results] == tested.phase.tolist()
        scored[name] = (tested.gt_phase, [r.phase for r in results])
    expected = score_videos(scored, len(CLASSES))
    assert metrics['accuracy'] == expected.accuracy.mean
    assert metrics['jaccard'] == expected.means['jaccard'].mean
