"""Measures the checker: mutants of correct kernels, and which of them it accepts."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rung.check.calls import Here
from rung.check.effort import Effort
from rung.check.isolated import Isolated
from rung.check.mutants import Mutant, mutants, sample
from rung.check.one import check
from rung.check.report import Report
from rung.check.workers import work_through
from rung.cuda.source import included
from rung.errors import CompileError, RungError
from rung.results import machine
from rung.results.row import Row
from rung.rungs import catalogue, identity
from rung.rungs.base import Device, Rung
from rung.rungs.cuda import CudaRung

# As for a single rung, with fewer of the later runs: mutants do not delay their errors deliberately.
EFFORT = Effort(0.1, 0.1, alone=True, later_runs=0)
SOURCES = Path(__file__).parents[2]
RIGHT = ("ok", "arithmetic only")
SECONDS = 300.0  # a mutant that takes longer is refused


@dataclass(frozen=True)
class MutantTask:
    """One mutant to be checked, as plain data that another process can read."""

    rung: str
    device: Device
    kind: str
    place: dict[str, Any]  # the file (the rung's own or a header beside it), line and column, and the change
    source: str
    path: str  # of the unchanged rung
    text: str  # the rung's digest

    @property
    def question(self) -> tuple[Any, ...]:
        """The key of the row with its result."""
        return _row(self, "").question


def trials(rungs: Sequence[Rung], *, count: int | None, seed: int, device: Device = "emulator") -> list[MutantTask]:
    """Mutants of these rungs: all, or the same number of every ladder and kind."""
    groups: dict[tuple[str, str], list[tuple[CudaRung, Path, Mutant]]] = {}
    sources: dict[Path, str] = {}
    for rung in rungs:
        if not isinstance(rung, CudaRung) or (rung.emulate and device != "cuda"):
            continue
        assert rung.path is not None
        for file, source in _files(rung.path).items():
            sources[path := rung.path.parent / file] = source
            for mutant in mutants(source):
                groups.setdefault((rung.operation.name, mutant.kind), []).append((rung, path, mutant))
    if not groups:
        raise RungError("nothing to mutate: none of the chosen rungs is CUDA C++ that runs here.")
    every = sum(map(len, groups.values()))
    found = []
    for rung, path, m in sample(list(groups.values()), every if count is None else count, seed):
        place = {"file": path.name, "line": m.line, "column": m.column, "change": m.change}
        name, text = rung.full_name, identity.text(rung)
        found.append(MutantTask(name, device, m.kind, place, m.of(sources[path]), str(rung.path), text))
    return found


def mutate(work: Sequence[MutantTask], *, jobs: int, niceness: int = 0) -> Iterator[Row]:
    """A row for each mutant, as soon as it is judged; one that ends the process or takes too long is refused."""
    groups = [[trial] for trial in work]
    yield from work_through(groups, judge, _row, jobs=jobs, seconds=SECONDS, niceness=niceness)


def _row(trial: MutantTask, reason: str, verdict: str = "failed") -> Row:
    """Its verdict is the checker's: `ok` is a survivor, `illegal` does not compile and is not counted."""
    return Row(
        kind="mutate",
        what=trial.rung,
        part=trial.kind,
        options={"device": trial.device, **trial.place},
        texts={trial.rung: trial.text},
        verdict=verdict,
        reason=reason.partition("\n")[0][:200],
        machine=machine.facts(),
    )


def _files(path: Path) -> dict[str, str]:
    """A rung's source and those of the headers beside it that it includes, by name."""
    found, waiting = {}, [path]
    while waiting:
        file = waiting.pop()
        if file.name in found or not file.is_file():
            continue
        found[file.name] = file.read_text(encoding="utf-8")
        waiting += [file.parent / name for name in included(found[file.name]) if "/" not in name]
    return found


def judge(trial: MutantTask) -> Row:
    """Check one mutant up to its first failure, in all of its rung's number formats, as `rung check FILE` does."""
    with tempfile.TemporaryDirectory(prefix="rung-mutant-") as folder:
        original = Path(trial.path)
        for name in _files(original):
            (Path(folder) / name).symlink_to(original.parent / name)
        changed, path = Path(folder) / trial.place["file"], Path(folder) / original.name
        changed.unlink()
        changed.write_text(trial.source, encoding="utf-8")
        try:
            rung = catalogue.rung_from_file(catalogue.operation(trial.rung.partition("/")[0]), path)
            report = _first_failure(rung, trial.device)
            reason, cause, refused = report.reason, report.cause, not _right(report, trial.device)
        except RungError as error:
            reason, cause, refused = str(error), error.kind, True
    for place in (folder, SOURCES):  # a row names files without their folders
        reason = reason.replace(f"{place}/", "")
    illegal = cause == CompileError.kind
    return _row(trial, reason, "illegal" if illegal else "failed" if refused else "ok")


def _first_failure(rung: Rung, device: Device) -> Report:
    """Its first report that is not a success, otherwise the last. A mutant that is right on a GPU is also checked for
    races on the emulator."""
    for dtype in rung.dtypes:
        # On a GPU in a process of its own: a wrong kernel may destroy the context.
        host = Isolated(device) if device == "cuda" else Here(device)
        with host if isinstance(host, Isolated) else contextlib.nullcontext():
            report = check(rung, dtype, device=device, effort=EFFORT, host=host)
        if report.verdict == "ok" and device == "cuda" and isinstance(rung, CudaRung) and not rung.emulate:
            report = check(rung, dtype, device="emulator", races=True, effort=EFFORT, host=Here("emulator"))
        if not _right(report, device):
            break
    return report


def _right(report: Report, device: Device) -> bool:
    return report.verdict in RIGHT or (report.device != device and report.verdict != "failed")
