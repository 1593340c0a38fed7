"""What the five documents found, and what is found here: findings.toml, with figures of sources.toml and their rows."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rung.errors import RungError
from rung.results.row import Row
from rung_reproduce import sources

FILE = Path(__file__).with_name("findings.toml")
VERDICTS = {
    "same": "the same", "smaller": "smaller", "reversed": "reversed", "none": "no effect, as there",
    "lost": "no effect here", "unseen": "cannot be seen here",
}  # fmt: skip
COLUMNS = ("they found", "verdict", "why", "theirs", "ours")
NOTHING = 0.035  # an effect below it, on a logarithmic scale, is none


@dataclass(frozen=True)
class Finding:
    """`figures`: one, or two whose ratio it is; `neutral`: where there would be no effect."""

    document: sources.Document
    says: str
    figures: tuple[sources.Figure, ...]
    neutral: float
    verdict: str
    why: str

    def theirs(self) -> float | None:
        return _ratio([f.value for f in self.figures])

    def than(self) -> str:
        """All that the document says where it has no number: "more" or "less"."""
        return self.figures[0].than if len(self.figures) == 1 else ""

    def ours(self, rows: Sequence[Row]) -> float | None:
        return _ratio([f.beside(rows) for f in self.figures])

    def judged(self, rows: Sequence[Row]) -> str:
        """The verdict that the rows give; empty where a row is missing."""
        if not self.figures:
            return "unseen"
        ours, theirs = self.ours(rows), self.theirs()
        if ours is None or (theirs is None and not self.than()):
            return ""
        found = _effect(ours, self.neutral)
        if theirs is None:
            return "lost" if abs(found) < NOTHING else "same" if (found > 0) == (self.than() == "more") else "reversed"
        wanted = _effect(theirs, self.neutral)
        if abs(wanted) < NOTHING:
            return "none" if abs(found) < 2 * NOTHING else "reversed"
        if abs(found) < NOTHING:
            return "lost"
        if found * wanted < 0:
            return "reversed"
        return "same" if found / wanted >= 0.5 else "smaller"

    def line(self, rows: Sequence[Row]) -> tuple[str, str, str, str, str]:
        ours = sources.number(self.ours(rows))
        theirs = self.than() or sources.number(self.theirs())
        return self.says, VERDICTS[self.verdict], self.why.replace("{ours}", ours), theirs, ours


@cache
def findings() -> tuple[Finding, ...]:
    """All of them, in the order of the documents."""
    made = []
    for entry in _data():
        document = sources.documents()[entry["name"]]
        for says, figures, neutral, verdict, why in entry["findings"]:
            chosen = tuple(_figure(document, key) for key in figures)
            made.append(Finding(document, says, chosen, float(neutral), verdict, why))
    return tuple(made)


def of_study(name: str) -> list[Finding]:
    """Those whose figures a study measures."""
    asked = {r for r in sources.references("study") if r.what.partition("/")[0] == name}
    return [f for f in findings() if any(asked.intersection(figure.ours) for figure in f.figures)]


def takeaways() -> dict[str, str]:
    """A paragraph for each document."""
    return {entry["name"]: entry["takeaway"] for entry in _data()}


def table(document: str, rows: Sequence[Row]) -> list[tuple[str, str, str, str, str]]:
    return [finding.line(rows) for finding in findings() if finding.document.name == document]


@cache
def _data() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads(FILE.read_text(encoding="utf-8"))["documents"]
    return found


def _figure(document: sources.Document, key: str) -> sources.Figure:
    title, _, what = key.partition(" > ")
    near = [e for e in sources.experiments() if e.document == document and e.title.startswith(title)]
    chosen = [e for e in near if e.title == title] or near
    found = [figure for e in chosen for figure in e.figures if figure.what.startswith(what)]
    exact = [figure for figure in found if figure.what == what] or found
    if len(exact) != 1:
        raise RungError(f"findings.toml: {key!r} names {len(exact)} figures of sources.toml.")
    return exact[0]


def _ratio(values: Sequence[float | None]) -> float | None:
    if not values or any(v is None for v in values):
        return None
    first, *rest = [v for v in values if v is not None]
    return first / rest[0] if rest else first


def _effect(value: float, neutral: float) -> float:
    return math.log(max(value, 1e-9) / neutral)
