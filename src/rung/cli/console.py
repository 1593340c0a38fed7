"""How every verb prints: tables on a terminal, aligned plain text in a pipe, JSON for programs."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

STYLES = {
    "ok": "green",
    "failed": "bold red",
    "compiled": "yellow",
    "skipped": "yellow",
    "warning": "yellow",
    "missing": "yellow",
    "broken": "bold red",
}


def is_terminal() -> bool:
    """Whether a person is looking."""
    return sys.stdout.isatty()


def print_json(value: Any) -> None:
    """One JSON document on standard output (numbers that JSON lacks become null)."""
    print(json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], *, right: Sequence[str] = (), title: str = ""
) -> None:
    """Print rows under columns; `right` names the columns of numbers."""
    cells = [["" if c is None else str(c) for c in row] for row in rows]
    if not is_terminal():
        _plain_table(columns, cells, right)
        return
    shown = Table(title=title or None, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        number = column in right
        shown.add_column(
            column, justify="right" if number else "left", no_wrap=number or i == 0, overflow="fold"
        )
    for row in cells:
        shown.add_row(*(Text(c, style=STYLES.get(c, "")) for c in row))
    Console(highlight=False).print(shown)


def _plain_table(columns: Sequence[str], rows: list[list[str]], right: Sequence[str]) -> None:
    widths = [max([len(c), *(len(r[i]) for r in rows)]) for i, c in enumerate(columns)]
    for row in [list(columns), *rows]:
        parts = [
            c.rjust(w) if columns[i] in right else c.ljust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(parts).rstrip())


def note(text: str) -> None:
    """A sentence beside the result, on standard error."""
    print(text, file=sys.stderr)
