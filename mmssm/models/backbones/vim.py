"""Vision Mamba as a backbone for classification and dense prediction."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from mmengine.model import BaseModule
from mmengine.model.weight_init import trunc_normal_
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torchvision.ops import StochasticDepth

from mmssm.models.layers.patch_embed import PatchEmbed
from mmssm.models.layers.position_embed import (
    GridPositionEmbed,
    cls_token_index,
)
from mmssm.models.layers.vim_block import VimBlock
from mmssm.registry import MODELS

OUT_TYPES = ('cls_token', 'featmap', 'avg_featmap', 'raw')
OUT_STREAMS = ('norm', 'mixer', 'residual')


@MODELS.register_module()
class Vim(BaseModule):
    """Vision Mamba (Vim).

    Tokens of patches, a class token in the middle of the sequence, and blocks
    that scan the sequence in both directions.

    Args:
        arch (str or dict): ``'tiny'``, ``'small'`` or ``'base'``, or a dict
            with ``embed_dims`` and ``depth``. Default: 'tiny'.
        img_size (int or tuple[int, int]): Height and width that the position
            embedding is for; images of other sizes get interpolated
            positions. Default: 224.
        patch_size (int): Side of a patch. Default: 16.
        stride (int, optional): Step between patches; less than
            ``patch_size`` makes them overlap. Default: ``patch_size``.
        in_channels (int): Channels of the image. Default: 3.
        out_indices (int or Sequence[int]): Blocks whose outputs are
            returned; negative ones count from the end. Default: -1.
        out_type (str): ``'cls_token'``: ``(batch, embed_dims)``;
            ``'featmap'``: ``(batch, embed_dims, rows, columns)``;
            ``'avg_featmap'``: its mean ``(batch, embed_dims)``; ``'raw'``:
            all tokens ``(batch, tokens, embed_dims)``, the class token in the
            middle. Default: 'cls_token'.
        out_stream (str): What is returned of a block: ``'norm'``: residual
            stream with the block's output, through the final norm (for
            classification); ``'mixer'``: the mixer's output alone (as
            published for segmentation); ``'residual'``: residual stream with
            the block's output, without norm (as published for detection).
            Default: 'norm'.
        with_cls_token (bool): Whether there is a class token. Default: True.
        drop_path_rate (float): Rate of the last block, growing from 0.
            Default: 0.
        frozen_stages (int): Number of leading blocks that are not trained,
            and with them patch and position embedding and class token; 0
            freezes the embeddings alone, -1 nothing. Default: -1.
        with_cp (bool): Whether activations are recomputed in the backward
            pass to save memory. Default: False.
        mixer (dict): Config of the mixer of every block, without
            ``d_model``. Default: ``dict(type='mmssm.SelectiveScanMixer')``.
        init_cfg (dict, optional): mmengine initialisation config.

    Raises:
        ValueError: If an option is out of its range.

    Source: Vision Mamba (arXiv 2401.09417), and its published code: mixer v2,
    class token in the middle, mean of both directions.

    Example:
        >>> import torch
        >>> from mmssm.models import Vim
        >>> model = Vim(dict(embed_dims=32, depth=2), img_size=64)
        >>> model(torch.randn(1, 3, 64, 64))[0].shape
        torch.Size([1, 32])
    """

    arch_settings: dict[str, dict[str, int]] = {
        'tiny': dict(embed_dims=192, depth=24),
        'small': dict(embed_dims=384, depth=24),
        'base': dict(embed_dims=768, depth=24),
    }

    def __init__(
        self,
        arch: str | Mapping[str, int] = 'tiny',
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 16,
        stride: int | None = None,
        in_channels: int = 3,
        out_indices: int | Sequence[int] = -1,
        out_type: str = 'cls_token',
        out_stream: str = 'norm',
        with_cls_token: bool = True,
        drop_path_rate: float = 0.0,
        frozen_stages: int = -1,
        with_cp: bool = False,
        mixer: Mapping[str, Any] | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(init_cfg)
        settings = _arch_settings(arch, self.arch_settings)
        self.embed_dims = settings['embed_dims']
        self.depth = settings['depth']
        _check_output(out_type, out_stream, with_cls_token)
        self.out_type, self.out_stream = out_type, out_stream
        self.out_indices = _positive_indices(out_indices, self.depth)
        self.frozen_stages, self.with_cp = frozen_stages, with_cp
        if not -1 <= frozen_stages <= self.depth:
            raise ValueError(
                f'`frozen_stages` is {frozen_stages}; expected -1 to the '
                f'number of blocks, {self.depth}'
            )
        self.patch_embed = PatchEmbed(
            in_channels, self.embed_dims, patch_size, stride or patch_size
        )
        height, width = (
            (img_size, img_size) if isinstance(img_size, int) else img_size
        )
        grid = self.patch_embed.grid_size(height, width)
        self.cls_token = (
            nn.Parameter(torch.zeros(1, 1, self.embed_dims))
            if with_cls_token
            else None
        )
        self.pos_embed = GridPositionEmbed(
            grid, self.embed_dims, with_cls_token
        )
        mixer = dict(mixer or dict(type='mmssm.SelectiveScanMixer'))
        # On the CPU even where parameters are made elsewhere, or nowhere.
        rates = torch.linspace(
            0, drop_path_rate, self.depth, device='cpu'
        ).tolist()
        # The rate of a block is that of the output it adds, the previous
        # block's.
        self.layers = nn.ModuleList(
            VimBlock(
                MODELS.build(dict(mixer, d_model=self.embed_dims)),
                self.embed_dims,
                rate,
            )
            for rate in [0.0, *rates[:-1]]
        )
        self.drop_path = StochasticDepth(drop_path_rate, 'row')
        if out_stream == 'norm':
            self.norm_f = nn.RMSNorm(self.embed_dims, eps=1e-5)
        self._reset_embeddings()
        self._freeze()

    def _reset_embeddings(self) -> None:
        trunc_normal_(self.pos_embed.weight, std=0.02)
        if self.cls_token is not None:
            trunc_normal_(self.cls_token, std=0.02)
        # LeCun's normal initialisation: cut at two standard deviations, which
        # makes the one that is left 0.8796 of that.
        projection = self.patch_embed.proj
        std = projection.weight[0].numel() ** -0.5 / 0.87962566
        trunc_normal_(projection.weight, std=std, a=-2 * std, b=2 * std)
        nn.init.zeros_(projection.bias)
        for block in self.layers:
            # Every block adds to the residual stream.
            weight = block.mixer.out_proj.weight
            nn.init.kaiming_uniform_(weight, a=5**0.5)
            with torch.no_grad():
                weight /= self.depth**0.5

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Run the backbone.

        Args:
            x (Tensor): Images ``(batch, in_channels, height, width)``.

        Returns:
            tuple[Tensor, ...]: One output per index, in the form of
            ``out_type``.
        """
        hidden, grid = self.embed(x)
        residual = None
        outputs = []
        for i, block in enumerate(self.layers):
            if self.with_cp and torch.is_grad_enabled():
                hidden, residual = checkpoint(
                    block, hidden, residual, use_reentrant=False
                )
            else:
                hidden, residual = block(hidden, residual)
            if i in self.out_indices:
                tokens = self._select_stream(hidden, residual)
                outputs.append(self._format(tokens, grid))
        return tuple(outputs)

    def embed(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Tokens of images, with class token and positions.

        Returns:
            tuple: Tokens ``(batch, tokens, embed_dims)`` and the grid of
            patches (rows, columns).
        """
        tokens, grid = self.patch_embed(x)
        if self.cls_token is not None:
            index = cls_token_index(grid)
            cls_token = self.cls_token.expand(tokens.shape[0], -1, -1)
            parts = (tokens[:, :index], cls_token, tokens[:, index:])
            tokens = torch.cat(parts, dim=1)
        return tokens + self.pos_embed(grid), grid

    def _select_stream(self, hidden: Tensor, residual: Tensor) -> Tensor:
        if self.out_stream == 'mixer':
            return hidden
        tokens = residual + self.drop_path(hidden)
        return self.norm_f(tokens) if self.out_stream == 'norm' else tokens

    def _format(self, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        if self.out_type == 'raw':
            return tokens
        index = cls_token_index(grid)
        if self.out_type == 'cls_token':
            return tokens[:, index]
        if self.cls_token is not None:
            patches = (tokens[:, :index], tokens[:, index + 1 :])
            tokens = torch.cat(patches, dim=1)
        if self.out_type == 'avg_featmap':
            return tokens.mean(1)
        return tokens.mT.unflatten(-1, grid)

    def train(self, mode: bool = True) -> 'Vim':
        """Set the mode; frozen blocks stay in evaluation mode."""
        super().train(mode)
        for block in self.layers[: max(self.frozen_stages, 0)]:
            block.eval()
        return self

    def _freeze(self) -> None:
        if self.frozen_stages < 0:
            return
        frozen = [
            self.patch_embed,
            self.pos_embed,
            *self.layers[: self.frozen_stages],
        ]
        for module in frozen:
            module.requires_grad_(False)
        if self.cls_token is not None:
            self.cls_token.requires_grad_(False)


def _arch_settings(
    arch: str | Mapping[str, int], known: Mapping[str, dict[str, int]]
) -> Mapping[str, int]:
    if isinstance(arch, str):
        if arch not in known:
            raise ValueError(
                f'`arch` is {arch!r}; expected one of {sorted(known)} or a '
                'dict with embed_dims and depth'
            )
        return known[arch]
    if set(arch) != {'embed_dims', 'depth'}:
        raise ValueError(
            f'`arch` has the keys {sorted(arch)}; expected embed_dims and '
            'depth'
        )
    return arch


def _check_output(
    out_type: str, out_stream: str, with_cls_token: bool
) -> None:
    for name, value, choices in (
        ('out_type', out_type, OUT_TYPES),
        ('out_stream', out_stream, OUT_STREAMS),
    ):
        if value not in choices:
            raise ValueError(
                f'`{name}` is {value!r}; expected one of {choices}'
            )
    if out_type == 'cls_token' and not with_cls_token:
        raise ValueError(
            "`out_type` is 'cls_token' and `with_cls_token` is False; choose "
            'another out_type'
        )


def _positive_indices(
    indices: int | Sequence[int], depth: int
) -> tuple[int, ...]:
    indices = (indices,) if isinstance(indices, int) else tuple(indices)
    for index in indices:
        if not -depth <= index < depth:
            raise ValueError(
                f'`out_indices` has {index}; expected -{depth} to {depth - 1}'
            )
    return tuple(sorted(index % depth for index in indices))
