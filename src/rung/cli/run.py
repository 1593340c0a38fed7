"""`rung run`: gpuless's command of this name, for any CUDA program."""

from __future__ import annotations

from gpuless.program import command


def run(words: list[str]) -> int:
    return command.run(words, "rung")
