"""How every verb prints: tables on a terminal, aligned plain text in a pipe, JSON for programs."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from rung.cli.ending import BEGAN
from rung.show.verb_tables import Table, aligned

F = TypeVar("F", bound=Callable[..., Any])
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


def note(text: str) -> None:
    """A note on standard error."""
    print(text, file=sys.stderr)


# Seconds without a line until one says what is done, the first time and later; of a pipe, from there to the next;
# between two looks at the clock.
FIRST, SILENCE, APART, TICK = 0.6, 1.0, 10.0, 0.25
_doing, _since, _due, _shown = "", 0.0, math.inf, False
_told = False  # whether a command of this process has begun to tell


def doing(what: str) -> None:
    """What is done from here on, for `telling`: of the first command since the process began."""
    global _doing, _since, _due, _shown, _told
    if _shown:
        status("")
    _doing, _since, _shown = what, time.monotonic() if _told else BEGAN, False
    _due = _since + (SILENCE if _told else FIRST)
    _told = True


def step(what: str) -> None:
    """As `doing`, where nothing was printed since the last step; nothing is told from here on if `what` is empty."""
    global _due
    due = _due
    doing(what)
    _due = min(due, _due) if what else math.inf


def _tell(*_: object) -> None:
    global _due, _shown
    now = time.monotonic()
    if now < _due:
        return
    _shown = sys.stderr.isatty()
    _due = now + (SILENCE if _shown else APART)
    line = f"  {_doing}, for {now - _since:.0f} s so far"
    if _shown:
        line = f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}"
    with contextlib.suppress(OSError):  # standard error may be closed; not by print, which may be under way
        os.write(2, f"{line}{'' if _shown else chr(10)}".encode())


def telling(first: str) -> Callable[[F], F]:
    """A command that tells on standard error what it does when it has printed nothing for a while; no thread does it,
    since a process with threads is not forked."""

    def decorated(command: F) -> F:
        @functools.wraps(command)
        def told(*given: Any, **named: Any) -> Any:
            if threading.current_thread() is not threading.main_thread() or signal.getitimer(signal.ITIMER_REAL)[0]:
                return command(*given, **named)
            doing(first)
            before = signal.signal(signal.SIGALRM, _tell)
            signal.setitimer(signal.ITIMER_REAL, TICK, TICK)
            try:
                return command(*given, **named)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
                doing("")

        return told  # type: ignore[return-value]

    return decorated


def status(text: str) -> None:
    """Progress, in one line of standard error that the next one replaces; nothing if that is not a terminal. An
    empty text clears the line."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def counting(what: str) -> Iterator[None]:
    """Says on a terminal what is counted, as long as it is."""
    status(f"counting {what}; the first time ever takes half a minute")
    try:
        yield
    finally:
        status("")


@contextlib.contextmanager
def progress(title: str) -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar on standard error, if that is a terminal: the function takes a text, how much is done, and of how much."""
    if not sys.stderr.isatty():
        yield lambda text, done, total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(title, total=None)

        def report(text: str, done: int, total: int | None) -> None:
            bar.update(task, completed=done, total=total, description=f"{title} {text}"[:60].ljust(60))

        yield report
