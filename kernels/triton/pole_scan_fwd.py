"""Forward of the pole scan: recurrence, skip and gate in one sweep.

One lane owns one channel and keeps its last outputs in float32 registers, so
that no output is read back.

Names in the kernels of the pole scan:
    E, L, G, R: channels, length, groups, order. E_PER_G: channels of a group.
    BLOCK: channels of one program. U: tokens loaded together.
    BUDGET: values that one lane may hold for these tokens.
    N: inputs of the sweep besides the coefficients.
    HAS_X: skip ``D x``. HAS_Z: gate. HAS_H: initial history.
    SAVE_Y: store the recurrence output beside the gated one.
    s_<tensor>_<axis>: strides, of batch (b), token (l), channel (c), group
    (g) and tap (i).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmssm.kernels.triton.launch import autotune, device_guard
from mmssm.kernels.triton.pole_scan_tokens import (
    load_tokens,
    move,
    tokens_per_block,
)


# fmt: off
@triton.jit
def _advance(h, tokens, skip, outputs, d_out, here, N: tl.constexpr, R: tl.constexpr, HAS_X: tl.constexpr, HAS_Z: tl.constexpr, SAVE_Y: tl.constexpr, U: tl.constexpr):
    """Compute and store U tokens; the new history, most recent first."""
    W: tl.constexpr = N + R
    for j in tl.static_range(U):
        value = tokens[j * W].to(tl.float32)
        # The newest output comes last: only one product waits for it.
        for k in tl.static_range(R):
            value -= tokens[j * W + N + R - 1 - k].to(tl.float32) * h[R - 1 - k]
        h = (value,) + h[: R - 1]
        if SAVE_Y:
            tl.store(outputs[1] + j * d_out, value, mask=here)
        if HAS_X:
            value += skip * tokens[j * W + 1].to(tl.float32)
        if HAS_Z:
            gate = tokens[j * W + N - 1].to(tl.float32)
            value *= gate * tl.sigmoid(gate)
        tl.store(outputs[0] + j * d_out, value.to(outputs[0].dtype.element_ty), mask=here)
    return h


@autotune(
    configs=[
        triton.Config({'BLOCK': 32, 'BUDGET': 48}, num_warps=1),
        triton.Config({'BLOCK': 32, 'BUDGET': 1}, num_warps=1),
    ],
    key=['E', 'R', 'HAS_X', 'HAS_Z'],
)
@triton.jit
def _pole_scan_fwd_kernel(
    eta, q, x, D, z, h0, out, y, hT, E, L, E_PER_G,
    s_eta_b, s_eta_l, s_eta_c, s_q_b, s_q_l, s_q_g, s_q_i, s_x_b, s_x_l, s_x_c, s_z_b, s_z_l, s_z_c, s_out_b, s_out_l, s_out_c,
    R: tl.constexpr, HAS_X: tl.constexpr, HAS_Z: tl.constexpr, HAS_H: tl.constexpr, SAVE_Y: tl.constexpr, REVERSE: tl.constexpr,
    BLOCK: tl.constexpr, BUDGET: tl.constexpr,
):
    N: tl.constexpr = 1 + HAS_X + HAS_Z
    U: tl.constexpr = tokens_per_block(BUDGET, N + R)
    blocks = tl.cdiv(E, BLOCK)
    b = (tl.program_id(0) // blocks).to(tl.int64)
    c = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    here = c < E
    g = (c // E_PER_G).to(tl.int64)
    c = c.to(tl.int64)
    one = tl.full((), -1 if REVERSE else 1, tl.int64)
    first = tl.full((), 0, tl.int64) + (L - 1 if REVERSE else 0)

    q += b * s_q_b + first * s_q_l + g * s_q_g
    step_q = one * s_q_l
    inputs = (eta + b * s_eta_b + first * s_eta_l + c * s_eta_c,)
    steps = (one * s_eta_l,)
    skip = 0.0
    if HAS_X:
        inputs = inputs + (x + b * s_x_b + first * s_x_l + c * s_x_c,)
        steps = steps + (one * s_x_l,)
        skip = tl.load(D + c, mask=here, other=0.0)
    if HAS_Z:
        inputs = inputs + (z + b * s_z_b + first * s_z_l + c * s_z_c,)
        steps = steps + (one * s_z_l,)
    at_out = b * s_out_b + first * s_out_l + c * s_out_c
    step_out = one * s_out_l
    outputs = (out + at_out,)
    if SAVE_Y:
        outputs = outputs + (y + at_out,)

    history = b * R * E + c
    h = ()
    for i in tl.static_range(R):
        if HAS_H:
            h = h + (tl.load(h0 + history + i * E, mask=here, other=0.0),)
        else:
            h = h + (tl.zeros((BLOCK,), tl.float32),)

    whole = L // U
    tokens = load_tokens(inputs, steps, q, step_q, s_q_i, L, here, N, R, U)
    for n in range(whole):
        inputs = move(inputs, steps, N, U)
        q += U * step_q
        ahead = load_tokens(inputs, steps, q, step_q, s_q_i, L - (n + 1) * U, here, N, R, U)
        h = _advance(h, tokens, skip, outputs, step_out, here, N, R, HAS_X, HAS_Z, SAVE_Y, U)
        outputs = move(outputs, (step_out, step_out), 1 + SAVE_Y, U)
        tokens = ahead
    for _ in range(whole * U, L):
        token = load_tokens(inputs, steps, q, step_q, s_q_i, 1, here, N, R, 1)
        h = _advance(h, token, skip, outputs, step_out, here, N, R, HAS_X, HAS_Z, SAVE_Y, 1)
        inputs = move(inputs, steps, N, 1)
        q += step_q
        outputs = move(outputs, (step_out, step_out), 1 + SAVE_Y, 1)

    for i in tl.static_range(R):
        tl.store(hT + history + i * E, h[i], mask=here)
# fmt: on


def pole_scan_fwd(
    eta: Tensor,
    q: Tensor,
    x: Tensor | None,
    D: Tensor | None,
    z: Tensor | None,
    initial_history: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the recurrence over all tokens.

    Args:
        eta (Tensor): Input, shape ``(batch, length, channels)``.
        q (Tensor): Coefficients, shape ``(batch, length, groups, order)``.
        x (Tensor, optional): Input of the skip, like ``eta``.
        D (Tensor, optional): Skip weight, shape ``(channels,)``.
        z (Tensor, optional): Gate before SiLU, like ``eta``.
        initial_history (Tensor, optional): Outputs before the first
            processed token, most recent first, shape
            ``(batch, order, channels)``.
        reverse (bool): Whether the last token is processed first.

    Returns:
        tuple[Tensor, Tensor, Tensor]: Output like ``eta``; final history in
        float32; recurrence output in float32, empty if it is the output.
    """
    batch, length, channels = eta.shape
    order = q.shape[3]
    out = torch.empty_like(eta)
    is_output = D is None and z is None and eta.dtype == torch.float32
    if is_output:
        y = eta.new_empty(0)
    else:
        y = torch.empty_like(eta, dtype=torch.float32)
    history = eta.new_empty(batch, order, channels, dtype=torch.float32)

    def grid(config: dict[str, int]) -> tuple[int]:
        return (batch * triton.cdiv(channels, config['BLOCK']),)

    with device_guard(eta):
        _pole_scan_fwd_kernel[grid](
            eta,
            q,
            x,
            as_float32(D),
            z,
            as_float32(initial_history),
            out,
            None if is_output else y,
            history,
            channels,
            length,
            channels // q.shape[2],
            *eta.stride(),
            *q.stride(),
            *strides_or_zeros(x),
            *strides_or_zeros(z),
            *out.stride(),
            R=order,
            HAS_X=x is not None,
            HAS_Z=z is not None,
            HAS_H=initial_history is not None,
            SAVE_Y=not is_output,
            REVERSE=reverse,
        )
    return out, history, y


def as_float32(tensor: Tensor | None) -> Tensor | None:
    """A small tensor, contiguous in float32."""
    if tensor is None:
        return None
    return tensor.to(torch.float32).contiguous()


def strides_or_zeros(tensor: Tensor | None) -> tuple[int, int, int]:
    """Strides of ``(batch, length, channels)``, zero if it is absent."""
    return (0, 0, 0) if tensor is None else tensor.stride()
