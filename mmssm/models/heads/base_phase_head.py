"""Common part of the phase heads: classifier and losses."""

import torch
from torch import Tensor, nn

from mmssm.models.temporal.base import BaseTemporalModel
from mmssm.registry import MODELS


class BasePhaseHead(BaseTemporalModel):
    """A head is a causal model from features to phase logits.

    It obeys the protocol of :class:`BaseTemporalModel`, with the logits as
    ``hidden``, and starts anew at every clip.

    Args:
        in_channels (int): Width of the features.
        num_classes (int): Number of phases.
        loss_cls (dict): Config of the classification loss.
        loss_smooth (dict, optional): Config of the smoothness loss.
        loss_intensity (dict, optional): Config of the transition intensity
            loss; used when the temporal model gives intensity logits.
        ignore_index (int): Label of frames without a phase. Default: -1.
        dropout (float): Dropout of the features. Default: 0.1.
        init_cfg (dict, optional): mmengine initialisation config.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        loss_cls: dict,
        loss_smooth: dict | None = None,
        loss_intensity: dict | None = None,
        ignore_index: int = -1,
        dropout: float = 0.1,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        super().__init__(
            in_channels, num_classes, carry_state=False, init_cfg=init_cfg
        )
        self.num_classes = num_classes
        self.ignore_index = ignore_index
        self.drop = nn.Dropout(dropout)
        self.fc = nn.Linear(in_channels, num_classes)
        self.loss_cls = MODELS.build(loss_cls)
        self.loss_smooth = loss_smooth and MODELS.build(loss_smooth)
        self.loss_intensity = loss_intensity and MODELS.build(loss_intensity)

    def loss(
        self,
        logits: Tensor,
        intensity_logits: Tensor | None,
        labels: Tensor,
    ) -> dict[str, Tensor]:
        """Compute the losses of one truncation window.

        Every clip with a label counts as one: the loss of a lane is the mean
        over its clips of the mean over their frames, and lanes are averaged,
        an empty lane as zero. So the gradient of several lanes is the
        average of what each would give alone.

        Args:
            logits (Tensor): ``(lanes, clips, clip_len, num_classes)``.
            intensity_logits (Tensor or None): ``(layers, lanes, clips,
                clip_len)``.
            labels (Tensor): int64 ``(lanes, clips, clip_len)``;
                ``ignore_index`` on frames that do not count.

        Returns:
            dict: ``loss_cls``, ``loss_smooth`` and ``loss_intensity`` (those
            there are), scalars, and ``acc``, the share of labelled frames
            that are right, in percent.
        """
        weight = self._clip_weights(labels)
        flat_logits, flat_labels = logits.flatten(0, 1), labels.flatten(0, 1)

        def average(per_clip: Tensor) -> Tensor:
            return (per_clip * weight).sum()

        losses = {
            'loss_cls': average(
                self.loss_cls(flat_logits, flat_labels, reduction='sequence')
            )
        }
        if self.loss_smooth is not None:
            losses['loss_smooth'] = average(
                self.loss_smooth(
                    flat_logits, flat_labels, reduction='sequence'
                )
            )
        if self.loss_intensity is not None and intensity_logits is not None:
            losses['loss_intensity'] = average(
                self.loss_intensity(
                    intensity_logits.flatten(1, 2),
                    flat_labels,
                    reduction='sequence',
                )
            )
        losses['acc'] = self._accuracy(flat_logits, flat_labels)
        return losses

    def _clip_weights(self, labels: Tensor) -> Tensor:
        """Weight of each clip, ``(lanes * clips,)``, summing to <= 1."""
        has_label = (labels != self.ignore_index).any(-1).float()
        per_lane = has_label / has_label.sum(1, keepdim=True).clamp(min=1)
        return (per_lane / labels.shape[0]).flatten()

    @torch.no_grad()
    def _accuracy(self, logits: Tensor, labels: Tensor) -> Tensor:
        valid = labels != self.ignore_index
        right = (logits.argmax(-1) == labels) & valid
        return 100 * right.sum() / valid.sum().clamp(min=1)
