"""FLOPs of models: by the rule of the papers and counted operator by operator.

A module that scans tokens says what the papers count for it in a method
``ssm_flops(*sizes)``: the FLOPs of one sequence or map, given the sizes
between batch and channels of its first input. An operator is counted by a
handler (:func:`register_flops`). Nothing here knows of single mixers.
"""

from mmssm.utils.flops.counter import FlopCounter, count_flops
from mmssm.utils.flops.handlers import register_flops
from mmssm.utils.flops.model_inputs import example_inputs
from mmssm.utils.flops.report import FlopReport, LayerFlops, format_report

__all__ = [
    'FlopCounter',
    'FlopReport',
    'LayerFlops',
    'count_flops',
    'example_inputs',
    'format_report',
    'register_flops',
]
