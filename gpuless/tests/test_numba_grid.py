"""Numba synchronizes a grid by functions of CUDA's device runtime, which the machine has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba.cuda")

TURN = """
import numpy as np
from numba import cuda

@cuda.jit
def turn(x, out):
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    for round in range(2):
        x[i] = i + round
        grid.sync()
        out[i] += x[x.size - 1 - i]
        LAST

x, out = cuda.to_device(np.zeros(64, np.int32)), cuda.to_device(np.zeros(64, np.int32))
turn[2, 32](x, out)
print(out.copy_to_host().tolist() == [2 * (63 - i) + 1 for i in range(64)])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("last", "code"), [("grid.sync()", 0), ("pass", 102)])
def test_a_grid_of_numba_synchronizes(tmp_path: Path, last: str, code: int) -> None:
    (tmp_path / "turn.py").write_text(TURN.replace("LAST", last))
    command = [sys.executable, "-m", "gpuless", "run", "--quiet", "--order", "shuffled", sys.executable]
    done = subprocess.run([*command, str(tmp_path / "turn.py")], capture_output=True, text=True)
    assert code or "True" in done.stdout, done.stderr
    assert done.returncode == code, done.stderr
