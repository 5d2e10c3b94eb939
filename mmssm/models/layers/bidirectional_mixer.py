"""Mixers of Vision Mamba: two scans in opposite directions, one gate."""

import math
from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

from mmssm.models.layers.pole_direction import PoleDirection
from mmssm.models.layers.selective_scan_direction import (
    SelectiveScanDirection,
)
from mmssm.registry import MODELS


class BidirectionalMixer(nn.Module, ABC):
    """Two directions with common projections and a common gate.

    The gate is applied inside each direction; their mean is projected. Each
    direction has parameters of its own.

    Args:
        d_model (int): Width of input and output.
        expand (int): Inner width over ``d_model``.
        **kwargs: Options of `make_direction`.

    Source: Vision Mamba (arXiv 2401.09417), Algorithm 1, as published with
    ``bimamba_type='v2'`` and ``if_divide_out``.
    """

    def __init__(self, d_model: int, expand: int = 2, **kwargs: Any) -> None:
        super().__init__()
        self.d_inner = expand * d_model
        # Rows of x, then of the gate z.
        self.in_proj = nn.Linear(d_model, 2 * self.d_inner, bias=False)
        self.forward_scan = self.make_direction(
            d_model, self.d_inner, reverse=False, **kwargs
        )
        self.backward_scan = self.make_direction(
            d_model, self.d_inner, reverse=True, **kwargs
        )
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False)

    @abstractmethod
    def make_direction(
        self, d_model: int, d_inner: int, reverse: bool, **kwargs: Any
    ) -> nn.Module:
        """Make a module that maps x and z to the gated output of a scan."""

    def forward(self, x: Tensor) -> Tensor:
        """Mix tokens ``(batch, length, d_model)``."""
        x, z = self.in_proj(x).chunk(2, dim=-1)
        return self.out_proj(self.scan(x, z))

    def scan(self, x: Tensor, z: Tensor) -> Tensor:
        """Mean of both directions, ``(batch, length, d_inner)``."""
        return (self.forward_scan(x, z) + self.backward_scan(x, z)) / 2


@MODELS.register_module()
class SelectiveScanMixer(BidirectionalMixer):
    """The mixer of Vision Mamba.

    Args:
        d_model (int): Width of input and output.
        expand (int): Inner width over ``d_model``. Default: 2.
        d_state (int): State size per channel. Default: 16.
        d_conv (int): Kernel size of the convolutions. Default: 4.
        dt_rank (int, optional): Rank of the step-size projection. Default:
            ``d_model / 16``, rounded up.
        backend (str, optional): Of the operators; None picks by device.
    """

    def make_direction(
        self,
        d_model: int,
        d_inner: int,
        reverse: bool,
        dt_rank: int | None = None,
        **kwargs: Any,
    ) -> nn.Module:
        if dt_rank is None:
            dt_rank = math.ceil(d_model / 16)
        return SelectiveScanDirection(
            d_inner, dt_rank=dt_rank, reverse=reverse, **kwargs
        )


@MODELS.register_module()
class PoleMixer(BidirectionalMixer):
    """The mixer of TCP-Vim: Vision Mamba's with token-conditioned poles.

    Args:
        d_model (int): Width of input and output.
        expand (int): Inner width over ``d_model``. Default: 2.
        **kwargs: Options of :class:`PoleDirection`: ``num_reals``,
            ``num_pairs``, ``rank``, ``num_groups``, ``group_modulation``,
            ``fixed_poles``, ``realization``, ``d_conv`` and the bounds of the
            poles.

    Source: TCP-SSM (arXiv 2605.11563).
    """

    def make_direction(
        self, d_model: int, d_inner: int, reverse: bool, **kwargs: Any
    ) -> nn.Module:
        return PoleDirection(d_inner, reverse=reverse, **kwargs)
