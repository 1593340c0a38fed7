"""`rung cc`: nvcc's place in a Makefile, for programs that run their kernels on the emulator."""

from __future__ import annotations

import sys

from gpuless.program import nvcc
from rung import progress
from rung.cli.ending import exit_code_of


def cc(words: list[str]) -> int:
    with progress.telling("reading the options"):
        return nvcc.cc(words, progress.doing)


def main() -> None:
    """The script `rung-nvcc`: `rung cc` under one word, as build systems want a compiler."""
    sys.exit(exit_code_of(lambda: cc(sys.argv[1:])))
