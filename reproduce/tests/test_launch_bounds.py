"""What __launch_bounds__ changes in the report's product of 32 warps a block."""

from __future__ import annotations

import pytest

from rung.profile.inspect import inspect
from rung.rungs import catalogue


@pytest.mark.parametrize("arch", ["sm_86", "sm_90"])
def test_launch_bounds_let_the_compiler_use_more_registers(arch: str) -> None:
    rungs = [catalogue.find(name) for name in ("matmul/29_both_axes", "matmul/34_no_launch_bounds")]
    found = {r.rung: r.registers for r in inspect(rungs, [arch], dtype="tf32", mix=False) if r.kernel == "matmul"}
    bounded, free = (found[rung.full_name] for rung in rungs)
    assert free is not None and bounded is not None and free < bounded <= 64
