"""Entry of mmseg in mmengine's package table.

Upstream reason: mmengine resolves ``'mmseg::_base_/...'`` through the table
``mmengine.config.utils.MODULE2PACKAGE``, which names the distribution
``mmsegmentation``. Where the maintained fork ``onedl-mmsegmentation`` is
installed there is no such distribution (``ModuleNotFoundError: mmsegmentation
is not installed``). ``mmpretrain::`` and ``mmdet::`` resolve without help,
and ``import mmssm`` adds the entry for ``mmssm::``.
"""

from mmengine.config.utils import MODULE2PACKAGE
from mmengine.utils import is_installed


def register_packages() -> None:
    """Make ``mmseg::`` config bases resolve. The call may be repeated."""
    # The module is found whatever the distribution is called; the original
    # entry stays where the original distribution is installed.
    if not is_installed('mmsegmentation'):
        MODULE2PACKAGE['mmseg'] = 'mmseg'
