"""Measures the checker: mutants of right kernels, and which of them it calls right."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rung.check.mutants import chosen
from rung.check.report import NOT_JUDGED
from rung.check.trial import Effort, check
from rung.check.workers import work_through
from rung.errors import RungError
from rung.rungs import catalogue
from rung.rungs.base import Device, Rung
from rung.rungs.cuda import CudaRung

# As a rung alone, with fewer of the later runs: what makes a mutant is not written to wait.
EFFORT = Effort(0.1, tunables=True, later_runs=0)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n/]+)"', re.MULTILINE)
SECONDS = 120.0  # a mutant that takes longer is refused


@dataclass(frozen=True)
class Trial:
    """One mutant to be checked, in words that another process understands."""

    rung: str
    operation: str
    dtype: str
    device: Device
    kind: str
    file: str
    line: int
    change: str
    source: str
    path: str  # of the rung as it is


@dataclass(frozen=True)
class Verdict:
    """What became of one mutant."""

    rung: str
    dtype: str
    kind: str
    file: str
    line: int
    change: str
    refused: bool
    compiles: bool
    reason: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def trials(rungs: Sequence[Rung], *, limit: int | None, seed: int, device: Device = "emulator") -> list[Trial]:
    """The mutants of these rungs, in the rung's first number format."""
    found = []
    for rung in rungs:
        if not isinstance(rung, CudaRung) or (rung.emulate and device != "cuda"):
            continue
        assert rung.path is not None
        for m in chosen(_files(rung.path), limit, seed):
            place, of, dtype = str(rung.path), rung.operation.name, rung.dtypes[0]
            found.append(Trial(rung.full_name, of, dtype, device, m.kind, m.file, m.line, m.change, m.source, place))
    if not found:
        raise RungError("nothing to mutate: none of the chosen rungs is CUDA C++ that runs here.")
    return found


def mutate(work: Sequence[Trial], *, jobs: int, niceness: int = 0) -> Iterator[Verdict]:
    """The verdict on each mutant, as they fall; who ends the process or takes too long is refused."""
    groups = [[trial] for trial in work]
    yield from work_through(groups, judge, _lost, jobs=jobs, seconds=SECONDS, niceness=niceness)


def _lost(trial: Trial, why: str) -> Verdict:
    return _verdict(trial, refused=True, compiles=True, reason=why)


def _verdict(trial: Trial, *, refused: bool, compiles: bool, reason: str) -> Verdict:
    first = reason.splitlines()[0][:200] if reason else ""
    t = trial
    return Verdict(t.rung, t.dtype, t.kind, t.file, t.line, t.change, refused, compiles, first)


def _files(path: Path) -> dict[str, str]:
    """A rung's source and those of the headers beside it that it includes, by name."""
    found, waiting = {}, [path]
    while waiting:
        file = waiting.pop()
        if file.name in found or not file.is_file():
            continue
        found[file.name] = file.read_text(encoding="utf-8")
        waiting += [file.parent / name for name in _INCLUDE.findall(found[file.name])]
    return found


def judge(trial: Trial) -> Verdict:
    """Check one mutant up to its first failure."""
    with tempfile.TemporaryDirectory(prefix="rung-mutant-") as folder:
        original = Path(trial.path)
        for name in _files(original):
            (Path(folder) / name).symlink_to(original.parent / name)
        changed, path = Path(folder) / trial.file, Path(folder) / original.name
        changed.unlink()
        changed.write_text(trial.source, encoding="utf-8")
        compiles, refused = True, True
        try:
            rung = catalogue.rung_from_file(catalogue.operation(trial.operation), path)
            report = check(rung, trial.dtype, device=trial.device, effort=EFFORT)
            reason = report.reason.replace(f"{folder}/", "")
            refused = report.verdict == "failed" or report.verdict in NOT_JUDGED
            compiles = "does not compile" not in reason
        except RungError as error:
            reason = str(error)
    return _verdict(trial, refused=refused, compiles=compiles, reason=reason)
