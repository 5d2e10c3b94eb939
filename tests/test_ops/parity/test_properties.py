"""What holds for every operator on every backend."""

import dataclasses
import functools
import itertools

import pytest
import torch

from mmssm import ops
from mmssm.ops.dispatch import load_backend
from tests.test_ops.parity.calls import Calls, calls_of
from tests.test_ops.parity.cases import BACKENDS, find
from tests.test_ops.parity.run import (
    compare,
    expected,
    leaves_of,
    results,
    run,
)
from tests.test_ops.parity.streams import STREAMS, in_parts, in_steps

REVERSIBLE = tuple(name for name, s in STREAMS.items() if s.reversible)
# Their adjoints are operators of their own on every backend.
HAND_WRITTEN = ('selective_scan', 'pole_scan', 'modal_scan', 'causal_conv1d')


def basic(op):
    return find(op, 'gate_first' if op == 'rms_norm_gated' else 'all')


def resized(case, **sizes):
    make = functools.partial(case.make, **sizes)
    return dataclasses.replace(case, make=make)


def finest(backend):
    return torch.float32 if backend == 'triton' else torch.float64


def both_directions(op):
    names = ['all', 'all_reverse'] if op in REVERSIBLE else ['all']
    return [find(op, name) for name in names]


@pytest.mark.each_backend(*STREAMS)
def test_two_parts_equal_whole(op, backend, device):
    dtype = finest(backend)
    # Interpreted kernels are slow.
    cuts = (3,) if backend == 'triton' else (1, 3, 6)
    for case, cut in itertools.product(both_directions(op), cuts):
        leaves = leaves_of(case.tensors(dtype, device))
        actual = results(
            in_parts(case, leaves, backend, (cut, 7 - cut)), leaves
        )
        compare(actual, expected(op, case.name, dtype, device), backend, dtype)


@pytest.mark.each_backend(*REVERSIBLE, interpreted=False)
def test_parts_of_many_tokens_equal_whole(op, backend, device):
    # An empty part in between, and parts longer than a chunk of states.
    dtype = finest(backend)
    sizes = (70, 0, 2, 65)
    for case in both_directions(op):
        case = resized(case, length=sum(sizes), batch=1)
        whole = run(case, dtype, backend, device)
        leaves = leaves_of(case.tensors(dtype, device))
        actual = results(in_parts(case, leaves, backend, sizes), leaves)
        compare(actual, whole, backend, dtype)


@pytest.mark.each_backend(*STREAMS)
def test_steps_equal_whole(op, backend, device):
    dtype = finest(backend)
    leaves = leaves_of(basic(op).tensors(dtype, device))
    actual = results(in_steps(basic(op), leaves, backend), leaves)
    compare(actual, expected(op, 'all', dtype, device), backend, dtype)


@pytest.mark.each_backend(*STREAMS)
@pytest.mark.parametrize('changed', [0, 3, 6])
def test_later_tokens_do_not_matter(op, backend, changed, device):
    stream = STREAMS[op]
    for case in both_directions(op):
        tensors = case.tensors(torch.float32, device)
        before = case.call(tensors, backend)[0].movedim(stream.axis, 0)
        for name in stream.data:
            tensors[name].select(stream.axis, changed).add_(1)
        after = case.call(tensors, backend)[0].movedim(stream.axis, 0)
        reverse = case.options.get('reverse', False)
        earlier = slice(changed + 1, None) if reverse else slice(changed)
        assert torch.equal(before[earlier], after[earlier])
        assert not torch.equal(before[changed], after[changed])


@pytest.mark.each_backend(*HAND_WRITTEN)
@pytest.mark.parametrize('bad', [torch.nan, torch.inf])
def test_nan_of_a_later_token_does_not_matter(op, backend, bad, device):
    stream = STREAMS[op]
    for case in both_directions(op):
        tensors = case.tensors(torch.float32, device)
        before = case.call(tensors, backend)[0].movedim(stream.axis, 0)
        tensors[stream.data[0]].select(stream.axis, 3).fill_(bad)
        after = case.call(tensors, backend)[0].movedim(stream.axis, 0)
        earlier = slice(4, None) if case.options['reverse'] else slice(3)
        assert torch.equal(before[earlier], after[earlier])
        assert not after[3].isfinite().any()


@pytest.mark.each_backend(*HAND_WRITTEN, interpreted=False)
@pytest.mark.parametrize('layout', ['rows', 'columns'])
def test_two_threads_give_the_same_every_time(op, backend, layout, device):
    names = {
        'selective_scan': ('channels_67', 'channels_last_reverse'),
        'pole_scan': ('groups_of_67', 'channels_first_reverse'),
        'modal_scan': ('groups_of_17', 'channels_first_reverse'),
        'causal_conv1d': ('channels_67', 'channels_last_long'),
    }
    case = find(op, names[op][layout == 'columns'])
    case = resized(case, length=67, batch=3)
    # Two threads of torch are slow on a busy machine, and not ours.
    threads = torch.get_num_threads()
    torch.set_num_threads(2 if backend == 'native' else 1)
    try:
        first, second = (
            run(case, torch.float32, backend, device) for _ in range(2)
        )
    finally:
        torch.set_num_threads(threads)
    for key, value in first.items():
        assert torch.equal(value, second[key]), key


@pytest.mark.each_backend(interpreted=False)
def test_repeated_runs_are_bit_identical(op, backend, device):
    case = basic(op)
    first, second = (
        run(case, torch.float32, backend, device) for _ in range(2)
    )
    for key, value in first.items():
        assert torch.equal(value, second[key]), key


@pytest.mark.each_backend(interpreted=False)
def test_gradient_of_one_input_only(op, backend, device):
    case = basic(op)
    every = run(case, torch.float32, backend, device)
    for name in case.tensors(torch.float32):
        one = run(case, torch.float32, backend, device, wanted=(name,))
        key = f'grad_{name}'
        assert {k for k in one if k.startswith('grad_')} == {key}
        assert torch.equal(one[key], every[key]), name


@pytest.mark.each_backend(interpreted=False)
def test_no_gradient_is_wanted(op, backend, device):
    case = basic(op)
    tensors = case.tensors(torch.float32, device)
    outputs = case.call(tensors, backend)
    every = run(case, torch.float32, backend, device)
    for i, out in enumerate(outputs):
        assert not out.requires_grad
        assert torch.equal(out, every[f'out{i}'])


@pytest.mark.each_backend()
def test_gradient_of_one_output_only(op, backend, device):
    case = basic(op)
    tensors = case.tensors(torch.float32, device)
    reference = {name: tensor.double() for name, tensor in tensors.items()}
    outputs = len(case.call(tensors, backend))
    for i in range(outputs):
        gradients = {}
        for name, inputs in ((backend, tensors), ('reference', reference)):
            leaves = leaves_of(inputs)
            out = case.call(leaves, name)[i]
            gradients[name] = results((out,), leaves)
        compare(
            gradients[backend],
            gradients['reference'],
            backend,
            torch.float32,
        )


@pytest.mark.each_backend()
@pytest.mark.parametrize('layout', ['swapped', 'constant', 'sliced'])
def test_upstream_gradient_in_any_layout(op, backend, layout, device):
    case = basic(op)
    make = {
        'swapped': lambda grad: grad.mT.contiguous().mT,
        'constant': lambda grad: grad.new_full((), 0.5).expand_as(grad),
        'sliced': lambda grad: grad.repeat_interleave(2, -1)[..., ::2],
    }[layout]
    gradients = []
    for change in (make, lambda grad: make(grad).contiguous()):
        leaves = leaves_of(case.tensors(torch.float32, device))
        outputs = case.call(leaves, backend)
        gradients.append(
            torch.autograd.grad(
                outputs,
                list(leaves.values()),
                [change(torch.cos(out.detach())) for out in outputs],
            )
        )
    for name, strided, dense in zip(leaves, *gradients, strict=True):
        compare(
            {f'grad_{name}': strided},
            {f'grad_{name}': dense},
            backend,
            torch.float32,
        )


@pytest.mark.each_backend()
def test_nothing_in_nothing_out(op, backend, device):
    case = basic(op)
    if op == 'rms_norm_gated':
        sizes = [{'shape': (0, 12)}, {'shape': (2, 0, 12)}]
    else:
        sizes = [{'batch': 0}]
    if op in STREAMS or op == 'pole_denominator':
        sizes += [{'length': 0}, {'length': 0, 'batch': 0}]
    for each in (resized(case, **size) for size in sizes):
        dtype = finest(backend)
        reference = run(each, dtype, 'reference', device)
        actual = run(each, dtype, backend, device)
        for key, value in actual.items():
            assert value.dtype == reference[key].dtype
        compare(actual, reference, backend, dtype)


@pytest.mark.each_backend(*STREAMS)
def test_empty_sequence_returns_a_copy_of_the_state(op, backend, device):
    case = resized(basic(op), length=0)
    tensors = case.tensors(torch.float32, device)
    state = tensors[STREAMS[op].state]
    _, last = case.call(tensors, backend)
    assert torch.equal(last, state)
    assert last.data_ptr() != state.data_ptr()


@pytest.mark.each_backend(interpreted=False)
def test_autocast_changes_nothing(op, backend, device):
    case = basic(op)
    plain = run(case, torch.float32, backend, device)
    leaves = leaves_of(case.tensors(torch.float32, device))
    with torch.autocast(device, dtype=torch.bfloat16):
        outputs = case.call(leaves, backend)
    cast = results(outputs, leaves)
    for key, value in plain.items():
        assert value.dtype == cast[key].dtype
        assert torch.equal(value, cast[key]), key


@pytest.mark.each_backend(*HAND_WRITTEN, interpreted=False)
def test_adjoint_under_autocast(op, backend, device):
    case = basic(op)
    plain = run(case, torch.float32, backend, device)
    with torch.autocast(device, dtype=torch.bfloat16):
        cast = run(case, torch.float32, backend, device)
    for key, value in plain.items():
        assert torch.equal(value, cast[key]), key


@pytest.mark.each_backend(*HAND_WRITTEN, interpreted=False)
def test_no_second_derivative(op, backend, device):
    case = basic(op)
    leaves = leaves_of(case.tensors(torch.float32, device))
    outputs = case.call(leaves, backend)
    first = next(iter(leaves.values()))
    (gradient,) = torch.autograd.grad(
        outputs[0].square().sum(), first, create_graph=True
    )
    with pytest.raises(RuntimeError, match=f'{op} has no second derivative'):
        torch.autograd.grad(gradient.sum(), first)


@pytest.mark.each_backend(*HAND_WRITTEN)
@pytest.mark.parametrize('reverse', [False, True])
def test_channels_last_stays_channels_last(op, backend, reverse, device):
    # Channels are last in the shapes of the filters.
    filters = ('pole_scan', 'modal_scan')
    case = find(op, f'channels_{"first" if op in filters else "last"}')
    case = dataclasses.replace(
        case, options={**case.options, 'reverse': reverse}
    )
    leaves = leaves_of(case.tensors(torch.float32, device))
    data = [leaves[n] for n in STREAMS[op].data if leaves[n].ndim == 3]
    y = case.call(leaves, backend)[0]
    gradients = torch.autograd.grad(y.sum(), data)
    for tensor in (y, *gradients):
        assert tensor.stride() == data[0].stride()
        assert not tensor.is_contiguous()


# What makes a new tensor of the values of another one.
COPIES = ('clone', 'copy_', '_to_copy', 'contiguous', 'cat', 'flip')


@pytest.mark.each_backend(
    'selective_scan', 'pole_scan', 'causal_conv1d', backends=('native',)
)
@pytest.mark.parametrize('reverse', [False, True])
@pytest.mark.parametrize('swapped', [False, True])
def test_native_copies_no_data(op, backend, swapped, reverse):
    names = {
        'selective_scan': 'channels_last',
        'pole_scan': 'channels_first',
        'causal_conv1d': 'channels_last',
    }
    case = find(op, names[op] if swapped else 'all')
    if op == 'selective_scan':
        # More channels, so that the gradients of B and C are no large data.
        case = resized(case, dim=34)
    options = {**case.options, 'reverse': reverse}
    case = dataclasses.replace(case, options=options)
    kernels = load_backend(op, backend)
    data = next(iter(case.tensors(torch.float32).values())).numel()
    for (func, arguments), suffix in zip(
        calls_of(case, torch.float32, backend), ('fwd', 'bwd'), strict=True
    ):
        # The last argument names the backend.
        assert func.namespace == 'mmssm'
        arguments = arguments[:-1]
        if op == 'selective_scan' and suffix == 'bwd':
            u, A = arguments[2], arguments[4]
            arguments = list(arguments)
            arguments[10] = arguments[10].view(u.shape[0], -1, *A.shape)
        with Calls('aten') as mode:
            getattr(kernels, f'{op}_{suffix}')(*arguments)
        for func, _, result in mode.calls:
            name = func.overloadpacket.__name__
            copied = name in COPIES and result.numel() >= data
            assert not copied, f'{suffix}: {name}'


@pytest.mark.each_backend(interpreted=False)
def test_inputs_are_not_written(op, backend, device):
    case = basic(op)
    tensors = case.tensors(torch.float32, device)
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    leaves = leaves_of(tensors)
    results(case.call(leaves, backend), leaves)
    for name, tensor in tensors.items():
        assert torch.equal(tensor, before[name]), name


def test_every_public_operator_has_cases():
    others = {'cayley_matrix', 'causal_conv1d_step', 'token_poles'}
    assert set(BACKENDS) == set(ops.__all__) - others
