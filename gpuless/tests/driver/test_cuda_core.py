"""NVIDIA's own Python interfaces on the driver: each program runs in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

BEGIN = """
import gpuless; gpuless.use()
import numpy as np
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
device = Device(); device.set_current(); stream = device.create_stream()
def kernel(name, text, kind="cubin"):
    arch = "".join(map(str, device.compute_capability))
    return Program(text, "c++", ProgramOptions(std="c++17", arch=f"sm_{arch}", lineinfo=True)).compile(kind).get_kernel(name)
"""
ADD = 'extern "C" __global__ void add(float* x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] += i; }'


def ran(text: str, tmp_path: Path, **environment: str) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    import os

    report = tmp_path / "report.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + textwrap.dedent(text)],
        capture_output=True,
        text=True,
        env=os.environ | {"GPULESS_REPORT": str(report)} | environment,
    )
    return done, [json.loads(line) for line in report.read_text().splitlines()]


def test_a_kernel_adds(tmp_path: Path) -> None:
    text = f"""
    memory = device.memory_resource.allocate(4000, stream=stream)
    from cuda.bindings import driver
    host = np.ones(1000, np.float32)
    driver.cuMemcpyHtoD(int(memory.handle), host.ctypes.data, host.nbytes)
    launch(stream, LaunchConfig(grid=4, block=256), kernel("add", {ADD!r}), memory, np.int32(1000)); stream.sync()
    driver.cuMemcpyDtoH(host.ctypes.data, int(memory.handle), host.nbytes)
    assert (host == 1 + np.arange(1000)).all()
    print(device.name)
    """
    done, records = ran(text, tmp_path, GPULESS_GPU="h100")
    assert done.returncode == 0, done.stderr
    assert "H100" in done.stdout
    (end,) = records
    assert (end["record"], end["faults"]) == ("end", 0)
    assert [row["kernel"] for row in end["kernels"]] == ["add"]


def test_an_access_out_of_bounds_is_a_record_and_sticks(tmp_path: Path) -> None:
    text = f"""
    memory = device.memory_resource.allocate(3996, stream=stream)
    from cuda.bindings import driver
    driver.cuMemsetD8(int(memory.handle), 0, 3996)
    launch(stream, LaunchConfig(grid=4, block=256), kernel("add", {ADD!r}), memory, np.int32(1000))
    error, = driver.cuStreamSynchronize(stream.handle)
    assert error == driver.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS, error
    assert driver.cuMemAlloc(16)[0] == error
    assert [one["kind"] for one in gpuless.faults()] == ["bounds"]
    """
    done, records = ran(text, tmp_path)
    assert done.returncode == 101, done.stderr
    fault, end = records
    assert fault["kind"] == "bounds" and fault["place"]["kernel"] == "add"
    assert fault["place"]["block"] == [3, 0, 0] and fault["place"]["thread"] == [231, 0, 0]
    assert end["exit"] == 101


def test_ptx_is_compiled(tmp_path: Path) -> None:
    text = f"""
    from cuda.bindings import driver
    from cuda.core import ObjectCode
    ptx = Program({ADD!r}, "c++", ProgramOptions(std="c++17", arch="compute_80")).compile("ptx").code
    error, module = driver.cuModuleLoadData(ptx)
    assert error == 0, error
    assert driver.cuModuleGetFunction(module, b"add")[0] == 0
    assert driver.cuModuleGetFunction(module, b"sub")[0] == driver.CUresult.CUDA_ERROR_NOT_FOUND
    """
    done, _ = ran(text, tmp_path)
    assert done.returncode == 0, done.stderr


def test_what_is_missing_is_refused_by_name_once(tmp_path: Path) -> None:
    text = """
    from cuda.bindings import driver
    for _ in range(2):
        error, _ = driver.cuImportExternalMemory(driver.CUDA_EXTERNAL_MEMORY_HANDLE_DESC())
        assert error == driver.CUresult.CUDA_ERROR_NOT_SUPPORTED, error
    """
    done, _ = ran(text, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("cuImportExternalMemory") == 1
