"""What fits into the Triton kernels of the gated RMS normalisation."""

# Channels of a group that a program holds in registers. Larger groups are
# served by torch unless another backend is asked for.
LARGEST_GROUP = 8192
