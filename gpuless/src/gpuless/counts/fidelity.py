"""How faithfully instructions were executed, in parts that are put together (docs/json.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any


def merged(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Of several processes."""
    exact, counts = 0, {"table": Counter[str](), "approximate": Counter[str]()}
    refused: set[str] = set()
    for part in parts:
        exact += part["exact"]
        refused |= {*part["refused"]}
        for how, names in counts.items():
            names.update(part[how])
    return {"exact": exact, **{how: dict(names) for how, names in counts.items()}, "refused": sorted(refused)}
