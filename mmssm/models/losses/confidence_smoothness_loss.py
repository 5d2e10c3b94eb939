"""Smoothness of predictions, where they are confident."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmssm.models.losses.reduction import Reduction, masked_mean
from mmssm.registry import MODELS


@MODELS.register_module()
class ConfidenceSmoothnessLoss(nn.Module):
    """Mean of ``c_t c_{t+1} KL(p_t || p_{t+1})`` over adjacent frames.

    The confidence ``c = 1 - H(p) / log(num_classes)`` lets uncertain frames
    change their mind freely; it is not detached. Only pairs inside a clip
    count, and both frames of a pair must be valid.

    Args:
        ignore_index (int): Label of frames to leave out. Default: -1.
        loss_weight (float): Default: 1.

    Source: SurgicalMamba (arXiv 2605.14889), equation 18; details of the
    entropy (``log(p + 1e-8)``) from the published code.
    """

    def __init__(
        self, ignore_index: int = -1, loss_weight: float = 1.0
    ) -> None:
        super().__init__()
        self.ignore_index = ignore_index
        self.loss_weight = loss_weight

    def forward(
        self, logits: Tensor, labels: Tensor, reduction: Reduction = 'mean'
    ) -> Tensor:
        """Compute the loss.

        Args:
            logits (Tensor): ``(batch, length, num_classes)``.
            labels (Tensor): int64 ``(batch, length)``; only tells which
                frames are valid.
            reduction (str): See :func:`masked_mean`.

        Returns:
            Tensor: Weighted loss, scalar or ``(batch,)``.
        """
        log_p = F.log_softmax(logits, dim=-1)
        p = log_p.exp()
        entropy = -(p * torch.log(p + 1e-8)).sum(-1)
        confidence = 1 - entropy / math.log(logits.shape[-1])
        kl = (p[:, :-1] * (log_p[:, :-1] - log_p[:, 1:])).sum(-1)
        values = confidence[:, :-1] * confidence[:, 1:] * kl
        valid = labels != self.ignore_index
        return self.loss_weight * masked_mean(
            values, valid[:, :-1] & valid[:, 1:], reduction
        )
