"""Plain single-path Mamba2, the papers' baseline, and the same + rotation."""

from torch import Tensor, nn

from mmssm.models.layers.ssd_block import SSDBlock
from mmssm.models.temporal.ssd_stack import SSDStackModel
from mmssm.registry import MODELS


@MODELS.register_module()
class PlainMamba2(SSDStackModel):
    """Stack of single-path SSD blocks, carried across clips.

    The baseline of the papers' tables ("plain Mamba2"); with
    ``rotation_rank`` it is "plain + Z".

    Args:
        in_channels (int): Width of the frame features. Default: 768.
        d_model (int): Width of the blocks. Default: 768.
        num_layers (int): Number of blocks. Default: 4.
        d_state (int): State size. Default: 64.
        d_conv (int): Kernel size of the convolution. Default: 4.
        expand (int): Inner width over ``d_model``. Default: 2.
        chunk_size (int): Frames per chunk. Default: 64.
        rotation_rank (int or None): Rank of state regramming. Default: None.
        dropout (float): Default: 0.1.
        headdim (int): Width of a head. Default: 64.
        carry_state (bool): False: no memory across clips. Default: True.
        init_cfg (dict, optional): mmengine initialisation config.

    Raises:
        ValueError: If a size is below 1, or if ``expand * d_model`` is no
            multiple of ``headdim``.

    Source: Mamba2 (arXiv 2405.21060); SurgicalMamba (arXiv 2605.14889).
    """

    def __init__(
        self,
        in_channels: int = 768,
        d_model: int = 768,
        num_layers: int = 4,
        d_state: int = 64,
        d_conv: int = 4,
        expand: int = 2,
        chunk_size: int = 64,
        rotation_rank: int | None = None,
        dropout: float = 0.1,
        headdim: int = 64,
        carry_state: bool = True,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        super().__init__(in_channels, d_model, carry_state, init_cfg)
        if num_layers < 1:
            raise ValueError(f'`num_layers` = {num_layers}; expected >= 1')
        self.visual_proj = nn.Sequential(
            nn.Linear(in_channels, d_model), nn.LayerNorm(d_model)
        )
        self.blocks = nn.ModuleList(
            SSDBlock(
                d_model,
                d_state=d_state,
                d_conv=d_conv,
                expand=expand,
                chunk_size=chunk_size,
                rotation_rank=rotation_rank,
                dropout=dropout,
                headdim=headdim,
            )
            for _ in range(num_layers)
        )
        self.frame_norm = nn.LayerNorm(d_model)

    def encode(self, x: Tensor) -> Tensor:
        """Project the frame features."""
        return self.visual_proj(x)

    def decode(self, x: Tensor) -> Tensor:
        """Normalise the output."""
        return self.frame_norm(x)
