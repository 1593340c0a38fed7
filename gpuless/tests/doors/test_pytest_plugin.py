"""The plugin, by pytest itself in a process of its own."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
INSTALLED = any(one.name == "gpuless" for one in importlib.metadata.entry_points(group="pytest11"))
NAMED = [] if INSTALLED else ["-p", "gpuless.doors.pytest_plugin"]
CORE = """
import numpy as np, pytest
from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

SOURCE = '''
extern "C" __global__ void turn(float* x) {
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
    x[threadIdx.x] = s[threadIdx.x ^ 1];
}
extern "C" __global__ void beyond(float* x) { x[threadIdx.x + 4096] = 1; }
extern "C" __global__ void right(float* x) { x[threadIdx.x] += 1; }
'''
@pytest.fixture(scope="module")
def run():
    device = Device(); device.set_current(); stream = device.create_stream()
    options = ProgramOptions(arch="sm_" + "".join(map(str, device.compute_capability)), lineinfo=True)
    code = Program(SOURCE, "c++", options).compile("cubin")
    def run(name):
        memory = device.memory_resource.allocate(256, stream=stream)
        driver.cuMemsetD8Async(int(memory.handle), 0, 256, int(stream.handle))
        launch(stream, LaunchConfig(grid=1, block=64), code.get_kernel(name), memory); stream.sync()
        return device.name
    return run
"""


def outcomes(tmp_path: Path, text: str, *options: str) -> tuple[dict[str, str], str]:
    """What became of each test, and all that pytest printed."""
    (tmp_path / "test_it.py").write_text(textwrap.dedent(text))
    command = [sys.executable, "-m", "pytest", *NAMED, "-p", "no:cacheprovider", "--junit-xml=out.xml", *options]
    done = subprocess.run([*command, "test_it.py"], cwd=tmp_path, capture_output=True, text=True)
    cases = xml.parse(tmp_path / "out.xml").iter("testcase")
    return {
        str(c.get("name")): c[0].tag if len(c) and c[0].tag != "properties" else "passed" for c in cases
    }, done.stdout


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "xdist"])
def test_a_fault_fails_the_test_in_which_it_happened(tmp_path: Path, workers: list[str]) -> None:
    text = CORE + textwrap.dedent("""
    def test_racy(run): run("turn")
    def test_right(run): run("right")
    def test_racy_again(run): run("turn")
    @pytest.mark.gpuless(races=False)
    def test_unchecked(run): run("turn")
    @pytest.mark.gpuless(expect="bounds")
    def test_provokes(run):
        with pytest.raises(Exception): run("beyond")
    def test_right_behind_it(run): run("right")
    """)
    found, said = outcomes(tmp_path, text, "--gpuless", *workers)
    failed = {name for name, outcome in found.items() if outcome != "passed"}
    assert failed == {"test_racy", "test_racy_again"} and len(found) == 6, said
    line = (
        CORE.splitlines().index(
            "        launch(stream, LaunchConfig(grid=1, block=64), code.get_kernel(name), memory); stream.sync()"
        )
        + 1
    )
    assert re.search(r"race: kernel 'turn'", said) and f"test_it.py:{line}" in said


def test_marks_choose_the_gpu_and_the_orders(tmp_path: Path) -> None:
    text = CORE + textwrap.dedent("""
    import os
    @pytest.mark.gpuless(gpu="a100")
    def test_other(run): assert "A100" in run("right")
    def test_usual(run): assert "H100" in run("right")
    @pytest.mark.gpuless(seeds=2)
    def test_seeds(run): run("right"); assert os.environ["GPULESS_ORDER"] == "2"
    @pytest.mark.gpuless(order="reverse")
    def test_order(run): run("right"); assert os.environ["GPULESS_ORDER"] == "1"
    @pytest.mark.gpuless(gpu="a100")
    def test_other_fails(run): run("turn")
    """)
    found, said = outcomes(tmp_path, text, "--gpuless", "--gpuless-gpu=h100")
    expected = dict.fromkeys(
        ["test_other", "test_usual", "test_seeds[seed1]", "test_seeds[seed2]", "test_order"], "passed"
    )
    assert found == expected | {"test_other_fails": "failure"}, said


def test_the_ini_file_turns_it_on_and_suppresses(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\ngpuless = true\ngpuless_suppress = known.toml\n")
    (tmp_path / "known.toml").write_text('[[suppress]]\nkind = "race"\nkernel = "turn"\nreason = "to be mended"\n')
    found, said = outcomes(tmp_path, CORE + "def test_racy(run): run('turn')\ndef test_bad(run): run('beyond')\n")
    assert found == {"test_racy": "passed", "test_bad": "failure"}, said


def test_programs_that_tests_start_are_judged(tmp_path: Path) -> None:
    (tmp_path / "racy.cu").write_text(
        "__global__ void turn(float* x) { __shared__ float s[64]; s[threadIdx.x] = x[threadIdx.x];\n"
        "x[threadIdx.x] = s[threadIdx.x ^ 1]; }\n"
        "int main() { float* x; cudaMalloc(&x, 256); cudaMemset(x, 0, 256); turn<<<1, 64>>>(x); cudaDeviceSynchronize(); }\n"
    )
    text = """
    import subprocess
    def test_build(): subprocess.run(["nvcc", "racy.cu", "-o", "racy"], check=True)
    def test_run(): subprocess.run(["./racy"], check=True)
    def test_none(): pass
    """
    found, said = outcomes(tmp_path, text, "--gpuless")
    assert found == {"test_build": "passed", "test_run": "failure", "test_none": "passed"}, said
    assert "racy.cu:2" in said and "racy.cu:1" in said


def test_numba_kernels_have_their_lines(tmp_path: Path) -> None:
    pytest.importorskip("numba.cuda")
    text = """
    import numpy as np
    from numba import cuda, float32
    @cuda.jit
    def turn(x):
        s = cuda.shared.array(64, float32)
        s[cuda.threadIdx.x] = x[cuda.threadIdx.x]
        x[cuda.threadIdx.x] = s[cuda.threadIdx.x ^ 1]
    def test_racy():
        turn[1, 64](cuda.to_device(np.ones(64, np.float32)))
    """
    found, said = outcomes(tmp_path, text, "--gpuless")
    assert found == {"test_racy": "failure"}, said
    assert {"test_it.py:7", "test_it.py:8", "test_it.py:10"} <= set(re.findall(r"test_it\.py:\d+", said))
    assert "[abi:" not in said
