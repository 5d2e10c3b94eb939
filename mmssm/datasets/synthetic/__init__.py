from mmssm.datasets.synthetic.phase_script import (
    PhaseScript,
    draw_script,
    label_ceilings,
)
from mmssm.datasets.synthetic.scene import SurgicalScene
from mmssm.datasets.synthetic.writer import (
    draw_sample_set,
    read_sample_info,
    write_sample_videos,
)

__all__ = [
    'PhaseScript',
    'SurgicalScene',
    'draw_sample_set',
    'draw_script',
    'label_ceilings',
    'read_sample_info',
    'write_sample_videos',
]
