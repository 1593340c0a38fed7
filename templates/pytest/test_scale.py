import numpy as np
import pytest
from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

SCALE = """
extern "C" __global__ void scale(float* x, float by, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= by;
}
"""


@pytest.mark.gpuless(races=True)
@pytest.mark.parametrize("n", [1, 255, 257])
def test_scale(n: int) -> None:
    device = Device()
    device.set_current()
    stream = device.create_stream()
    arch = "sm_" + "".join(map(str, device.compute_capability))
    kernel = Program(SCALE, "c++", ProgramOptions(arch=arch, lineinfo=True)).compile("cubin").get_kernel("scale")
    host = np.arange(n, dtype=np.float32)
    memory = device.memory_resource.allocate(host.nbytes, stream=stream)
    driver.cuMemcpyHtoDAsync(int(memory.handle), host.ctypes.data, host.nbytes, int(stream.handle))
    blocks = (n + 255) // 256
    launch(stream, LaunchConfig(grid=blocks, block=256), kernel, memory, np.float32(2), np.int32(n))
    driver.cuMemcpyDtoHAsync(host.ctypes.data, int(memory.handle), host.nbytes, int(stream.handle))
    stream.sync()
    assert (host == 2 * np.arange(n)).all()
