"""`rung reproduce DOCUMENT --run`: measures on this GPU what a document's tables need and what has no row yet.

Each step stores its rows as soon as it has them, so that the same command goes on where it was stopped.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial

from rung.cli import main
from rung.errors import RungError
from rung.profile import batches, emulated, ncu
from rung.results import codes, current, machine, store
from rung.results.row import Row
from rung.rungs import catalogue
from rung_reproduce import atlas, items, sources, studies

LEAST = 20.0  # seconds left below which no step begins
START = 12.0  # seconds of a first step: torch, the driver, the first kernels
# Seconds as an H200 took them: of a race, of each of its rungs, of one profiled, of studies, climbs, the sweep
# and one rung that is counted.
RACE, BENCH, PROFILE, COURSE, SWEEP, COUNT = 3.0, 1.0, 5.0, 170.0, 90.0, 3.0
PROFILES = {"attention_training": 25.0}  # of an operation whose calls are long
STUDY = {"attention": 120.0, "ranks": 150.0, "waves": 55.0, "cache": 90.0, "memory-latency": 10.0, "vocab": 20.0}
USUAL = 40.0  # another study
VERSIONS = (*(str(n) for n in range(13, 24)), "37")  # the twelve of the study of flash attention
TEXTS: dict[str, tuple[Sequence[str], float, float]] = {  # options -> rungs, seconds for each text, seconds in all
    "": (VERSIONS, 12.0, 180.0),
    "--batch 4": (("37_sixty_four_square",), 60.0, 45.0),
    "--dtype bfloat16": (("27_tensor_cores",), 30.0, 45.0),
    "--batch 16": (("37_sixty_four_square",), 100.0, 90.0),
}
FORMATS = ("f32", "tf32", "bf16", "f16")  # the first that a rung has is measured where an item names only the rung
KINDS = ("bench", "profile", "course", "study", "sweep", "text", "kernels", "count")  # of rows that figures need


@dataclass(frozen=True)
class Step:
    """One command, and how long an H200 takes for it."""

    name: str
    seconds: float
    work: Callable[[float], None]
    lacks: str = ""  # what it needs and this machine does not have


@dataclass(frozen=True)
class Outcome:
    step: Step
    seconds: float
    problem: str  # empty if it worked


def rows(gpu: str) -> list[Row]:
    """Those that were measured here, of the present code: what is published came from another card of the kind; and
    counts, which no card has part in.
    """
    stored = [row for row in store.own() if row.gpu == gpu]
    measured = current.of_gpu(stored, gpu).results if stored else []
    counts = [row for row in store.gather() if row.kind == "count"]
    return [row for row in (*measured, *counts) if codes.current(row)]


def missing(kind: str, document: str | None, have: Sequence[Row]) -> list[sources.Reference]:
    """The references of one kind that have no row."""
    return [r for r in sources.references(kind, document) if r.value(have) is None]


def plan(document: str | None, have: Sequence[Row]) -> list[Step]:
    """What this machine can measure of what `wanted` names."""
    return [step for step in wanted(document, have) if not step.lacks]


def wanted(document: str | None, have: Sequence[Row]) -> list[Step]:
    """What the document's tables, findings and items need beyond these rows; steps that fill most places come first."""
    steps: list[Step] = []
    for make in (_bench, _profile, _course, _sweep, _study, _text, _count):
        steps += make(document, have)
    raced = {r.what for r in missing("bench", document, have)}
    return [*steps, *_items(document, have, raced)]


def minutes(steps: Sequence[Step]) -> float:
    return (sum(step.seconds for step in steps) + (START if steps else 0.0)) / 60


def run(steps: Sequence[Step], budget: float, report: Callable[[str], None]) -> Iterator[Outcome]:
    """Each step within the budget in seconds; what does not fit is left for the next call."""
    end = time.monotonic() + budget
    for number, step in enumerate(steps, 1):
        left = end - time.monotonic()
        if left < LEAST:
            yield Outcome(step, 0.0, "no time left")
            continue
        report(f"{number} of {len(steps)}: {step.name}")
        began, problem = time.monotonic(), ""
        try:
            with redirect_stdout(sys.stderr):  # the verbs' own tables; the document's come last
                step.work(left)
        except Exception as error:
            traceback.print_exc()
            problem = f"{type(error).__name__}: {error}"
        yield Outcome(step, time.monotonic() - began, problem)


def _lacks(require: Callable[[], object]) -> str:
    """Why a step cannot be measured here; empty if it can."""
    try:
        require()
    except RungError as error:
        return str(error)
    return ""


def _verb(*words: str) -> Callable[[float], None]:
    """A verb in this process, which has torch and the driver ready."""

    def work(left: float) -> None:
        try:
            main(list(words))
        except SystemExit as ended:
            if ended.code:
                raise RuntimeError(f"exit code {ended.code}") from None

    return work


def _bench(document: str | None, have: Sequence[Row]) -> Iterator[Step]:
    groups: dict[tuple[str, str, str], list[str]] = {}
    for r in missing("bench", document, have):
        groups.setdefault((r.what.partition("/")[0], r.dtype, r.shape), []).append(r.what)
    yield from map(_race, groups, groups.values())


def _race(where: tuple[str, str, str], rungs: Sequence[str]) -> Step:
    """A race of some rungs of an operation in one format at one shape."""
    operation, dtype, shape = where
    first, *others = dict.fromkeys(rungs)
    words = ["bench", first, "--dtype", dtype, "--shape", shape, "--seconds", "0.15"]
    words += [word for other in others for word in ("--vs", other)]
    return Step(f"bench {operation} {dtype} {shape}", RACE + BENCH * (1 + len(others)), _verb(*words))


def _profile(document: str | None, have: Sequence[Row]) -> Iterator[Step]:
    asked = list(sources.references("profile", document))
    lacking = atlas.planned_for([r for r in asked if r.value(have) is None])
    if lacking:
        def work(left: float) -> None:
            deque(batches.collect(lacking, left, lambda text: print(text, file=sys.stderr)), 0)

        each = (PROFILES.get(subject.rung.operation.name, PROFILE) for subject, _ in lacking)
        yield Step(f"profile {len(lacking)} rungs", sum(each), work, _lacks(ncu.find))


def _count(document: str | None, have: Sequence[Row]) -> Iterator[Step]:
    lacking = atlas.planned_for(missing("count", document, have))
    if lacking:
        def work(left: float) -> None:
            for subject, tuning in lacking:
                store.append(emulated.as_result(subject, tuning))

        yield Step(f"count {len(lacking)} rungs", COUNT * len(lacking), work)


def _course(document: str | None, have: Sequence[Row]) -> Iterator[Step]:
    if missing("course", document, have):
        yield Step("climb --study course", COURSE, _verb("climb", "--study", "course", "--seconds", "4"))


def _sweep(document: str | None, have: Sequence[Row]) -> Iterator[Step]:
    if missing("sweep", document, have):
        yield Step("course", SWEEP, _verb("course", "--seconds", "0.03"))


def _study(document: str | None, have: Sequence[Row]) -> Iterator[Step]:
    known = {"/".join(filter(None, (row.what, row.part))) for row in have if row.kind == "study"}
    documents = [d for d in sources.documents().values() if document in (None, d.name)]
    shown = [study for d in documents for study in d.studies if study not in known]
    needed = [*(r.what for r in missing("study", document, have)), *shown]
    for name in dict.fromkeys(study.partition("/")[0] for study in needed):
        lacks = _lacks(partial(studies.require, name))
        yield Step(f"study {name}", STUDY.get(name, USUAL), _verb("study", name, "--no-chart"), lacks)


def _text(document: str | None, have: Sequence[Row]) -> Iterator[Step]:
    wanted = {r.command for kind in ("text", "kernels") for r in missing(kind, document, have)}
    for option, (rungs, each, seconds) in TEXTS.items():
        if f"{sources.COMMANDS['text']} {option}".strip() in wanted:
            chosen = [word for rung in rungs for word in ("--rung", rung)]
            words = ["climb", "--study", "attention", *option.split(), "--seconds", f"{each:.0f}", *chosen]
            yield Step(f"climb --study attention {option}".strip(), seconds, _verb(*words))


def _items(document: str | None, have: Sequence[Row], raced: set[str]) -> Iterator[Step]:
    """What items name beyond the figures: rungs without a row, each at one shape; the trace of a whole run."""
    gpu = str(machine.facts().get("gpu", ""))
    named = {name for i in items.items() if document in (None, i.document) for name in i.missing(have)}
    alone = (name for name in sorted(named) if " " not in name and name.count("/") == 1)
    races: dict[tuple[str, str, str], list[str]] = {}
    for rung in (catalogue.find(name) for name in alone if name not in raced):
        of = rung.operation
        shape = of.races[0].shape if of.races else next(iter(of.shapes))
        dtype = next(name for name in FORMATS if name in rung.dtypes)
        races.setdefault((of.name, dtype, shape), []).append(rung.full_name)
    yield from map(_race, races, races.values())
    if any("whole_run" in name and (name.partition("gpu=")[2] or gpu) in gpu for name in named):
        yield Step("profile generate", USUAL, _verb("profile", "generate", "--whole", "--plan", "best"))
