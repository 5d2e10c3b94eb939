"""Extract the student from a checkpoint of a distiller.

The result is a plain checkpoint of the student's own config: weights only,
without the prefix and without what the distiller adds.
"""

import argparse
from collections.abc import Mapping

from torch import Tensor

from mmssm.utils.conversion import load_weights, save_atomically

PREFIX = 'student.'


def extract(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of the student under its own names.

    Args:
        state_dict (Mapping): Weights of a ``mmssm.FeatureDistiller``.

    Returns:
        dict: The same tensors, without those of other parts.

    Raises:
        KeyError: If there is no student.
    """
    student = {
        key.removeprefix(PREFIX): value
        for key, value in state_dict.items()
        if key.startswith(PREFIX)
    }
    if not student:
        first = ', '.join(list(state_dict)[:3]) or 'nothing'
        raise KeyError(
            f'no weights under {PREFIX!r}, so this is not a checkpoint of a '
            f'distiller; it starts with: {first}'
        )
    return student


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('source', help='checkpoint of a distiller')
    parser.add_argument('target', help='checkpoint to write')
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    try:
        weights = extract(load_weights(args.source))
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
