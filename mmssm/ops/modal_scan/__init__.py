"""Parallel first-order and rotation modes with token-conditioned poles."""

from mmssm.ops.modal_scan.interface import modal_scan, modal_scan_step

__all__ = ['modal_scan', 'modal_scan_step']
