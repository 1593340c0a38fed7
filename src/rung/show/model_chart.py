"""The climb of the whole model: its timed steps, and what they are in words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rung.results.row import Row

COLOURS = {"float32": "f32", "tf32": "tf32", "float16": "f16", "bfloat16": "bf16", "int8": "f16"}


def steps(rows: Iterable[Row], model: str | None = None) -> list[Row]:
    """The timed steps of a model's climb in their order; by default, of the model with most timed steps."""
    timed = [r for r in rows if r.kind == "climb" and "study" not in r.options and r.metrics.get("tokens_per_s")]
    names = [r.what for r in timed]
    chosen = model or max(sorted(set(names)), key=names.count, default="")
    dtypes = list(dict.fromkeys(sorted((r.dtype for r in timed), key=list(COLOURS).index)))
    some = [r for r in timed if r.what == chosen]
    return sorted(some, key=lambda r: (dtypes.index(r.dtype), *_place(r)))


def _place(row: Row) -> tuple[bool, int, str]:
    """Plans in the order in which they ran, then decode's rungs by their numbers, even if one was timed later."""
    number = re.match(r"decode (\d+)", row.part)
    return (True, int(number[1]), row.part) if number else (False, int(row.detail["step"]), "")


def rate(row: Row) -> float:
    return row.metrics["tokens_per_s"]


def summary(rows: Sequence[Row]) -> str:
    """First and best of each number format, in words."""
    sentences = []
    for dtype in dict.fromkeys(r.dtype for r in rows):
        some = [r for r in rows if r.dtype == dtype]
        best = max(some, key=rate)
        first = f"in {dtype} from {rate(some[0]):,.0f} tokens/s ({some[0].part})"
        sentences.append(f"{first} to {rate(best):,.0f} ({best.part})")
    return "; ".join(sentences)
