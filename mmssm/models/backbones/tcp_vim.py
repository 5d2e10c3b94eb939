"""Vision Mamba with token-conditioned poles in place of the selective scan."""

from collections.abc import Mapping
from typing import Any, ClassVar

from mmssm.models.backbones.vim import Vim
from mmssm.registry import MODELS


@MODELS.register_module()
class TCPVim(Vim):
    """TCP-Vim: :class:`Vim` with :class:`PoleMixer` in every block.

    Args:
        arch (str or dict): ``'t1'`` or ``'t2'``, or a dict with
            ``embed_dims`` and ``depth``. Default: 't1'.
        mixer (dict, optional): Options of :class:`PoleMixer` that differ from
            those of ``arch``, such as ``dict(fixed_poles=True)``.
        **kwargs: As for :class:`Vim`.

    Source: TCP-SSM (arXiv 2605.11563). Its table with the number of poles,
    ranks and groups is not public: those here are inferred from the printed
    FLOPs and parameters. FLOPs cannot tell (1, 2) from (3, 1) poles, and
    ``t2`` has other solutions; `configs/tcp_vim/README.md` lists them.
    """

    arch_settings = {
        't1': dict(embed_dims=192, depth=24),
        't2': dict(embed_dims=192, depth=24),
    }
    # Inferred, not published.
    mixer_settings: ClassVar[dict[str, dict[str, int]]] = {
        't1': dict(num_reals=1, num_pairs=2, rank=22, num_groups=12),
        't2': dict(num_reals=1, num_pairs=2, rank=37, num_groups=12),
    }

    def __init__(
        self,
        arch: str | Mapping[str, int] = 't1',
        mixer: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        options = dict(type='mmssm.PoleMixer')
        if isinstance(arch, str):
            options.update(self.mixer_settings.get(arch, {}))
        options.update(mixer or {})
        super().__init__(arch, mixer=options, **kwargs)
