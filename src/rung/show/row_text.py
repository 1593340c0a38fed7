"""Measurements as text: a row's main figure with its unit, and what must be said beside it."""

from __future__ import annotations

from collections.abc import Callable

from rung.results.current import time_text
from rung.results.row import Row

# A row's main figure: the first of these metrics that it has, and its format.
HEADLINES: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("cold_us", lambda x: f"{time_text(x)} µs"),
    ("tokens_per_s", lambda x: f"{x:,.0f} tokens/s"),
    ("prompt_ms", lambda x: f"{x:.3f} ms"),
    ("step_us", lambda x: f"{time_text(x)} µs"),
    ("seconds", lambda x: f"{x:.2f} s"),
    ("ms", lambda x: f"{x:.3g} ms"),
    ("duration_us", lambda x: f"{time_text(x)} µs"),
    ("copy_bytes_per_s", lambda x: f"{x / 1e12:.2f} TB/s"),
    ("occupancy", lambda x: f"{x:.0%}"),
    ("error_element", lambda x: f"{x:.3f} of bound"),
    ("launches", lambda x: f"{x:.0f} launches"),
)


def headline(row: Row) -> str:
    """The row's first figure with its unit; empty if it has none."""
    return next((read(row.metrics[name]) for name, read in HEADLINES if name in row.metrics), "")


def remark(row: Row) -> str:
    """Random weights, a quick run, the reason of a failure, the finding of a study."""
    return "; ".join(filter(None, (marks(row), row.reason.partition("\n")[0], str(row.detail.get("finding", "")))))


def marks(row: Row) -> str:
    """Remarks that must accompany the figure: how the weights were made, and that a run was quick."""
    weights = f"{row.weights} weights" if row.weights in ("random", "trained") else row.weights
    return ", ".join(filter(None, (weights, "quick" if row.quick else "")))
