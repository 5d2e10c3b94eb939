"""SSD head of SurgicalMamba."""

from torch import Tensor, nn

from mmssm.models.heads.base_phase_head import BasePhaseHead
from mmssm.models.layers.ssd_block import SSDBlock
from mmssm.models.temporal.ssd_stack import SSDStackModel, SSDStackState
from mmssm.registry import MODELS


@MODELS.register_module()
class PhaseHead(SSDStackModel, BasePhaseHead):
    """One single-path SSD block without cross-clip carry, then a Linear.

    Args:
        in_channels (int): Width of the features.
        num_classes (int): Number of phases.
        loss_cls (dict): Config of the classification loss.
        loss_smooth (dict, optional): Config of the smoothness loss.
        loss_intensity (dict, optional): Config of the intensity loss.
        d_state (int): State size. Default: 64.
        d_conv (int): Kernel size of the convolution. Default: 4.
        expand (int): Inner width over ``in_channels``. Default: 2.
        chunk_size (int): Frames per chunk. Default: 32.
        rotation_rank (int or None): Rank of the rotation; None: none.
            Default: 16.
        dropout (float): Before the block and inside it. Default: 0.1.
        headdim (int): Width of a head. Default: 64.
        ignore_index (int): Label of frames without a phase. Default: -1.
        init_cfg (dict, optional): mmengine initialisation config.

    Source: SurgicalMamba (arXiv 2605.14889), section 3.5; sizes and the FFN
    from the published code.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        loss_cls: dict,
        loss_smooth: dict | None = None,
        loss_intensity: dict | None = None,
        d_state: int = 64,
        d_conv: int = 4,
        expand: int = 2,
        chunk_size: int = 32,
        rotation_rank: int | None = 16,
        dropout: float = 0.1,
        headdim: int = 64,
        ignore_index: int = -1,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        super().__init__(
            in_channels,
            num_classes,
            loss_cls,
            loss_smooth,
            loss_intensity,
            ignore_index,
            dropout,
            init_cfg,
        )
        self.blocks = nn.ModuleList(
            [
                SSDBlock(
                    in_channels,
                    d_state=d_state,
                    d_conv=d_conv,
                    expand=expand,
                    chunk_size=chunk_size,
                    rotation_rank=rotation_rank,
                    # The published head never goes below rank 16.
                    dt_rank=max(-(-in_channels // 16), 16),
                    dropout=dropout,
                    headdim=headdim,
                )
            ]
        )

    def encode(self, x: Tensor) -> Tensor:
        """Drop some of the features in training."""
        return self.drop(x)

    def decode(self, x: Tensor) -> Tensor:
        """Classify every frame."""
        return self.fc(x)

    def close_clip(self, state: SSDStackState) -> SSDStackState:
        """Forget the clip: the head carries nothing across clips."""
        return state.forget()
