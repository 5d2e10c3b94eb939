"""PhaseMetric: videos put together from windows of any lane and rank."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from mmengine.evaluator import Evaluator
from mmengine.logging import MMLogger

from mmssm.evaluation import PhaseMetric
from mmssm.evaluation.functional import (
    StrictOptions,
    read_predictions,
    score_videos,
    stack_predictions,
)
from mmssm.structures import PhaseDataSample

META = dict(classes=('Prepare', 'Cut', 'Pack'), fps=1)
CLIP_LEN = 4
NUM_CLASSES = len(META['classes'])


def make_videos(lengths, seed=0):
    rng = np.random.default_rng(seed)
    videos = {}
    for number, length in enumerate(lengths, start=8):
        gt = rng.integers(0, NUM_CLASSES, length)
        scores = rng.dirichlet(np.ones(NUM_CLASSES), length)
        videos[f'video{number}'] = (gt, scores.astype(np.float32))
    return videos


def make_clips(videos):
    """Cut videos into padded clips, as the dataset does."""
    clips = []
    for video_id, (gt, scores) in videos.items():
        for start in range(0, len(gt), CLIP_LEN):
            real = min(CLIP_LEN, len(gt) - start)
            rows = np.minimum(start + np.arange(CLIP_LEN), len(gt) - 1)
            labels = gt[rows].copy()
            labels[real:] = -1
            clips.append(
                dict(
                    video_id=video_id,
                    frame_idx=start,
                    num_frames=real,
                    new_video=start == 0,
                    end_of_video=start + CLIP_LEN >= len(gt),
                    gt_phase=torch.from_numpy(labels),
                    pred_scores=torch.from_numpy(scores[rows]),
                )
            )
    return clips


def empty_clip():
    return dict(
        video_id='',
        frame_idx=0,
        num_frames=0,
        new_video=False,
        end_of_video=False,
        gt_phase=torch.full((CLIP_LEN,), -1),
        pred_scores=torch.full((CLIP_LEN, NUM_CLASSES), math.nan),
    )


def make_window(clips):
    sample = PhaseDataSample()
    for name in (
        'video_id',
        'frame_idx',
        'num_frames',
        'new_video',
        'end_of_video',
    ):
        sample.set_field([c[name] for c in clips], name, field_type='metainfo')
    sample.gt_phase = torch.stack([c['gt_phase'] for c in clips])
    sample.pred_scores = torch.stack([c['pred_scores'] for c in clips])
    sample.pred_phase = sample.pred_scores.argmax(-1)
    sample.pred_intensity = sample.pred_scores[..., 0]
    return sample


def make_windows(clips, num_clips=3):
    clips = list(clips)
    clips += [empty_clip() for _ in range(-len(clips) % num_clips)]
    return [
        make_window(clips[i : i + num_clips])
        for i in range(0, len(clips), num_clips)
    ]


def make_evaluator(**kwargs):
    evaluator = Evaluator(dict(type='mmssm.PhaseMetric', **kwargs))
    evaluator.dataset_meta = META
    return evaluator


def expected_scores(videos, options=None):
    return score_videos(
        {v: (gt, scores.argmax(1)) for v, (gt, scores) in videos.items()},
        NUM_CLASSES,
        options,
    )


@pytest.mark.parametrize('order', ['phase_first', 'video_first', 'pooled'])
def test_equals_functional(order):
    videos = make_videos([4, 5, 11, 1])
    evaluator = make_evaluator(order=order, absent='gt_absent')
    evaluator.process(make_windows(make_clips(videos)))
    # The size is that of the dataset: fewer than there are clips.
    result = evaluator.evaluate(size=len(videos))
    expected = expected_scores(videos, StrictOptions('gt_absent', order))
    assert result == {
        'accuracy': expected.accuracy.mean,
        'accuracy_std': expected.accuracy.std,
        **{name: mean_std.mean for name, mean_std in expected.means.items()},
    }


def test_duplicates_and_order_do_not_matter():
    videos = make_videos([6, 9, 4])
    clips = make_clips(videos)
    rng = np.random.default_rng(1)
    shuffled = [clips[i] for i in rng.permutation(len(clips))] + clips[:4]
    results = []
    for sequence in (clips, shuffled):
        evaluator = make_evaluator()
        for window in make_windows(sequence, num_clips=2):
            evaluator.process([window])
        results.append(evaluator.evaluate(size=1))
    assert results[0] == results[1]
    assert results[0]['accuracy'] == expected_scores(videos).accuracy.mean


def test_metric_can_be_used_again():
    evaluator = make_evaluator(prefix='phase')
    for seed in (0, 1):
        videos = make_videos([6, 9], seed)
        evaluator.process(make_windows(make_clips(videos)))
        result = evaluator.evaluate(size=2)
        assert (
            result['phase/accuracy'] == expected_scores(videos).accuracy.mean
        )


@pytest.mark.parametrize(
    ('dropped', 'message'),
    [
        (0, "video 'video8' has predictions for 6 of 10 .* is frame 0"),
        (1, "video 'video8' has predictions for 6 of 10 .* is frame 4"),
        (2, "'video8' has predictions up to frame 7, but its end was not se"),
    ],
)
def test_missing_frames(dropped, message):
    clips = make_clips(make_videos([10]))
    del clips[dropped]
    evaluator = make_evaluator()
    evaluator.process(make_windows(clips))
    with pytest.raises(ValueError, match=message):
        evaluator.evaluate(size=1)


def test_two_videos_under_one_name():
    clips = make_clips(make_videos([10, 10]))
    for clip in clips:
        clip['video_id'] = 'same'
    evaluator = make_evaluator()
    evaluator.process(make_windows(clips))
    with pytest.raises(ValueError, match="'same' came twice with different"):
        evaluator.evaluate(size=1)


def test_diverged_model():
    clips = make_clips(make_videos([10]))
    clips[1]['pred_scores'] = clips[1]['pred_scores'].clone()
    clips[1]['pred_scores'][2] = math.nan
    evaluator = make_evaluator()
    evaluator.process(make_windows(clips))
    with pytest.raises(ValueError, match='NaN or infinity at frame 6'):
        evaluator.evaluate(size=1)


def test_sample_without_prediction():
    window = make_windows(make_clips(make_videos([4])))[0]
    del window.pred_phase
    with pytest.raises(ValueError, match='no `pred_phase`'):
        make_evaluator().process([window])


def test_unlabelled_videos(tmp_path):
    videos = make_videos([6, 9])
    videos['video9'][0][:] = -1
    evaluator = make_evaluator(prediction_dir=str(tmp_path))
    evaluator.process(make_windows(make_clips(videos)))
    result = evaluator.evaluate(size=2)
    labelled = {'video8': videos['video8']}
    assert result['accuracy'] == expected_scores(labelled).accuracy.mean
    assert len(read_predictions(tmp_path / 'video9.jsonl')) == 9

    only_unlabelled = {'video9': videos['video9']}
    evaluator.process(make_windows(make_clips(only_unlabelled)))
    assert evaluator.evaluate(size=1) == {}


def test_prediction_files(tmp_path):
    videos = make_videos([7, 5])
    evaluator = make_evaluator(prediction_dir=str(tmp_path / 'predictions'))
    evaluator.process(make_windows(make_clips(videos)))
    evaluator.evaluate(size=2)
    paths = sorted((tmp_path / 'predictions').iterdir())
    assert [p.name for p in paths] == ['video8.jsonl', 'video9.jsonl']
    for path, (gt, scores) in zip(paths, videos.values(), strict=True):
        frames = read_predictions(path)
        video = stack_predictions(frames)
        assert video.time_s.tolist() == list(range(len(gt)))
        assert video.gt_phase.tolist() == gt.tolist()
        assert (video.probabilities == scores).all()
        assert (video.intensity == scores[:, 0]).all()
        assert frames[0].phase_name == META['classes'][frames[0].phase]


def test_video_id_must_be_a_file_name(tmp_path):
    clips = make_clips(make_videos([4]))
    clips[0]['video_id'] = '../evil'
    evaluator = make_evaluator(prediction_dir=str(tmp_path))
    evaluator.process(make_windows(clips))
    with pytest.raises(ValueError, match='cannot be the name of a file'):
        evaluator.evaluate(size=1)


def test_table_states_the_protocol():
    metric = PhaseMetric(order='video_first')
    metric.dataset_meta = META
    scores = expected_scores(
        make_videos([6, 9]), StrictOptions(order='video_first')
    )
    table = metric.format_table(scores)
    head, *rows = table.split('\n')
    assert '2 videos at 1 fps' in head
    assert 'absent phases: undefined, averaging: video_first' in head
    assert [row.split()[0] for row in rows] == [
        'phase',
        *META['classes'],
        'mean',
        'accuracy',
    ]
    assert f'{scores.accuracy.mean:.2f}' in rows[-1]


def test_table_is_logged(monkeypatch):
    lines = []
    logger = MMLogger.get_current_instance()
    monkeypatch.setattr(logger, 'info', lines.append)
    evaluator = make_evaluator()
    evaluator.process(make_windows(make_clips(make_videos([6]))))
    evaluator.evaluate(size=1)
    assert any('Prepare' in line for line in lines)


def _evaluate_rank(rank, world_size, init_file, out_file, collect_dir):
    dist.init_process_group(
        'gloo',
        init_method=f'file://{init_file}',
        rank=rank,
        world_size=world_size,
    )
    clips = make_clips(make_videos([6, 9, 4, 13]))
    mine = list(itertools.islice(clips, rank, None, world_size))
    # What one rank has, the other has too in part.
    mine += clips[:3]
    evaluator = make_evaluator(collect_dir=collect_dir)
    evaluator.process(make_windows(mine))
    result = evaluator.evaluate(size=4)
    torch.save(result, f'{out_file}.{rank}')
    dist.destroy_process_group()


def test_two_processes_equal_one(tmp_path):
    videos = make_videos([6, 9, 4, 13])
    evaluator = make_evaluator()
    evaluator.process(make_windows(make_clips(videos)))
    single = evaluator.evaluate(size=4)
    mp.spawn(
        _evaluate_rank,
        args=(
            2,
            tmp_path / 'init',
            tmp_path / 'result',
            str(tmp_path / 'collect'),
        ),
        nprocs=2,
    )
    assert torch.load(tmp_path / 'result.0') == single
    assert torch.load(tmp_path / 'result.1') == single


def test_scores_are_logged_before_predictions_are_written(
    tmp_path, monkeypatch
):
    lines = []
    logger = MMLogger.get_current_instance()
    monkeypatch.setattr(logger, 'info', lines.append)
    (tmp_path / 'file').touch()
    evaluator = make_evaluator(prediction_dir=str(tmp_path / 'file'))
    evaluator.process(make_windows(make_clips(make_videos([6]))))
    with pytest.raises(OSError):
        evaluator.evaluate(size=1)
    assert any('Prepare' in line for line in lines)


def test_predictions_are_written_where_scoring_fails(tmp_path):
    videos = make_videos([6])
    videos['video8'][0][2] = NUM_CLASSES
    evaluator = make_evaluator(prediction_dir=str(tmp_path))
    evaluator.process(make_windows(make_clips(videos)))
    with pytest.raises(ValueError):
        evaluator.evaluate(size=1)
    assert len(read_predictions(tmp_path / 'video8.jsonl')) == 6


def test_files_of_other_runs_are_named(tmp_path, monkeypatch):
    lines = []
    logger = MMLogger.get_current_instance()
    monkeypatch.setattr(logger, 'warning', lines.append)
    evaluator = make_evaluator(prediction_dir=str(tmp_path))
    for others in ([], [f'old{number}.jsonl' for number in range(6)]):
        for name in others:
            (tmp_path / name).touch()
        evaluator.process(make_windows(make_clips(make_videos([6, 5]))))
        evaluator.evaluate(size=2)
        assert len(lines) == bool(others)
    assert 'holds 6 prediction files' in lines[0]
    assert 'old0.jsonl, old1.jsonl' in lines[0]
    assert 'old4.jsonl ...' in lines[0]
    assert 'video8' not in lines[0]


@pytest.mark.parametrize(
    ('num_classes', 'classes', 'message'),
    [
        (None, ('a', 'b'), 'scores 3 phases, but there are 2 by the dataset'),
        (4, META['classes'], 'scores 3 phases, but there are 4 by `num_cla'),
    ],
)
def test_model_of_another_number_of_phases(
    tmp_path, num_classes, classes, message
):
    folder = tmp_path / 'predictions'
    metric = PhaseMetric(num_classes, prediction_dir=str(folder))
    metric.dataset_meta = dict(classes=classes, fps=1)
    windows = make_windows(make_clips(make_videos([6])))
    with pytest.raises(ValueError, match=message) as info:
        metric.process(None, [window.to_dict() for window in windows])
    assert 'model.head.num_classes' in str(info.value)
    assert not folder.exists()
