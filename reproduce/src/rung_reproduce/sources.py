"""The figures of the five documents that rung follows, and our stored rows that correspond to each.

sources.toml holds the figures; a figure of ours always comes from stored rows. Without a row its place is empty; the
command that fills it stands beside every figure.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from gpuless.facts import limits
from rung.dtypes import dtype as dtype_named
from rung.errors import RungError
from rung.results.row import Row
from rung.rungs import catalogue
from rung.rungs.cuda import CudaRung
from rung.rungs.subjects import shapes_of

FILE = Path(__file__).with_name("sources.toml")
STUDIES = {"climb": "", "text": "attention", "kernels": "attention, kernels", "course": "course"}  # of the climb's rows
NONE = "- "  # prefix of the reason why no row of ours can have the figure
UNNAMED = "the document does not name it"  # such a reason: there is nothing to measure
SCALES = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "GB": 1e9}
SUM, OVER = "+", "/"  # the first of several references that are added, and what stands before those that divide them
PRODUCTS = {"b4t64 qkv": 12, "b4t64 out": 12, "b4t64": 12, "b4t64 proj": 12, "lm head": 1}  # of a forward pass
LINES = "lines"  # of a study's table
# Of a kernel's own rate, time or issues: these cannot be added.
SHARES = ("sm_throughput", "memory_throughput", "l1_throughput", "l2_throughput", "dram_throughput", "l1_hit", "l2_hit",
          "achieved_occupancy", "active_warps", "issue_active", "no_eligible", "cycles_per_issue",
          "sm_busy")  # fmt: skip
COMMANDS = {"profile": "rung profile", "sweep": "rung course", "climb": "rung climb",
            "text": "rung climb --study attention", "kernels": "rung climb --study attention",
            "course": "rung climb --study course", "launch": "rung inspect", "fits": "rung inspect",
            "count": "rung count", "parallel": "python reproduce/benchmarks/parallel.py"}  # fmt: skip
TUNED = ("profile", "count", "sweep", "launch")  # kinds whose conditions are a tuning


@dataclass(frozen=True)
class Document:
    """One of the five."""

    name: str
    title: str
    authors: str
    year: str
    address: str
    gpu: str
    studies: Sequence[str] = ()  # of ours whose whole tables belong to it
    gains: Sequence[Sequence[str]] = ()  # label and figure of each bar of its picture

    @property
    def cited(self) -> str:
        return f"{self.authors}: {self.title}, {self.year}; {self.address}."


@dataclass(frozen=True)
class Reference:
    """A reference to one of our figures: the kind of row, what it measures, and which of its numbers."""

    kind: str
    what: str  # a rung, a step of the climb, a study
    kernels: tuple[str, ...]  # of a profile, or patterns of their names; none means a rung's only kernel
    figure: str
    where: tuple[tuple[str, str], ...]  # a tuning, or columns of a study's table
    dtype: str
    shape: str
    calls: int

    @property
    def tuning(self) -> dict[str, int]:
        return {name: int(value) for name, value in self.where} if self.kind in TUNED else {}

    @property
    def command(self) -> str:
        """The command that measures it."""
        if self.kind in ("bench", "profile", "count"):
            shape = f"'{self.shape}'" if " " in self.shape else self.shape
            tuned = "".join(f" --tune {name}={value}" for name, value in self.tuning.items())
            return f"rung {self.kind} {self.what} --dtype {self.dtype} --shape {shape}{tuned}"
        if self.kind in ("text", "kernels"):
            more = "" if self.batch == 1 else f" --batch {self.batch}"
            return COMMANDS["text"] + more + ("" if self.dtype == "float32" else f" --dtype {self.dtype}")
        if self.kind == "launch":
            return f"rung inspect {self.what}"
        return COMMANDS.get(self.kind) or f"rung study {self.what.partition('/')[0]}"

    @property
    def batch(self) -> int:
        return int(dict(self.where).get("batch", 1)) if self.kind in STUDIES else 1

    def value(self, rows: Sequence[Row]) -> float | None:
        """Our figure in seconds, bytes or plain numbers, of the newest row that has it; of a launch from its rung,
        of what fits from an architecture."""
        if self.kind in ("launch", "fits"):
            return (self._launched() if self.kind == "launch" else self._fits()) * self.calls if rows else None
        kind = "climb" if self.kind in STUDIES else self.kind  # compared first: thousands of rows are asked each time
        found = [v for r in rows if r.kind == kind and self.fits(r) and (v := self._read(r)) is not None]
        return found[-1] * self.calls if found else None

    def fits(self, row: Row) -> bool:
        """Whether the row is of this rung, shape, format and tuning, or of this study."""
        if row.verdict != "ok" or row.quick:
            return False
        if self.kind in STUDIES:
            whole = row.metrics.get("tokens", 0) >= row.options.get("new_tokens", 0)
            if self.figure in ("seconds", "kernel_seconds", "peak_bytes") and not whole:
                return False  # of a text that the time limit ended
            same = row.options.get("batch", 1) == self.batch and row.dtype == self.dtype and row.part == self.what
            return row.options.get("study", "") == STUDIES[self.kind] and same
        if self.kind == "parallel":
            options = {name: str(value) for name, value in row.options.items()}
            return self.what == f"{row.what}/{row.part}" and options.items() >= dict(self.where).items()
        if self.kind == "study":
            return self.what == "/".join(filter(None, (row.what, row.part)))
        if row.what != self.what or row.dtype != self.dtype or row.shape != self.shape:
            return False
        tuning = self.tuning
        if self.kind in ("profile", "count") and bool(tuning) != bool(row.options.get("tuning")):
            return False  # without one, that of a bench is meant
        return all(row.tuning.get(name) == value for name, value in tuning.items())

    def _read(self, row: Row) -> float | None:
        if self.kind == "study":
            return self._cell(row)
        if self.kind not in ("profile", "count") or self.figure in row.metrics:
            value = row.metrics.get(self.figure)
            return None if value is None else value * _unit(self.figure)
        chosen = self.chosen(row)
        counted = [v for kernel in chosen if (v := self._counted(kernel, row)) is not None]
        if not counted or (len(chosen) > 1 and self.figure in SHARES):
            return None  # shares of several kernels are no share
        return sum(counted)

    def chosen(self, row: Row) -> list[dict[str, Any]]:
        """The kernels of a profile that are meant, "convert#1" being the first launch of that name; none where a rung
        has several and the reference names none.
        """
        kernels: list[dict[str, Any]] = row.detail["kernels"]
        if not self.kernels:
            return kernels if len(kernels) == 1 else []
        found, launches = [], Counter[str]()
        for k in kernels:
            launches[k["kernel"]] += 1
            names = (k["kernel"], f"{k['kernel']}#{launches[k['kernel']]}")
            if any(fnmatchcase(name, pattern) for name in names for pattern in self.kernels):
                found.append(k)
        return found

    def _counted(self, kernel: dict[str, Any], row: Row) -> float | None:
        if self.figure == "active_warps":
            share = kernel["figures"].get("achieved_occupancy")
            return None if share is None else share / 100 * _limits(row).warps_sm
        if self.figure.startswith("opcode "):
            opcodes = kernel.get("opcodes")
            return opcodes.get(self.figure.removeprefix("opcode "), 0.0) if opcodes else None
        if self.figure == "bytes_per_s" and "dram_read" not in kernel["figures"]:
            return None  # without counters of the memory there is no rate
        parts = [kernel["figures"].get(name) for name in self.figure.split(" + ")]
        present = [p for p in parts if p is not None]
        return sum(present) if len(present) == len(parts) else None

    def _launched(self) -> float:
        """A tunable, a dimension, a side of the grid or the block, or the shared bytes, of one launch at this shape."""
        rung = catalogue.find(self.what)
        tuned = rung.tuned(self.tuning)
        if self.figure in tuned:
            return float(tuned[self.figure])
        ((_, dims),) = shapes_of(rung.operation, [self.shape])
        assert isinstance(rung, CudaRung)
        values, dtype = rung.operation.complete(dims), dtype_named(self.dtype)
        if self.figure in values:
            return float(values[self.figure])
        launches = dict(rung.launches(values, dtype, self.tuning, emulated=False))
        config = launches[self.kernels[0]] if self.kernels else next(iter(launches.values()))
        side, _, axis = self.figure.partition("_")
        return float(getattr(config, side)["xyz".index(axis)] if axis else getattr(config, side))

    def _fits(self) -> float:
        """How many warps of blocks of these threads and registers an architecture's multiprocessor holds."""
        asked = {name: int(value) for name, value in self.where}
        return float(limits.occupancy(self.what, asked["threads"], asked["registers"], 0).warps)

    def _cell(self, row: Row) -> float | None:
        """A cell of the first line of a study's table that fits; as `lines`, how many fit."""
        columns = [str(c) for c in row.detail["columns"]]
        if self.figure not in (*columns, LINES) or any(name not in columns for name, _ in self.where):
            return None
        lines = [dict(zip(columns, line, strict=True)) for line in row.detail["rows"]]
        fitting = [cells for cells in lines if all(str(cells[name]) == value for name, value in self.where)]
        if self.figure == LINES:
            return float(len(fitting))
        number = re.match(r"-?[\d.]+(?:e[-+]\d+)?", str(fitting[0][self.figure]).replace(",", "")) if fitting else None
        return float(number[0]) * _unit(self.figure) if number else None


def _limits(row: Row) -> limits.Limits:
    """Of the GPU that the row was measured on."""
    return limits.limits("sm_" + str(row.machine["capability"]).replace(".", ""))


def _unit(figure: str) -> float:
    """The unit that a metric's name, or a table's heading, ends in."""
    return SCALES.get(re.split(r"[_ ]", figure)[-1], 1.0) if figure.endswith(("us", "ms", "ns", "_s")) else 1.0


@dataclass(frozen=True)
class Figure:
    """One of their numbers, and the references of ours: the sum of the first ones, over that of the others if there
    are others; without one there is a reason."""

    what: str
    value: float | None  # None: the document has no number
    unit: str
    ours: tuple[Reference, ...]
    reason: str
    added: int = 1  # the first references
    than: str = ""  # "more" or "less" than one: all that the document says

    def beside(self, rows: Sequence[Row]) -> float | None:
        """Our number in their unit."""
        values = [reference.value(rows) for reference in self.ours]
        if not values or any(v is None for v in values):
            return None
        numbers = [v for v in values if v is not None]
        above, below = sum(numbers[: self.added]), sum(numbers[self.added :])
        if len(numbers) > self.added:
            return above / below * (100 if self.unit == "%" else 1) if below else None
        return above / SCALES.get(self.unit, 1.0)

    def emulated(self, rows: Sequence[Row]) -> float | None:
        """The same, where it is a counter that the emulator counts as well."""
        kinds = {reference.kind for reference in self.ours}
        if not kinds <= {"profile", "count", "launch"} or kinds == {"launch"}:
            return None
        counted = (replace(r, kind="count") if r.kind == "profile" else r for r in self.ours)
        return replace(self, ours=tuple(counted)).beside(rows)

    @property
    def command(self) -> str:
        """What measures ours, or the reason why nothing does."""
        return self.reason or "; ".join(dict.fromkeys(r.command for r in self.ours))


@dataclass(frozen=True)
class Experiment:
    """A table or a passage of a document."""

    document: Document
    section: str
    title: str
    gpu: str
    differs: str  # what is not as in the document
    figures: tuple[Figure, ...]
    unit: str = ""
    form: str = ""  # what divides a figure's name into its line and its column of the document's table
    table_of: str = ""  # the table that this experiment is a column of, and
    column: str = ""  # its head there
    drawn: str = ""  # the title of its picture, if it has one

    @property
    def anchor(self) -> str:
        return re.sub(r"\W+", "-", f"{self.document.name} {self.title.lower()}").strip("-")

    @property
    def rungs(self) -> list[str]:
        """Those that ours are measured with."""
        places = [r.what for f in self.figures for r in f.ours if r.kind in ("bench", "profile", "sweep")]
        return list(dict.fromkeys(places))

    def table(self, rows: Sequence[Row], counts: Sequence[Row] = ()) -> list[tuple[str, str, str, str, str, str]]:
        """What was measured, theirs, ours, what the emulator counts, the unit, and the command that measures ours."""
        found = [(f, f.beside(rows), f.emulated(counts)) for f in self.figures]
        return [(f.what, f.than or number(f.value), number(o), number(e), f.unit, f.command) for f, o, e in found]


FORMS = {"unit": "unit", "form": "form", "table_of": "table", "column": "column", "drawn": "drawn"}
COLUMNS = ("measured", "theirs", "ours", "emulated", "unit", "command")


def number(value: float | None) -> str:
    """Four digits, in groups of three before the point; nothing for None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


@cache
def documents() -> dict[str, Document]:
    return {name: Document(name, **fields) for name, fields in _data()["documents"].items()}


def title(study: str, stored: str) -> str:
    """A study's title where the one that its rows carry is not true."""
    return str(_data()["titles"].get(study, stored))


def left_out(study: str) -> tuple[Sequence[str], str]:
    """Columns of a study that are not shown, and why."""
    entry = _data()["left_out"].get(study, {"columns": (), "reason": ""})
    return entry["columns"], str(entry["reason"])


@cache
def experiments() -> tuple[Experiment, ...]:
    """All of them, in the order of the documents."""
    return tuple(_experiment(entry) for entry in _data()["experiments"])


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def _experiment(entry: dict[str, Any]) -> Experiment:
    document = documents()[entry["document"]]
    usual = (entry.get("dtype", "f32"), entry.get("shape", "b4t64"))
    figures = []
    for what, value, ours, *unit in entry["figures"]:
        spec = [ours] if isinstance(ours, str) else ours
        reason = spec[0].removeprefix(NONE) if spec[0].startswith(NONE) else ""
        parts = spec[1:] if spec[0] == SUM else [spec[0], OVER, *spec[1:]]
        found = [[] if reason else [r for t in group for r in _references(t, *usual)] for group in _split(parts)]
        said, than = (None, value) if isinstance(value, str) else (float(value), "")
        unit_of = unit[0] if unit else entry["unit"]
        figures.append(Figure(what, said, unit_of, (*found[0], *found[1]), reason, len(found[0]), than))
    gpu = entry.get("gpu", document.gpu)
    shape = {name: entry.get(key, "") for name, key in FORMS.items()}
    return Experiment(document, entry["section"], entry["title"], gpu, entry["differs"], tuple(figures), **shape)


def _split(parts: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    at = parts.index(OVER) if OVER in parts else len(parts)
    return parts[:at], parts[at + 1 :]


def _references(text: str, dtype: str, shape: str) -> list[Reference]:
    """One reference; for "products KIND | ... @DTYPE" those of all products of a forward pass."""
    if not text.startswith("products "):
        return [reference(text, dtype, shape)]
    body, _, dtype = text.removeprefix("products ").partition(" @")
    return [reference(f"{body} * {calls} @{dtype} {shape}", dtype, shape) for shape, calls in PRODUCTS.items()]


def reference(text: str, dtype: str, shape: str) -> Reference:
    """`KIND | WHAT | ... | FIGURE [* CALLS] [@DTYPE [SHAPE]]`."""
    kind, what, *middle, last = (part.strip() for part in text.split("|"))
    named = kind in ("profile", "count", "launch")  # by a rung, its kernels and a tuning
    if kind not in (*COMMANDS, "bench", "study"):
        raise RungError(f"sources.toml: {text!r} does not begin with a kind of row.")
    last, _, at = last.partition(" @")
    if at:
        dtype, _, other = at.partition(" ")
        shape = other or shape
    figure, _, calls = last.partition(" * ")
    what, *tuning = what.split(" ") if named else [what]
    what, _, kernels = what.partition(":") if named else (what, "", "")
    where = tuple((name, value) for name, _, value in (part.partition("=") for part in (*middle, *tuning)))
    parts = tuple(filter(None, kernels.split("+")))
    return Reference(kind, what, parts, figure, where, dtype, shape, int(calls or 1))


def references(kind: str, document: str | None = None) -> Iterator[Reference]:
    """Every reference to rows of one kind in the figures, of all documents or one."""
    for experiment in experiments():
        if document in (None, experiment.document.name):
            for figure in experiment.figures:
                yield from (r for r in figure.ours if r.kind == kind)


def course(rung: str, shape: str = "b4t64") -> dict[int, float]:
    """Microseconds per forward pass by block size, from the course's sweep; empty where it has none."""
    return {
        next(iter(r.tuning.values())): figure.value
        for experiment in experiments()
        for figure in experiment.figures
        for r in figure.ours
        if figure.value is not None and r.kind == "sweep"
        if (r.what, r.shape) == (rung, shape) and experiment.section.startswith("Configuration")
    }


def softmax() -> dict[int, list[float]]:
    """Milliseconds of the linear and the tree softmax, and the tree's gain, by size: three kernels' table 1."""
    return {int(n): values for n, values in _by("Table 1", "N").items()}


def latencies() -> dict[str, float]:
    """Cycles per load, by memory, as given in the lecture."""
    return {level: cycles for level, (cycles,) in _by("Part 1, anatomy of a GPU", "where").items()}


def _by(section: str, column: str) -> dict[str, list[float]]:
    """The figures of a section, by their keys in our table's column."""
    table: dict[str, list[float]] = {}
    for experiment in experiments():
        if experiment.section == section:
            for figure in (f for f in experiment.figures if len(f.ours) == 1):
                table.setdefault(dict(figure.ours[0].where)[column], []).append(figure.value or 0.0)
    return table
