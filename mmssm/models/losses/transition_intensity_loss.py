"""Supervision of the transition intensity lambda."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmssm.models.losses.reduction import Reduction, masked_mean
from mmssm.registry import MODELS


def transition_target(
    labels: Tensor,
    sigma_left: float = 2.0,
    sigma_right: float = 12.0,
    ignore_index: int = -1,
) -> Tensor:
    """Draw an asymmetric Gaussian around every phase transition.

    The peak is on the last frame of the old phase; the support is the open
    interval of three sigmas on each side; where bursts overlap the larger
    counts. A change to or from ``ignore_index`` is not a transition.

    Args:
        labels (Tensor): int64 ``(batch, length)``.
        sigma_left (float): Width before the peak, in frames. Default: 2.
        sigma_right (float): Width after it, in frames. Default: 12.
        ignore_index (int): Label of frames without a phase. Default: -1.

    Returns:
        Tensor: float32 target in 0..1, ``(batch, length)``.

    Source: SurgicalMamba (arXiv 2605.14889), equation 19; the place of the
    peak and the support from the published code.
    """
    length = labels.shape[1]
    valid = labels != ignore_index
    is_peak = torch.zeros_like(valid)
    is_peak[:, :-1] = (
        (labels[:, :-1] != labels[:, 1:]) & valid[:, :-1] & valid[:, 1:]
    )
    frame = torch.arange(length, device=labels.device, dtype=torch.float32)
    offset = frame[:, None] - frame[None, :]  # (frame, peak)
    sigma = torch.where(offset < 0, sigma_left, sigma_right)
    burst = torch.exp(-0.5 * (offset / sigma) ** 2)
    burst = burst.masked_fill(offset.abs() >= 3 * sigma, 0)
    bursts = burst[None] * is_peak[:, None, :]  # (batch, frame, peak)
    return bursts.amax(-1) if length else burst.new_zeros(labels.shape)


@MODELS.register_module()
class TransitionIntensityLoss(nn.Module):
    """BCE-with-logits of every layer's lambda against the transitions.

    Args:
        sigma_left (float): Target width before a transition, in frames.
            Default: 2.
        sigma_right (float): Target width after it, in frames. Default: 12.
        ignore_index (int): Label of frames to leave out. Default: -1.
        loss_weight (float): Default: 1.

    Source: SurgicalMamba (arXiv 2605.14889), equation 19.
    """

    def __init__(
        self,
        sigma_left: float = 2.0,
        sigma_right: float = 12.0,
        ignore_index: int = -1,
        loss_weight: float = 1.0,
    ) -> None:
        super().__init__()
        self.sigma_left = sigma_left
        self.sigma_right = sigma_right
        self.ignore_index = ignore_index
        self.loss_weight = loss_weight

    def forward(
        self,
        intensity_logits: Tensor,
        labels: Tensor,
        reduction: Reduction = 'mean',
    ) -> Tensor:
        """Compute the loss, averaged over layers.

        Args:
            intensity_logits (Tensor): ``(layers, batch, length)``.
            labels (Tensor): int64 ``(batch, length)``.
            reduction (str): See :func:`masked_mean`.

        Returns:
            Tensor: Weighted loss, scalar or ``(batch,)``.
        """
        target = transition_target(
            labels, self.sigma_left, self.sigma_right, self.ignore_index
        ).to(intensity_logits.dtype)
        values = F.binary_cross_entropy_with_logits(
            intensity_logits,
            target.expand_as(intensity_logits),
            reduction='none',
        ).mean(0)
        mask = labels != self.ignore_index
        return self.loss_weight * masked_mean(values, mask, reduction)
