"""SSD recurrence."""

from mmssm.ops.ssd_chunk_scan.interface import ssd_chunk_scan, ssd_step

__all__ = ['ssd_chunk_scan', 'ssd_step']
