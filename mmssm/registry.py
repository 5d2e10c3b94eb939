"""Registries of mmssm: children of mmengine's root registries.

The parents are mmengine's roots, never those of mmpretrain, mmseg or mmdet:
importing those needs mmcv. ``locations`` lists the modules whose import fills
a registry, so ``type='mmssm.X'`` works in any config without
``custom_imports``.
"""

from mmengine.registry import DATA_SAMPLERS as MMENGINE_DATA_SAMPLERS
from mmengine.registry import DATASETS as MMENGINE_DATASETS
from mmengine.registry import HOOKS as MMENGINE_HOOKS
from mmengine.registry import METRICS as MMENGINE_METRICS
from mmengine.registry import MODELS as MMENGINE_MODELS
from mmengine.registry import TRANSFORMS as MMENGINE_TRANSFORMS
from mmengine.registry import VISUALIZERS as MMENGINE_VISUALIZERS
from mmengine.registry import Registry

MODELS = Registry(
    'model', parent=MMENGINE_MODELS, scope='mmssm', locations=['mmssm.models']
)
DATASETS = Registry(
    'dataset',
    parent=MMENGINE_DATASETS,
    scope='mmssm',
    locations=['mmssm.datasets'],
)
DATA_SAMPLERS = Registry(
    'data sampler',
    parent=MMENGINE_DATA_SAMPLERS,
    scope='mmssm',
    locations=['mmssm.datasets'],
)
TRANSFORMS = Registry(
    'transform',
    parent=MMENGINE_TRANSFORMS,
    scope='mmssm',
    locations=['mmssm.datasets'],
)
METRICS = Registry(
    'metric',
    parent=MMENGINE_METRICS,
    scope='mmssm',
    locations=['mmssm.evaluation'],
)
HOOKS = Registry(
    'hook', parent=MMENGINE_HOOKS, scope='mmssm', locations=['mmssm.engine']
)
VISUALIZERS = Registry(
    'visualizer',
    parent=MMENGINE_VISUALIZERS,
    scope='mmssm',
    locations=['mmssm.visualization'],
)
