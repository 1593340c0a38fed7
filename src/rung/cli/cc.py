"""`rung cc`: nvcc's place in a Makefile, for programs that run their kernels on the emulator."""

from __future__ import annotations

import sys

from rung.cli import console
from rung.cli.ending import exit_code_of
from rung.emulator import nvcc


@console.telling("reading the options")
def cc(words: list[str]) -> int:
    return nvcc.cc(words, console.step)


def main() -> None:
    """The script `rung-nvcc`: `rung cc` under one word, as build systems want a compiler."""
    sys.exit(exit_code_of(lambda: cc(sys.argv[1:])))
