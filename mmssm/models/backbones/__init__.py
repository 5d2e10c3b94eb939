from mmssm.models.backbones.strided_conv_net import StridedConvNet
from mmssm.models.backbones.timm_backbone import TimmBackbone

__all__ = ['StridedConvNet', 'TimmBackbone']
