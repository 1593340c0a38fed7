"""A document's tables in its own form, lines and columns, theirs beside ours: for a terminal and for a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from rung.results.row import Row
from rung_reproduce import sources
from rung_reproduce.sources import Experiment, Figure, number

Ours = Mapping[str, Callable[[Figure], str]]  # a column's head -> what stands in it


@dataclass(frozen=True)
class Form:
    """A table: of one experiment, or of several that are its columns."""

    experiments: tuple[Experiment, ...]
    title: str
    heads: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    rest: tuple[tuple[str, ...], ...] = ()  # figures that are no cell of it: what, theirs, ours, unit

    @property
    def experiment(self) -> Experiment:
        return self.experiments[0]

    @property
    def differs(self) -> str:
        """What is not as in the document; of a table of several experiments for each of its columns."""
        told = (f"{e.column}: {e.differs}" if e.column else e.differs for e in self.experiments)
        return " ".join(dict.fromkeys(told))


REST = ("", "theirs", "ours", "unit")


def columns_of(rows: Sequence[Row], counts: Sequence[Row], others: Mapping[str, Sequence[Row]], gpu: str) -> Ours:
    """What stands beside theirs: this GPU's rows, other GPUs', and what the emulator counts."""
    ours: dict[str, Callable[[Figure], str]] = {f"ours, {gpu or 'no GPU'}": lambda f: number(f.beside(rows))}
    for name, of in others.items():
        ours[name] = lambda f, of=of: number(f.beside(of))  # type: ignore[misc]
    ours["emulated"] = lambda f: number(f.emulated(counts))
    return ours


def forms(document: str, ours: Ours) -> list[Form]:
    """All tables of a document, in its order."""
    own = [e for e in sources.experiments() if e.document.name == document]
    found = []
    for _, group in groupby(enumerate(own), key=lambda pair: pair[1].table_of or str(pair[0])):
        some = tuple(e for _, e in group)
        found.append(_joined(some, ours) if some[0].table_of else _divided(some[0], ours) if some[0].form else
                     _plain(some[0], ours))  # fmt: skip
    return found


def theirs(figure: Figure) -> str:
    return figure.than or number(figure.value)


def _plain(e: Experiment, ours: Ours) -> Form:
    """A line for each figure."""
    filled = {head: [cell(f) for f in e.figures] for head, cell in ours.items()}
    filled = {head: cells for i, (head, cells) in enumerate(filled.items()) if not i or any(cells)}
    lines = [(f.what, theirs(f), *(cells[i] for cells in filled.values()), f.unit) for i, f in enumerate(e.figures)]
    return Form((e,), e.title, ("", f"theirs, {e.gpu}", *filled, "unit"), tuple(lines))


def _divided(e: Experiment, ours: Ours) -> Form:
    """Figures whose names share their ends are the columns of a table."""
    cell, head = next(iter(ours.values())), next(iter(ours))
    parts = {f.what: f.what.rpartition(e.form) for f in e.figures}
    often = Counter(column for line, _, column in parts.values() if line)
    columns = [column for column, n in often.items() if n > 1]
    inside = [f for f in e.figures if parts[f.what][2] in columns and parts[f.what][0]]
    by = {(parts[f.what][0], parts[f.what][2]): f for f in inside}
    units = {f.unit for f in inside}
    unit = f", {e.unit}" if len(units) == 1 and e.unit else ""
    told = [(column, who, text) for column in columns for who, text in (("theirs", theirs), ("ours", cell))]
    names = list(dict.fromkeys(line for line, _ in by))
    filled = {  # a column of theirs is left out where a chart has no numbers
        f"{column}: {who}": [text(f) if (f := by.get((name, column))) else "" for name in names]
        for column, who, text in told
        if who == "ours" or any(theirs(f) for (_, of), f in by.items() if of == column)
    }
    lines = [(name, *(cells[i] for cells in filled.values())) for i, name in enumerate(names)]
    rest = [(f.what, theirs(f), cell(f), f.unit) for f in e.figures if f not in inside]
    title = f"{e.title} ({e.gpu} and {head.removeprefix('ours, ')}{unit})"
    return Form((e,), title, ("", *filled), tuple(lines), tuple(rest))


def _joined(some: tuple[Experiment, ...], ours: Ours) -> Form:
    """Experiments with the same lines are the columns of one table."""
    cell, head = next(iter(ours.values())), next(iter(ours))
    names = dict.fromkeys(f.what for e in some for f in e.figures)
    by = {(e.column, f.what): f for e in some for f in e.figures}
    lines = [
        (name, *(text for e in some for f in [by.get((e.column, name))]
                 for text in ((theirs(f), cell(f)) if f else ("", ""))))
        for name in names
    ]  # fmt: skip
    heads = [f"{e.column}: {who}" for e in some for who in ("theirs", "ours")]
    title = f"{some[0].table_of} ({some[0].gpu} and {head.removeprefix('ours, ')}, {some[0].unit})"
    return Form(some, title, ("", *heads), tuple(lines))
