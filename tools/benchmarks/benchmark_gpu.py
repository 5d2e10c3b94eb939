"""Time the Triton kernels on a GPU against torch and against known kernels.

Per operator and dtype, forward and forward with backward: median time on the
device, called from Python and replayed from a CUDA graph, which leaves out
what launching costs. Peers are the `torch` backend, and `mamba_ssm`,
`causal_conv1d` and `fla` where these can be imported.
"""

import argparse
import importlib.util
import statistics
import sys
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from mmssm.testing.benchmark import format_table
from mmssm.testing.real_size_cases import OpCase, real_size_cases

DTYPES = {'float32': torch.float32, 'bfloat16': torch.bfloat16}
HEADER = (
    'operator',
    'dtype',
    'pass',
    'kernels',
    'ms',
    'ms in a graph',
    'triton is faster by',
)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--batch', type=int, default=64)
    parser.add_argument('--repeats', type=int, default=30)
    parser.add_argument('--markdown', action='store_true')
    return parser.parse_args()


def peers(case: OpCase) -> Iterator[tuple[str, Callable[..., Tensor]]]:
    """Kernels of other packages for the same call, where they are there."""
    op = case.function.__name__
    if op == 'selective_scan' and _is_there('mamba_ssm'):
        yield 'mamba_ssm', _mamba_selective_scan
    if op == 'ssd_chunk_scan' and _is_there('mamba_ssm'):
        yield 'mamba_ssm', _mamba_ssd
    if op == 'ssd_chunk_scan' and _is_there('fla'):
        yield 'fla', _fla_ssd
    if op == 'causal_conv1d' and _is_there('causal_conv1d'):
        yield 'causal_conv1d', _causal_conv1d
    if op == 'rms_norm_gated' and _is_there('mamba_ssm'):
        yield 'mamba_ssm', _mamba_rms_norm


def _is_there(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _mamba_selective_scan(**tensors: Tensor) -> Tensor:
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    return selective_scan_fn(**tensors, delta_softplus=True)


def _mamba_ssd(**tensors: Tensor) -> Tensor:
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    return mamba_chunk_scan_combined(**tensors, chunk_size=64)


def _fla_ssd(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    initial_states: Tensor,
) -> Tensor:
    from fla.ops.simple_gla import chunk_simple_gla

    # Linear attention with a scalar decay per head; its state is transposed.
    y, _ = chunk_simple_gla(
        q=C,
        k=B,
        v=x * dt.unsqueeze(-1).to(x.dtype),
        g=dt.float() * A,
        scale=1.0,
        initial_state=initial_states.mT.contiguous(),
    )
    return y + x * D.to(x.dtype).unsqueeze(-1)


def _causal_conv1d(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    from causal_conv1d import causal_conv1d_fn

    weight, bias = weight.to(x.dtype), bias.to(x.dtype)
    return causal_conv1d_fn(x, weight, bias, activation='silu')


def _mamba_rms_norm(x: Tensor, weight: Tensor, z: Tensor) -> Tensor:
    from mamba_ssm.ops.triton.layernorm_gated import rmsnorm_fn

    return rmsnorm_fn(x, weight, None, z=z, eps=1e-5, norm_before_gate=False)


def forward(function: Callable[..., Tensor], case: OpCase) -> Callable:
    """Make a timed forward pass without gradients."""

    def run() -> None:
        with torch.no_grad():
            function(**case.tensors)

    return run


def forward_backward(
    function: Callable[..., Tensor], case: OpCase
) -> Callable:
    """Make a timed forward and backward pass for all inputs."""
    leaves = list(case.tensors.values())
    with torch.no_grad():
        grad = torch.ones_like(function(**case.tensors))

    def run() -> None:
        torch.autograd.grad(function(**case.tensors), leaves, grad)

    return run


def of_backend(case: OpCase, backend: str) -> Callable[..., Tensor]:
    """Return the operator of a case on a backend: its first output."""

    def run(**tensors: Tensor) -> Tensor:
        out = case.function(**tensors, **case.options, backend=backend)
        return out if isinstance(out, Tensor) else out[0]

    return run


def milliseconds(run: Callable, repeats: int) -> float:
    """Median time on the device, in turns with a flush of the cache."""
    for _ in range(3):
        run()
    # Larger than the second-level cache of today's GPUs.
    flush = torch.empty(2**28, dtype=torch.int8, device='cuda')
    times = []
    for _ in range(repeats):
        flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def in_graph(run: Callable) -> Callable:
    """Capture a call in a CUDA graph; returns its replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def time_one(run: Callable, repeats: int) -> tuple[float, float | str]:
    """Time a call, and the same in a graph if it can be captured."""
    eager = milliseconds(run, repeats)
    try:
        return eager, milliseconds(in_graph(run), repeats)
    except RuntimeError as error:
        torch.cuda.synchronize()
        print(f'not captured: {str(error).splitlines()[0]}', file=sys.stderr)
        return eager, 'not captured'


def rows_of(case: OpCase, dtype: str, repeats: int) -> list[tuple]:
    """Time a case on all kernels there are."""
    kernels = {
        'triton': of_backend(case, 'triton'),
        'torch': of_backend(case, 'torch'),
        **dict(peers(case)),
    }
    rows = []
    for name, make in (
        ('forward', forward),
        ('forward + backward', forward_backward),
    ):
        ours = None
        for kernel, function in kernels.items():
            try:
                eager, graph = time_one(make(function, case), repeats)
            except Exception as error:
                if kernel in ('triton', 'torch'):
                    raise
                # A peer of another version: its row says so.
                message = str(error).splitlines() or [repr(error)]
                print(f'{kernel}: {message[0]}', file=sys.stderr)
                rows.append((case.name, dtype, name, kernel, '-', '-', '-'))
                continue
            ours = ours or (eager, graph)
            rows.append(
                (case.name, dtype, name, kernel, eager, graph)
                + (_faster_by(ours, (eager, graph)),)
            )
    return rows


def _faster_by(ours: tuple, theirs: tuple) -> float:
    """Their time over ours, in a graph where both were captured."""
    graphs = ours[1], theirs[1]
    if all(isinstance(time, float) for time in graphs):
        return graphs[1] / graphs[0]
    return theirs[0] / ours[0]


def main() -> int:
    args = parse_args()
    if not torch.cuda.is_available():
        print('No CUDA device was found; this benchmark needs one.')
        return 2
    print(
        f'{torch.cuda.get_device_name()}, torch {torch.__version__}, tf32 '
        f'{torch.backends.cuda.matmul.allow_tf32}, batch {args.batch}'
    )
    rows = []
    for dtype_name, dtype in DTYPES.items():
        for case in real_size_cases('cuda', dtype, args.batch):
            rows += rows_of(case, dtype_name, args.repeats)
            print(f'{case.name}, {dtype_name}: timed', file=sys.stderr)
    print(format_table(HEADER, rows, args.markdown))
    return 0


if __name__ == '__main__':
    sys.exit(main())
