"""How every verb prints: tables on a terminal, aligned plain text in a pipe, JSON for programs."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

from rung.progress import clear, telling
from rung.show.verb_tables import Table, aligned

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
    """Whether standard output is a terminal."""
    return sys.stdout.isatty()


def margin(most: int) -> int:
    """How many characters may stand on the left of a source: fewer on a narrow terminal."""
    return min(most, shutil.get_terminal_size().columns // 3) if is_terminal() else most


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
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    right: Sequence[str] = (),
    title: str = "",
    drop: Sequence[str] = (),
) -> None:
    """Print rows under columns; `right` names columns of numbers, `drop` what a narrow terminal leaves out first."""
    cells = [["" if c is None else str(c) for c in row] for row in rows]
    used = [i for i in range(len(columns)) if not cells or any(r[i] for r in cells)]
    columns, cells = [columns[i] for i in used], [[r[i] for i in used] for r in cells]
    if not is_terminal():
        print("\n".join(aligned(columns, cells, right)))
        return
    from rich.console import Console  # takes longer to import than most verbs that print no table need
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console(highlight=False)
    visible, same, left_out = fitting(columns, cells, console.width, drop)
    prose = _prose(cells, len(columns))
    shown = RichTable(title=title or None, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for i in visible:
        justify: Literal["left", "right"] = "right" if columns[i] in right else "left"
        shown.add_column(columns[i], justify=justify, no_wrap=i not in prose, overflow="fold")
    for row in cells:
        shown.add_row(*(Text(row[i], style=STYLES.get(row[i], "")) for i in visible))
    console.print(shown)
    if same:
        every = ", ".join(f"{columns[i]} {cells[0][i]}" for i in same)
        console.print(Text(f"In every row: {every}.", style="dim"))
    if left_out:
        names = ", ".join(columns[i] for i in left_out)
        console.print(Text(f"Not shown at this width: {names}.", style="dim"))


def tables(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table of numbers; on a terminal in parts, of as many columns as fit beside the first."""
    need = [max(len(c), *(len(r[i]) for r in rows)) + 2 for i, c in enumerate(columns)]
    left = shutil.get_terminal_size().columns if is_terminal() else sum(need)
    parts: list[list[int]] = []
    for i in range(1, len(columns)):
        if not parts or need[0] + sum(need[j] for j in (*parts[-1], i)) - 2 > left:
            parts.append([])
        parts[-1].append(i)
    for number, part in enumerate(parts):
        if number:
            print()
        kept = [row for row in rows if any(row[i] not in ("", "0") for i in part)]
        table([columns[i] for i in (0, *part)], [[r[i] for i in (0, *part)] for r in kept], right=columns[1:])


def fitting(
    columns: Sequence[str], cells: Sequence[Sequence[str]], width: int, drop: Sequence[str] = ()
) -> tuple[list[int], list[int], list[int]]:
    """The columns that fit; if not all do: those with the same value in every row, and those left out."""
    prose = _prose(cells, len(columns))
    need = [max([len(c), *(PROSE if i in prose else len(r[i]) for r in cells)]) for i, c in enumerate(columns)]
    visible = list(range(len(columns)))
    same: list[int] = []
    left_out: list[int] = []

    def too_wide() -> bool:
        return sum(need[i] + 2 for i in visible) - 2 > width

    for i in range(1, len(columns)):
        if too_wide() and len(cells) > 1 and len({row[i] for row in cells}) == 1:
            visible.remove(i)
            same.append(i)
    named = [columns.index(name) for name in drop if name in columns]
    for i in [*named, *(i for i in reversed(range(1, len(columns))) if i not in named)]:
        if too_wide() and i in visible and len(visible) > 2:
            visible.remove(i)
            left_out.append(i)
    return visible, same, sorted(left_out)


def _prose(cells: Sequence[Sequence[str]], count: int) -> list[int]:
    """Columns that may be folded."""
    return [i for i in range(1, count) if max((len(row[i]) for row in cells), default=0) > PROSE]


def show(pieces: Iterable[str | Table]) -> None:
    """Texts and tables, one after another."""
    for piece in pieces:
        if isinstance(piece, str):
            print(piece)
        else:
            table(piece.columns, piece.rows, right=piece.right, drop=piece.drop)


def width() -> int:
    """The terminal's columns; 0 where standard output is none, and nothing is wrapped."""
    return shutil.get_terminal_size().columns if is_terminal() else 0


def verdict(line: str) -> None:
    """A line of a verdict, which is coloured if it begins with one."""
    word = line[:10].strip()
    style = STYLES.get(word.partition("  ")[0])
    if is_terminal() and style:
        from rich.console import Console
        from rich.text import Text

        text = Text(line)
        text.stylize(style, 0, len(word.partition("  ")[0]))
        Console(highlight=False).print(text, soft_wrap=True)
    else:
        print(line, flush=True)


def note(text: str) -> None:
    """A note on standard error."""
    clear()
    print(text, file=sys.stderr)


def status(text: str) -> None:
    """Progress, in one line of standard error that the next one replaces; nothing if that is not a terminal. An
    empty text clears the line."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)


def counting(what: str) -> AbstractContextManager[None]:
    """Says what is counted, as long as it is."""
    return telling(f"counting {what}; the first time ever takes half a minute")


@contextlib.contextmanager
def progress(title: str) -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar on standard error, if that is a terminal: the function takes a text, how much is done, and of how much."""
    if not sys.stderr.isatty():
        yield lambda text, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(title, total=None)

        def report(text: str, done: int, total: int | None) -> None:
            bar.update(task, completed=done, total=total, description=f"{title} {text}"[:60].ljust(60))

        yield report
