"""What tests need, ours and those of users: tolerances and comparison."""

from mmssm.testing.tolerances import (
    TOLERANCES,
    Tolerance,
    assert_close,
    relative_rms_error,
)

__all__ = ['TOLERANCES', 'Tolerance', 'assert_close', 'relative_rms_error']
