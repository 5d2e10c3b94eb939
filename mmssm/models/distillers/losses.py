"""Losses between an output of the student and one of the teacher."""

import torch.nn.functional as F
from torch import Tensor, nn

from mmssm.models.layers.precision import at_least_float32
from mmssm.registry import MODELS


@MODELS.register_module()
class FeatureL1Loss(nn.Module):
    """Mean absolute difference, times a weight.

    Args:
        loss_weight (float): Default: 1.0.

    Source: TCP-SSM (arXiv 2605.11563), equation 15.
    """

    def __init__(self, loss_weight: float = 1.0) -> None:
        super().__init__()
        self.loss_weight = loss_weight

    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Compare features of one shape; returns a float32 scalar."""
        difference = at_least_float32(student) - at_least_float32(teacher)
        return self.loss_weight * difference.abs().mean()


@MODELS.register_module()
class SoftTargetLoss(nn.Module):
    """Kullback-Leibler divergence from the teacher's class probabilities.

    Args:
        temperature (float): Divides the logits of both; the loss is
            multiplied by its square. Default: 1.0.
        loss_weight (float): Default: 1.0.

    Raises:
        ValueError: If ``temperature`` is not positive.

    Source: "Distilling the Knowledge in a Neural Network" (G. Hinton, O.
    Vinyals, J. Dean, arXiv 1503.02531).
    """

    def __init__(
        self, temperature: float = 1.0, loss_weight: float = 1.0
    ) -> None:
        super().__init__()
        if temperature <= 0:
            raise ValueError(f'`temperature` = {temperature}; expected > 0')
        self.temperature, self.loss_weight = temperature, loss_weight

    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Compare logits ``(..., classes)``; returns a float32 scalar."""
        student, teacher = (
            F.log_softmax(at_least_float32(logits) / self.temperature, -1)
            for logits in (student, teacher)
        )
        divergence = F.kl_div(
            student.flatten(0, -2),
            teacher.flatten(0, -2),
            reduction='batchmean',
            log_target=True,
        )
        return self.loss_weight * self.temperature**2 * divergence
