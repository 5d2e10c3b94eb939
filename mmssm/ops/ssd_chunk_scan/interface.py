"""Public functions of the SSD recurrence: shapes, checks, dispatch."""

import torch
from torch import Tensor

from mmssm.ops.checks import (
    check_count,
    check_device,
    check_floating,
    check_floating_or_none,
    check_ndim,
    check_shape,
)
from mmssm.ops.dispatch import choose_backend
from mmssm.ops.precision import autocast_off, working_dtype
from mmssm.ops.ssd_chunk_scan.autograd import ssd_chunk_scan_op
from mmssm.ops.ssd_chunk_scan.reference import (
    sequence_changes,
    skip_and_gate,
    ssd_chunk_scan_reference,
    ssd_step_reference,
    step_size,
)
from mmssm.ops.ssd_chunk_scan.step_op import ssd_step_op
from mmssm.ops.ssd_chunk_scan.vectorized import (
    ssd_chunk_scan_torch,
    ssd_step_torch,
)

_AVAILABLE = ('reference', 'torch', 'native', 'triton')
_STEP_AVAILABLE = ('reference', 'torch', 'native', 'triton')
_INTEGERS = (
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
)


def ssd_chunk_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    dt_softplus: bool = False,
    return_final_states: bool = False,
    backend: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Scan a sequence with the scalar-decay state-space model (SSD).

    For every head, with decay ``A < 0`` and state ``h`` of shape
    ``(headdim, state)``::

        h_n = exp(dt_n A) h_{n-1} + dt_n x_n B_n^T
        y_n = (h_n C_n + D x_n) * silu(z_n)

    Argument names and layouts are those of ``mamba_chunk_scan_combined`` of
    ``mamba_ssm``. Chunks only arrange the computation: the result does not
    depend on ``chunk_size`` beyond rounding.

    Args:
        x (Tensor): Input, shape ``(batch, length, heads, headdim)``. Any
            strides, any length (0 and 1 included).
        dt (Tensor): Step size, shape ``(batch, length, heads)``; before
            ``dt_bias`` and softplus if these are asked for, else used as it
            is.
        A (Tensor): Decay rate per unit of ``dt``, negative, shape
            ``(heads,)``.
        B (Tensor): Input matrix, shape ``(batch, length, groups, state)``.
            Consecutive heads share a group; ``groups`` divides ``heads``.
        C (Tensor): Output matrix, shape ``(batch, length, groups, state)``.
        chunk_size (int): Frames that are handled by one set of matrix
            products. Memory grows with it, the sequential part shrinks.
        D (Tensor, optional): Skip, shape ``(heads,)`` or
            ``(heads, headdim)``.
        z (Tensor, optional): Gate, shape like ``x``.
        dt_bias (Tensor, optional): Added to ``dt``, shape ``(heads,)``.
        initial_states (Tensor, optional): State before the first frame, shape
            ``(batch, heads, headdim, state)``. Default: zero.
        seq_idx (Tensor, optional): Number of the sequence that a frame
            belongs to, for sequences packed one after the other; any integer
            dtype, shape ``(batch, length)``. Only where it changes counts:
            there the state is set to zero before the new frame. The initial
            state belongs to the first frame's sequence. Default: one
            sequence.
        dt_softplus (bool): Whether softplus is applied to ``dt`` (after
            ``dt_bias``). Default: False.
        return_final_states (bool): Whether the state after the last frame is
            returned too. Default: False.
        backend (str, optional): ``'reference'``, ``'torch'``, ``'native'``
            or ``'triton'``; None picks by device.

    Returns:
        Tensor or tuple[Tensor, Tensor]: Output like ``x``, in its dtype; with
        ``return_final_states`` also the final state
        ``(batch, heads, headdim, state)`` in float32 (float64 if ``x`` is).

    Shape notes:
        Step size, decay, state and sums are in float32 (float64 if ``x`` is
        float64), under autocast too. Every tensor gets gradients. An output
        never depends on later frames as long as those are finite.

    Raises:
        TypeError: If a tensor is not real floating (``seq_idx``: not of
            integers), or ``chunk_size`` is not an int.
        ValueError: If a shape does not fit, or ``chunk_size`` is below 1.
        RuntimeError: If ``backend`` cannot serve the call.

    Example:
        >>> import torch
        >>> from mmssm.ops import ssd_chunk_scan
        >>> x = torch.randn(1, 100, 4, 16)
        >>> dt = torch.rand(1, 100, 4)
        >>> A = -torch.ones(4)
        >>> B = torch.randn(1, 100, 1, 8)
        >>> y, state = ssd_chunk_scan(
        ...     x, dt, A, B, B, chunk_size=32, return_final_states=True
        ... )
        >>> y.shape, state.shape
        (torch.Size([1, 100, 4, 16]), torch.Size([1, 4, 16, 8]))

    Source:
        Dao and Gu, "Transformers are SSMs" (2024), section 6; re-derived in
        the README of this folder.
    """
    check_floating(x=x, dt=dt, A=A, B=B, C=C)
    check_floating_or_none(
        D=D, z=z, dt_bias=dt_bias, initial_states=initial_states
    )
    check_device(
        x=x,
        dt=dt,
        A=A,
        B=B,
        C=C,
        D=D,
        z=z,
        dt_bias=dt_bias,
        initial_states=initial_states,
        seq_idx=seq_idx if isinstance(seq_idx, Tensor) else None,
    )
    check_count('chunk_size', chunk_size)
    check_ndim('x', x, '(batch, length, heads, headdim)')
    check_ndim('B', B, '(batch, length, groups, state)')
    batch, length, heads, headdim = x.shape
    axes = '(batch, length, heads)'
    check_shape('dt', dt, axes, (batch, length, heads))
    axes = '(batch, length, groups, state)'
    check_shape('B', B, axes, (batch, length, *B.shape[2:]))
    check_shape('C', C, axes, tuple(B.shape))
    check_shape('z', z, '(batch, length, heads, headdim)', tuple(x.shape))
    _check_parameters(A, D, dt_bias, heads, headdim, B.shape[2])
    _check_state('initial_states', initial_states, x, B)
    _check_seq_idx(seq_idx, batch, length)
    backend = choose_backend('ssd_chunk_scan', backend, x, _AVAILABLE)
    if not x.numel() or not B.numel():
        backend = 'reference'  # nothing that a kernel could start on
    with autocast_off(x):
        if length == 0 or batch == 0:
            y, state = _nothing_to_scan(x, B, initial_states)
        elif backend in ('native', 'triton') or (
            # A traced loop over chunks would fix the length.
            backend == 'torch' and torch.compiler.is_compiling()
        ):
            y, state, _ = ssd_chunk_scan_op(
                x,
                dt,
                A,
                B,
                C,
                D,
                z,
                dt_bias,
                _renumber(seq_idx),
                initial_states,
                chunk_size,
                dt_softplus,
                backend,
            )
        else:
            dtype = working_dtype(x.dtype)
            x_work = x.to(dtype)
            step = step_size(dt, dt_bias, dt_softplus, dtype)
            state = initial_states
            if state is not None:
                state = state.to(dtype)
            args = (x_work, step, A.to(dtype), B.to(dtype), C.to(dtype), state)
            changes = sequence_changes(seq_idx)
            if backend == 'reference':
                y, state = ssd_chunk_scan_reference(*args, changes)
            else:
                y, state = ssd_chunk_scan_torch(
                    *args, changes, chunk_size, return_final_states
                )
            y = skip_and_gate(y, x_work, D, z).to(x.dtype)
    return (y, state) if return_final_states else y


def ssd_step(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Advance the recurrence of `ssd_chunk_scan` by one frame.

    Calling it frame by frame gives what `ssd_chunk_scan` gives for the whole
    sequence. It returns a new state and does not write into ``state``.

    Args:
        state (Tensor): State so far, shape
            ``(batch, heads, headdim, state)``.
        x (Tensor): Input, shape ``(batch, heads, headdim)``.
        dt (Tensor): Step size, shape ``(batch, heads)``; see
            `ssd_chunk_scan`.
        A (Tensor): Decay rate, negative, shape ``(heads,)``.
        B (Tensor): Input matrix, shape ``(batch, groups, state)``.
        C (Tensor): Output matrix, shape ``(batch, groups, state)``.
        D (Tensor, optional): Skip, shape ``(heads,)`` or
            ``(heads, headdim)``.
        z (Tensor, optional): Gate, shape like ``x``.
        dt_bias (Tensor, optional): Added to ``dt``, shape ``(heads,)``.
        dt_softplus (bool): Whether softplus is applied to ``dt`` (after
            ``dt_bias``). Default: False.
        backend (str, optional): ``'reference'``, ``'torch'``, ``'native'``,
            which gives no gradients, or ``'triton'``. None picks `native` on
            a CPU where nothing needs a gradient, else `torch`: on a GPU one
            frame is too little for kernels.

    Returns:
        tuple[Tensor, Tensor]: Output like ``x``, in its dtype, and the new
        state in float32 (float64 if ``x`` is float64).

    Raises:
        TypeError: If a tensor is not real floating.
        ValueError: If a shape does not fit.
        RuntimeError: If ``backend`` cannot serve the call, or if it is
            `native` and a tensor needs a gradient.

    Example:
        >>> import torch
        >>> from mmssm.ops import ssd_step
        >>> state = torch.zeros(1, 4, 16, 8)
        >>> x, dt = torch.randn(1, 4, 16), torch.rand(1, 4)
        >>> B = torch.randn(1, 1, 8)
        >>> y, state = ssd_step(state, x, dt, -torch.ones(4), B, B)
        >>> y.shape, state.shape
        (torch.Size([1, 4, 16]), torch.Size([1, 4, 16, 8]))

    Source:
        Dao and Gu, "Transformers are SSMs" (2024).
    """
    check_floating(state=state, x=x, dt=dt, A=A, B=B, C=C)
    check_floating_or_none(D=D, z=z, dt_bias=dt_bias)
    check_device(
        state=state, x=x, dt=dt, A=A, B=B, C=C, D=D, z=z, dt_bias=dt_bias
    )
    check_ndim('x', x, '(batch, heads, headdim)')
    check_ndim('B', B, '(batch, groups, state)')
    batch, heads, headdim = x.shape
    check_shape('dt', dt, '(batch, heads)', (batch, heads))
    axes = '(batch, groups, state)'
    check_shape('B', B, axes, (batch, *B.shape[1:]))
    check_shape('C', C, axes, tuple(B.shape))
    check_shape('z', z, '(batch, heads, headdim)', tuple(x.shape))
    _check_parameters(A, D, dt_bias, heads, headdim, B.shape[1])
    _check_state('state', state, x, B)
    tensors = (state, x, dt, A, B, C, D, z, dt_bias)
    backend = _choose_step_backend(backend, tensors)
    if backend == 'native' and state.numel():
        return ssd_step_op(*tensors, dt_softplus, backend)
    if backend == 'triton':
        frame = (x, dt, B, C, z)
        x, dt, B, C, z = (None if t is None else t.unsqueeze(1) for t in frame)
        y, state = ssd_chunk_scan(
            x,
            dt,
            A,
            B,
            C,
            chunk_size=1,
            D=D,
            z=z,
            dt_bias=dt_bias,
            initial_states=state,
            dt_softplus=dt_softplus,
            return_final_states=True,
            backend=backend,
        )
        return y.squeeze(1), state
    step = ssd_step_reference if backend == 'reference' else ssd_step_torch
    dtype = working_dtype(x.dtype)
    with autocast_off(x):
        x_work = x.to(dtype)
        y, new_state = step(
            state.to(dtype),
            x_work,
            step_size(dt, dt_bias, dt_softplus, dtype),
            A.to(dtype),
            B.to(dtype),
            C.to(dtype),
        )
        return skip_and_gate(y, x_work, D, z).to(x.dtype), new_state


def _choose_step_backend(
    backend: str | None, tensors: tuple[Tensor | None, ...]
) -> str:
    """Like `choose_backend`, for kernels without a backward pass."""
    x = tensors[1]
    trains = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in tensors
    )
    if backend is None and (trains or x.device.type != 'cpu'):
        return 'torch'
    backend = choose_backend('ssd_step', backend, x, _STEP_AVAILABLE)
    if backend == 'native' and trains:
        raise RuntimeError(
            "ssd_step has no gradients on backend='native' and a tensor needs "
            "one; use backend=None or 'torch', or torch.no_grad()"
        )
    return backend


def _nothing_to_scan(
    x: Tensor, B: Tensor, initial_states: Tensor | None
) -> tuple[Tensor, Tensor]:
    dtype = working_dtype(x.dtype)
    if initial_states is not None:
        return x.clone(), initial_states.to(dtype, copy=True)
    shape = (x.shape[0], *x.shape[2:], B.shape[-1])
    return x.clone(), x.new_zeros(shape, dtype=dtype)


def _renumber(seq_idx: Tensor | None) -> Tensor | None:
    """Number the sequences of each row from 0 on, in int32."""
    if seq_idx is None:
        return None
    return sequence_changes(seq_idx).cumsum(1, dtype=torch.int32)


def _check_parameters(
    A: Tensor,
    D: Tensor | None,
    dt_bias: Tensor | None,
    heads: int,
    headdim: int,
    groups: int,
) -> None:
    check_shape('A', A, '(heads,)', (heads,))
    check_shape('dt_bias', dt_bias, '(heads,)', (heads,))
    if D is not None and D.ndim == 2:
        check_shape('D', D, '(heads, headdim)', (heads, headdim))
    else:
        check_shape('D', D, '(heads,)', (heads,))
    if groups < 1 or heads % groups:
        raise ValueError(
            f'`B` has {groups} groups; expected a divisor of heads = {heads}'
        )


def _check_seq_idx(seq_idx: Tensor | None, batch: int, length: int) -> None:
    if seq_idx is None:
        return
    if not isinstance(seq_idx, Tensor):
        raise TypeError(
            f'`seq_idx` is a {type(seq_idx).__name__}; expected a Tensor'
        )
    if seq_idx.dtype not in _INTEGERS:
        raise TypeError(
            f'`seq_idx` has dtype {seq_idx.dtype}; expected an integer dtype'
        )
    check_shape('seq_idx', seq_idx, '(batch, length)', (batch, length))


def _check_state(
    name: str, state: Tensor | None, x: Tensor, B: Tensor
) -> None:
    batch, (heads, headdim) = x.shape[0], x.shape[-2:]
    axes = '(batch, heads, headdim, state)'
    check_shape(name, state, axes, (batch, heads, headdim, B.shape[-1]))
