"""What fits into the kernels of the Cayley rotation."""

# Unknowns of the linear system that a Triton program holds in registers:
# twice the rank, or the size of the state where that is not more.
LARGEST_SYSTEM = 64
