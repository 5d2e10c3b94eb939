"""Masked cross entropy over phases."""

import torch.nn.functional as F
from torch import Tensor, nn

from mmssm.models.losses.reduction import Reduction, masked_mean
from mmssm.registry import MODELS


@MODELS.register_module()
class PhaseCrossEntropyLoss(nn.Module):
    """Cross entropy with label smoothing, over the frames that have a label.

    Args:
        label_smoothing (float): Default: 0.1.
        ignore_index (int): Label of frames to leave out. Default: -1.
        loss_weight (float): Default: 1.

    Source: SurgicalMamba (arXiv 2605.14889), equation 17.
    """

    def __init__(
        self,
        label_smoothing: float = 0.1,
        ignore_index: int = -1,
        loss_weight: float = 1.0,
    ) -> None:
        super().__init__()
        self.label_smoothing = label_smoothing
        self.ignore_index = ignore_index
        self.loss_weight = loss_weight

    def forward(
        self, logits: Tensor, labels: Tensor, reduction: Reduction = 'mean'
    ) -> Tensor:
        """Compute the loss.

        Args:
            logits (Tensor): ``(batch, length, num_classes)``.
            labels (Tensor): int64 ``(batch, length)``.
            reduction (str): See :func:`masked_mean`.

        Returns:
            Tensor: Weighted loss, scalar or ``(batch,)``.
        """
        values = F.cross_entropy(
            logits.flatten(0, 1),
            labels.flatten(),
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            reduction='none',
        ).view(labels.shape)
        mask = labels != self.ignore_index
        return self.loss_weight * masked_mean(values, mask, reduction)
