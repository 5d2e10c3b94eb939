"""Kernels in C for tensors on the CPU, in one optional shared library."""
