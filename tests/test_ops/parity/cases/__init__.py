"""All parity cases, and the backends that every operator must have."""

from tests.test_ops.parity.case import Case
from tests.test_ops.parity.cases import (
    causal_conv1d,
    cayley_rotate,
    modal_scan,
    pole_denominator,
    pole_scan,
    rms_norm_gated,
    selective_scan,
    ssd_chunk_scan,
)

# Written down, not asked of the package: a backend that gets lost must fail.
BACKENDS = {
    'selective_scan': ('torch', 'native', 'triton'),
    'selective_scan_step': ('torch', 'native', 'triton'),
    'pole_scan': ('torch', 'native', 'triton'),
    'pole_scan_step': ('torch', 'native', 'triton'),
    'pole_denominator': ('torch', 'native', 'triton'),
    'modal_scan': ('torch',),
    'modal_scan_step': ('torch',),
    'causal_conv1d': ('torch', 'native', 'triton'),
    'ssd_chunk_scan': ('torch', 'native', 'triton'),
    'ssd_step': ('torch', 'triton'),
    'cayley_rotate': ('torch', 'triton'),
    'rms_norm_gated': ('torch', 'triton'),
}

# Backends without gradients, which serve streams.
FORWARD_ONLY = {'ssd_step': ('native',)}

CASES: tuple[Case, ...] = (
    *selective_scan.CASES,
    *pole_scan.CASES,
    *pole_denominator.CASES,
    *modal_scan.CASES,
    *causal_conv1d.CASES,
    *ssd_chunk_scan.CASES,
    *cayley_rotate.CASES,
    *rms_norm_gated.CASES,
)
BY_NAME = {(case.op, case.name): case for case in CASES}


def find(op: str, name: str) -> Case:
    """Return the case of an operator by its name."""
    return BY_NAME[op, name]
