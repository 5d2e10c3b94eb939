"""The places where the OpenMMLab stack needs help.

Each module names the upstream reason. :func:`prepare_environment` switches on
what has to be there before a config is read; ``tools/*.py`` call it first.
"""

from importlib.util import find_spec

from mmssm.compat.amp import prepare_amp
from mmssm.compat.distributed import (
    check_launcher,
    finish_distributed,
    prepare_distributed,
)
from mmssm.compat.mmcv_ext import install_mmcv_ext_stand_in
from mmssm.compat.multimodal import leave_out_multimodal_models
from mmssm.compat.package_table import register_packages

__all__ = [
    'check_launcher',
    'finish_distributed',
    'prepare_amp',
    'prepare_distributed',
    'prepare_environment',
]


def prepare_environment() -> None:
    """Switch on everything the stack needs; may be called repeatedly.

    Call it before a config is read and before mmcv, mmpretrain, mmseg or
    mmdet is imported.

    Raises:
        ModuleNotFoundError: OpenCV is not installed.
    """
    if find_spec('cv2') is None:
        # Not declared by mmengine, whose Runner imports it.
        raise ModuleNotFoundError(
            "mmengine's Runner needs OpenCV: pip install 'mmssm[video]'",
            name='cv2',
        )
    register_packages()
    install_mmcv_ext_stand_in()
    leave_out_multimodal_models()
