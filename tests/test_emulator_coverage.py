"""Which lines ran: each counted as often as it was entered, and those never reached by 0."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from emulation import load, needs_compiler
from rung.cuda.launch import LaunchConfig
from rung.emulator import Settings, coverage
from rung.errors import RungError

SOURCE = """__global__ void k(int* out, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        if (i < 100)
            out[i] += 1;
        else
            out[i] -= 1;
    }
}"""


@needs_compiler
def test_lines_are_counted() -> None:
    module = load(SOURCE, settings=Settings(coverage=True))
    out = torch.zeros(128, dtype=torch.int32)

    def counts(n: int) -> dict[int, int]:
        module.launch("k", LaunchConfig((1, 1, 1), (32, 1, 1)), [("pointer", out), ("i32", n)])
        return coverage.lines(module)[Path("test.cu")]

    few = counts(64)
    assert few[4] == 64 and few[6] == 0  # the loop has two turns, and the other branch none
    all_of = counts(128)
    assert all_of[4] == 164 and all_of[6] == 28
    assert coverage.merged([few, all_of])[4] == 228


@needs_compiler
def test_a_build_without_counters_is_told() -> None:
    with pytest.raises(RungError, match="not compiled for coverage"):
        coverage.lines(load(SOURCE + "\n"))
