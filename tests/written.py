"""Texts by a decode rung, through the slots of a GPU's backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rung.models.gpu.engine import GpuSteps
from rung.models.gpu.slots import GpuBackend
from rung_reproduce.direct import write_texts


def written(engine: GpuSteps, prompts: Sequence[Sequence[int]], limits: Sequence[int], **how: Any) -> Iterator[list[int]]:
    """For each step the tokens of all texts, -1 where one has ended."""
    return write_texts(GpuBackend(None, engine, len(prompts), exact=True), prompts, limits, **how)
