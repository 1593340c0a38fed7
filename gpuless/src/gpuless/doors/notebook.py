"""`%%gpuless`: a cell of a notebook is a CUDA program, which runs and is judged. `%load_ext gpuless` brings it."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def run_cell(line: str, cell: str) -> None:
    """`%%gpuless [OPTIONS of gpuless run] [-- ARGUMENT ...]`"""
    words = shlex.split(line)
    at = words.index("--") if "--" in words else len(words)
    with tempfile.TemporaryDirectory(prefix="gpuless-cell-") as folder:
        (Path(folder) / "cell.cu").write_text(cell)
        code = show("gpuless", "run", *words[:at], "cell.cu", *words[at:], folder=folder)
    if code:
        print(f"exit code {code}", file=sys.stderr)


def show(module: str, *words: str, folder: str) -> int:
    """Runs a module's command in a folder, and prints what it prints; its exit code."""
    command = [sys.executable, "-m", module, *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    print(done.stdout, end="")
    print(done.stderr, end="", file=sys.stderr)
    return done.returncode


def load_ipython_extension(shell: Any) -> None:
    shell.register_magic_function(run_cell, "cell", "gpuless")
