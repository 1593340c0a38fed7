"""`%%rung OPERATION`: a cell of a notebook is a kernel in CUDA or Triton, which `rung check` judges. `%load_ext
rung.exchange.notebook` brings it."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import Any

from gpuless.doors.notebook import show

_TRITON = "import triton"


def check_cell(line: str, cell: str) -> None:
    """`%%rung OPERATION [OPTIONS of rung check]`"""
    words = shlex.split(line)
    with tempfile.TemporaryDirectory(prefix="rung-cell-") as folder:
        name = "cell.py" if _TRITON in cell else "cell.cu"
        (Path(folder) / name).write_text(cell)
        show("rung", "check", *words[:1], name, *words[1:], folder=folder)


def load_ipython_extension(shell: Any) -> None:
    shell.register_magic_function(check_cell, "cell", "rung")
