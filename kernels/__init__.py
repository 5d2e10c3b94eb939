"""Kernels of the operators, installed as ``mmssm.kernels``."""
