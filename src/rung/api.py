"""The Python API: `rung.check("gelu/2")`, `rung.bench(...)`, `rung.inspect(...)`. The argument is a ladder ("gelu"), a
rung ("gelu/2", "softmax/torch") or your own file with its operation. The result is a sequence of typed rows that is
shown as a table, in a notebook too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar, overload

import torch

from rung import adopt
from rung.bench import plan
from rung.bench import race as races
from rung.bench.race import Timed
from rung.check.judge import device_named, requests
from rung.check.processes import report_on_all
from rung.check.report import LADDER, QUICK, THOROUGH, CheckRequest, Report
from rung.errors import RungError
from rung.operation import folders
from rung.profile import emulated
from rung.profile import inspect as compiler
from rung.profile.counted import Counted
from rung.profile.resources import Compiled
from rung.rungs import base, subjects
from rung.rungs.base import Rung
from rung.show import counts, verb_tables
from rung.show.verb_tables import Table

What = str | Path | Rung
R = TypeVar("R")


class Rows(Sequence[R], Generic[R]):
    """Rows of one kind; shown as a table when printed and in a notebook."""

    def __init__(self, rows: Sequence[R], draw: Callable[[Sequence[R]], Table]) -> None:
        self._rows, self._draw = tuple(rows), draw

    @overload
    def __getitem__(self, index: int) -> R: ...
    @overload
    def __getitem__(self, index: slice) -> Rows[R]: ...
    def __getitem__(self, index: int | slice) -> R | Rows[R]:
        return Rows(self._rows[index], self._draw) if isinstance(index, slice) else self._rows[index]

    def __iter__(self) -> Iterator[R]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def table(self) -> Table:
        """Columns and rows; `print` and notebooks show it."""
        return self._draw(self._rows)

    def __repr__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


class Reports(Rows[Report]):
    """A check's results, one report for each rung and number format."""

    @property
    def ok(self) -> bool:
        """Whether all were judged, and all are right."""
        return bool(self) and all(report.verdict == "ok" for report in self)


def chosen(what: What, operation: str | None) -> list[Rung]:
    """The rungs that a name, a rung, or a file refers to."""
    if isinstance(what, Rung):
        return [what]
    path = Path(what)
    if path.suffix not in (".cu", ".py"):
        if operation is not None:
            raise RungError(f"{what} is not a .cu or .py file, so `operation` does not apply; leave it out.")
        return adopt.select(str(what))
    own = path.resolve().parent
    name = operation or next((name for name, folder in folders().items() if folder == own), None)
    if name is None:
        raise RungError(f'{path} belongs to no ladder; name the operation that it computes, as in operation="gelu".')
    return adopt.select(name, path)


def check(
    what: What,
    *,
    operation: str | None = None,
    dtypes: Sequence[str] | str = (),
    case: str | None = None,
    device: str | None = None,
    seed: int = 0,
    tuning: Mapping[str, int] | None = None,
    quick: bool = False,
    thorough: bool = False,
    libraries: bool = False,
    jobs: int | None = None,
) -> Reports:
    """Is it right? Checks every case and number format against a float64 reference, on a GPU or on the emulator. `what`
    is a ladder ("gelu"), a rung ("gelu/2"), or a file, which needs its `operation`; a file runs in a process of its
    own. `device` is cuda or emulator (default: the GPU if there is one). `quick` runs only the first case, `thorough`
    tries many more shapes and tunings of a single rung.
    """
    rungs = chosen(what, operation)
    rungs = [r for r in rungs if libraries or r.kind != "library"] or rungs
    effort = QUICK if quick else THOROUGH if thorough else LADDER
    asked = CheckRequest(
        device=device_named(device), seed=seed, case=case, tuning=tuple(sorted((tuning or {}).items())),
        effort=effort,
    )  # fmt: skip
    work = requests(rungs, asked, [dtypes] if isinstance(dtypes, str) else dtypes)
    order = {(task.rung, task.dtype): i for i, task in enumerate(work)}
    reports = report_on_all(work, jobs, rungs={r.full_name: r for r in rungs})
    found = sorted(reports, key=lambda report: order[(report.rung, report.dtype)])
    return Reports(found, verb_tables.checked)


def bench(
    what: What,
    *,
    operation: str | None = None,
    shapes: Sequence[str] | str = (),
    dtypes: Sequence[str] | str = (),
    vs: Sequence[str] | str = (),
    tuning: Mapping[str, int] | None = None,
    seconds: float = 0.6,
    patience: float = 2.0,
) -> Rows[Timed]:
    """How fast is it? Rungs and libraries, interleaved, cold and warm, checked in the same run; this needs a GPU.

    `shapes` are the operation's, or written out ("B=4,T=64,C=768"); `vs` names further rungs to compare with. A rung
    that would take longer than `patience` seconds per call is left out.
    """
    if not torch.cuda.is_available():
        raise RungError("no CUDA device was found, and times on the emulator are meaningless; use a GPU.")
    rungs = chosen(what, operation)
    some = len(rungs) == 1
    planned = plan.of_ladder(rungs, _several(shapes), _several(dtypes), patience, some, _several(vs))
    plan.compile_ahead(planned)
    ran = plan.run(planned, tuning, races.measure_ceilings(), seconds)
    return Rows([row for _, rows in ran for row in rows], lambda rows: verb_tables.timed(rows, where=True))


def inspect(
    what: What,
    *,
    operation: str | None = None,
    archs: Sequence[str] | str = (),
    dtype: str | None = None,
    shape: str | None = None,
    tuning: Mapping[str, int] | None = None,
    mix: bool = False,
) -> Rows[Compiled]:
    """The compiler's report: registers, shared memory, spills, occupancy; needs no GPU. `archs` are
    architectures such as "sm_90" (default: the GPU's if there is one). With `mix` instructions are counted by class.
    """
    rungs = [r for r in chosen(what, operation) if r.kind != "library"]
    named = next(subjects.shapes_of(rungs[0].operation, [shape])) if shape else None
    where = _several(archs) or [base.arch()]
    found = compiler.inspect(rungs, where, dtype=dtype, shape=named, tuning=tuning, mix=mix)
    return Rows(list(found), verb_tables.compiled)


def count(
    what: What,
    *,
    operation: str | None = None,
    shape: str | None = None,
    dtype: str | None = None,
    tuning: Mapping[str, int] | None = None,
) -> Rows[Counted]:
    """What a rung asks of memory, counted on the emulator: needs no GPU. Each row has its kernels' `figures` by the
    names of Nsight Compute's counters, and the accesses of each line.
    """
    found = []
    for rung in chosen(what, operation):
        found.append(emulated.count(subjects.subject_of(rung, None, shape, dtype), tuning))
    return Rows(found, counts.kernels)


def _several(words: Sequence[str] | str) -> list[str]:
    return [words] if isinstance(words, str) else list(words)
