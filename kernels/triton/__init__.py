"""Triton kernels; imported only when a call is served by one."""
