"""The techniques, kernels and experiments of the five documents: for each, what shows it here, or why it is closed.

items.toml lists them, each with a person's sentence: how kernel, launch, size and outcome agree. An item is as
described if the sentence does not say "Partly:", and everything that it names is there; what a row of results has to be
(its options, batch, number format and GPU) is part of the name, so that a row of one batch is no evidence of another.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rung.errors import RungError
from rung.results.row import KINDS, Row
from rung.rungs import catalogue
from rung_reproduce import sources

FILE = Path(__file__).with_name("items.toml")
ROOT = Path(__file__).parents[3]
FILES = ("tests/", "src/", "reproduce/", "gpuless/", "tools/", "docs/", "benchmarks/")
FIGURES = "figures"  # of a section of sources.toml, or of one of its tables: "SECTION: START OF ITS TITLE"


@dataclass(frozen=True)
class Item:
    """One technique, kernel or experiment of a document."""

    document: str
    section: str
    what: str
    shown_by: tuple[str, ...]
    closed: str  # the reason why there is nothing to show
    outcome: str  # how kernel, launch, size and outcome agree

    def missing(self, rows: Sequence[Row]) -> list[str]:
        """What of its evidence is not there yet."""
        return [name for name in self.shown_by if not there(name, rows)]

    def state(self, rows: Sequence[Row]) -> str:
        """As described, partly, closed, or what it waits for."""
        if self.closed or (missing := self.missing(rows)):
            return "closed" if self.closed else f"waits for {', '.join(missing)}"
        return "partly" if self.outcome.startswith("Partly:") or self.empty(rows) else "as described"

    def empty(self, rows: Sequence[Row]) -> list[str]:
        """Figures that it names and that have no row, for a reason: it is as described in part."""
        named = [name.partition(" ")[2] for name in self.shown_by if name.partition(" ")[0] == FIGURES]
        said = ("", "as above", sources.UNNAMED)
        return [f"'{f.what}'" for section in named for f in figures(section) if f.reason not in said]


@cache
def items() -> tuple[Item, ...]:
    """All of them, in the order of the documents."""
    found = []
    for document, entries in tomllib.loads(FILE.read_text(encoding="utf-8")).items():
        for section, what, by, *outcome in entries["items"]:
            closed = by if isinstance(by, str) else ""
            found.append(Item(document, section, what, () if closed else tuple(by), closed, "".join(outcome)))
    return tuple(found)


def there(name: str, rows: Sequence[Row]) -> bool:
    """Whether a rung has a row, a row with these options is stored, or a section's figures have theirs; a file, a test
    and a command are there if they exist."""
    kind, _, rest = name.partition(" ")
    if kind == FIGURES:
        return all(f.reason or f.beside(rows) is not None for f in figures(rest))
    if kind in KINDS and rest:
        return any(_fits(row, kind, rest) for row in rows)
    if kind == "rung" or name.startswith(FILES):
        return True
    full = catalogue.find(name).full_name
    return any(row.what == full and row.verdict == "ok" and row.kind in ("bench", "check", "profile") for row in rows)


def complaint(name: str, verbs: Sequence[str]) -> str:
    """Why this can never be evidence: it names nothing; empty if it can."""
    kind, _, rest = name.partition(" ")
    path, _, test = name.partition("::")
    if kind == FIGURES:
        return "" if figures(rest) else f"sources.toml has no section {rest!r}"
    if kind == "rung":
        return "" if rest.split()[0] in verbs else f"there is no verb {rest!r}"
    if kind in KINDS and rest:
        return ""
    if path.startswith(FILES):
        if not (ROOT / path).exists():
            return f"there is no {path}"
        return "" if not test or f"def {test}" in (ROOT / path).read_text(encoding="utf-8") else f"no {test} in {path}"
    try:
        catalogue.find(name)
    except RungError as error:
        return str(error)
    return ""


def figures(section: str) -> list[sources.Figure]:
    document, _, start = section.partition(" ")
    own = (e for e in sources.experiments() if e.document.name == document)
    chosen = [e for e in own if f"{e.section}: {e.title}".startswith(start)]
    return [f for e in chosen for f in e.figures]


def _fits(row: Row, kind: str, described: str) -> bool:
    """WHAT[/PART] [NAME=VALUE ...]: the GPU by a part of its name, others are dtype, shape and options."""
    what, *conditions = described.split(" ")
    if row.kind != kind or row.verdict != "ok" or not what.startswith(row.what):
        return False
    if what not in (row.what, "/".join(filter(None, (row.what, row.part.replace(" ", "_"))))):
        return False
    has = {"batch": "1", **{name: str(value) for name, value in row.options.items()}}
    has |= {"dtype": row.dtype, "shape": row.shape.replace(" ", "_"), "weights": row.weights}
    for condition in conditions:
        name, _, value = condition.partition("=")
        if (value not in row.gpu) if name == "gpu" else has.get(name) != value:
            return False
    return True
