"""State-space vision models for OpenMMLab.

Importing the package needs torch and mmengine only. Nothing heavy happens
here: operators, models and datasets are imported by the part that needs them.
"""

from pathlib import Path

from mmengine.config.utils import MODULE2PACKAGE

from mmssm._checkout import find_kernels
from mmssm.version import __version__

# mmengine resolves `mmssm::path/of/config.py` for packages in this table only.
MODULE2PACKAGE['mmssm'] = 'mmssm'

find_kernels(Path(__file__).parent)

__all__ = ['__version__']
