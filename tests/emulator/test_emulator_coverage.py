"""Which lines no launch has run."""

from __future__ import annotations

import torch

from emulation import load, needs_compiler
from rung import emulator
from rung.cuda.launch import LaunchConfig
from rung.emulator import coverage

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
    coverage.take()
    module = load(SOURCE, settings=emulator.Settings(coverage=counted))
    for n in sizes:
        out = torch.zeros(256, dtype=torch.int32)
        module.launch("k", LaunchConfig((1, 1, 1), (32, 1, 1)), [("pointer", out), ("i32", n)])
    return [place.line for place in coverage.unreached(coverage.take())]


def test_lines_that_no_launch_has_run_are_named() -> None:
    assert {3, 7} <= set(lines(20)) and 5 not in lines(20)
    assert 5 in lines(120) and 3 not in lines(120)


def test_launches_add_up() -> None:
    assert lines(20, 120) == []


def test_without_the_setting_nothing_is_counted() -> None:
    assert lines(20, counted=False) == []
