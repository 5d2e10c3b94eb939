"""Registries of mmssm: children of mmengine's root registries.

The parents are mmengine's roots, never those of mmpretrain, mmseg or mmdet:
importing those needs mmcv. ``locations`` lists the modules whose import fills
a registry, so ``type='mmssm.X'`` works in any config without
``custom_imports``. Kinds that mmssm adds nothing to have a registry too, or
mmengine would warn about each of them with ``default_scope='mmssm'``.
"""

from mmengine import registry as root
from mmengine.registry import Registry


def _child(parent: Registry, location: str = 'mmssm.engine') -> Registry:
    return Registry(
        parent.name, parent=parent, scope='mmssm', locations=[location]
    )


MODELS = _child(root.MODELS, 'mmssm.models')
MODEL_WRAPPERS = _child(root.MODEL_WRAPPERS)
WEIGHT_INITIALIZERS = _child(root.WEIGHT_INITIALIZERS)

DATASETS = _child(root.DATASETS, 'mmssm.datasets')
DATA_SAMPLERS = _child(root.DATA_SAMPLERS, 'mmssm.datasets')
TRANSFORMS = _child(root.TRANSFORMS, 'mmssm.datasets')

METRICS = _child(root.METRICS, 'mmssm.evaluation')
EVALUATOR = _child(root.EVALUATOR, 'mmssm.evaluation')

VISUALIZERS = _child(root.VISUALIZERS, 'mmssm.visualization')
VISBACKENDS = _child(root.VISBACKENDS, 'mmssm.visualization')

HOOKS = _child(root.HOOKS, 'mmssm.engine.hooks')
LOG_PROCESSORS = _child(root.LOG_PROCESSORS)
LOOPS = _child(root.LOOPS)
OPTIMIZERS = _child(root.OPTIMIZERS)
OPTIM_WRAPPERS = _child(root.OPTIM_WRAPPERS)
OPTIM_WRAPPER_CONSTRUCTORS = _child(root.OPTIM_WRAPPER_CONSTRUCTORS)
PARAM_SCHEDULERS = _child(root.PARAM_SCHEDULERS)
RUNNERS = _child(root.RUNNERS)
RUNNER_CONSTRUCTORS = _child(root.RUNNER_CONSTRUCTORS)
TASK_UTILS = _child(root.TASK_UTILS)
INFERENCERS = _child(root.INFERENCERS, 'mmssm.apis')
