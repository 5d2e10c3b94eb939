"""The block of Vision Mamba: add, norm, mix."""

from torch import Tensor, nn
from torchvision.ops import StochasticDepth

from mmssm.models.layers.precision import at_least_float32


class VimBlock(nn.Module):
    """Pre-norm block that hands on its output and the residual stream.

    The residual stream is kept in at least float32, under autocast too.

    Args:
        mixer (nn.Module): Maps ``(batch, length, d_model)`` to the same.
        d_model (int): Width of the tokens.
        drop_path_rate (float): Rate at which the previous block's output is
            dropped from the residual stream.

    Source: Vision Mamba (arXiv 2401.09417), published with
    ``residual_in_fp32`` and ``rms_norm``.
    """

    def __init__(
        self, mixer: nn.Module, d_model: int, drop_path_rate: float = 0.0
    ) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(d_model, eps=1e-5)
        self.mixer = mixer
        self.drop_path = StochasticDepth(drop_path_rate, 'row')

    def forward(
        self, hidden: Tensor, residual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Add the previous block's output, then mix.

        Args:
            hidden (Tensor): Output of the previous block,
                ``(batch, length, d_model)``; tokens for the first one.
            residual (Tensor, optional): Residual stream before it; None for
                the first block.

        Returns:
            tuple[Tensor, Tensor]: Output of the mixer, and the residual
            stream before it is added.
        """
        if residual is None:
            residual = at_least_float32(hidden)
        else:
            residual = residual + self.drop_path(hidden)
        return self.mixer(self.norm(residual)), residual
