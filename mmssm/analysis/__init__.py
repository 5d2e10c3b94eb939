from mmssm.analysis.companion import (
    companion_matrices,
    draw_patterns,
    growth_per_token,
    sample_growth,
    spectral_radii,
)
from mmssm.analysis.stability import (
    StabilityReport,
    base_poles,
    find_pole_directions,
    measure_stability,
    pole_radii,
    recurrence_output,
)

__all__ = [
    'StabilityReport',
    'base_poles',
    'companion_matrices',
    'draw_patterns',
    'find_pole_directions',
    'growth_per_token',
    'measure_stability',
    'pole_radii',
    'recurrence_output',
    'sample_growth',
    'spectral_radii',
]
