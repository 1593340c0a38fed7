"""Every configuration of a rung, measured and kept: which launch parameters suit this GPU, shape and dtype?

A configuration is one value for each tunable of the rung's header. One that cannot be launched becomes a row with its
reason; one that was measured before, on this machine and from this source, is not measured again. Each row is written
as soon as it is known, so a sweep that was killed continues where it stopped.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from gpuless.facts import limits
from rung.errors import RungError
from rung.results import machine
from rung.results import store as results
from rung.results.row import Row
from rung.rungs import identity as identities
from rung.rungs.base import Device, Rung, Subject
from rung.rungs.cuda import CudaRung

Tuning = dict[str, int]
MOST = 20_000  # largest number of configurations without sampling
FINALISTS = 4
HOPELESS = 4_000  # draws in a row, none of them legal, after which no more are drawn


@dataclass
class Outcome:
    """The outcome of one configuration: ok with figures, or failed or illegal with the reason."""

    verdict: str
    reason: str = ""
    figures: dict[str, float | None] = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)
    detail: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class Measure(Protocol):
    """How a configuration is judged. `timed` measures return `ratio` (to the default's time) and `cold_us`."""

    name: str
    timed: bool
    batch: int  # configurations per batch
    device: Device
    arch: str

    def __call__(self, subject: Subject, batch: Sequence[Tuning], effort: float) -> Iterator[Outcome]:
        """An outcome for each configuration of the batch, in its order; `effort` is seconds for each."""


class ContextLost(Exception):
    """A configuration (empty: one of the batch) corrupted the CUDA context: this process can run no more."""

    def __init__(self, tuning: Tuning, reason: str) -> None:
        super().__init__(reason)
        self.tuning, self.reason = tuning, reason


def choices(rung: Rung, only: Mapping[str, Sequence[int]] | None = None) -> dict[str, tuple[int, ...]]:
    """The values of each tunable, narrowed to `only`."""
    if not rung.tune:
        raise RungError(f"{rung.full_name} has no tunables; give its header a [tune] table to sweep it.")
    chosen = dict(rung.tune)
    for name, values in (only or {}).items():
        if name not in chosen:
            raise RungError(f"{rung.full_name} has no tunable {name!r}; it has {', '.join(rung.tune)}.")
        for value in values:
            if value not in rung.tune[name]:
                known = ", ".join(map(str, rung.tune[name]))
                raise RungError(
                    f"{name} = {value} is not in the header of {rung.full_name}, which has {known}; add it there."
                )
        chosen[name] = tuple(values)
    return chosen


def configurations(
    rung: Rung,
    *,
    only: Mapping[str, Sequence[int]] | None = None,
    sample: int | None = None,
    seed: int = 0,
    legal: Callable[[Tuning], bool] = lambda _: True,
) -> list[Tuning]:
    """The grid in the header's order, or `sample` legal ones drawn from it, the default first."""
    table = choices(rung, only)
    names, columns = list(table), list(table.values())
    total = 1
    for column in columns:
        total *= len(column)
    if sample is None:
        if total > MOST:
            raise RungError(f"{rung.full_name} has {total:,} configurations; sample some with --random 200.")
        return [dict(zip(names, values, strict=True)) for values in itertools.product(*columns)]
    sampled: list[Tuning] = []
    first = rung.tuned(None)
    if all(first[n] in table[n] for n in names):
        sampled.append(first)
    missed = 0
    for index in _shuffle(total, seed):
        if len(sampled) >= sample or missed == HOPELESS:
            break
        tuning = {}
        for name, column in zip(names, columns, strict=True):
            index, place = divmod(index, len(column))
            tuning[name] = column[place]
        missed += 1
        if tuning not in sampled and legal(tuning):
            sampled.append(tuning)
            missed = 0
    return sampled


def _shuffle(total: int, seed: int) -> Iterator[int]:
    random_numbers = random.Random(seed)
    if total <= MOST:
        yield from random_numbers.sample(range(total), total)
        return
    for _ in range(4 * MOST):
        yield random_numbers.randrange(total)


def illegal(subject: Subject, tuning: Tuning, device: Device, arch: str) -> str | None:
    """Why this configuration cannot be launched, known before anything is compiled."""
    rung = subject.rung
    reason = rung.refusal(subject.values, subject.dtype, tuning, device=device)
    if reason is not None or not isinstance(rung, CudaRung):
        return reason
    try:
        launches = rung.launches(subject.values, subject.dtype, tuning, device)
    except RungError as error:
        return str(error)
    at = limits.limits(arch)
    for kernel, config in launches:
        refused = limits.refusal(at, config)
        if refused:
            return f"{kernel} cannot be launched: {refused}"
    return None


@dataclass
class Sweep:
    """The rows of one sweep, in the order of its configurations, and where they came from."""

    subject: Subject
    measure: str
    timed: bool
    rows: list[Row]
    resumed: int = 0  # rows that were there already


def sweep(
    subject: Subject,
    tunings: Sequence[Tuning],
    measure: Measure,
    *,
    store: Path | None = None,
    effort: float = 0.2,
    halving: bool = False,
    finals: bool = True,
    again: bool = False,
    progress: Callable[[int, int, str], None] = lambda done, total, text: None,
) -> Sweep:
    """Judge every configuration; the fastest few of a timed sweep are timed once more, for longer."""
    known = {} if again else {r.key: r for r in results.read(store) if r.kind == "sweep"}
    run = _Run(subject, measure, store, known, progress)
    schedule = _schedule(len(tunings), effort, halving, finals and measure.timed)
    run.total = sum(count for count, _ in schedule)
    latest: dict[str, Row] = {}
    chosen = list(tunings)
    for number, (count, seconds) in enumerate(schedule):
        if number:
            chosen = [r.tuning for r in ranked(list(latest.values()))[:count]]
        for row in run.round(chosen, number, seconds):
            if row.verdict == "ok" or not number:
                latest[_word(row.tuning)] = row
    rows = [latest[_word(t)] for t in tunings]
    return Sweep(subject, measure.name, measure.timed, rows, run.resumed)


def _schedule(count: int, effort: float, halving: bool, finals: bool) -> list[tuple[int, float]]:
    """How many configurations each round has, and the seconds for each."""
    if not finals or count < 2:
        return [(count, effort)]
    if not halving:
        return [(count, effort), (min(FINALISTS, count), 3 * effort)]
    rounds = [(count, effort / 4)]
    while rounds[-1][0] > FINALISTS:
        left, seconds = rounds[-1]
        rounds.append((max(FINALISTS, -(-left // 2)), min(2 * seconds, 3 * effort)))
    return rounds


def _word(tuning: Mapping[str, int]) -> str:
    return " ".join(f"{n}={v}" for n, v in tuning.items())


class _Run:
    """One run of a sweep: known rows, missing configurations, and writing the results."""

    def __init__(
        self,
        subject: Subject,
        measure: Measure,
        store: Path | None,
        known: Mapping[str, Row],
        progress: Callable[[int, int, str], None],
    ) -> None:
        self.subject, self.measure, self.store = subject, measure, store
        self.known, self.progress = known, progress
        self.text = identities.text(subject.rung)
        self.done = self.total = self.resumed = 0

    def round(self, chosen: Sequence[Tuning], number: int, seconds: float) -> list[Row]:
        rows: dict[str, Row] = {}
        open_: list[Tuning] = []
        for tuning in chosen:
            blank = self._blank(tuning, number)
            found = self.known.get(blank.key)
            if found is None:
                reason = illegal(self.subject, tuning, self.measure.device, self.measure.arch)
                if reason is None:
                    open_.append(tuning)
                    continue
                found = self._record(blank, Outcome("illegal", reason))
            else:
                self.resumed += 1
            rows[_word(tuning)] = found
            self._report(tuning)
        for start in range(0, len(open_), self.measure.batch):
            batch = open_[start : start + self.measure.batch]
            try:
                for tuning, outcome in zip(batch, self.measure(self.subject, batch, seconds), strict=True):
                    rows[_word(tuning)] = self._record(self._blank(tuning, number), outcome)
                    self._report(tuning)
            except ContextLost as lost:
                if lost.tuning:
                    self._record(self._blank(lost.tuning, number), Outcome("failed", lost.reason))
                raise
        return [rows[_word(t)] for t in chosen]

    def _blank(self, tuning: Tuning, number: int) -> Row:
        subject = self.subject
        return Row(
            kind="sweep",
            what=subject.rung.full_name,
            texts={subject.rung.full_name: self.text},
            dtype=subject.dtype.name,
            shape=subject.shape,
            values=dict(subject.values),
            tuning=dict(tuning),
            options={"measure": self.measure.name, "arch": self.measure.arch, "round": number},
            machine=machine.facts(),
        )

    def _record(self, blank: Row, outcome: Outcome) -> Row:
        row = replace(
            blank,
            verdict=outcome.verdict,
            reason=outcome.reason,
            samples=outcome.samples,
            detail=outcome.detail,
            notes=outcome.notes,
        )
        return results.append(row.with_metrics(**outcome.figures), self.store)

    def _report(self, tuning: Tuning) -> None:
        self.done += 1
        self.progress(self.done, self.total, _word(tuning))


def figure_of(row: Row) -> float:
    """A row's rank, smaller being better: the time relative to the default's, else the occupancy."""
    return row.metrics.get("ratio", -row.metrics.get("occupancy", 0.0))


def ranked(rows: Sequence[Row]) -> list[Row]:
    """The configurations that worked, those of the last round and the fastest first."""
    right = [r for r in rows if r.verdict == "ok"]
    return sorted(right, key=lambda r: (-int(r.options["round"]), figure_of(r)))


Place = tuple[str, str, str]  # the identity of a configuration: the rung, the shape, and the tuning as text


def place(subject: Subject, tuning: Mapping[str, int]) -> Place:
    return subject.rung.full_name, subject.shape, _word(tuning)


def place_of(row: Row) -> Place:
    return row.what, row.shape, _word(row.tuning)


def merge(rows: Sequence[Row], places: Sequence[Place]) -> list[Row]:
    """Rows of several processes in the order of the configurations, each once; ok rows take precedence."""
    best: dict[Place, Row] = {}
    for row in rows:
        at = place_of(row)
        if at not in best or (best[at].verdict != "ok" and row.verdict == "ok"):
            best[at] = row
    return [best[at] for at in places if at in best]
