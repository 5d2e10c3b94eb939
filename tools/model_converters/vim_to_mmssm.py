"""Convert published Vim checkpoints to mmssm's names.

The result is a checkpoint of an mmpretrain ``ImageClassifier`` with
``mmssm.Vim`` as backbone. With ``--dense`` the class token is left out, for a
backbone with ``with_cls_token=False``. Positions of another grid are
interpolated with ``--grid``.
"""

import argparse
from collections.abc import Mapping

from torch import Tensor

from mmssm.models.layers.position_embed import (
    cls_token_index,
    resize_position_embed,
)
from mmssm.utils.conversion import (
    load_weights,
    rename_weights,
    save_atomically,
)

# Published name -> ours; the first rule that fits wins.
RULES = (
    ('cls_token', 'backbone.cls_token'),
    ('pos_embed', 'backbone.pos_embed.weight'),
    ('patch_embed.proj.{leaf}', 'backbone.patch_embed.proj.{leaf}'),
    ('norm_f.weight', 'backbone.norm_f.weight'),
    ('head.{leaf}', 'head.fc.{leaf}'),
    ('layers.{i}.norm.weight', 'backbone.layers.{i}.norm.weight'),
    (
        'layers.{i}.mixer.{shared}.weight',
        'backbone.layers.{i}.mixer.{shared}.weight',
    ),
    (
        'layers.{i}.mixer.A_b_log',
        'backbone.layers.{i}.mixer.backward_scan.A_log',
    ),
    ('layers.{i}.mixer.D_b', 'backbone.layers.{i}.mixer.backward_scan.D'),
    (
        'layers.{i}.mixer.{part}_b.{leaf}',
        'backbone.layers.{i}.mixer.backward_scan.{part}.{leaf}',
    ),
    (
        'layers.{i}.mixer.{own}',
        'backbone.layers.{i}.mixer.forward_scan.{own}',
    ),
    (
        'layers.{i}.mixer.{part}.{leaf}',
        'backbone.layers.{i}.mixer.forward_scan.{part}.{leaf}',
    ),
)
PLACEHOLDERS = {
    'i': r'\d+',
    'leaf': 'weight|bias',
    'shared': 'in_proj|out_proj',
    'part': 'conv1d|x_proj|dt_proj',
    'own': 'A_log|D',
}
# Weights of a block: norm, two projections, seven of each direction.
BLOCK_NAMES = 17


def convert(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename published weights to those of a classifier with ``mmssm.Vim``.

    Args:
        state_dict (Mapping): Weights under the published names.

    Returns:
        dict: The same tensors under ``backbone.*`` and ``head.fc.*``.

    Raises:
        KeyError: If keys match no rule, or if parts of the model are missing;
            all of them are named.
    """
    renamed = rename_weights(state_dict, RULES, PLACEHOLDERS)
    _check_complete(renamed)
    return renamed


def to_dense(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Leave out the class token and its row of the position embedding.

    Args:
        weights (Mapping): Result of :func:`convert`.

    Returns:
        dict: Weights for ``with_cls_token=False``.

    Raises:
        KeyError: If there is no class token.
    """
    dense = dict(weights)
    if dense.pop('backbone.cls_token', None) is None:
        raise KeyError('the checkpoint has no class token; leave --dense out')
    positions = dense['backbone.pos_embed.weight']
    row = cls_token_index((1, positions.shape[1] - 1))
    keep = [i for i in range(positions.shape[1]) if i != row]
    dense['backbone.pos_embed.weight'] = positions[:, keep]
    return dense


def resize(
    weights: Mapping[str, Tensor], grid: tuple[int, int]
) -> dict[str, Tensor]:
    """Interpolate the positions, which must be those of a square grid.

    Args:
        weights (Mapping): Result of :func:`convert` or :func:`to_dense`.
        grid (tuple[int, int]): Rows and columns of the new grid.

    Returns:
        dict: Weights with other positions.

    Raises:
        ValueError: If the positions are not those of a square grid.
    """
    positions = weights['backbone.pos_embed.weight']
    with_cls_token = 'backbone.cls_token' in weights
    patches = positions.shape[1] - with_cls_token
    side = round(patches**0.5)
    if side * side != patches:
        raise ValueError(
            f'the position embedding has {patches} patches; expected those '
            'of a square grid'
        )
    resized = resize_position_embed(
        positions, (side, side), grid, with_cls_token
    )
    return {**weights, 'backbone.pos_embed.weight': resized}


def _check_complete(renamed: Mapping[str, Tensor]) -> None:
    blocks: dict[str, set[str]] = {}
    for key in renamed:
        prefix, _, rest = key.partition('backbone.layers.')
        if not prefix and rest:
            number, _, name = rest.partition('.')
            blocks.setdefault(number, set()).add(name)
    everything = set().union(*blocks.values())
    missing = [
        key
        for key in ('backbone.pos_embed.weight', 'backbone.norm_f.weight')
        if key not in renamed
    ]
    for number, names in blocks.items():
        missing += [
            f'backbone.layers.{number}.{name}'
            for name in sorted(everything - names)
        ]
    if missing or len(everything) != BLOCK_NAMES:
        raise KeyError(
            'this is not a whole Vim with scans in both directions: '
            f'{len(blocks)} blocks of {len(everything)} weights (expected '
            f'{BLOCK_NAMES}); missing: {", ".join(missing) or "a direction"}'
        )


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('source', help='published checkpoint')
    parser.add_argument('target', help='checkpoint to write')
    parser.add_argument(
        '--dense', action='store_true', help='without class token'
    )
    parser.add_argument(
        '--grid',
        type=int,
        nargs=2,
        metavar=('ROWS', 'COLUMNS'),
        help='interpolate the positions for this grid of patches',
    )
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    try:
        weights = convert(load_weights(args.source))
        if args.dense:
            weights = to_dense(weights)
        if args.grid:
            weights = resize(weights, tuple(args.grid))
        save_atomically({'state_dict': weights}, args.target)
    except KeyError as error:
        # Its str() is the repr of the message.
        raise SystemExit(f'error: {args.source}: {error.args[0]}') from error
    except (OSError, ValueError) as error:
        raise SystemExit(f'error: {error}') from error
    parameters = sum(value.numel() for value in weights.values())
    print(
        f'{len(weights)} tensors, {parameters:,} parameters, written to '
        f'{args.target}'
    )


if __name__ == '__main__':
    main()
