"""Launchers of the SSD recurrence (`triton` backend)."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmssm.kernels.triton.launch import device_guard, interpreted
from mmssm.kernels.triton.ssd_chunk_scan_bwd import (
    _ssd_chunk_scan_bwd_kernel_inputs,
    _ssd_chunk_scan_bwd_kernel_matrices,
)
from mmssm.kernels.triton.ssd_chunk_scan_fwd import (
    _ssd_chunk_scan_fwd_kernel_decay,
    _ssd_chunk_scan_fwd_kernel_output,
    _ssd_chunk_scan_fwd_kernel_pass,
    _ssd_chunk_scan_fwd_kernel_states,
)
from mmssm.ops.ssd_chunk_scan.chunks import kernel_chunk_size, num_chunks

# Tiles that fit into registers. Float32 operands take twice the room, and
# more where tensor cores cannot multiply them exactly: then a thread holds
# whole rows.
_LARGEST_BLOCK = 64
_LARGEST_FLOAT32_BLOCK = 32
_HEADS_PER_PROGRAM = 16
_STATE_PER_PROGRAM = 1024


def ssd_chunk_scan_fwd(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    seq_idx: Tensor | None,
    initial_states: Tensor | None,
    chunk_size: int,
    dt_softplus: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Scan forward.

    Args:
        x (Tensor): ``(batch, length, heads, headdim)``, at least one frame.
        dt (Tensor): Step size as the user gave it,
            ``(batch, length, heads)``.
        A (Tensor): ``(heads,)``.
        B (Tensor): ``(batch, length, groups, state)``.
        C (Tensor): ``(batch, length, groups, state)``.
        D (Tensor, optional): ``(heads,)`` or ``(heads, headdim)``.
        z (Tensor, optional): Like ``x``.
        dt_bias (Tensor, optional): ``(heads,)``.
        seq_idx (Tensor, optional): ``(batch, length)``, int32; the state is
            zero wherever it changes.
        initial_states (Tensor, optional):
            ``(batch, heads, headdim, state)``.
        chunk_size (int): See `kernel_chunk_size`.
        dt_softplus (bool): Whether softplus is applied to ``dt``.

    Returns:
        tuple[Tensor, Tensor, Tensor]: Output like ``x``; final state, float32;
        state at the start of every chunk
        ``(batch, chunks, heads, headdim, state)``, float32.
    """
    with device_guard(x):
        scan = _prepare(x, dt, A, B, seq_idx, dt_bias, chunk_size, dt_softplus)
        states = _states(scan, x, None, B, adjoint=False)
        final = x.new_empty(scan.state_shape, dtype=torch.float32)
        _pass(scan, states, _float(initial_states), final, reverse=False)
        y = torch.empty_like(x)
        _output(scan, x, B, C, D, z, states, None, y)
    return y, final, states


def ssd_chunk_scan_bwd(
    grad_y: Tensor,
    grad_final_states: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    seq_idx: Tensor | None,
    initial_states: Tensor | None,
    chunk_states: Tensor,
    chunk_size: int,
    dt_softplus: bool,
) -> tuple[Tensor | None, ...]:
    """Adjoint of `ssd_chunk_scan_fwd`.

    Args:
        grad_y (Tensor): Gradient of the output.
        grad_final_states (Tensor): Gradient of the final state.
        x (Tensor): As in the forward pass, like all up to
            ``initial_states``.
        dt (Tensor): See above.
        A (Tensor): See above.
        B (Tensor): See above.
        C (Tensor): See above.
        D (Tensor, optional): See above.
        z (Tensor, optional): See above.
        dt_bias (Tensor, optional): See above.
        seq_idx (Tensor, optional): See above.
        initial_states (Tensor, optional): See above.
        chunk_states (Tensor): Third result of the forward pass.
        chunk_size (int): As in the forward pass.
        dt_softplus (bool): As in the forward pass.

    Returns:
        tuple[Tensor or None, ...]: Gradients of x, dt, A, B, C, D, z, dt_bias
        and initial_states, None where there was no input.
    """
    with device_guard(x):
        scan = _prepare(x, dt, A, B, seq_idx, dt_bias, chunk_size, dt_softplus)
        dz = None
        if z is not None:
            dz = torch.empty_like(z)
            _output(scan, x, B, C, D, z, chunk_states, grad_y, dz)
        grad_states = _states(scan, grad_y, z, C, adjoint=True)
        dinitial = None
        if initial_states is not None:
            dinitial = x.new_empty(scan.state_shape, dtype=torch.float32)
        _pass(
            scan,
            grad_states,
            _float(grad_final_states),
            dinitial,
            reverse=True,
        )
        dx, grad_steps, dD = _grad_inputs(
            scan, grad_y, x, B, C, D, z, grad_states
        )
        dB, dC, grad_decay = _grad_matrices(
            scan, grad_y, x, B, C, z, chunk_states, grad_states
        )
        ddt, dA, ddt_bias = _grad_steps(
            scan, dt, A, dt_bias, dt_softplus, grad_steps, grad_decay
        )
    if dinitial is not None:
        dinitial = dinitial.to(initial_states.dtype)
    return dx, ddt, dA, dB, dC, dD, dz, ddt_bias, dinitial


@dataclass(frozen=True)
class _Scan:
    """Sizes of one call, and what all its kernels read.

    Attributes:
        steps (Tensor): Final step sizes, ``(batch, heads, chunks, CHUNK)``,
            float32, zero behind the last frame.
        sums (Tensor): Running sums of the log decay per chunk, alike.
        segments (Tensor, optional): Changes of sequence so far,
            ``(batch, 1 + chunks CHUNK)``, int32; entry 0 belongs to the
            initial state.
    """

    batch: int
    length: int
    heads: int
    groups: int
    headdim: int
    state: int
    chunk: int
    chunks: int
    operand: tl.dtype
    precision: str
    steps: Tensor
    sums: Tensor
    segments: Tensor | None

    @property
    def state_shape(self) -> tuple[int, ...]:
        return self.batch, self.heads, self.headdim, self.state

    @property
    def block_p(self) -> int:
        return self.block(self.headdim)

    @property
    def block_n(self) -> int:
        return self.block(self.state)

    @property
    def tiles_p(self) -> int:
        return triton.cdiv(self.headdim, self.block_p)

    @property
    def tiles_n(self) -> int:
        return triton.cdiv(self.state, self.block_n)

    @property
    def cells(self) -> int:
        return self.batch * self.heads * self.chunks

    @property
    def sizes(self) -> tuple[int, ...]:
        """Length, heads, chunks and heads per group, as kernels take them."""
        return self.length, self.heads, self.chunks, self.heads // self.groups

    @property
    def constants(self) -> dict[str, object]:
        return dict(
            HEADDIM=self.headdim,
            STATE=self.state,
            CHUNK=self.chunk,
            BLOCK_P=self.block_p,
            BLOCK_N=self.block_n,
            OPERAND=self.operand,
            UPCAST=interpreted(),
            PRECISION=self.precision,
        )

    def block(self, size: int) -> int:
        is_float32 = self.operand == tl.float32
        largest = _LARGEST_FLOAT32_BLOCK if is_float32 else _LARGEST_BLOCK
        return min(largest, max(16, triton.next_power_of_2(size)))


def _prepare(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    seq_idx: Tensor | None,
    dt_bias: Tensor | None,
    chunk_size: int,
    dt_softplus: bool,
) -> _Scan:
    batch, length, heads, headdim = x.shape
    chunk = kernel_chunk_size(chunk_size)
    chunks = num_chunks(length, chunk_size)
    steps, sums = x.new_empty(
        2, batch, heads, chunks, chunk, dtype=torch.float32
    )
    grid = batch * chunks, triton.cdiv(heads, _HEADS_PER_PROGRAM)
    _ssd_chunk_scan_fwd_kernel_decay[grid](
        dt,
        _float(dt_bias),
        _float(A),
        steps,
        sums,
        *dt.stride(),
        length,
        heads,
        chunks,
        CHUNK=chunk,
        BLOCK_H=_HEADS_PER_PROGRAM,
        SOFTPLUS=dt_softplus,
    )
    # Float16 operands become tf32 ones: as many digits, but a product of a
    # decay, a step size and a score cannot overflow.
    tf32 = x.dtype != torch.float32 or torch.backends.cuda.matmul.allow_tf32
    return _Scan(
        batch=batch,
        length=length,
        heads=heads,
        groups=B.shape[2],
        headdim=headdim,
        state=B.shape[3],
        chunk=chunk,
        chunks=chunks,
        operand=tl.bfloat16 if x.dtype == torch.bfloat16 else tl.float32,
        precision='tf32' if tf32 else 'ieee',
        steps=steps,
        sums=sums,
        segments=_segments(seq_idx, chunks * chunk),
    )


def _segments(seq_idx: Tensor | None, padded: int) -> Tensor | None:
    if seq_idx is None:
        return None
    batch, length = seq_idx.shape
    changes = seq_idx[:, 1:] != seq_idx[:, :-1]
    segments = seq_idx.new_zeros(batch, 1 + padded, dtype=torch.int32)
    segments[:, 2 : length + 1] = changes.cumsum(1)
    # Frames behind the last one belong to its sequence.
    segments[:, length + 1 :] = segments[:, length : length + 1]
    return segments


def _states(
    scan: _Scan,
    left: Tensor,
    gate: Tensor | None,
    right: Tensor,
    adjoint: bool,
) -> Tensor:
    batch, *rest = scan.state_shape
    states = left.new_empty(batch, scan.chunks, *rest, dtype=torch.float32)
    grid = scan.cells, scan.tiles_p * scan.tiles_n
    _ssd_chunk_scan_fwd_kernel_states[grid](
        left,
        gate,
        right,
        scan.steps,
        scan.sums,
        scan.segments,
        states,
        *left.stride(),
        *_strides(gate),
        *right.stride(),
        *scan.sizes,
        ADJOINT=adjoint,
        **scan.constants,
    )
    return states


def _pass(
    scan: _Scan,
    states: Tensor,
    first: Tensor | None,
    last: Tensor | None,
    reverse: bool,
) -> None:
    size = scan.headdim * scan.state
    block = min(_STATE_PER_PROGRAM, triton.next_power_of_2(size))
    grid = scan.batch * scan.heads, triton.cdiv(size, block)
    _ssd_chunk_scan_fwd_kernel_pass[grid](
        states,
        first,
        last,
        scan.sums,
        scan.segments,
        scan.heads,
        scan.chunks,
        SIZE=size,
        CHUNK=scan.chunk,
        BLOCK=block,
        REVERSE=reverse,
    )


def _output(
    scan: _Scan,
    x: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    states: Tensor,
    grad_y: Tensor | None,
    out: Tensor,
) -> None:
    D = _per_channel(D, scan)
    _ssd_chunk_scan_fwd_kernel_output[scan.cells, scan.tiles_p](
        x,
        B,
        C,
        D,
        z,
        scan.steps,
        scan.sums,
        scan.segments,
        states,
        grad_y,
        out,
        *x.stride(),
        *B.stride(),
        *C.stride(),
        *_strides(D, 2),
        *_strides(z),
        *_strides(grad_y),
        *out.stride(),
        *scan.sizes,
        **scan.constants | {'BLOCK_N': _slice(scan.block_n)},
    )


def _grad_inputs(
    scan: _Scan,
    grad_y: Tensor,
    x: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    grad_states: Tensor,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of x, of the step sizes as factors of x, and of D."""
    dx = torch.empty_like(x)
    grad_steps = scan.steps.new_empty(scan.tiles_p, *scan.steps.shape)
    per_channel, partial_dD = _per_channel(D, scan), None
    if D is not None:
        partial_dD = scan.steps.new_empty(
            scan.batch * scan.chunks, scan.heads, scan.headdim
        )
    _ssd_chunk_scan_bwd_kernel_inputs[scan.cells, scan.tiles_p](
        grad_y,
        x,
        B,
        C,
        per_channel,
        z,
        scan.steps,
        scan.sums,
        scan.segments,
        grad_states,
        dx,
        grad_steps,
        partial_dD,
        *grad_y.stride(),
        *x.stride(),
        *B.stride(),
        *C.stride(),
        *_strides(per_channel, 2),
        *_strides(z),
        *dx.stride(),
        *scan.sizes,
        **scan.constants | {'BLOCK_N': _slice(scan.block_n)},
    )
    dD = None
    if D is not None:
        axes = 0 if D.ndim == 2 else (0, 2)
        dD = partial_dD.sum(axes).to(D.dtype)
    return dx, grad_steps.sum(0), dD


def _grad_matrices(
    scan: _Scan,
    grad_y: Tensor,
    x: Tensor,
    B: Tensor,
    C: Tensor,
    z: Tensor | None,
    states: Tensor,
    grad_states: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of B, C and the log decays."""
    dB, dC = scan.steps.new_empty(
        2, scan.batch, scan.length, scan.heads, scan.state
    )
    grad_decay = scan.steps.new_empty(scan.tiles_n, *scan.steps.shape)
    _ssd_chunk_scan_bwd_kernel_matrices[scan.cells, scan.tiles_n](
        grad_y,
        x,
        B,
        C,
        z,
        scan.steps,
        scan.sums,
        scan.segments,
        states,
        grad_states,
        dB,
        dC,
        grad_decay,
        *grad_y.stride(),
        *x.stride(),
        *B.stride(),
        *C.stride(),
        *_strides(z),
        *scan.sizes,
        **scan.constants | {'BLOCK_P': _slice(scan.block_p)},
    )
    per_group = (scan.groups, scan.heads // scan.groups)
    dB = dB.unflatten(2, per_group).sum(3).to(B.dtype)
    dC = dC.unflatten(2, per_group).sum(3).to(C.dtype)
    return dB, dC, grad_decay.sum(0)


def _grad_steps(
    scan: _Scan,
    dt: Tensor,
    A: Tensor,
    dt_bias: Tensor | None,
    dt_softplus: bool,
    grad_steps: Tensor,
    grad_decay: Tensor,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of dt, A and dt_bias; small tensors, hence in PyTorch."""
    dA = (grad_decay * scan.steps).sum((0, 2, 3)).to(A.dtype)
    grad = grad_steps + grad_decay * A.float()[:, None, None]
    # (batch, length, heads)
    grad = grad.flatten(2)[..., : scan.length].transpose(1, 2)
    if dt_softplus:
        raw = dt.float()
        if dt_bias is not None:
            raw = raw + dt_bias.float()
        grad = torch.where(raw > 20, grad, grad * raw.sigmoid())
    ddt_bias = None
    if dt_bias is not None:
        ddt_bias = grad.sum((0, 1)).to(dt_bias.dtype)
    return grad.to(dt.dtype), dA, ddt_bias


def _slice(block: int) -> int:
    """Tile of the axis that a kernel sums over in a loop.

    Smaller, since these kernels hold several tiles at a time.
    """
    return max(16, block // 2)


def _float(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.float().contiguous()


def _per_channel(D: Tensor | None, scan: _Scan) -> Tensor | None:
    """D as (heads, headdim), without a copy."""
    if D is None or D.ndim == 2:
        return D
    return D.unsqueeze(-1).expand(-1, scan.headdim)


def _strides(tensor: Tensor | None, ndim: int = 4) -> tuple[int, ...]:
    return (0,) * ndim if tensor is None else tensor.stride()
