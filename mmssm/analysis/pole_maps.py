"""Poles of every token of an image, laid out over the image."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mmssm.analysis.stability import (
    base_poles,
    find_pole_directions,
    pole_radii,
)
from mmssm.evaluation.functional.atomic import replace_when_done
from mmssm.models.backbones import Vim
from mmssm.models.layers.pole_direction import PoleDirection
from mmssm.models.layers.position_embed import cls_token_index

TOKEN_COLUMNS = (
    'layer',
    'direction',
    'row',
    'column',
    'horizon',
    'max_radius',
    'oscillation',
)
BASE_COLUMNS = ('layer', 'direction', 'group', 'kind', 'radius', 'angle')


@dataclass(frozen=True)
class Poles:
    """Poles with the same leading axes.

    Attributes:
        real (Tensor): Real poles, ``(..., groups, reals)``.
        rho (Tensor): Radii of the pairs, ``(..., groups, pairs)``.
        theta (Tensor): Their angles, 0 to pi.
    """

    real: Tensor
    rho: Tensor
    theta: Tensor

    def radii(self) -> Tensor:
        """Moduli, real poles first: ``(..., groups, reals + pairs)``."""
        return pole_radii(self.real, self.rho)

    def horizons(self) -> Tensor:
        """Memory horizons in tokens, in the layout of :meth:`radii`."""
        return memory_horizon(self.radii())

    def oscillations(self) -> Tensor:
        """Oscillation of the pairs, ``rho theta / pi``, like ``rho``."""
        return self.rho * self.theta / torch.pi


@dataclass(frozen=True)
class PoleMap:
    """Poles of one direction of one layer over an image.

    Attributes:
        layer (int): Number of the layer, from 0.
        direction (str): ``'forward'`` or ``'backward'``.
        tokens (Poles): Leading axes ``(rows, columns)``; the class token is
            left out.
        base (Poles): Poles that no token has modulated, no leading axes.
    """

    layer: int
    direction: str
    tokens: Poles
    base: Poles

    @property
    def horizon(self) -> Tensor:
        """Longest horizon of any pole, ``(rows, columns)``."""
        return self.tokens.horizons().flatten(2).amax(-1)

    @property
    def max_radius(self) -> Tensor:
        """Largest modulus of any pole, ``(rows, columns)``."""
        return self.tokens.radii().flatten(2).amax(-1)

    @property
    def oscillation(self) -> Tensor:
        """Strongest oscillation of any pair; 0 where there is none."""
        values = self.tokens.oscillations().flatten(2)
        return (
            values.amax(-1) if values.shape[-1] else self.horizon.new_zeros(())
        ).expand(self.horizon.shape)

    def landmarks(self) -> dict[str, tuple[int, int]]:
        """Places (row, column) of the extreme tokens.

        Returns:
            dict: ``'longest memory'``, ``'fastest decay'`` and, where there
            are pairs, ``'strongest oscillation'``; empty where all tokens
            have the same poles.
        """
        horizon = self.horizon
        if torch.equal(horizon.amin(), horizon.amax()):
            return {}
        found = {
            'longest memory': horizon.argmax(),
            'fastest decay': horizon.argmin(),
        }
        if self.tokens.rho.shape[-1]:
            found['strongest oscillation'] = self.oscillation.argmax()
        columns = horizon.shape[1]
        return {
            name: divmod(int(index), columns) for name, index in found.items()
        }


def memory_horizon(radius: Tensor) -> Tensor:
    """Tokens after which a mode has decayed to 1 / e.

    Args:
        radius (Tensor): Moduli of poles, in [0, 1).

    Returns:
        Tensor: ``-1 / log(radius)``, 0 for a pole at 0.

    Source: TCP-SSM (arXiv 2605.11563), figure 1.
    """
    return -1 / torch.log(radius)


def find_pole_backbone(model: nn.Module) -> Vim:
    """Vision Mamba with poles inside a model.

    Args:
        model (nn.Module): Such as a classifier.

    Returns:
        Vim: The first backbone found.

    Raises:
        ValueError: If there is none.
    """
    for module in model.modules():
        if isinstance(module, Vim) and find_pole_directions(module):
            return module
    raise ValueError(
        'the model has no Vision Mamba with poles (mmssm.TCPVim, or '
        "mmssm.Vim with mixer=dict(type='mmssm.PoleMixer')): there are no "
        'poles to show'
    )


@torch.no_grad()
def map_poles(
    backbone: Vim, image: Tensor, layers: Sequence[int] | None = None
) -> list[PoleMap]:
    """Read the poles of every token of an image.

    Args:
        backbone (Vim): In the mode that it is to run in; usually evaluation.
        image (Tensor): Preprocessed image ``(1, channels, height, width)``.
        layers (Sequence[int], optional): Numbers of layers; negative ones
            count from the end. Default: all layers with poles.

    Returns:
        list[PoleMap]: By layer, the forward direction first.

    Raises:
        ValueError: If a layer is not there or has no poles, or if ``image``
            is no single image.
    """
    if image.ndim != 4 or image.shape[0] != 1:
        raise ValueError(
            f'`image` has shape {tuple(image.shape)}; expected (1, channels, '
            'height, width)'
        )
    chosen = _choose_directions(backbone, layers)
    recorded: dict[PoleDirection, Poles] = {}

    def record(direction: PoleDirection, inputs: tuple, _: Tensor) -> None:
        _, *modulation = direction.drive(direction.convolve(inputs[0]))
        poles = direction.poles(*modulation)
        recorded[direction] = Poles(*(t[0].double() for t in poles))

    handles = [d.register_forward_hook(record) for _, d in chosen]
    try:
        backbone(image)
    finally:
        for handle in handles:
            handle.remove()
    grid = backbone.patch_embed.grid_size(*image.shape[-2:])
    on_grid = partial(
        _on_grid, grid=grid, with_cls_token=backbone.cls_token is not None
    )
    return [
        PoleMap(
            layer,
            'backward' if direction.reverse else 'forward',
            Poles(*map(on_grid, vars(recorded[direction]).values())),
            Poles(*(t.double() for t in base_poles(direction))),
        )
        for layer, direction in chosen
    ]


def _choose_directions(
    backbone: Vim, layers: Sequence[int] | None
) -> list[tuple[int, PoleDirection]]:
    depth = len(backbone.layers)
    directions = {
        number: list(find_pole_directions(block).values())
        for number, block in enumerate(backbone.layers)
    }
    if layers is None:
        layers = [number for number in range(depth) if directions[number]]
    for layer in layers:
        if not -depth <= layer < depth:
            raise ValueError(
                f'there is no layer {layer}; expected -{depth} to {depth - 1}'
            )
        if not directions[layer % depth]:
            raise ValueError(f'layer {layer} has no poles')
    numbers = dict.fromkeys(layer % depth for layer in layers)
    return [(n, direction) for n in numbers for direction in directions[n]]


def _on_grid(
    tokens: Tensor, grid: tuple[int, int], with_cls_token: bool
) -> Tensor:
    if with_cls_token:
        index = cls_token_index(grid)
        tokens = torch.cat((tokens[:index], tokens[index + 1 :]))
    return tokens.unflatten(0, grid)


def prepare_image(
    image: NDArray, backbone: Vim, short_side: int | None = None
) -> NDArray:
    """Scale an image of any size for a backbone, without cropping.

    Sides are rounded to whole patches, so that no token is padded.

    Args:
        image (ndarray): uint8 BGR, ``(height, width, 3)``.
        backbone (Vim): The backbone.
        short_side (int, optional): Pixels of the shorter side. Default: that
            of the images the backbone is made for.

    Returns:
        ndarray: uint8 ``(height, width, channels)``, BGR or grey, as the
        backbone takes.

    Raises:
        ValueError: If the backbone takes neither 1 nor 3 channels, or if
            ``short_side`` is smaller than a patch.
    """
    import cv2

    patch, stride = (
        backbone.patch_embed.patch_size,
        backbone.patch_embed.stride,
    )
    if short_side is None:
        short_side = (min(backbone.pos_embed.grid) - 1) * stride + patch
    if short_side < patch:
        raise ValueError(
            f'the short side is {short_side} pixels; expected at least one '
            f'patch, {patch}'
        )
    scale = short_side / min(image.shape[:2])
    height, width = (
        max(round((side * scale - patch) / stride), 0) * stride + patch
        for side in image.shape[:2]
    )
    interpolation = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    image = cv2.resize(image, (width, height), interpolation=interpolation)
    channels = backbone.patch_embed.proj.in_channels
    if channels == 1:
        return cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)[..., None]
    if channels != 3:
        raise ValueError(
            f'the backbone takes images of {channels} channels; expected 1 '
            'or 3'
        )
    return image


def read_image(path: str | Path) -> NDArray:
    """Read an image file.

    Args:
        path (str or Path): File of any kind that OpenCV reads.

    Returns:
        ndarray: uint8 BGR, ``(height, width, 3)``.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not an image.
    """
    import cv2

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f'image `{path}` was not found')
    content = np.fromfile(path, dtype=np.uint8)
    image = cv2.imdecode(content, cv2.IMREAD_COLOR) if content.size else None
    if image is None:
        raise ValueError(f'`{path}` is not an image that OpenCV can read')
    return image


def token_rows(maps: Sequence[PoleMap]) -> Iterator[tuple]:
    """Rows of a table with one line per token; see `TOKEN_COLUMNS`."""
    for pole_map in maps:
        values = torch.stack(
            (pole_map.horizon, pole_map.max_radius, pole_map.oscillation), -1
        )
        for row, line in enumerate(values.tolist()):
            for column, numbers in enumerate(line):
                cells = (f'{number:.6g}' for number in numbers)
                name = (pole_map.layer, pole_map.direction)
                yield (*name, row, column, *cells)


def base_rows(maps: Sequence[PoleMap]) -> Iterator[tuple]:
    """Rows of a table with one line per base pole; see `BASE_COLUMNS`."""
    for pole_map in maps:
        name, base = (pole_map.layer, pole_map.direction), pole_map.base
        signs = torch.where(base.real < 0, torch.pi, 0.0)
        for kind, radii, angles in (
            ('real', base.real.abs(), signs),
            ('pair', base.rho, base.theta),
        ):
            for group, pairs in enumerate(
                torch.stack((radii, angles), -1).tolist()
            ):
                for radius, angle in pairs:
                    cells = (f'{radius:.6g}', f'{angle:.6g}')
                    yield (*name, group, kind, *cells)


def write_tables(maps: Sequence[PoleMap], folder: str | Path) -> list[Path]:
    """Write ``tokens.csv`` and ``base_poles.csv``.

    Older files stay until the new ones are complete.

    Args:
        maps (Sequence[PoleMap]): What to write.
        folder (str or Path): An existing folder.

    Returns:
        list[Path]: The files.
    """
    written = []
    for name, columns, rows in (
        ('tokens.csv', TOKEN_COLUMNS, token_rows(maps)),
        ('base_poles.csv', BASE_COLUMNS, base_rows(maps)),
    ):
        path = Path(folder, name)
        with (
            replace_when_done(path) as temporary,
            open(temporary, 'w', newline='', encoding='utf-8') as file,
        ):
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(rows)
        written.append(path)
    return written
