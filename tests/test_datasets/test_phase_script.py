"""Scripts of the sample operations and what they allow a model to know."""

import numpy as np
import pytest

from mmssm.datasets.synthetic import (
    PhaseScript,
    draw_sample_set,
    draw_script,
    label_ceilings,
)
from mmssm.datasets.synthetic import writer as writer_module
from mmssm.datasets.synthetic.phase_script import DURATIONS, PHASE_LOOKS


@pytest.fixture(scope='module')
def scripts():
    rng = np.random.default_rng(0)
    return [draw_script(rng) for _ in range(300)]


def test_script_of_given_runs():
    script = PhaseScript([0, 1, 2], [2, 3, 1])
    assert len(script) == 6
    assert script.labels.tolist() == [0, 0, 1, 1, 1, 2]
    assert script.runs[1] == (1, 2, 5)
    with pytest.raises(ValueError, match='durations'):
        PhaseScript([0, 1], [2])
    with pytest.raises(ValueError, match='at least 1'):
        PhaseScript([0, 1], [2, 0])


def test_grammar(scripts):
    orders = [[run.phase for run in script.runs] for script in scripts]
    for script, order in zip(scripts, orders, strict=True):
        assert 180 <= len(script) <= 480
        assert all(a != b for a, b in zip(order, order[1:], strict=False))
        # preparation and Calot before clipping, the rest after it
        clipping = order.index(2)
        assert order.count(2) == 1
        assert set(order[:clipping]) <= {0, 1}
        assert set(order[clipping + 1 :]) <= {3, 4, 5, 6}
        for run in script.runs:
            low, high = DURATIONS[run.phase]
            assert low <= run.stop - run.start <= high

    def share(condition):
        return np.mean([condition(order) for order in orders])

    # missing phases and returns, as real operations have them
    assert 0.75 < share(lambda o: 0 in o) < 0.95
    assert 0.75 < share(lambda o: 6 in o) < 0.95
    assert 0.1 < share(lambda o: o.count(1) == 2) < 0.25
    assert 0.2 < share(lambda o: o.count(3) == 2) < 0.45
    assert 6.5 < np.mean([len(order) for order in orders]) < 8


def test_the_phase_follows_from_the_tools_seen(scripts):
    # before or after the clipper is all that must be remembered
    for script in scripts:
        clipped = False
        for label in script.labels.tolist():
            clipped |= label == 2
            candidates = [
                phase
                for phase in range(7)
                if PHASE_LOOKS[phase] == PHASE_LOOKS[label]
                and (phase >= 2) == clipped
            ]
            assert candidates == [label]


def test_ceilings_grow_with_memory(scripts):
    ceilings = label_ceilings(scripts[:100])
    assert 0.6 < ceilings['frame'] < 0.7
    assert 0.77 < ceilings['clip'] < 0.86
    assert ceilings['video'] > 0.995
    shorter = label_ceilings(scripts[:100], clip_len=32)
    longer = label_ceilings(scripts[:100], clip_len=128)
    assert shorter['clip'] < ceilings['clip'] < longer['clip']
    assert shorter['frame'] == ceilings['frame']


def test_ceiling_by_hand():
    # hook is dissection more often than Calot; grasper preparation or
    # retraction: with one frame the rarer of the two is lost
    script = PhaseScript([1, 2, 3], [10, 10, 20])
    assert label_ceilings([script])['frame'] == pytest.approx(30 / 40)
    assert label_ceilings([script])['video'] == 1
    # clips of 20: the third begins inside dissection and sees a hook only
    assert label_ceilings([script], clip_len=20)['clip'] == pytest.approx(0.75)


@pytest.mark.parametrize('seed', range(3))
def test_drawn_test_sets_prove_their_difficulty(seed):
    samples = draw_sample_set(seed)
    assert samples.ceilings['frame'] <= 0.72
    assert samples.ceilings['clip'] <= 0.86
    assert samples.ceilings['video'] >= 0.99
    assert list(samples.train) == list(range(1, 25))
    assert list(samples.test) == list(range(25, 33))


def test_an_easy_test_set_is_drawn_again(monkeypatch):
    logged = []
    monkeypatch.setattr(
        writer_module, 'print_log', lambda text, **_: logged.append(text)
    )
    first = draw_sample_set(0, 1, 2)
    bounds = dict(first.ceilings, frame=first.ceilings['frame'] - 0.02)
    monkeypatch.setattr(writer_module, 'CEILING_BOUNDS', bounds)
    again = draw_sample_set(0, 1, 2)
    assert again.num_draws > first.num_draws
    assert again.ceilings['frame'] <= bounds['frame']
    assert any('not hard enough' in text for text in logged)
    # only the test set was drawn anew
    assert np.array_equal(again.train[1][0].labels, first.train[1][0].labels)
    monkeypatch.setattr(writer_module, 'CEILING_BOUNDS', dict(bounds, clip=0))
    monkeypatch.setattr(writer_module, '_MAX_DRAWS', 2)
    with pytest.raises(RuntimeError, match='more test videos'):
        draw_sample_set(0, 1, 2)


def test_videos_do_not_depend_on_their_number():
    few, many = draw_sample_set(3, 2, 8), draw_sample_set(3, 5, 8)
    for number in (1, 2):
        a, b = few.train[number], many.train[number]
        assert np.array_equal(a[0].labels, b[0].labels)
        assert a[1].generate_state(4).tolist() == (
            b[1].generate_state(4).tolist()
        )
    other = draw_sample_set(4, 2, 8)
    assert not np.array_equal(few.train[1][0].labels, other.train[1][0].labels)
