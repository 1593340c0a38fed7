"""Measures the checker: which small changes to a right kernel does it miss?

    python tools/mutation.py softmax/4 | --all [--sample 600] [--device cuda] [-o mutants.jsonl] | --tables FILE...

Makes mutants of a right kernel, checks each, and lists those that the checker calls right. A mutant differs in a
constant, index, bound, comparison, barrier, fence, mask, term, clamp, scale, eps or cast. A survivor is either
equivalent, or something that no case distinguishes: find out which, and write it into its row's notes.
`--tables` prints what rows hold, as docs/notes/mutation.md shows it.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import mutation_tables
from gpuless.base.files import read_text
from gpuless.compile import elf, nvrtc
from gpuless.compile.source import code_only
from rung.apart import work_through
from rung.check.judge import check, device_named
from rung.check.report import ALONE, THOROUGH, Effort, Report
from rung.check.runner import LocalRunner
from rung.check.sandbox import Sandbox
from rung.dtypes import dtype as dtype_named
from rung.errors import CompileError, RungError
from rung.operation import LADDERS
from rung.results import codes, machine, store
from rung.results.row import Row
from rung.rungs import catalogue, identity
from rung.rungs.base import Device, Rung
from rung.rungs.cuda import CudaRung

# As for a single rung, without the later runs: mutants do not delay their errors deliberately.
EFFORT, THOROUGH_EFFORT = (replace(effort, later_runs=0) for effort in (ALONE, THOROUGH))
SOURCES = LADDERS.parents[1]
RIGHT = ("ok",)
SECONDS = 300.0  # a mutant that takes longer is refused
LOADED = (".text.", ".nv.constant", ".nv.global", ".nv.shared")  # sections of a cubin
SAME_CODE = "equivalent: the rung compiles to the same machine code"


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
    thorough: bool = False

    @property
    def question(self) -> tuple[Any, ...]:
        """The key of the row with its result."""
        return _row(self, "").question


def trials(
    rungs: Sequence[Rung], *, count: int | None, seed: int, device: Device = "emulator", thorough: bool = False
) -> list[MutantTask]:
    """Mutants of these rungs: all, or the same number of every ladder and kind."""
    groups: dict[tuple[str, str], list[tuple[CudaRung, Path, Mutant]]] = {}
    sources: dict[Path, str] = {}
    for rung in rungs:
        if not isinstance(rung, CudaRung) or (rung.emulate and device != "cuda"):
            continue
        assert rung.path is not None
        for file, source in _files(rung).items():
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
        found.append(MutantTask(name, device, m.kind, place, m.of(sources[path]), str(rung.path), text, thorough))
    return found


def mutate(work: Sequence[MutantTask], *, jobs: int, niceness: int = 0, until: float = math.inf) -> Iterator[Row]:
    """A row for each mutant, as soon as it is judged, as far as time allows; one that ends the process or takes too
    long is refused."""
    groups = [[trial] for trial in work]
    how: dict[str, Any] = {"jobs": jobs, "seconds": SECONDS, "niceness": niceness, "until": until}
    yield from work_through(groups, judge, _row, ("torch", "rung.check.judge"), **how)


def _row(trial: MutantTask, reason: str, verdict: str = "failed") -> Row:
    """Its verdict is the checker's: `ok` is a survivor, `illegal` does not compile and is not counted."""
    return Row(
        kind="mutate",
        what=trial.rung,
        part=trial.kind,
        options={"device": trial.device, **({"thorough": True} if trial.thorough else {}), **trial.place},
        texts={trial.rung: trial.text},
        verdict=verdict,
        reason=reason.partition("\n")[0][:200],
        machine=machine.facts(),
    )


def _files(rung: Rung) -> dict[str, str]:
    """A rung's source and those of the headers beside it that it includes, by name."""
    assert rung.path is not None
    paths = [rung.path, *(path for path in identity.files(rung) if path.parent == rung.path.parent)]
    return {path.name: read_text(path) for path in paths}


def judge(trial: MutantTask) -> Row:
    """Check one mutant up to its first failure, in all of its rung's number formats, as `rung check FILE` does."""
    with tempfile.TemporaryDirectory(prefix="rung-mutant-") as folder:
        original = Path(trial.path)
        for name in _files(catalogue.find(trial.rung)):
            (Path(folder) / name).symlink_to(original.parent / name)
        changed, path = Path(folder) / trial.place["file"], Path(folder) / original.name
        changed.unlink()
        changed.write_text(trial.source, encoding="utf-8")
        same = False
        try:
            of, _, rung_name = trial.rung.partition("/")
            rung = catalogue.rung_from_file(catalogue.operation(of), path, rung_name)
            report = _first_failure(rung, trial.device, THOROUGH_EFFORT if trial.thorough else EFFORT)
            reason, cause, refused = report.reason, report.cause, not _right(report, trial.device)
            same = not refused and _machine_code(rung) == _machine_code(catalogue.find(trial.rung))
        except RungError as error:
            reason, cause, refused = str(error), error.kind, True
    for place in (folder, SOURCES):  # a row names files without their folders
        reason = reason.replace(f"{place}/", "")
    illegal = cause == CompileError.kind
    row = _row(trial, reason, "illegal" if illegal else "failed" if refused else "ok")
    return replace(row, notes=[SAME_CODE]) if same else row


def _machine_code(rung: Rung) -> list[dict[str, tuple[bytes, int]]]:
    """What a GPU loads of the rung, at all of its cases and values of tunables: code, constants, variables, arrays."""
    if not isinstance(rung, CudaRung):
        return []
    tunings = [None, *({name: choice} for name, choices in rung.tune.items() for choice in choices[1:])]
    builds = {
        rung.build(values, kind, tuning): None
        for kind, tuning in itertools.product(map(dtype_named, rung.dtypes), tunings)
        for _, values in rung.cases(kind, tuning, "emulator")
    }
    loaded = (elf.sections(nvrtc.compile_cubin(build, "sm_90").path.read_bytes()) for build in builds)
    return [{s.name: (s.data, s.size) for s in sections if s.name.startswith(LOADED)} for sections in loaded]


def _first_failure(rung: Rung, device: Device, effort: Effort) -> Report:
    """Its first report that is not a success, otherwise the last. A mutant that is right on a GPU is also checked for
    races on the emulator."""
    for dtype in rung.dtypes:
        # On a GPU in a process of its own: a wrong kernel may destroy the context.
        host = Sandbox(device, rung) if device == "cuda" else LocalRunner(device)
        with host:
            report = check(rung, dtype, device=device, effort=effort, host=host)
        if report.verdict == "ok" and device == "cuda" and isinstance(rung, CudaRung) and not rung.emulate:
            report = check(rung, dtype, device="emulator", effort=effort)
        if not _right(report, device):
            break
    return report


def _right(report: Report, device: Device) -> bool:
    return report.verdict in RIGHT or (report.device != device and report.verdict != "failed")


Item = TypeVar("Item")


@dataclass(frozen=True)
class Mutant:
    """One change at one place of a source."""

    kind: str
    line: int
    column: int
    before: str
    after: str
    start: int  # in the source

    def of(self, source: str) -> str:
        """The source with this change."""
        return source[: self.start] + self.after + source[self.start + len(self.before) :]

    @property
    def change(self) -> str:
        return f"{self.before.strip() or 'nothing'} -> {self.after.strip() or 'nothing'}"


_NUMBER = r"(?<![\w.])"


def _replace(kind: str, pattern: str, *by: str) -> tuple[str, re.Pattern[str], tuple[str, ...]]:
    return kind, re.compile(pattern), by


DROPPED = ("barrier", "fence", "wait")
# Whole statements are dropped; single operators, names and numbers are replaced.
RULES = (
    _replace("barrier", r"\b\w*(?:sync|barrier)\w*\([^;{}()]*\)(?=;)", ""),
    _replace("fence", r"\b\w*fence\w*(?:<[^<>;]*>)?\([^;{}]*\)(?=;)", ""),
    _replace("wait", r"\b\w*(?:wait|commit|arrive)\w*(?:<[^<>;]*>)?\([^;{}]*\)(?=;)", ""),
    _replace("comparison", r"(?<![<>=!\-])<(?![<=])(?= )", "<="),
    _replace("comparison", r"(?<= )<=(?= )", "<"),
    _replace("comparison", r"(?<![<>\-])>(?![>=])(?= )", ">="),
    _replace("comparison", r"(?<= )>=(?= )", ">"),
    _replace("comparison", r"(?<= )==(?= )", "!="),
    _replace("bound", r"(?<=< )(\w+)(?=;|\))", r"\1 - 1"),
    _replace("index", r"(?<=\[)([^\[\]]{1,60})(?=\])", r"(\1) + 1"),
    _replace("index", r"\bthreadIdx\.x\b", "(threadIdx.x & ~1)"),
    _replace("index", r"\bblockIdx\.x\b", "(blockIdx.x / 2)"),
    _replace("term", r"(?<= )\+(?= )", "-"),
    _replace("term", r"(?<= )-(?= )", "+"),
    _replace("term", r"(?<= )\*(?= )", "+"),
    _replace("term", r"(?<= )\+=(?= )", "="),
    _replace("scale", r"(?<=\* )scale\b|\bscale(?= \*)", "1.0f"),
    _replace("eps", r"\beps\b(?=\))", "1e-5f"),
    _replace("eps", r"\+ eps\b", ""),
    _replace("clamp", r"\bf?max[f]?\(([^(),]+), ([^(),]+)\)", r"(\1)"),
    _replace("clamp", r"\bf?min[f]?\(([^(),]+), ([^(),]+)\)", r"(\2)"),
    _replace("mask", r"-INFINITY\b", "0.0f"),
    _replace("mask", r"(?<= )&&(?= )", "||"),
    _replace("mask", r"\bif \(([^(){};]+)\)", "if (true)"),
    _replace("constant", _NUMBER + r"(\d+\.\d*f)\b", r"(\1 + 0.02f)"),
    _replace("constant", _NUMBER + r"([1-9]\d?)\b(?![.\w])(?=[;)\]]| [*/+])", r"(\1 + 1)"),
    _replace("cast", r"\bto_float\(", "(float)(int)to_float("),
    _replace("cast", r"\b(from_float<\w+>)\(", r"\1((int)"),
)


def mutants(source: str) -> Iterator[Mutant]:
    """Every mutant of a source, in the order of its lines; comments, strings and the header are left alone."""
    code = code_only(source)
    found = []
    for kind, pattern, choices in RULES:
        for match in pattern.finditer(code):
            if kind in DROPPED and _declares(code, match.start()):
                continue
            start = match.start()
            line, column = code.count("\n", 0, start) + 1, start - code.rfind("\n", 0, start)
            found += [Mutant(kind, line, column, match.group(), match.expand(by), start) for by in choices]
    yield from sorted(found, key=lambda m: (m.start, m.kind))


def _declares(code: str, start: int) -> bool:
    """Whether a name follows a type: a declaration, which cannot be dropped."""
    before = code[code.rfind("\n", 0, start) + 1 : start].strip()
    return bool(re.search(r"(?:void|int|bool|float|auto)\s*$", before))


def sample(groups: Sequence[Sequence[Item]], count: int, seed: int) -> list[Item]:
    """At most `count` items, the same number from each group as far as possible."""
    generator = random.Random(seed)
    left = [generator.sample(group, len(group)) for group in groups]
    generator.shuffle(left)
    chosen: list[Item] = []
    while any(left) and len(chosen) < count:
        chosen += [group.pop() for group in left if group][: count - len(chosen)]
    return chosen


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rung", nargs="?", help="a ladder or one rung")
    parser.add_argument("--all", action="store_true", help="the rungs of all ladders")
    parser.add_argument("--sample", type=int, help="at most this many mutants, balanced over ladders and kinds")
    parser.add_argument("--seed", type=int, default=0, help="of the selection")
    parser.add_argument("--device", default="emulator", help="emulator or cuda")
    parser.add_argument("--thorough", action="store_true", help="check as `check --thorough` does")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--nice", type=int, default=0, help="priority of these processes; 19 is the lowest")
    parser.add_argument("--minutes", type=float, default=math.inf, help="end after so long; -o: the next call goes on")
    parser.add_argument("-o", "--output", type=Path, help="append a row for each mutant (JSON lines)")
    parser.add_argument("--tables", type=Path, nargs="+", help="print what these files of rows hold")
    given = parser.parse_args(words)
    if given.tables:
        for name, part in mutation_tables.parts([row for file in given.tables for row in store.load(file)]).items():
            print(f"{name}\n{part()}")
        return 0
    if (given.rung is None) != given.all:
        parser.error("name a ladder or a rung, such as softmax/4, or give --all")
    until = time.monotonic() + 60 * given.minutes
    rungs = catalogue.select(given.rung)
    device = device_named(given.device)
    work = trials(rungs, count=given.sample, seed=given.seed, device=device, thorough=given.thorough)
    questions = {trial.question for trial in work}
    stored = store.load(given.output) if given.output and given.output.exists() else []
    earlier = [*store.published(), *stored] if given.output else []
    rows = {r.question: r for r in earlier if r.question in questions and codes.current(r)}
    work = [trial for trial in work if trial.question not in rows]
    for number, row in enumerate(mutate(work, jobs=given.jobs, niceness=given.nice, until=until), 1):
        rows[row.question] = row if given.output is None else store.append(row, given.output)
        print(f"{number} of {len(work)}: {row.what} {row.part}", file=sys.stderr, flush=True)
    judged = [r for r in rows.values() if r.verdict != "illegal" and SAME_CODE not in r.notes]
    survivors = [r for r in judged if r.verdict == "ok"]
    for r in survivors:
        print(f"{r.what}  {r.options['file']}:{r.options['line']}  {r.part}  {r.options['change']}")
    refused = len(judged) - len(survivors)
    share = refused / len(judged) if judged else 1.0
    print(f"\n{refused} of {len(judged)} mutants that change the machine code are refused ({share:.1%}).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
