"""What the five documents found, and what is found here: findings.toml, judged by rows of the GPU that is shown."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rung.errors import RungError
from rung.results.row import Row
from rung.rungs import catalogue
from rung_reproduce import sources

FILE = Path(__file__).with_name("findings.toml")
VERDICTS = {
    "reversed": "reversed", "otherwise": "not so here", "other": "another is best here",
    "varies": "in some cases only", "sizes": "in each case, in different sizes", "effect": "an effect here",
    "lost": "little of it here", "smaller": "smaller", "larger": "larger", "same": "the same", "small": "small in both",
    "none": "no effect, as there", "unseen": "cannot be seen here", "": "no row yet",
}  # fmt: skip
SIZED = ("effect", "lost", "small", "none")  # verdicts that are told with the size of both effects
COLUMNS = ("they found", "verdict", "why", "theirs", "ours")
# In place of a neutral point: they find no effect; the facts decide; a value is compared as it is, not as an effect;
# the figure is the best of its table; the finding is made at several sizes or of several kernels, each judged alone;
# it is a ratio that was measured in several ways, each two figures; what counts is how far a figure lies behind the
# best of its table; they say "a little", without a number; no row can show it, and the facts are the reason's.
NOTHING, FACTS, LEVEL, BEST, EACH, PAIRS = "nothing", "facts", "level", "best", "each", "pairs"
BEHIND, LITTLE, UNSEEN = "behind", "little", "unseen"
MODES = (NOTHING, FACTS, LEVEL, BEST, EACH, PAIRS, BEHIND, LITTLE, UNSEEN)
BORNE = {"larger", "same", "smaller", "none"}  # verdicts that bear a finding out, each in its measure
SMALL = 0.035  # an effect below it, on a logarithmic scale; one the other way is no reversal within twice that
SMALLER, LARGER = 0.5, 1.5  # times the document's effect
TWICE = math.log(2)  # the most that a figure of the same effect lies from theirs: 129 times are not 36 times
NEAR = 1.25  # a level is the same within a quarter
SLIGHT = 1.1  # the most that is "a little"
RULE = (
    f"*The same* is an effect from {SMALLER:g} to {LARGER:g} times theirs, on a logarithmic scale, by a figure within "
    "a factor of two of theirs, or a level within a quarter of theirs; where they give no number, an effect of their "
    f"direction above {100 * SMALL:.1f} %; without figures, what rows or code bear out."
)
_PLACE = re.compile(r"\{([^{}]+)\}")
DIVIDED = " divided by "
RELATIONS = (" above ", " below ", " equals ", " names ", " lacks ")


@dataclass(frozen=True)
class Finding:
    """`figures`: one, or two whose ratio it is (for EACH, all that are judged); `neutral`: where there would be no
    effect. A finding with facts alone holds if all of them do."""

    document: sources.Document
    says: str
    figures: tuple[sources.Figure, ...]
    neutral: float
    by: tuple[str, ...]  # words above; without one the effect away from the neutral point is judged
    explained: str  # the verdict that the reason is for
    why: str
    facts: tuple[str, ...]  # what the reason, or the finding, says of rows

    @property
    def cases(self) -> list[tuple[sources.Figure, ...]]:
        """What is judged by itself: a figure, or two whose ratio it is."""
        size = 1 if EACH in self.by else 2 if PAIRS in self.by else len(self.figures) or 1
        return [self.figures[i : i + size] for i in range(0, len(self.figures), size)]

    @property
    def told(self) -> tuple[sources.Figure, ...]:
        """The figures whose numbers stand for the finding."""
        return self.cases[0] if self.figures else ()

    def theirs(self) -> float | None:
        return self._numbers([])[0][1] if self.figures else None

    def than(self) -> str:
        """All that the document says where it has no number: "more" or "less"."""
        return self.told[0].than if len(self.told) == 1 else ""

    def ours(self, rows: Sequence[Row]) -> float | None:
        return self._numbers(rows)[0][0] if self.figures else None

    def judged(self, rows: Sequence[Row]) -> str:
        """The verdict that the rows give; empty where a row is missing."""
        if UNSEEN in self.by:
            return UNSEEN
        if not self.figures or FACTS in self.by:
            held = [self.holds(fact, rows) for fact in self.facts]
            if None in held or not all(held):
                return "" if None in held else "otherwise"
            return "unseen" if not held else "lost" if "lost" in self._each(rows) else "same"
        if BEST in self.by:
            costs = self.costs(rows)
            return "" if costs is None else "same" if costs < SMALL else "other"
        each = set(self._each(rows))
        if "" in each or len(each) == 1:
            return "" if "" in each else each.pop()
        return "sizes" if each <= self._borne else "varies" if each & self._borne else "otherwise"

    @property
    def _borne(self) -> set[str]:
        return {"same"} if LEVEL in self.by else BORNE

    def _each(self, rows: Sequence[Row]) -> list[str]:
        """The verdict of each case."""
        return [self._compared(*numbers) for numbers in self._numbers(rows)]

    def _numbers(self, rows: Sequence[Row]) -> list[tuple[float | None, float | None, str]]:
        """Of each case ours, theirs, and "more" or "less" where that is all that they say."""
        found = []
        for case in self.cases:
            than = case[0].than if len(case) == 1 else ""
            ours, theirs = _ratio([f.beside(rows) for f in case]), _ratio([f.value for f in case])
            if BEHIND in self.by:
                of = _table(case[0])
                ours = _over_least(ours, [f.beside(rows) for f in of])
                theirs = _over_least(theirs, [f.value for f in of])
            found.append((ours, theirs, than))
        return found

    def _compared(self, ours: float | None, theirs: float | None, than: str) -> str:
        if ours is None or (theirs is None and not than):
            return ""
        found = effect(ours, self.neutral)
        if NOTHING in self.by or theirs == self.neutral:
            return "none" if abs(found) < 2 * SMALL else "effect"
        if theirs is None:
            if (found > 0) == (than == "more"):
                most = SLIGHT if LITTLE in self.by else math.inf
                return "lost" if abs(found) < SMALL else "larger" if abs(found) > math.log(most) else "same"
            if self.neutral != 1.0:  # a bound that is not met: nothing is the other way round
                return "otherwise"
            return "reversed" if abs(found) >= 2 * SMALL else "lost"
        if LEVEL in self.by:
            return "larger" if ours > NEAR * theirs else "smaller" if NEAR * ours < theirs else "same"
        wanted = effect(theirs, self.neutral)
        if abs(found) < SMALL:
            return "small" if abs(wanted) < SMALL else "lost"
        if found * wanted < 0:
            return "reversed" if abs(found) >= 2 * SMALL else "lost"
        times, far = found / wanted, abs(found - wanted) > TWICE
        return "same" if SMALLER <= times <= LARGER and not far else "larger" if times > 1 else "smaller"

    def rivals(self, rows: Sequence[Row]) -> dict[str, float]:
        """Our time of each line of the table that the figure is the best of; empty where one is missing."""
        found = {f.what: f.beside(rows) for f in _table(self.figures[0])}
        return {} if None in found.values() else {what: v for what, v in found.items() if v is not None}

    def costs(self, rows: Sequence[Row]) -> float | None:
        """How much slower than the best is what is best there, on a logarithmic scale."""
        found = self.rivals(rows)
        return effect(found[self.figures[0].what], min(found.values())) if found else None

    def cells(self, rows: Sequence[Row]) -> tuple[str, str]:
        """Theirs and ours, as they are shown."""
        if BEST in self.by:
            found = self.rivals(rows)
            return self.figures[0].what, min(found, key=lambda what: found[what], default="")
        numbers = self._numbers(rows)
        return self.than() or _range([theirs for _, theirs, _ in numbers]), _range([ours for ours, *_ in numbers])

    def verdict(self, rows: Sequence[Row]) -> str:
        """In words; where one of the effects is small, with the size of both."""
        judged = self.judged(rows)
        if judged == "other":
            return f"{VERDICTS[judged]} (theirs takes {100 * math.expm1(self.costs(rows) or 0):.0f} % longer)"
        if judged not in SIZED:
            each = self._each(rows)
            notes = [f"{sum(v in self._borne for v in each)} of {len(each)}"] if judged == "varies" else []
            notes += [f"against {self.neutral:g}"] if judged and self.figures and self.neutral != 1.0 else []
            return VERDICTS[judged] + (f" ({', '.join(notes)})" if notes else "")
        ours, theirs, _ = zip(*self._numbers(rows), strict=True)
        told = []
        for where, values in (("there", theirs), ("here", ours)):
            percent = dict.fromkeys(f"{100 * (v / self.neutral - 1):+.1f}" for v in values if v is not None)
            told += [f"{' and '.join(percent)} % {where}"] if percent else []
        return f"{VERDICTS[judged]} ({', '.join(told)})"

    def reason(self, rows: Sequence[Row]) -> str:
        """Why, made from rows: only of the GPU that it was written for, and for the verdict that it explains; why no
        row shows it is told on any GPU whose rows bear it out.
        """
        if self.explained == UNSEEN:
            return self.filled(rows) if all(self.holds(fact, rows) for fact in self.facts) else ""
        here = written_for() in {row.gpu for row in rows}
        return self.filled(rows) if here and self.judged(rows) == self.explained else ""

    def filled(self, rows: Sequence[Row]) -> str:
        """The reason with its numbers; empty where one of them has no row."""
        names = _PLACE.findall(self.why)
        cells = {name: self.ours(rows) if name == "ours" else self.value(name, rows) for name in names}
        return "" if None in cells.values() else _PLACE.sub(lambda m: sources.number(cells[m[1]]), self.why)

    def value(self, name: str, rows: Sequence[Row]) -> float | None:
        """A number, a reference to rows as in sources.toml, a figure by the start of its title and of its name, or
        two of these with DIVIDED between them.
        """
        first, _, second = name.partition(DIVIDED)
        if second:
            return _ratio([self.value(first, rows), self.value(second, rows)])
        if " | " in name:
            body, _, unit = name.partition(" in ")
            found = sources.reference(body, "f32", "b4t64").value(rows)
            return None if found is None else found / sources.SCALES.get(unit, 1.0)
        try:
            return float(name)
        except ValueError:
            return figure(self.document.name, name).beside(rows)

    def holds(self, fact: str, rows: Sequence[Row]) -> bool | None:
        """Whether rows bear a fact out; None without a row."""
        relation = next((r for r in RELATIONS if r in fact), None)
        if relation is None:
            raise RungError(f"findings.toml: {fact!r} has none of {', '.join(r.strip() for r in RELATIONS)}.")
        left, _, right = fact.partition(relation)
        if relation == " lacks ":
            return right not in catalogue.find(left).dtypes if rows else None
        if relation == " names ":
            asked = sources.reference(left, "f32", "b4t64")
            named = [k["kernel"] for r in rows if r.kind == "profile" and asked.fits(r) for k in asked.chosen(r)]
            return all(right in name for name in named) if named else None
        a, b = self.value(left, rows), self.value(right, rows)
        if a is None or b is None:
            return None
        return a > b if relation == " above " else a < b if relation == " below " else math.isclose(a, b, rel_tol=1e-9)

    def line(self, rows: Sequence[Row]) -> tuple[str, str, str, str, str]:
        return self.says, self.verdict(rows), self.reason(rows), *self.cells(rows)


@cache
def written_for() -> str:
    """The GPU whose rows the reasons explain."""
    return str(_file()["gpu"])


@cache
def findings() -> tuple[Finding, ...]:
    """All of them, in the order of the documents."""
    made = []
    for name, entry in _data().items():
        document = sources.documents()[name]
        for says, figures, neutral, verdict, why, *facts in entry["findings"]:
            chosen = tuple(figure(document.name, key) for key in figures)
            words = str(neutral).split()
            by = tuple(word for word in words if word in MODES)
            point = next((float(word) for word in words if word not in MODES), 1.0)
            made.append(Finding(document, says, chosen, point, by, verdict, why, tuple(*facts)))
    return tuple(made)


def of_document(name: str) -> list[Finding]:
    return [f for f in findings() if f.document.name == name]


def headlines(name: str, rows: Sequence[Row]) -> list[Finding]:
    """The findings of a document's first page, at most ten, reversals first."""
    by_words = {f.says: f for f in of_document(name)}
    order = list(VERDICTS)
    return sorted((by_words[says] for says in told(name, "headlines")), key=lambda f: order.index(f.judged(rows)))


def of_study(name: str) -> list[Finding]:
    """Those whose figures a study measures."""
    asked = {r for r in sources.references("study") if r.what.partition("/")[0] == name}
    return [f for f in findings() if any(asked.intersection(figure.ours) for figure in f.figures)]


def told(document: str, key: str) -> Any:
    """A paragraph on a document, `did`, `takeaway` or `exact` counts, or the `facts` of the last two."""
    return _data()[document][key]


def table(document: str, rows: Sequence[Row]) -> list[tuple[str, str, str, str, str]]:
    return [finding.line(rows) for finding in of_document(document)]


@cache
def _file() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def _data() -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in _file()["documents"]}


@cache
def figure(document: str, key: str) -> sources.Figure:
    """The figure that a key names by the start of its title and the start of its name."""
    title, _, what = key.partition(" > ")
    near = [e for e in sources.experiments() if e.document.name == document and e.title.startswith(title)]
    chosen = [e for e in near if e.title == title] or near
    found = [figure for e in chosen for figure in e.figures if figure.what.startswith(what)]
    exact = [figure for figure in found if figure.what == what] or found
    if len(exact) != 1:
        raise RungError(f"findings.toml: {key!r} names {len(exact)} figures of sources.toml.")
    return exact[0]


def _table(figure: sources.Figure) -> tuple[sources.Figure, ...]:
    """All figures of its table."""
    return next(e.figures for e in sources.experiments() if figure in e.figures)


def _over_least(value: float | None, of: Sequence[float | None]) -> float | None:
    least = [v for v in of if v is not None]
    return value / min(least) if value is not None and len(least) == len(of) else None


def _ratio(values: Sequence[float | None]) -> float | None:
    if not values or any(v is None for v in values):
        return None
    first, *rest = [v for v in values if v is not None]
    return (first / rest[0] if rest[0] else None) if rest else first


def _range(values: Sequence[float | None]) -> str:
    """From the least to the largest; empty where one is missing."""
    numbers = [v for v in values if v is not None]
    ends = (min(numbers), max(numbers)) if numbers and len(numbers) == len(values) else ()
    return " to ".join(dict.fromkeys(map(sources.number, ends)))


def effect(value: float, neutral: float) -> float:
    return math.log(max(value, 1e-9) / neutral)
