"""Which lines no launch has run."""

from __future__ import annotations

import pytest
import torch

import gpuless
from emulation import load, needs_compiler
from gpuless.base.errors import EmulatorFault
from gpuless.counts import coverage
from gpuless.launch import LaunchConfig

pytestmark = needs_compiler
SOURCE = """__global__ void k(int* out, int n) {
    if (n > 100)
        out[threadIdx.x] = __popc(n);
    else
        out[threadIdx.x] = n / 7;
    for (int i = 0; i < n - 50; i++)
        atomicXor(out + i, 3);
}"""


def lines(*sizes: int, counted: bool = True) -> list[int]:
    gpuless.current().coverage.take()
    module = load(SOURCE, settings=gpuless.Settings(coverage=counted))
    for n in sizes:
        out = torch.zeros(256, dtype=torch.int32)
        module.launch("k", LaunchConfig((1, 1, 1), (32, 1, 1)), [("pointer", out), ("i32", n)])
    return [place.line for place in coverage.unreached(gpuless.current().coverage.take())]


def test_lines_that_no_launch_has_run_are_named() -> None:
    assert {3, 7} <= set(lines(20)) and 5 not in lines(20)
    assert 5 in lines(120) and 3 not in lines(120)


def test_launches_add_up() -> None:
    assert lines(20, 120) == []


def test_a_limit_on_instructions_stops_a_launch_at_the_same_place_each_time() -> None:
    source = "__global__ void k(volatile int* out, int n) {\n while (n) out[0] += n;\n out[1] = 1;\n}"
    counted = list[int]()
    for _ in range(2):
        gpuless.current().coverage.take()
        before = gpuless.current().steps
        module = load(source, settings=gpuless.Settings(coverage=True, steps=10_000))
        with pytest.raises(EmulatorFault) as raised:
            arguments = [("pointer", torch.zeros(2, dtype=torch.int32)), ("i32", 1)]
            module.launch("k", LaunchConfig((1, 1, 1), (64, 1, 1)), arguments)
        assert raised.value.kind == "deadlock"  # no thread has ended
        assert 3 in [place.line for place in coverage.unreached(gpuless.current().coverage.take())]
        counted.append(gpuless.current().steps - before)
    assert counted[0] == counted[1] and 10_000 < counted[0] < 20_000


def test_without_the_setting_nothing_is_counted() -> None:
    assert lines(20, counted=False) == []


def test_what_triton_moves_through_shared_memory_is_no_access_of_its_file() -> None:
    line = ("own.py", 7)
    ran = {(*line, "LDGSTS"): True, (*line, "LDG"): False, (*line, "LDS"): False, (*line, "STG"): False}
    assert coverage.missed(ran, coverage.OF_TRITON) == [(*line, "STG")]
    assert coverage.missed({**ran, (*line, "LDGSTS"): False, (*line, "BAR"): True}) == [
        (*line, n) for n in ("LDG", "LDS", "STG")
    ]
