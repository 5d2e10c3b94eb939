"""State-space vision models for OpenMMLab.

Importing the package needs torch and mmengine only. Nothing heavy happens
here: operators, models and datasets are imported by the part that needs them.
"""

from mmssm.version import __version__

__all__ = ['__version__']
