"""Direct-form recurrence with token-conditioned poles."""

from mmssm.ops.pole_scan.interface import pole_scan, pole_scan_step

__all__ = ['pole_scan', 'pole_scan_step']
