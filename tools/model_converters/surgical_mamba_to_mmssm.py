"""Convert published SurgicalMamba weights to mmssm's names, and back."""

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from mmssm.utils.conversion import (
    load_weights,
    rename_weights,
    save_atomically,
)

# Published name -> ours. `{...}` stands for a part that is kept: `i` a block
# number, `path` slow or fast, `leaf` the rest. The first rule that fits wins.
RULES = (
    ('backbone.{leaf}', 'backbone.model.{leaf}'),
    ('visual_proj.{leaf}', 'temporal.visual_proj.{leaf}'),
    ('frame_norm.{leaf}', 'temporal.frame_norm.{leaf}'),
    ('blocks.{i}.norm_mamba.{leaf}', 'temporal.blocks.{i}.norm.{leaf}'),
    ('blocks.{i}.ffn_norm.{leaf}', 'temporal.blocks.{i}.ffn_norm.{leaf}'),
    ('blocks.{i}.ffn.{leaf}', 'temporal.blocks.{i}.ffn.{leaf}'),
    (
        'blocks.{i}.mamba.A_log_{path}',
        'temporal.blocks.{i}.mixer.{path}.A_log',
    ),
    ('blocks.{i}.mamba.D_{path}', 'temporal.blocks.{i}.mixer.{path}.D'),
    (
        'blocks.{i}.mamba.scale_{path}',
        'temporal.blocks.{i}.mixer.scale_{path}',
    ),
    (
        'blocks.{i}.mamba.conv1d_{path}.{leaf}',
        'temporal.blocks.{i}.mixer.{path}.conv1d.{leaf}',
    ),
    (
        'blocks.{i}.mamba.x_proj_{path}.{leaf}',
        'temporal.blocks.{i}.mixer.{path}.x_proj.{leaf}',
    ),
    (
        'blocks.{i}.mamba.dt_proj_{path}.{leaf}',
        'temporal.blocks.{i}.mixer.{path}.dt_proj.{leaf}',
    ),
    (
        'blocks.{i}.mamba.UV_mlp_{path}.{leaf}',
        'temporal.blocks.{i}.mixer.{path}.regramming.uv_mlp.{leaf}',
    ),
    (
        'blocks.{i}.mamba.S_mlp_{path}.{leaf}',
        'temporal.blocks.{i}.mixer.{path}.regramming.theta_mlp.{leaf}',
    ),
    (
        'blocks.{i}.mamba.intensity_net.0.{leaf}',
        'temporal.blocks.{i}.mixer.intensity_net.fc1.{leaf}',
    ),
    (
        'blocks.{i}.mamba.intensity_net.2.{leaf}',
        'temporal.blocks.{i}.mixer.intensity_net.fc2.{leaf}',
    ),
    (
        'blocks.{i}.mamba.norm_pre_out.{leaf}',
        'temporal.blocks.{i}.mixer.norm.{leaf}',
    ),
    (
        'blocks.{i}.mamba.in_proj.{leaf}',
        'temporal.blocks.{i}.mixer.in_proj.{leaf}',
    ),
    (
        'blocks.{i}.mamba.in_proj_slow.{leaf}',
        'temporal.blocks.{i}.mixer.in_proj_slow.{leaf}',
    ),
    (
        'blocks.{i}.mamba.out_proj.{leaf}',
        'temporal.blocks.{i}.mixer.out_proj.{leaf}',
    ),
    ('output_head.head.{leaf}', 'head.fc.{leaf}'),
    ('output_head.blocks.{i}.A_log', 'head.blocks.{i}.path.A_log'),
    ('output_head.blocks.{i}.D', 'head.blocks.{i}.path.D'),
    (
        'output_head.blocks.{i}.conv1d.{leaf}',
        'head.blocks.{i}.path.conv1d.{leaf}',
    ),
    (
        'output_head.blocks.{i}.x_proj.{leaf}',
        'head.blocks.{i}.path.x_proj.{leaf}',
    ),
    (
        'output_head.blocks.{i}.dt_proj.{leaf}',
        'head.blocks.{i}.path.dt_proj.{leaf}',
    ),
    (
        'output_head.blocks.{i}.UV_mlp.{leaf}',
        'head.blocks.{i}.path.regramming.uv_mlp.{leaf}',
    ),
    (
        'output_head.blocks.{i}.S_mlp.{leaf}',
        'head.blocks.{i}.path.regramming.theta_mlp.{leaf}',
    ),
    (
        'output_head.blocks.{i}.norm_pre_out.{leaf}',
        'head.blocks.{i}.gated_norm.{leaf}',
    ),
    ('output_head.blocks.{i}.norm.{leaf}', 'head.blocks.{i}.norm.{leaf}'),
    (
        'output_head.blocks.{i}.in_proj.{leaf}',
        'head.blocks.{i}.in_proj.{leaf}',
    ),
    (
        'output_head.blocks.{i}.out_proj.{leaf}',
        'head.blocks.{i}.out_proj.{leaf}',
    ),
    (
        'output_head.blocks.{i}.ffn_norm.{leaf}',
        'head.blocks.{i}.ffn_norm.{leaf}',
    ),
    ('output_head.blocks.{i}.ffn.{leaf}', 'head.blocks.{i}.ffn.{leaf}'),
)

# A constant identity matrix; not a parameter and not needed here.
IGNORED = re.compile(r'blocks\.\d+\.mamba\._T_identity')

PLACEHOLDERS = {'i': r'\d+', 'path': 'slow|fast', 'leaf': r'.+'}


def _rename(
    state_dict: Mapping[str, Tensor], rules: Sequence[tuple[str, str]]
) -> dict[str, Tensor]:
    kept = {k: v for k, v in state_dict.items() if not IGNORED.fullmatch(k)}
    return rename_weights(kept, rules, PLACEHOLDERS)


def convert(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename published weights to those of :class:`mmssm.PhaseRecognizer`.

    Args:
        state_dict (Mapping): Weights under the published names. The constant
            buffers ``_T_identity`` are left out.

    Returns:
        dict: The same tensors under mmssm's names.

    Raises:
        KeyError: If keys match no rule; all of them are named.
    """
    return _rename(state_dict, RULES)


def reverse(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename mmssm's weights back to the published names.

    The published model has constant buffers ``blocks.<i>.mamba._T_identity``
    besides (identity matrices of the slow state size): load the result with
    ``strict=False`` there, or add them.

    Args:
        state_dict (Mapping): Weights of :class:`mmssm.PhaseRecognizer`.

    Returns:
        dict: The same tensors under the published names.

    Raises:
        KeyError: If keys match no rule; all of them are named.
    """
    return _rename(state_dict, [(ours, theirs) for theirs, ours in RULES])


def check_complete(published: Iterable[str]) -> None:
    """Check that a checkpoint holds a whole model.

    Args:
        published (Iterable[str]): Published names of its weights.

    Raises:
        KeyError: If a part of the model is missing, or if a block lacks
            weights that another block has.
    """
    published = list(published)
    parts = ('visual_proj', 'blocks', 'frame_norm', 'output_head')
    missing = [
        f'{part}.*'
        for part in parts
        if not any(key.startswith(f'{part}.') for key in published)
    ]
    blocks: dict[str, set[str]] = {}
    for key in published:
        match = re.fullmatch(r'blocks\.(\d+)\.(.+)', key)
        if match and not IGNORED.fullmatch(key):
            blocks.setdefault(match[1], set()).add(match[2])
    everything = set().union(*blocks.values())
    for number, names in blocks.items():
        missing += sorted(f'blocks.{number}.{n}' for n in everything - names)
    if missing:
        raise KeyError(
            f'{len(missing)} weights are missing, so this is not a whole '
            'model: ' + ', '.join(missing)
        )


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('source', help='checkpoint to read')
    parser.add_argument('target', help='checkpoint to write')
    parser.add_argument(
        '--reverse',
        action='store_true',
        help="from mmssm's names to the published ones",
    )
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    try:
        weights = load_weights(args.source)
        renamed = (reverse if args.reverse else convert)(weights)
        check_complete(renamed if args.reverse else weights)
        key = 'model' if args.reverse else 'state_dict'
        save_atomically({key: renamed}, args.target)
    except KeyError as error:
        # Its str() is the repr of the message.
        raise SystemExit(f'error: {args.source}: {error.args[0]}') from error
    except (OSError, ValueError) as error:
        raise SystemExit(f'error: {error}') from error
    parameters = sum(value.numel() for value in renamed.values())
    print(
        f'{len(renamed)} tensors, {parameters:,} parameters, '
        f'written to {args.target}'
    )


if __name__ == '__main__':
    main()
