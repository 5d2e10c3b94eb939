"""Every Triton kernel compiles for AMD MI300, without a GPU."""

from tests.test_kernels.gate import gate

test_kernel_fits_the_device = gate('gfx942')
