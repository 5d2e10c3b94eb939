from mmssm.models.backbones.strided_conv_net import StridedConvNet
from mmssm.models.backbones.tcp_vim import TCPVim
from mmssm.models.backbones.timm_backbone import TimmBackbone
from mmssm.models.backbones.vim import Vim

__all__ = ['StridedConvNet', 'TCPVim', 'TimmBackbone', 'Vim']
