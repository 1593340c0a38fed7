"""What wrong numbers have in common: where they are, and what they are instead. On numpy arrays, for every verb.

A diagnosis is data: the first wrong elements, a map of all, a kind, and sentences. Nothing here knows how a kernel ran.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHOWN = 8  # wrong elements that are listed
MAP_ROWS, MAP_COLUMNS = 16, 32
MOST_MOVED = 1 << 16  # elements of an output that is compared with itself, moved
FEW = 3  # wrong elements of which fewer may be like others by chance
EQUAL = 1e-5  # numbers that were only moved, not computed anew
Array = NDArray[Any]


LEAST = 1.4e-45  # float's smallest number


def shown(number: float) -> str:
    """A number as a float holds it: what is below its smallest is 0."""
    return f"{0.0 if abs(number) < LEAST else number:.6g}"


@dataclass(frozen=True)
class Map:
    """Which elements are wrong: rows of characters, `.` right, `#` wrong, `+` some of those that share a place."""

    rows: tuple[str, ...]
    row_labels: tuple[str, ...]
    columns: str  # the axis that runs to the right
    column_labels: tuple[int, ...]  # the index of each character's first element

    def lines(self) -> list[str]:
        """As text, labelled."""
        if not self.rows:
            return []
        width = max(map(len, self.row_labels))
        step = 8
        marks = [str(n) for n in self.column_labels[::step]]
        head = "".join(mark.ljust(step) for mark in marks).rstrip()
        return [f"{f'{self.columns} =':>{width}} {head}"] + [
            f"{label:>{width}} {row}" for label, row in zip(self.row_labels, self.rows, strict=True)
        ]


@dataclass(frozen=True)
class Diagnosis:
    """Of one output."""

    output: str
    shape: tuple[int, ...]
    wrong: int
    worst: tuple[int, ...]
    elements: tuple[dict[str, Any], ...]  # the first wrong ones: index, expected, got (None: never written)
    map: Map
    kind: str = "values"
    where: str = ""  # the wrong elements, as a condition on their indices
    sentences: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def pattern(self) -> str:
        """Where the wrong elements are and what they are instead, in words; empty if nothing simple."""
        return " ".join(self.sentences)

    def lines(self) -> list[str]:
        """As the terminal shows it."""
        shape, total = " x ".join(map(str, self.shape)), math.prod(self.shape)
        every = self.wrong == total
        many = f"all {total:,} elements" if every else f"{self.wrong:,} of the {total:,} elements"
        lines = [
            f"{many} of {self.output} ({shape}) {'is' if self.wrong == 1 else 'are'} wrong"
            f"{':' if len(self.elements) == self.wrong else ', such as'}"
        ]
        for one in self.elements:
            got = "never written" if one["got"] is None else shown(one["got"])
            place = f"{self.output}[{', '.join(map(str, one['index']))}]" if self.shape else self.output
            lines.append(f"  {place}  expected {shown(one['expected']):<12} got {got}")
        if not every:
            lines.append("  # wrong, . right, + a cell of several elements, some wrong:")
            lines += [f"  {t}" for t in self.map.lines()]
        return [*lines, *self.sentences]

    def as_json(self) -> dict[str, Any]:
        return {
            "output": self.output,
            "shape": list(self.shape),
            "wrong": self.wrong,
            "worst": list(self.worst),
            "pairs": [dict(one) for one in self.elements],
            "map": {
                "rows": list(self.map.rows),
                "row_labels": list(self.map.row_labels),
                "columns": self.map.columns,
                "column_labels": list(self.map.column_labels),
            },
            "kind": self.kind,
            "where": self.where,
            "pattern": self.pattern,
            "sentences": list(self.sentences),
            **self.facts,
        }

    @staticmethod
    def from_json(facts: Mapping[str, Any]) -> Diagnosis:
        """From what `as_json` gave, for the process that prints it."""
        drawn = facts["map"]
        picture = Map(tuple(drawn["rows"]), tuple(drawn["row_labels"]), drawn["columns"], tuple(drawn["column_labels"]))
        return Diagnosis(
            facts["output"], tuple(facts["shape"]), facts["wrong"], tuple(facts["worst"]), tuple(facts["pairs"]),
            picture, facts["kind"], facts["where"], tuple(facts["sentences"]),
        )  # fmt: skip


@dataclass(frozen=True)
class Alternative:
    """What an output would be if something else were computed: "the sum without its last 32 terms"."""

    text: str
    result: Array


def index_names(shape: Sequence[str | int], ndim: int) -> tuple[str, ...]:
    """Names for the axes: a dimension's letter in lower case, or i, j, k."""
    names: list[str] = []
    for axis in range(ndim):
        word = str(shape[axis]) if axis < len(shape) else ""
        name = word.lower() if word.isidentifier() and len(word) <= 3 else "ijkl"[axis % 4]
        names.append(name if name not in names else f"{name}{axis}")
    return tuple(names)


def diagnose(
    output: str,
    given: Array,
    truth: Array,
    error: Array,
    *,
    axes: Sequence[str] = (),
    unset: Array | None = None,
    inputs: Mapping[str, Array] | None = None,
    alternatives: Iterable[Alternative] = (),
    computed: str = "",
) -> Diagnosis | None:
    """Of an output in float64 with its reference and each element's error in units of its bound; None if all are right.

    `unset`: which elements nothing has written. `computed` names what the operation computes, for sentences.
    """
    wrong = error > 1
    if not wrong.any():
        return None
    names = tuple(axes) or index_names((), wrong.ndim)
    unset = np.zeros_like(wrong) if unset is None else unset & wrong
    worst = tuple(int(i) for i in np.unravel_index(int(np.argmax(np.where(wrong, error, 0))), wrong.shape))
    elements = tuple(
        {
            "index": [int(i) for i in at],
            "expected": float(truth[tuple(at)]),
            "got": None if unset[tuple(at)] else float(given[tuple(at)]),
        }
        for at in np.argwhere(wrong)[:SHOWN]
    )
    with np.errstate(all="ignore"):
        where = condition(wrong, names)
        kind, sentences = _explain(given, truth, wrong, unset, where, names, inputs or {}, alternatives)
    shape = tuple(int(n) for n in wrong.shape)
    return Diagnosis(
        output, shape, int(wrong.sum()), worst, elements, draw_map(wrong, names), kind, where, tuple(sentences)
    )


def _explain(
    given: Array,
    truth: Array,
    wrong: Array,
    unset: Array,
    where: str,
    axes: Sequence[str],
    inputs: Mapping[str, Array],
    alternatives: Iterable[Alternative],
) -> tuple[str, list[str]]:
    """A kind and sentences."""
    at = f"All of them lie where {where}." if where else ""
    if unset[wrong].all():
        return "unset", [f"No thread writes these elements{': ' + where if where else ''}."]
    if unset.any():
        lost = condition(unset, axes)
        return "unset", [f"{int(unset.sum()):,} elements were never written{': ' + lost if lost else ''}."]
    found = given[wrong]
    if np.isnan(found).all():
        every = f"They are all NaN{' (' + where + ')' if where else ''}."
        return "nan", [every, "NaN comes from inf - inf, inf * 0, inf / inf, 0 / 0, a shuffle from a "
                              "lane that takes no part, or memory or a variable that was never set."]
    if not np.isfinite(found).any():
        every = f"They are infinite or NaN{' (' + where + ')' if where else ''}."
        return "infinite", [every, "Something overflows, or is divided by 0."]
    if wrong.sum() < FEW:
        return "values", [at] if at else []
    if not found.any():
        return "zero", [f"They are all 0{' (' + where + ')' if where else ''}."]
    if (ratio := common_factor(found, truth[wrong])) is not None:
        return "times", [f"Each is {ratio:.4g} times what it should be{' (' + where + ')' if where else ''}."]
    if np.isfinite(given).all():
        if text := _moved(given, truth, wrong, at, axes, inputs):
            return text
        for other in alternatives:
            if _alike(given[wrong], other.result[wrong]) and not _alike(truth[wrong], other.result[wrong]):
                return "like", [f"They are equal to {other.text}.", *([at] if at else [])]
        if each := _of_rows(given, truth, wrong, axes):
            return "rows", [each, *([at] if at else [])]
        differences = given[wrong] - truth[wrong]
        if abs(differences.mean()) > 1e-3 and np.ptp(differences) < 1e-3 * abs(differences.mean()):
            return "offset", [f"Each is {differences.mean():+.4g} from what it should be.", *([at] if at else [])]
        if each := _added(given, truth, wrong, axes):
            return "rows", [each, *([at] if at else [])]
        empty = wrong & (truth == 0)
        if empty.any() and (truth[wrong] != 0).any():
            return "values", [f"Where 0 is expected{f' ({named})' if (named := condition(empty, axes)) else ''} "
                              f"other numbers were written.", *([at] if at else [])]  # fmt: skip
    return "values", [at] if at else []


def _moved(
    given: Array, truth: Array, wrong: Array, at: str, axes: Sequence[str], inputs: Mapping[str, Array]
) -> tuple[str, list[str]] | None:
    """Right numbers in wrong places."""
    if truth.size <= 2:
        return None
    for name, one in inputs.items():
        if one.size == given.size and np.array_equal(given.ravel(), one.ravel()):
            return "copied", [f"They are the numbers of {name}, unchanged and in the same order."]
    if truth.ndim > 1 and min(truth.shape[-2:]) > 1:
        turned = np.swapaxes(truth, -1, -2)
        if _alike(given, turned.reshape(truth.shape)):
            return "transposed", [f"The result is transposed: {axes[-2]} and {axes[-1]} are exchanged."]
    for axis in range(truth.ndim):
        size = truth.shape[axis]
        for by in (1, -1) if size > 2 else ():
            here, there = slice(max(by, 0), size + min(by, 0)), slice(max(-by, 0), size + min(-by, 0))
            moved = np.moveaxis(given, axis, 0)[here], np.moveaxis(truth, axis, 0)[there]
            if _alike(*moved):
                return "shifted", [f"The numbers are right, but shifted by one along {axes[axis]}."]
    for axis, name in enumerate(axes if truth.size <= MOST_MOVED else ()):
        for by in range(1, min(truth.shape[axis], 129)):
            if _alike(given[wrong], np.roll(truth, by, axis)[wrong], EQUAL):
                return "shifted", [f"They are the numbers that belong at {name} - {by}.", *([at] if at else [])]
    return None


def _of_rows(given: Array, truth: Array, wrong: Array, axes: Sequence[str]) -> str:
    """Whether each row is a multiple of what it should be, another one in each row."""
    if wrong.ndim < 2 or wrong.shape[-1] < 3:
        return ""
    mine, right = (np.reshape(a, (-1, wrong.shape[-1]))[wrong.any(axis=-1).ravel()] for a in (given, truth))
    factors = (mine * right).sum(-1, keepdims=True) / (right**2).sum(-1, keepdims=True)
    if len(factors) < 2 or not np.allclose(mine, factors * right, 1e-2, 1e-3 * np.abs(mine).max()):
        return ""
    few = ", ".join(f"{factor:.3g}" for factor in factors[:2, 0])
    return f"Each row along {axes[-1]} is off by a factor of its own ({few}, ...): what it is divided by is wrong."


def _added(given: Array, truth: Array, wrong: Array, axes: Sequence[str]) -> str:
    """Whether the error is one number in each row, or in each part of a row: something that is added to all of it."""
    if wrong.ndim == 0 or wrong.shape[-1] < 4:
        return ""
    width, concerned = wrong.shape[-1], wrong.reshape(-1, wrong.shape[-1]).any(-1)
    errors = (given - truth).reshape(-1, width)[concerned]
    steps = np.abs(np.diff(errors)).max(0) > 1e-3 * np.abs(errors).max()
    breaks = np.flatnonzero(steps) + 1
    part = int(np.gcd.reduce(breaks)) if len(breaks) else width
    if part < max(4, width // 64):
        return ""
    within = f"each row along {axes[-1]}" if part == width else f"each part of {part} elements along {axes[-1]}"
    few = list(dict.fromkeys(f"{e:+.4g}" for e in errors[:, ::part].ravel() if abs(e) > 1e-3 * np.abs(errors).max()))
    named = ", ".join([*few[:2], *["..."] * (len(few) > 2)])
    return f"The error is the same throughout {within} ({named}): the number that is added to all of it is wrong."


def _alike(one: Array, other: Array, within: float = 1e-3) -> bool:
    if not np.isfinite(other).all():
        return False
    size = float(np.linalg.norm(other))
    return size > 0 and float(np.linalg.norm(one - other)) <= within * size


def common_factor(found: Array, truth: Array) -> float | None:
    """A factor other than 1 by which all numbers are off."""
    some = np.abs(truth) > 1e-3 * np.abs(truth).max(initial=0)
    if not some.any() or not np.isfinite(found).all() or not np.isfinite(truth).all():
        return None
    ratios = found[some] / truth[some]
    middle = float(np.median(ratios))
    return middle if abs(middle) > 1e-3 and abs(middle - 1) > 1e-2 and np.allclose(ratios, middle, 1e-2) else None


def condition(wrong: Array, axes: Sequence[str]) -> str:
    """A simple condition on the indices that all wrong elements meet, and few others; empty if there is none."""
    if wrong.ndim == 0 or wrong.all() or wrong.sum() < 2:
        return ""
    parts = []
    triangle = _triangle(wrong, axes) if wrong.ndim > 1 and min(wrong.shape[-2:]) > 2 else ""
    for axis, name in enumerate(axes[:-2] if triangle else axes):
        some = np.asarray(wrong.any(axis=tuple(a for a in range(wrong.ndim) if a != axis)))
        if text := _along(some, name):
            parts.append(text)
    return " and ".join([*parts, *[triangle] * bool(triangle)])


def _along(some: Array, name: str) -> str:
    """Which indices of an axis are concerned."""
    at, rest, size = np.flatnonzero(some), np.flatnonzero(~some), len(some)
    if size < 2 or not len(rest):
        return ""
    if len(at) == 1:
        return f"{name} = {at[0]}"
    if at[-1] - at[0] == len(at) - 1:
        if at[-1] == size - 1:
            return f"{name} >= {at[0]}"
        return f"{name} <= {at[-1]}" if at[0] == 0 else f"{at[0]} <= {name} <= {at[-1]}"
    for indices, relation in ((at, "="), (rest, "is none of")):
        steps = np.unique(np.diff(indices))
        if len(indices) > 2 and len(steps) == 1 and steps[0] > 1:
            return f"{name} {relation} {indices[0]}, {indices[1]}, {indices[2]}, ..."
    period = next((p for p in (2, 4, 8, 16, 32, 64, 128) if size > p and _repeats(some, p)), 0)
    if period:
        inside = np.flatnonzero(some[:period])
        if inside[-1] - inside[0] == len(inside) - 1 and len(inside) < period:
            if inside[-1] == period - 1:
                return f"{name} % {period} >= {inside[0]}"
            return f"{name} % {period} <= {inside[-1]}" if inside[0] == 0 else ""
    return f"{name} is not {rest[0]}" if len(rest) == 1 else ""


def _repeats(some: Array, period: int) -> bool:
    return bool((some == np.resize(some[:period], len(some))).all())


def _triangle(wrong: Array, axes: Sequence[str]) -> str:
    """Whether all lie on one side of the diagonal of the last two axes."""
    flat: Array = np.asarray(wrong.reshape(-1, *wrong.shape[-2:]).any(axis=0))
    off, (row, column) = flat.shape[1] - flat.shape[0], axes[-2:]
    side = np.subtract(*np.indices(flat.shape)[::-1])
    shift = f" + {off}" if off > 0 else f" - {-off}" if off < 0 else ""
    for sign, inside in ((">", side > off), ("<", side < off)):
        if inside.any() and not flat[~inside].any() and flat[inside].mean() > 0.5:
            return f"{column} {sign} {row}{shift}"
    return ""


def draw_map(wrong: Array, axes: Sequence[str]) -> Map:
    """The last axis runs to the right, all others downwards; large outputs share a character among neighbours."""
    if wrong.ndim < 2:
        width = min(MAP_COLUMNS, wrong.size) or 1
        each = max(1, math.ceil(wrong.size / (width * MAP_ROWS)))
        flat = wrong.reshape(-1)
        per_row = width * each
        rows = [_row(flat[start : start + per_row], each) for start in range(0, flat.size, per_row)]
        name = axes[0] if axes else "i"
        labels = tuple(f"{name} = {start}" for start in range(0, flat.size, per_row))
        return Map(tuple(rows), labels, f"+ {name}", tuple(range(0, per_row, each)))
    table = wrong.reshape(-1, wrong.shape[-1])
    down = max(1, math.ceil(len(table) / MAP_ROWS))
    right = max(1, math.ceil(table.shape[1] / MAP_COLUMNS))
    drawn, every = [], []
    for start in range(0, len(table), down):
        drawn.append(_row(table[start : start + down], right))
        index = np.unravel_index(start, wrong.shape[:-1])
        every.append(", ".join(f"{name} = {i}" for name, i in zip(axes, index, strict=False)))
    return Map(tuple(drawn), tuple(every), axes[-1], tuple(range(0, table.shape[1], right)))


def _row(part: Array, each: int) -> str:
    """A character for every so many elements of the last axis."""
    columns = [part[..., start : start + each] for start in range(0, part.shape[-1], each)]
    return "".join("#" if one.all() else "+" if one.any() else "." for one in columns)
