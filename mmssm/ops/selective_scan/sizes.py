"""What fits into the Triton kernels of the selective scan."""

# States of a channel that a program holds in registers. Larger ones are
# served by torch unless another backend is asked for.
LARGEST_STATE = 128
