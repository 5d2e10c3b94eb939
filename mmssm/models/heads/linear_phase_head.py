"""Linear classifier per frame."""

from torch import Tensor

from mmssm.models.heads.base_phase_head import BasePhaseHead
from mmssm.models.temporal.memoryless import Memoryless
from mmssm.registry import MODELS


@MODELS.register_module()
class LinearPhaseHead(Memoryless, BasePhaseHead):
    """Dropout and a Linear, for baselines and for warm starts.

    Args: see :class:`BasePhaseHead`.
    """

    def per_frame(self, x: Tensor) -> Tensor:
        """Map ``(..., in_channels)`` to logits ``(..., num_classes)``."""
        return self.fc(self.drop(x))
