"""Any timm model as a visual backbone."""

from typing import Any

from mmengine.model import BaseModule
from torch import Tensor, nn
from typing_extensions import Self

from mmssm.registry import MODELS
from mmssm.utils.optional import require


@MODELS.register_module()
class TimmBackbone(BaseModule):
    """Feature map of a timm model, before its final norm and pooling.

    Args:
        model_name (str): Name known to ``timm.create_model``. Default:
            'convnext_tiny'.
        pretrained (bool): Whether training starts from timm's weights, which
            it fetches (needs a network or timm's cache). Default: False.
        checkpoint (str, optional): Local file (or URL) with weights of the
            timm model that training starts from, instead of ``pretrained``.
        frozen_stages (int): Number of stages that are not trained, with the
            stem if > 0. Default: 0.
        init_cfg (dict, optional): mmengine initialisation config.
        **kwargs: Passed to ``timm.create_model``.

    Raises:
        ImportError: If timm is not installed.
        ValueError: If timm does not know the name, or if stages of a model
            without ``stem`` and ``stages`` should be frozen.
    """

    def __init__(
        self,
        model_name: str = 'convnext_tiny',
        pretrained: bool = False,
        checkpoint: str | None = None,
        frozen_stages: int = 0,
        init_cfg: dict | list[dict] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(init_cfg=init_cfg)
        timm = require('timm', extra='mmcls', used_by='TimmBackbone')
        if not timm.is_model(model_name):
            raise ValueError(
                f'`model_name` = {model_name!r} is not known to timm '
                f'{timm.__version__}; see timm.list_models()'
            )
        self.model = timm.create_model(
            model_name, pretrained=False, num_classes=0, **kwargs
        )
        self.out_channels = self.model.num_features
        self.frozen_stages = frozen_stages
        self._start = dict(
            model_name=model_name,
            pretrained=pretrained,
            checkpoint=checkpoint,
            kwargs=kwargs,
        )
        # Applied after the feature map, so never used: without a gradient
        # it would stop distributed training.
        for param in self._unused():
            param.requires_grad_(False)
        for module in self._frozen():
            module.requires_grad_(False)

    def init_weights(self) -> None:
        """Load what training starts from; mmengine's Runner calls it.

        Building the model loads nothing, so testing and streaming need no
        network. timm models initialise themselves when they are built.
        """
        start = self._start
        if self.init_cfg is not None:
            super().init_weights()
        elif start['checkpoint'] is not None:
            # mmengine.runner needs OpenCV, which a base install lacks.
            from mmengine.runner import load_checkpoint

            load_checkpoint(
                self.model,
                start['checkpoint'],
                map_location='cpu',
                strict=False,
            )
        elif start['pretrained']:
            timm = require('timm', extra='mmcls', used_by='TimmBackbone')
            source = timm.create_model(
                start['model_name'],
                pretrained=True,
                num_classes=0,
                **start['kwargs'],
            )
            self.model.load_state_dict(source.state_dict())

    def _unused(self) -> list[nn.Parameter]:
        head = getattr(self.model, 'head', None)
        return list(head.parameters()) if isinstance(head, nn.Module) else []

    def _frozen(self) -> list[nn.Module]:
        if self.frozen_stages <= 0:
            return []
        model = self.model
        if not (hasattr(model, 'stem') and hasattr(model, 'stages')):
            raise ValueError(
                f'`frozen_stages` = {self.frozen_stages}, but '
                f'{type(model).__name__} has no stem and stages; set it to 0'
            )
        return [model.stem, *model.stages[: self.frozen_stages]]

    def train(self, mode: bool = True) -> Self:
        """Set the mode; frozen stages stay in evaluation mode."""
        super().train(mode)
        for module in self._frozen():
            module.eval()
        return self

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Map ``(batch, 3, height, width)`` to a tuple of one feature map."""
        return (self.model.forward_features(x),)
