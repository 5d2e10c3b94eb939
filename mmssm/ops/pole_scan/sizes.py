"""What fits into the kernels of the pole scan and of its denominator."""

# Outputs that a kernel holds in registers. Larger orders are served by torch
# unless another backend is asked for.
LARGEST_ORDER = 16
