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

from rung.show.text_table import aligned

STYLES = {
    "ok": "green",
    "failed": "bold red",
    "compiled": "yellow",
    "skipped": "yellow",
    "warning": "yellow",
    "missing": "yellow",
    "broken": "bold red",
}


PROSE = 24  # cells longer than this may be folded, in a column of at least this width


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
    used = [i for i in range(len(columns)) if not cells or any(r[i] for r in cells)]
    columns, cells = [columns[i] for i in used], [[r[i] for i in used] for r in cells]
    if not is_terminal():
        print("\n".join(aligned(columns, cells, right)))
        return
    console = Console(highlight=False)
    prose = [i for i in range(1, len(columns)) if max((len(r[i]) for r in cells), default=0) > PROSE]
    rest = sum(_width(columns, cells, i) + 2 for i in range(len(columns)) if i not in prose)
    if rest + PROSE * len(prose) > console.width:
        _records(console, columns, cells)
        return
    shown = Table(title=title or None, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        shown.add_column(
            column, justify="right" if column in right else "left", no_wrap=i not in prose, overflow="fold"
        )
    for row in cells:
        shown.add_row(*(Text(c, style=STYLES.get(c, "")) for c in row))
    console.print(shown)


def _width(columns: Sequence[str], cells: list[list[str]], i: int) -> int:
    return max([len(columns[i]), *(len(r[i]) for r in cells)])


def _records(console: Console, columns: Sequence[str], cells: list[list[str]]) -> None:
    """A terminal too narrow for the table: a paragraph a row."""
    for row in cells:
        line = Text(row[0], style="bold")
        for column, cell in zip(columns[1:], row[1:], strict=True):
            if cell:
                line.append(f" · {column} ", style="dim")
                line.append(cell, style=STYLES.get(cell, "not bold"))
        console.print(line)


def note(text: str) -> None:
    """A sentence beside the result, on standard error."""
    print(text, file=sys.stderr)
