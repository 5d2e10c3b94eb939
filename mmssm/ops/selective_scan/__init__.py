"""Selective state-space recurrence of Mamba."""

from mmssm.ops.selective_scan.interface import (
    selective_scan,
    selective_scan_step,
)

__all__ = ['selective_scan', 'selective_scan_step']
