"""Measurements as text: figures with their units, and Markdown, its tables and its pictures in both colour schemes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from rung.results.current import time_text
from rung.results.row import Row
from rung.show import charts


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], words: int = 1) -> str:
    """A table; the first `words` columns are not numbers. Empty if it has no rows."""
    cells = [[str(c).replace("|", "\\|") for c in row] for row in rows]
    if not cells:
        return ""
    marks = ["---"] * words + ["---:"] * (len(heads) - words)
    return "\n" + "\n".join("| " + " | ".join(line) + " |" for line in (heads, marks, *cells)) + "\n\n"


def picture(name: str, alt_text: str, folder: str) -> str:
    """A picture of `folder` for light and dark pages; `alt_text` describes it."""
    return (
        "<picture>\n"
        f'  <source media="(prefers-color-scheme: dark)" srcset="{folder}/{name}-dark.svg">\n'
        f'  <img alt="{charts.escape(alt_text)}" src="{folder}/{name}-light.svg">\n'
        "</picture>\n"
    )


def plain(text: str) -> str:
    """Text with Markdown's special characters escaped, except for code in backticks."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([_*<\[])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def ms(seconds: float) -> str:
    """Milliseconds with three figures, and three decimals below one."""
    value = seconds * 1e3
    return f"{value:.{3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0}f}"


def times(factor: float) -> str:
    """A ratio of speeds."""
    return f"{factor:,.2f}×"


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
