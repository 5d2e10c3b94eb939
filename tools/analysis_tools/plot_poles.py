"""Draw the poles of a model over an image: memory horizons, unit disk."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.registry import init_default_scope
from numpy.typing import NDArray

from mmssm.analysis.pole_maps import (
    find_pole_backbone,
    map_poles,
    prepare_image,
    read_image,
    write_tables,
)
from mmssm.apis.loading import without_pretrained
from mmssm.compat import prepare_environment
from mmssm.engine.launch import (
    add_config_arguments,
    check_exists,
    load_config,
    load_weights,
)
from mmssm.registry import MODELS
from mmssm.visualization import plot_horizons, plot_layer


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog='The image may have any size: its shorter side is scaled to '
        'that of the images the model is made for, and nothing is cropped.',
    )
    add_config_arguments(parser)
    parser.add_argument('checkpoint', help='weights of the model')
    parser.add_argument('image', help='image file')
    parser.add_argument(
        '--layers',
        nargs='+',
        type=int,
        metavar='N',
        help='layers to draw, from 0; negative ones count from the end '
        '(default: all)',
    )
    parser.add_argument(
        '--short-side',
        type=int,
        metavar='PIXELS',
        help='scale the shorter side of the image to this',
    )
    parser.add_argument(
        '--out-dir',
        type=Path,
        help='folder of pictures and tables (default: work_dirs/poles/ and '
        'the name of the image)',
    )
    return parser.parse_args()


def build_model(cfg: Config, checkpoint: str) -> BaseModel:
    init_default_scope(cfg.get('default_scope') or 'mmssm')
    if 'model' not in cfg:
        raise ValueError(f'config `{cfg.filename}` has no model')
    settings = without_pretrained(cfg.model)
    settings.setdefault('data_preprocessor', cfg.get('data_preprocessor'))
    model = MODELS.build(settings)
    find_pole_backbone(model)  # before a checkpoint is blamed
    load_weights(model, checkpoint)
    return model.eval()


def preprocess(model: BaseModel, image: NDArray) -> torch.Tensor:
    channels_first = torch.from_numpy(image.transpose(2, 0, 1).copy())
    batch = model.data_preprocessor(dict(inputs=[channels_first]))
    inputs = batch['inputs']
    return (
        inputs if isinstance(inputs, torch.Tensor) else torch.stack(inputs)
    ).float()


def run(args: argparse.Namespace) -> Sequence[Path]:
    check_exists(args.checkpoint)
    image = read_image(args.image)
    cfg = load_config(args.config, args.cfg_options)
    model = build_model(cfg, args.checkpoint)
    backbone = find_pole_backbone(model)
    seen = prepare_image(image, backbone, args.short_side)
    maps = map_poles(backbone, preprocess(model, seen), args.layers)

    name = Path(args.image).stem
    folder = args.out_dir or Path('work_dirs', 'poles', name)
    shown = seen[..., 0] if seen.shape[2] == 1 else seen[..., ::-1]
    title = f'{Path(args.config).stem}, {Path(args.image).name}'
    written = [folder / 'horizons.png']
    plot_horizons(shown, maps, title=title, path=written[0])
    for layer in dict.fromkeys(m.layer for m in maps):
        path = folder / f'layer_{layer:02d}.png'
        both = [m for m in maps if m.layer == layer]
        plot_layer(shown, both, title=f'{title}, layer {layer}', path=path)
        written.append(path)
    return [*written, *write_tables(maps, folder)]


def main() -> int:
    args = parse_args()
    prepare_environment()
    try:
        for path in run(args):
            print(f'wrote {path}')
    except (ValueError, OSError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
