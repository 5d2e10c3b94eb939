"""Any shape, layout and option, against the definition."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.test_ops.parity.case import (
    expanded,
    part,
    reordered,
    sliced,
    swapped,
)
from tests.test_ops.parity.cases import (
    causal_conv1d,
    modal_scan,
    pole_denominator,
    pole_scan,
    selective_scan,
    ssd_chunk_scan,
)
from tests.test_ops.parity.run import compare, leaves_of, results, run

FUZZ = settings(max_examples=25, deadline=None, derandomize=True)
# Around the vector widths and the states kept every 64 tokens, too.
LENGTHS = st.one_of(st.integers(1, 9), st.integers(60, 70))
WIDTHS = st.one_of(st.integers(1, 9), st.integers(15, 33))


@st.composite
def layouts(draw, names):
    """A layout for every tensor argument."""
    chosen = {}
    for name, ndim in names.items():
        options = [
            torch.clone,
            sliced,
            expanded(draw(st.integers(0, ndim - 1))),
        ]
        options += [part(ndim - 1)]
        if ndim > 1:
            options += [swapped, reordered]
        chosen[name] = draw(st.sampled_from(options))
    return chosen


def subsets(names):
    return st.lists(st.sampled_from(names), unique=True).map(tuple)


def check(case, backend, data):
    dtype = getattr(torch, data.draw(st.sampled_from(case.runs_in)))
    names = {
        name: tensor.ndim
        for name, tensor in case.make().items()
        if tensor.is_floating_point()
    }
    case = dataclasses.replace(case, layouts=data.draw(layouts(names)))
    doubles = {
        name: tensor.double() if tensor.is_floating_point() else tensor
        for name, tensor in case.tensors(dtype).items()
    }
    leaves = leaves_of(doubles)
    reference = results(case.call(leaves, 'reference'), leaves)
    compare(run(case, dtype, backend), reference, backend, dtype)


def sized(draw, channels):
    """Channels and a number of groups that divides them."""
    groups = draw(st.integers(1, 4))
    return groups * draw(channels), groups


@pytest.mark.each_backend('selective_scan', interpreted=False)
@FUZZ
@given(data=st.data())
def test_selective_scan(op, backend, data):
    draw = data.draw
    dim, groups = sized(draw, WIDTHS)
    form = draw(st.sampled_from([groups, None, 0, 1]))
    case = selective_scan.case(
        'any',
        softplus=draw(st.booleans()),
        reverse=draw(st.booleans()),
        length=draw(LENGTHS),
        batch=draw(st.integers(1, 3)),
        dim=dim,
        state=draw(WIDTHS),
        groups=form,
        groups_of_C=draw(st.sampled_from([form, groups])),
        optional=draw(subsets(selective_scan.OPTIONAL)),
        runs_in=('float64', 'float32', 'bfloat16'),
    )
    check(case, backend, data)


@pytest.mark.each_backend('pole_scan', interpreted=False)
@FUZZ
@given(data=st.data())
def test_pole_scan(op, backend, data):
    draw = data.draw
    channels, groups = sized(draw, WIDTHS)
    optional = draw(subsets(['z', 'initial_history']))
    if draw(st.booleans()):
        optional += ('x', 'D')
    case = pole_scan.case(
        'any',
        reverse=draw(st.booleans()),
        length=draw(LENGTHS),
        batch=draw(st.integers(1, 3)),
        channels=channels,
        groups=groups,
        order=draw(st.integers(1, 9)),
        optional=optional,
        runs_in=('float64', 'bfloat16'),
    )
    check(case, backend, data)


@pytest.mark.each_backend('modal_scan', interpreted=False)
@FUZZ
@given(data=st.data())
def test_modal_scan(op, backend, data):
    draw = data.draw
    channels, groups = sized(draw, WIDTHS)
    optional = draw(subsets(['z', 'initial_state']))
    if draw(st.booleans()):
        optional += ('x', 'D')
    case = modal_scan.case(
        'any',
        reverse=draw(st.booleans()),
        length=draw(st.integers(1, 9)),
        batch=draw(st.integers(1, 3)),
        channels=channels,
        groups=groups,
        reals=draw(st.integers(0, 2)),
        pairs=draw(st.integers(1, 2)),
        optional=optional,
    )
    check(case, backend, data)


@pytest.mark.each_backend('pole_denominator', interpreted=False)
@FUZZ
@given(data=st.data())
def test_pole_denominator(op, backend, data):
    draw = data.draw
    groups = draw(WIDTHS)
    pairs = draw(st.integers(0, 4))
    case = pole_denominator.case(
        'any',
        length=draw(LENGTHS),
        batch=draw(st.integers(1, 3)),
        groups=groups,
        pairs=pairs,
        reals=draw(st.integers(0 if pairs else 1, 3)),
        rho_groups=draw(st.sampled_from([1, groups])),
        theta_groups=draw(st.sampled_from([1, groups])),
        optional=draw(subsets(pole_denominator.MODULATIONS)),
        options={
            'eps': draw(st.sampled_from([0.01, 0.3])),
            'delta_min': draw(st.sampled_from([0.0, 0.5])),
            'delta_0': draw(st.sampled_from([0.5, 2.0])),
            'lambda_theta': draw(st.sampled_from([0.0, 0.1, 0.9])),
        },
    )
    check(case, backend, data)


@pytest.mark.each_backend('causal_conv1d', interpreted=False)
@FUZZ
@given(data=st.data())
def test_causal_conv1d(op, backend, data):
    draw = data.draw
    width = draw(st.integers(1, 8))
    optional = draw(subsets(['bias', 'initial_states']))
    if width == 1:
        # No states to lay out.
        optional = tuple(n for n in optional if n == 'bias')
    case = causal_conv1d.case(
        'any',
        reverse=draw(st.booleans()),
        activation=draw(st.sampled_from([None, 'silu', 'swish'])),
        length=draw(LENGTHS),
        batch=draw(st.integers(1, 3)),
        dim=draw(WIDTHS),
        width=width,
        optional=optional,
        runs_in=('float64', 'float32', 'bfloat16'),
    )
    check(case, backend, data)


@pytest.mark.each_backend('ssd_chunk_scan', interpreted=False)
@FUZZ
@given(data=st.data())
def test_ssd_chunk_scan(op, backend, data):
    draw = data.draw
    groups = draw(st.integers(1, 3))
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    case = ssd_chunk_scan.case(
        'any',
        chunk_size=draw(st.integers(1, 9)),
        softplus=draw(st.booleans()),
        length=sum(lengths),
        batch=draw(st.integers(1, 3)),
        heads=groups * draw(st.integers(1, 3)),
        groups=groups,
        headdim=draw(st.integers(1, 5)),
        state=draw(st.integers(1, 5)),
        skip_per_channel=draw(st.booleans()),
        packed=tuple(lengths) if draw(st.booleans()) else None,
        optional=draw(subsets(ssd_chunk_scan.OPTIONAL)),
    )
    check(case, backend, data)
