"""`%%rung OPERATION`: a cell of a notebook is a kernel in CUDA or Triton, which `rung check` judges. `%load_ext
rung.exchange.notebook` brings it."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_TRITON = "import triton"


def check_cell(line: str, cell: str) -> None:
    """`%%rung OPERATION [OPTIONS of rung check]`"""
    words = shlex.split(line)
    with tempfile.TemporaryDirectory(prefix="rung-cell-") as folder:
        path = Path(folder) / ("cell.py" if _TRITON in cell else "cell.cu")
        path.write_text(cell)
        command = [sys.executable, "-m", "rung", "check", *words[:1], str(path), *words[1:]]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    print(done.stdout, end="")
    print(done.stderr, end="", file=sys.stderr)


def load_ipython_extension(shell: Any) -> None:
    shell.register_magic_function(check_cell, "cell", "rung")
