"""Reading ahead in the sweeps of the pole scan.

Loads do not depend on the recurrence. A sweep therefore issues those of the
next U tokens before it computes the current U tokens, which it holds in
registers; otherwise every token would wait for memory.
"""

import triton
import triton.language as tl

_LONGEST_BLOCK = 8


@triton.constexpr_function
def tokens_per_block(budget: int, values: int) -> int:
    """Tokens that fit into ``budget`` registers with ``values`` each."""
    return max(1, min(_LONGEST_BLOCK, budget // values))


# fmt: off
@triton.jit
def load_tokens(inputs, steps, q, step_q, s_q_i, left, here, N: tl.constexpr, R: tl.constexpr, U: tl.constexpr):
    """Values of U tokens, each the N inputs and R coefficients, as one tuple.

    Only ``left`` tokens exist.
    """
    tokens = ()
    for j in tl.static_range(U):
        mask = here & (j < left)
        for i in tl.static_range(N):
            tokens = tokens + (tl.load(inputs[i] + j * steps[i], mask=mask, other=0.0),)
        for i in tl.static_range(R):
            tokens = tokens + (tl.load(q + j * step_q + i * s_q_i, mask=mask, other=0.0),)
    return tokens


@triton.jit
def move(pointers, steps, N: tl.constexpr, U: tl.constexpr):
    """N pointers, U tokens further."""
    moved = ()
    for i in tl.static_range(N):
        moved = moved + (pointers[i] + U * steps[i],)
    return moved
# fmt: on
