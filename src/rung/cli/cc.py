"""`rung cc`: NVIDIA's nvcc, for programs that run on the GPU in software."""

from __future__ import annotations

import sys

from gpuless.program import command
from rung.cli.ending import exit_code_of


def cc(words: list[str]) -> int:
    return command.nvcc(words)


def main() -> None:
    """The script `rung-nvcc`: `rung cc` under one word, as build systems want a compiler."""
    sys.exit(exit_code_of(lambda: cc(sys.argv[1:])))
