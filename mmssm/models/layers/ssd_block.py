"""A single-path SSD block: Mamba2 with optional state regramming."""

import math

import torch
from torch import Tensor, nn

from mmssm.models.layers.ffn import FeedForward
from mmssm.models.layers.rms_norm import GatedRMSNorm
from mmssm.models.layers.ssd_path import SSDPath, SSDPathState


class SSDBlock(nn.Module):
    """Pre-norm gated SSD path and feed-forward network, with residuals.

    Args:
        d_model (int): Width of input and output.
        d_state (int): State size per channel. Default: 64.
        d_conv (int): Kernel size of the convolution. Default: 4.
        expand (int): Inner width over ``d_model``. Default: 2.
        chunk_size (int): Frames per chunk. Default: 64.
        rotation_rank (int or None): Rank of the rotation; None: none.
        dt_rank (int, optional): Rank of the step-size projection. Default:
            ``ceil(d_model / 16)``.
        dropout (float): On both residual branches and in the FFN.
        headdim (int): Width of a head. Default: 64.

    Source: Mamba2 (arXiv 2405.21060); head block of SurgicalMamba (arXiv
    2605.14889, section 3.5; the FFN is in the published code only).
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        d_conv: int = 4,
        expand: int = 2,
        chunk_size: int = 64,
        rotation_rank: int | None = None,
        dt_rank: int | None = None,
        dropout: float = 0.0,
        headdim: int = 64,
    ) -> None:
        super().__init__()
        d_inner = expand * d_model
        self.norm = nn.LayerNorm(d_model)
        self.in_proj = nn.Linear(d_model, 2 * d_inner, bias=False)
        self.path = SSDPath(
            d_inner,
            d_state,
            d_conv,
            math.ceil(d_model / 16) if dt_rank is None else dt_rank,
            chunk_size,
            rotation_rank=rotation_rank,
            headdim=headdim,
        )
        self.gated_norm = GatedRMSNorm(d_inner)
        self.out_proj = nn.Linear(d_inner, d_model, bias=False)
        self.ffn_norm = nn.LayerNorm(d_model)
        self.ffn = FeedForward(d_model, dropout=dropout)
        self.drop = nn.Dropout(dropout)

    def init_state(
        self, batch_size: int, device: torch.device, dtype: torch.dtype
    ) -> SSDPathState:
        """Make the zero state."""
        return self.path.init_state(batch_size, device, dtype)

    def forward(
        self, x: Tensor, state: SSDPathState
    ) -> tuple[Tensor, SSDPathState]:
        """Run ``length`` frames of an open clip.

        Args:
            x (Tensor): ``(batch, length, d_model)``.
            state (SSDPathState): State before the first of them.

        Returns:
            tuple: Output shaped like ``x`` and the state after the last
            frame.
        """
        u, z = self.in_proj(self.norm(x)).chunk(2, dim=-1)
        u, state = self.path.convolve(u, state)
        y, state = self.path.scan(u, *self.path.token_parameters(u), state)
        x = x + self.drop(self.out_proj(self.gated_norm(y, z)))
        return x + self.drop(self.ffn(self.ffn_norm(x))), state

    def close_clip(self, state: SSDPathState) -> SSDPathState:
        """Rotate the state by what the open chunk saw."""
        return self.path.close_chunk(state)
