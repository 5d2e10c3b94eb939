"""The SSD scan traced: torch.compile, torch.export, and its custom op."""

import functools

import pytest
import torch

from mmssm.ops import ssd_chunk_scan, ssd_step
from mmssm.ops.ssd_chunk_scan.autograd import ssd_chunk_scan_op

CHUNK = 4
OPTIONS = {
    'everything': {},
    'nothing': {'D': None, 'gate': False, 'bias': False, 'carry': False},
    'channel': {'D': 'channel', 'groups': 1},
}


def scan(**inputs):
    return ssd_chunk_scan(
        **inputs, chunk_size=CHUNK, dt_softplus=True, return_final_states=True
    )


def sequences(length, batch=2):
    return torch.arange(length).div(3, rounding_mode='floor').expand(batch, -1)


@pytest.fixture(autouse=True)
def forget_compiled_code():
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ('options', 'packed'),
    [('everything', True), ('nothing', False), ('channel', False)],
)
def test_compiled_equals_eager(
    make_ssd, run_with_gradients, assert_same, options, packed
):
    fn = scan
    if packed:
        fn = functools.partial(scan, seq_idx=sequences(9))
    compiled = torch.compile(fn, fullgraph=True, backend='aot_eager')
    inputs = make_ssd(9, **OPTIONS[options])
    expected = run_with_gradients(fn, inputs)
    assert_same(run_with_gradients(compiled, inputs), expected, torch.float64)


@pytest.mark.parametrize('packed', [False, True])
def test_one_graph_serves_every_length(
    make_ssd, run_with_gradients, assert_same, packed
):
    compilations = []

    def count(graph, example_inputs):
        compilations.append(graph)
        return graph

    compiled = torch.compile(scan, fullgraph=True, backend=count, dynamic=True)
    for length in (9, 2, CHUNK, CHUNK + 1, 13):
        inputs = make_ssd(length)
        others = {'seq_idx': sequences(length)} if packed else {}
        expected = run_with_gradients(
            functools.partial(scan, **others), inputs
        )
        actual = run_with_gradients(
            functools.partial(compiled, **others), inputs
        )
        assert_same(actual, expected, torch.float64)
    assert len(compilations) == 1


@pytest.mark.parametrize(
    ('options', 'packed', 'strict'),
    [
        ('everything', True, False),
        ('everything', True, True),
        ('nothing', False, False),
        ('channel', False, True),
    ],
)
def test_exported_program_takes_any_length(make_ssd, options, packed, strict):
    class Scan(torch.nn.Module):
        def forward(self, inputs):
            return scan(**inputs)

    def example(length):
        inputs = make_ssd(length, dtype=torch.float32, **OPTIONS[options])
        if packed:
            inputs['seq_idx'] = sequences(length)
        return inputs

    length = torch.export.Dim('length', min=1, max=1000)
    along_time = ('x', 'dt', 'B', 'C', 'z', 'seq_idx')
    dynamic = {
        name: {1: length} if name in along_time else None
        for name in example(9)
    }
    program = torch.export.export(
        Scan(), (example(9),), dynamic_shapes=(dynamic,), strict=strict
    ).module()
    for other in (1, 2, CHUNK, CHUNK + 1, 30):
        inputs = example(other)
        for actual, expected in zip(
            program(inputs), scan(**inputs), strict=True
        ):
            torch.testing.assert_close(actual, expected)


def test_compiled_step(make_ssd, run_with_gradients, assert_same):
    inputs = make_ssd(1)
    frame = {
        name: tensor[:, 0] if name in ('x', 'dt', 'B', 'C', 'z') else tensor
        for name, tensor in inputs.items()
    }
    frame['state'] = frame.pop('initial_states')
    compiled = torch.compile(ssd_step, fullgraph=True, backend='aot_eager')
    expected = run_with_gradients(ssd_step, frame)
    assert_same(run_with_gradients(compiled, frame), expected, torch.float64)


def arguments(inputs, seq_idx, backend='torch'):
    names = ('x', 'dt', 'A', 'B', 'C', 'D', 'z', 'dt_bias')
    return (
        *(inputs.get(name) for name in names),
        seq_idx,
        inputs.get('initial_states'),
        CHUNK,
        True,
        backend,
    )


@pytest.mark.parametrize('options', OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize('length', [1, 9])
def test_custom_op_is_well_formed(make_ssd, length, options):
    inputs = make_ssd(length, dtype=torch.float32, **options)
    inputs = {
        name: tensor.mT.contiguous().mT.requires_grad_()
        if tensor.ndim > 2
        else tensor
        for name, tensor in inputs.items()
    }
    torch.library.opcheck(
        ssd_chunk_scan_op, arguments(inputs, sequences(length).int())
    )


@pytest.mark.parametrize('packed', [False, True])
@pytest.mark.parametrize('options', OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize('length', [1, 3, CHUNK, CHUNK + 1, 13])
def test_custom_op_equals_reference(
    make_ssd, run_with_gradients, assert_same, length, options, packed
):
    seq_idx = sequences(length) if packed else None

    def op(**leaves):
        return ssd_chunk_scan_op(*arguments(leaves, seq_idx))[:2]

    inputs = make_ssd(length, **options)
    expected = run_with_gradients(
        functools.partial(scan, seq_idx=seq_idx, backend='reference'), inputs
    )
    assert_same(run_with_gradients(op, inputs), expected, torch.float64)


@pytest.mark.parametrize('output', [0, 1])
def test_gradient_of_one_output_only(
    make_ssd, run_with_gradients, assert_same, output
):
    inputs = make_ssd(9)
    expected = run_with_gradients(
        lambda **leaves: scan(**leaves)[output], inputs
    )
    actual = run_with_gradients(
        lambda **leaves: ssd_chunk_scan_op(*arguments(leaves, None))[output],
        inputs,
    )
    assert_same(actual, expected, torch.float64)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16], ids=str)
def test_custom_op_in_low_precision(make_ssd, run_with_gradients, dtype):
    inputs = make_ssd(9, dtype=torch.float32)
    inputs = {
        name: tensor if name == 'A' else tensor.to(dtype)
        for name, tensor in inputs.items()
    }
    result = run_with_gradients(
        lambda **leaves: ssd_chunk_scan_op(*arguments(leaves, None))[:2],
        inputs,
    )
    expected = run_with_gradients(scan, inputs)
    assert result['out1'].dtype == torch.float32
    for name, value in result.items():
        assert value.dtype == expected[name].dtype, name
        torch.testing.assert_close(
            value, expected[name], rtol=2e-2, atol=2e-3, msg=name
        )


def test_custom_op_has_no_second_derivative(make_ssd):
    inputs = make_ssd(5)
    inputs['x'].requires_grad_()
    y, _, _ = ssd_chunk_scan_op(*arguments(inputs, None))
    (grad,) = torch.autograd.grad(
        y.square().sum(), inputs['x'], create_graph=True
    )
    with pytest.raises(RuntimeError, match='ssd_chunk_scan has no second'):
        grad.sum().backward()
