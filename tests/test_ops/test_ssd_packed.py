"""Packed sequences of the SSD scan: `seq_idx` resets the state."""

import functools

import pytest
import torch

from mmssm.ops import ssd_chunk_scan

CHUNK = 4
BACKENDS = ('reference', 'torch')
ALONG_TIME = ('x', 'dt', 'B', 'C', 'z')
# Lengths of the packed sequences, and the numbers they are given.
PACKINGS = {
    'one': ((9,), (3,)),
    'two': ((3, 6), (0, 1)),
    'at_the_border': ((4, 5), (0, 1)),
    'before_and_after_the_border': ((3, 2, 8), (7, -2, 5)),
    'several_in_one_chunk': ((1, 1, 1, 1, 2, 1, 6), (0, 1, 2, 3, 4, 5, 6)),
    'whole_chunks': ((4, 4, 8), (2, 1, 0)),
    'over_many_chunks': ((2, 11), (1, 0)),
    'numbers_come_back': ((2, 3, 5), (1, 0, 1)),
    'single_frames': ((1, 1), (0, 9)),
    'one_frame': ((1,), (4,)),
    'shorter_than_a_chunk': ((1, 2), (-1, -5)),
}


def scan(backend=None, chunk_size=CHUNK):
    return functools.partial(
        ssd_chunk_scan,
        chunk_size=chunk_size,
        dt_softplus=True,
        return_final_states=True,
        backend=backend,
    )


def numbers(packing, batch=2, dtype=torch.int32):
    lengths, names = PACKINGS[packing]
    row = torch.tensor(names).repeat_interleave(torch.tensor(lengths))
    return row.to(dtype).expand(batch, -1)


def one_by_one(lengths, backend='reference'):
    """Scan each sequence by itself; the first one gets the state."""

    def run(initial_states=None, **leaves):
        outputs, start, state = [], 0, initial_states
        for length in lengths:
            part = dict(leaves)
            for name in ALONG_TIME:
                if name in part:
                    part[name] = leaves[name][:, start : start + length]
            y, last = scan(backend)(initial_states=state, **part)
            outputs.append(y)
            start, state = start + length, None
        return torch.cat(outputs, dim=1), last

    return run


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize('packing', PACKINGS)
def test_packed_equals_one_by_one(
    make_ssd, run_with_gradients, assert_same, packing, backend, dtype
):
    lengths = PACKINGS[packing][0]
    inputs = make_ssd(sum(lengths), dtype=dtype)
    expected = run_with_gradients(one_by_one(lengths), inputs)
    actual = run_with_gradients(
        functools.partial(scan(backend), seq_idx=numbers(packing)), inputs
    )
    assert_same(actual, expected, dtype)


@pytest.mark.parametrize('backend', BACKENDS)
def test_rows_of_the_batch_differ(make_ssd, backend):
    inputs = make_ssd(9)
    seq_idx = torch.tensor([[0] * 5 + [1] * 4, [2, 0, 0, 0, 1, 1, 7, 7, 7]])
    y, state = scan(backend)(**inputs, seq_idx=seq_idx)
    for row, lengths in enumerate(((5, 4), (1, 3, 2, 3))):
        alone = {
            name: tensor[row : row + 1]
            if name in (*ALONG_TIME, 'initial_states')
            else tensor
            for name, tensor in inputs.items()
        }
        expected, last = one_by_one(lengths)(**alone)
        torch.testing.assert_close(y[row : row + 1], expected)
        torch.testing.assert_close(state[row : row + 1], last)


@pytest.mark.parametrize(
    'options',
    [
        {'carry': False},
        {'D': None, 'gate': False, 'bias': False, 'carry': False},
        {'D': 'channel', 'groups': 1},
        {'groups': 4},
    ],
    ids=str,
)
@pytest.mark.parametrize('chunk_size', [1, 3, CHUNK, 64])
def test_options(
    make_ssd, run_with_gradients, assert_same, chunk_size, options
):
    inputs = make_ssd(13, **options)
    seq_idx = numbers('before_and_after_the_border')
    expected, actual = (
        run_with_gradients(
            functools.partial(scan(backend, chunk_size), seq_idx=seq_idx),
            inputs,
        )
        for backend in BACKENDS
    )
    assert_same(actual, expected, torch.float64)


@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize('chunk_size', [2, 8])
def test_gradcheck(make_ssd, backend, chunk_size):
    inputs = make_ssd(5, batch=1, heads=2, headdim=2, state=2)
    leaves = [tensor.requires_grad_() for tensor in inputs.values()]
    seq_idx = torch.tensor([[0, 0, 1, 2, 2]])

    def fn(*tensors):
        named = dict(zip(inputs, tensors, strict=True))
        return scan(backend, chunk_size)(**named, seq_idx=seq_idx)

    assert torch.autograd.gradcheck(fn, leaves)


@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize('frame', [3, 4, 5, 8])
def test_other_sequences_do_not_matter(make_ssd, backend, frame):
    inputs = make_ssd(13, dtype=torch.float32)
    seq_idx = torch.arange(13).ge(frame).int().expand(2, -1)
    before, state = scan(backend)(**inputs, seq_idx=seq_idx)
    for name in ALONG_TIME:
        inputs[name][:, :frame] += 1
    inputs['initial_states'] += 1
    after, same = scan(backend)(**inputs, seq_idx=seq_idx)
    assert torch.equal(before[:, frame:], after[:, frame:])
    assert torch.equal(state, same)
    assert not torch.equal(before[:, :frame], after[:, :frame])


@pytest.mark.parametrize('backend', BACKENDS)
def test_fast_decay_of_one_sequence_stays_there(make_ssd, backend):
    # exp(dt A) underflows in the first sequence, where 0 / 0 would be NaN.
    inputs = make_ssd(13, gate=False, dtype=torch.float32)
    inputs['A'] = torch.full((4,), -1.0)
    inputs['dt'][:, :5] = 1e4
    seq_idx = torch.arange(13).ge(5).int().expand(2, -1)
    y, _ = scan(backend)(**inputs, seq_idx=seq_idx)
    expected, _ = one_by_one((5, 8))(**inputs)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize(
    'dtype',
    [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64],
    ids=str,
)
def test_integer_dtypes(make_ssd, backend, dtype):
    inputs = make_ssd(9)
    expected, _ = scan('reference')(**inputs, seq_idx=numbers('two'))
    y, _ = scan(backend)(**inputs, seq_idx=numbers('two', dtype=dtype))
    torch.testing.assert_close(y, expected)


@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize('batch', [0, 2])
def test_length_zero(make_ssd, backend, batch):
    inputs = make_ssd(0, batch=batch)
    seq_idx = torch.zeros(batch, 0, dtype=torch.int32)
    y, state = scan(backend)(**inputs, seq_idx=seq_idx)
    assert y.shape == inputs['x'].shape
    assert torch.equal(state, inputs['initial_states'])


@pytest.mark.parametrize(
    ('seq_idx', 'error', 'message'),
    [
        (torch.zeros(2, 6), TypeError, 'torch.float32; expected an integer'),
        (torch.zeros(2, 6).bool(), TypeError, 'torch.bool; expected an int'),
        ([[0] * 6] * 2, TypeError, '`seq_idx` is a list; expected a Tensor'),
        (
            torch.zeros(6, dtype=torch.int32),
            ValueError,
            r'`seq_idx` has shape \(6,\); expected \(batch, length\)',
        ),
        (
            torch.zeros(2, 5, dtype=torch.int64),
            ValueError,
            r'`seq_idx` has shape \(2, 5\); expected .* \(2, 6\)',
        ),
    ],
)
def test_bad_seq_idx(make_ssd, seq_idx, error, message):
    with pytest.raises(error, match=message):
        ssd_chunk_scan(**make_ssd(6), chunk_size=4, seq_idx=seq_idx)
