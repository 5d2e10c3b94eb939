"""Repeat every operator on poisoned memory and compare bit by bit.

A kernel that reads what another thread has not written yet, or memory that
nobody wrote, gives other numbers from run to run, or NaN: before each run the
allocator's free memory is filled with NaN. No operator may differ in a single
bit, forward or backward.
"""

import argparse
import sys

import torch
from torch import Tensor

from mmssm.testing.real_size_cases import OpCase, real_size_cases

DTYPES = {'float32': torch.float32, 'bfloat16': torch.bfloat16}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--device', default='cuda', choices=('cuda', 'cpu'))
    parser.add_argument(
        '--backend',
        default='triton',
        help='triton (default), torch, or native with --device cpu',
    )
    parser.add_argument('--repeats', type=int, default=20)
    parser.add_argument('--batch', type=int, default=64)
    return parser.parse_args()


def poison(device: str) -> None:
    """Fill memory that the next allocations get with NaN."""
    sizes = [2**power for power in range(10, 26, 3)]
    held = [
        torch.full((size,), torch.nan, device=device)
        for size in sizes
        for _ in range(8)
    ]
    del held


def first_difference(
    first: tuple[Tensor, ...], again: tuple[Tensor, ...]
) -> int | None:
    """Index of the first tensor that is not the same, None if all are."""
    for i, (a, b) in enumerate(zip(first, again, strict=True)):
        if not torch.equal(a, b):
            return i
    return None


def check(case: OpCase, backend: str, repeats: int, device: str) -> str | None:
    """Return what is wrong with a case, None if nothing."""
    first = case.outputs_and_gradients(backend)
    for tensor in first:
        if not torch.isfinite(tensor).all():
            return 'the first run has values that are not finite'
    for run in range(1, repeats):
        poison(device)
        again = case.outputs_and_gradients(backend)
        index = first_difference(first, again)
        if index is not None:
            outputs = len(first) - len(case.tensors)
            what = (
                f'output {index}'
                if index < outputs
                else f'gradient of {list(case.tensors)[index - outputs]}'
            )
            return f'{what} differs in run {run + 1}'
    return None


def main() -> int:
    args = parse_args()
    if args.device == 'cuda' and not torch.cuda.is_available():
        print('No CUDA device was found; --device cpu checks the CPU kernels.')
        return 2
    failures = 0
    for dtype_name, dtype in DTYPES.items():
        for case in real_size_cases(args.device, dtype, args.batch):
            problem = check(case, args.backend, args.repeats, args.device)
            failures += problem is not None
            print(f'{case.name}, {dtype_name}: {problem or "same"}')
    print(f'{args.repeats} runs each, backend {args.backend}: ', end='')
    print(f'{failures} operators differ' if failures else 'all the same')
    return 1 if failures else 0


if __name__ == '__main__':
    sys.exit(main())
