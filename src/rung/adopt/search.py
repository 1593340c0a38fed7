"""Judges proposed calls of a file at a small budget, with check's own trials: shapes of the operation's cases, then
sizes that are whole tiles. The code is the user's, so this is a process of its own; what is sent back is text."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import gpuless
from gpuless.base.expressions import names_in
from gpuless.base.processors import cpu_seconds
from rung import progress
from rung.apart import Apart
from rung.check.guarded_memory import from_the_start
from rung.check.report import OF_THE_KERNEL, CheckRequest, Failure, Report
from rung.check.runner import PACE, Binding, LocalRunner
from rung.check.trial import Trials
from rung.dtypes import dtype as dtype_named
from rung.errors import EmulatorFault, RungError, first_line
from rung.lazy import only_this_thread
from rung.operation import Case, Operation, Values
from rung.rungs import catalogue
from rung.rungs.cuda import CudaRung
from rung.rungs.learned import LearnedCall
from rung.rungs.python import PythonRung

WARP, SMALL, LARGE = 32, 1 << 14, 1 << 17
LARGEST = 1 << 22  # bytes of the operands at whole tiles
TILED, TILED_FIRST = 16, 4  # of the likeliest, which are tried at whole tiles; before further proposals
TILES = (32, 64, 128)
CONFIRMING = 1.5  # of the budget, for further cases
EXPLAINING = 1.0  # beyond the budget, for what the likeliest call computes
PROMISING = 10.0  # that is left at least for a call that is right at the smallest shapes, or at whole tiles
BUILD, TRIAL = 0.3, {"kernel": 0.03, "host": 0.3, "python": 0.15}  # what a compilation costs, and a trial of each kind
MOST_SECONDS, ENDLESS = 1.0, 2  # until a launch is stopped; launches that were, until no other call is tried
LIMIT, IDLE, TICK = 120.0, 4, 0.5  # CPU seconds of a search, times that for one that waits, seconds between two looks
LIKELIEST = "likeliest"  # what the first proposal gave, while others are tried
Table = Mapping[str, Any]


@dataclasses.dataclass
class Outcome:
    """What trials of some tables have found: one that is right, with the conditions under which it is; the fault of the
    file's own launch; what the likeliest one gave."""

    table: Table | None = None
    needs: list[str] = dataclasses.field(default_factory=list)
    why: str = ""
    fault: dict[str, Any] = dataclasses.field(default_factory=dict)
    error: str = ""
    tried: int = 0  # tables, where none is right
    failure: dict[str, Any] = dataclasses.field(default_factory=dict)


class Budget:
    """What all searches of a file may cost, as seconds: of executed instructions, trials and compilations, so that what
    they find is the same on any machine. What led to a call is not counted."""

    def __init__(self, seconds: float) -> None:
        self.left = seconds

    def search(
        self, of: Operation, path: Path, kind: str, tables: Sequence[Table], *, own: bool = False, share: float = 1.0
    ) -> Outcome:
        """The first table that is right at all shapes tried, or else at most. `own`: the first is the launch that the
        file itself makes. `share`: of what is left, that it may cost."""
        if gpuless.available() is None:
            gpuless.compiled()  # once for a machine; it is not the file's time
        outcome, likeliest, first, begun, left = Outcome(), Outcome(), 0, -1, self.left * share
        kept = self.left - left
        method = "fork" if threading.active_count() == 1 else "spawn"
        every = len([*order(len(tables))])
        while first < every and left > 0:
            begun, ended = first - 1, False
            work = (_search, of.name, str(path), kind, [dict(t) for t in tables], first, own, left)
            with Apart(*work, method=method) as trial:
                for told in _answers(trial, path):
                    left = told["left"]
                    if "number" in told:
                        begun = told["number"]
                        progress.doing(f"call {begun + 1} of {every} is tried")
                        continue
                    found = Outcome(**told["found"])
                    ended = not found.why  # with a reason, others are still tried
                    if found.why == LIKELIEST:
                        likeliest = found
                    else:
                        outcome = found
            if ended or begun < first:
                break
            first = begun + 1  # the proposal has ended its process
        if outcome.table is not None:
            return dataclasses.replace(outcome, why="", error=likeliest.error, failure=likeliest.failure)
        self.left = min(self.left, left + kept)
        return dataclasses.replace(likeliest, why="", tried=min(begun + 1, len(tables)))


def _answers(trial: Apart, path: Path) -> Iterator[dict[str, Any]]:
    """What a search sends until it has found something, or ends."""
    began = time.monotonic()
    while True:
        if trial.pipe.poll(TICK):
            try:
                told = json.loads(trial.pipe.recv_bytes())
            except EOFError:
                return
            yield told
            if "found" in told and not told["found"]["why"]:
                return
        elif _cpu(trial.process.pid) > LIMIT or time.monotonic() - began > IDLE * LIMIT:
            why = f"its calls could not be tried within {LIMIT:.0f} s of CPU time; a header says how it is called."
            raise RungError(f"{path}: {why}")


def _cpu(pid: int | None) -> float:
    with suppress(OSError):
        return cpu_seconds(pid or 0)
    return 0.0


def _search(
    answer: Connection, operation: str, file: str, kind: str, tables: list[dict[str, Any]], first: int, own: bool,
    left: float,
) -> None:  # fmt: skip
    """In a process of its own: sends the number of each trial before it begins, then an `Outcome`; one that is right at
    some shapes only, while others are tried, says so in `why`."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    for standard in (1, 2):
        os.dup2(quiet, standard)
    only_this_thread()
    spending = Spending(kind, left)

    def tell(**what: object) -> None:  # as JSON: a Python file's own code may write there as well
        answer.send_bytes(json.dumps({**what, "left": spending.left}).encode())

    with from_the_start(), gpuless.Session():
        search = Search(catalogue.operation(operation), Path(file), kind, tables, own, tell, spending)
        tell(found=dataclasses.asdict(search.run(first)))


class _Spent(Exception):
    """Nothing is left of the budget."""


class Spending:
    """What trials cost."""

    def __init__(self, kind: str, left: float) -> None:
        self.trial, self.left, self.builds, self.steps = TRIAL[kind], left, set[object](), gpuless.current().steps

    def take(self, build: object) -> None:
        """Before a trial of what is built so."""
        steps, self.steps = self.steps, gpuless.current().steps
        self.left -= self.trial + (self.steps - steps) / PACE + BUILD * (build not in self.builds)
        self.builds.add(build)
        if self.left < 0:
            raise _Spent


def order(count: int) -> Iterator[tuple[int, int]]:
    """Which table is tried at plain sizes (0) or at whole tiles of a size: the likeliest first at both."""
    yield from ((0, 0), (TILES[0], 0))[: 2 * count]
    yield from ((0, n) for n in range(1, min(TILED, count)))
    yield from ((tile, n) for tile in TILES for n in range(min(TILED_FIRST, count)) if tile > TILES[0] or n)
    yield from ((0, n) for n in range(TILED, count))
    yield from ((tile, n) for tile in TILES for n in range(TILED_FIRST, min(TILED, count)))


class Search:
    def __init__(
        self, of: Operation, path: Path, kind: str, tables: list[dict[str, Any]], own: bool,
        tell: Callable[..., None], spending: Spending,
    ) -> None:  # fmt: skip
        self.of, self.path, self.kind, self.tables, self.own, self.tell = of, path, kind, tables, own, tell
        self.spending = spending
        self.best: Outcome | None = None  # right at some shapes: another may be right at all
        self.most = 0  # shapes at which it is
        self.judged, self.likeliest = 0, Outcome()  # its table, and what it gave
        self.first_fault: dict[str, Any] = {}  # of the file's own launch, at plain sizes

    def run(self, first: int) -> Outcome:
        found = self._first_right(first)
        if found.table is None or found.needs:
            self._explain()
        return found

    def _explain(self) -> None:
        """What the wrong numbers of the likeliest call are: it takes a second, so that no call before is asked."""
        attempt = _Attempt(self.of, self.path, self.kind, self.tables[self.judged], Spending(self.kind, EXPLAINING))
        attempt.explains = True
        with suppress(Exception):  # as the call before
            if self.likeliest.error and not all(attempt.right(values) for values in attempt.small()):
                self.likeliest.error, self.likeliest.failure = attempt.error, attempt.failure
                self.tell(found=dataclasses.asdict(dataclasses.replace(self.likeliest, why=LIKELIEST)))

    def _first_right(self, first: int) -> Outcome:
        endless = 0
        if self.kind == "python":
            try:
                PythonRung(self.of, self.path, self.tables[0]).load("emulator")
            except RungError:  # whatever the call; whoever imports the file next says it
                return Outcome(self.tables[0])
        for number, (tile, at) in enumerate(order(len(self.tables))):
            if number < first:
                continue
            if tile and self.best:
                if at or tile > TILES[0]:
                    return self.best
                continue
            self.tell(number=number)
            attempt: _Attempt | None = None
            try:
                attempt = _Attempt(self.of, self.path, self.kind, self.tables[at], self.spending)
                if (found := self._tiles(attempt, tile) if tile else self._plain(attempt)) is not None:
                    return self._beside_own(found) if at else found
            except EmulatorFault as fault:
                endless += fault.kind in ("deadlock", "unfinished")
                if fault.kind == "unsupported":  # whatever the call
                    return Outcome(table=self.tables[0])
                if endless == ENDLESS:
                    break
            except _Spent:
                break
            except Exception as error:  # a RungError, or one of the file's own Python; a compiler's, of another kernel
                if attempt is not None and isinstance(error, RungError):
                    attempt.error = attempt.error or first_line(str(error))
                continue
            finally:
                if attempt is not None:
                    if self._is_the_kernels(attempt) and not tile:
                        self.judged = at
                    if at == self.judged:
                        self._of_the_likeliest(attempt, tile)
        return self.best or self.likeliest

    def _plain(self, attempt: _Attempt) -> Outcome | None:
        if not (found := attempt.shapes()):
            return None
        right, everywhere = found
        outcome = Outcome(attempt.table)
        if everywhere:
            # A call that is right only for fewer shapes does not excuse one that is wrong at some of the others.
            best = self.best and self.best.table
            fewer = best and {*best.get("needs", [])} < {*attempt.table.get("needs", [])}
            return self.best if fewer else outcome
        if right > self.most:
            self.best, self.most = outcome, right
            self.tell(found=dataclasses.asdict(dataclasses.replace(outcome, why="right at some shapes")))
        return None

    def _tiles(self, attempt: _Attempt, tile: int) -> Outcome | None:
        return Outcome(attempt.table, needs) if (needs := _multiples(attempt, tile)) else None

    def _is_the_kernels(self, attempt: _Attempt) -> bool:
        """Whether threads of the file's own block miss each other, whatever else its operands are: the likeliest call
        has met an address first, which operands in other places explain."""
        same = self.own and _block(attempt.table) == _block(self.tables[0])
        return same and attempt.fault.get("kernels", False) and self.first_fault.get("kernels") is False

    def _of_the_likeliest(self, attempt: _Attempt, tile: int) -> None:
        """A fault of the file's own launch counts if sizes that are whole tiles have it as well, and wrong operands
        are no usual cause of it."""
        if not tile:
            self.first_fault = attempt.fault if self.own else {}
            self.likeliest = Outcome(error=attempt.error, failure=attempt.failure)
        elif self._again(attempt) and self.first_fault["kernels"]:
            self.likeliest.fault = self.first_fault
        self.tell(found=dataclasses.asdict(dataclasses.replace(self.likeliest, why=LIKELIEST)))

    def _again(self, attempt: _Attempt) -> bool:
        return bool(self.first_fault) and attempt.fault.get("kind") == self.first_fault["kind"]

    def _beside_own(self, found: Outcome) -> Outcome:
        """Another launch that is right by the same operands shows what these are: a fault of the file's own launch is
        the kernel's, if sizes that are whole tiles have it as well."""
        own, other = self.tables[0], found.table or {}
        if not self.first_fault or found.needs or any(own.get(key) != other.get(key) for key in ("bind", "buffers")):
            return found
        attempt = _Attempt(self.of, self.path, self.kind, own, self.spending)
        whole = {dim: TILES[-1] if dim == [*self.of.dims][-1] else TILES[0] for dim in self.of.dims[-2:]}
        with suppress(RungError, _Spent):
            attempt.right(self.of.complete(attempt.small()[0] | whole))
        return dataclasses.replace(found, fault=self.first_fault if self._again(attempt) else {})


class _Attempt:
    """A proposed call, and its trials."""

    def __init__(self, of: Operation, path: Path, kind: str, table: Table, spending: Spending) -> None:
        self.of, self.path, self.kind, self.table, self.spending = of, path, kind, dict(table), spending
        self.explains = False  # what its wrong numbers are
        self.fault: dict[str, Any] = {}  # the first
        self.error, self.failure = "", dict[str, Any]()  # what the first wrong trial computed
        self._bind()

    def _bind(self) -> None:
        call: Any = LearnedCall("", self.kind, (), {**self.table, "adopted": "trial"})  # type: ignore[arg-type]
        self.rung = catalogue.rung_of_call(self.of, self.path, call)
        self.dtype = dtype_named(self.rung.dtypes[0])

    def right(self, values: Values) -> bool:
        """Whether a run is right; an output that is read before it is written gets another run, of zeros."""
        case = Case("trial", values)
        build = self.rung.build(values, self.dtype) if isinstance(self.rung, CudaRung) else None
        for _ in range(2):
            self.spending.take(build)
            report = Report(self.rung.full_name, self.dtype.name, "emulator")
            trials = Trials(self.rung, self.dtype, "emulator", report, LocalRunner("emulator"), CheckRequest())
            trials.explains = self.explains
            try:
                trials.at(case, values, 0, Binding(seconds=MOST_SECONDS), only_run=True).once()
                return True
            except EmulatorFault as fault:
                own = fault.kind in OF_THE_KERNEL and (fault.kind != "race" or fault.record.get("memory") == "shared")
                told = {"text": str(fault), "place": fault.place, "related": fault.related, "kernels": own}
                self.fault = self.fault or {"kind": fault.kind, **told}
                computed = {**trials.last_call(), "place": fault.place}
                self._computed(str(fault).removeprefix(f"{self.path}: "), computed)
                raise
            except Failure as failure:
                if failure.zeroed and not self.table.get("zeroed"):
                    self.table["zeroed"] = failure.zeroed
                    self._bind()
                    continue
                self._computed(str(failure), report.failure or trials.last_call())
                return False
        return False

    def _computed(self, error: str, failure: dict[str, Any]) -> None:
        if not self.error:
            self.error, self.failure = error, failure

    def shapes(self) -> tuple[int, bool] | None:
        """At how many shapes of the operation's cases a run is right, and whether at all that were tried; None if at
        one of the two smallest it is not. The smallest of rows longer than a warp and the longest rows are next: there
        a block with too many threads and a grid with a block for each row differ from others."""
        of, small, inner = self.of, self.small(), list(self.of.dims)[-1]
        if not all(self.right(values) for values in small):
            return None
        self.spending.left = max(self.spending.left, PROMISING)
        cases = (of.complete(c.values) for c in of.cases if self.dtype.name in c.dtypes)
        fitted = filter(None, (self.rung.fitted(values, self.dtype) for values in cases))
        others = sorted((v for v in fitted if _elements(of, v) <= LARGE), key=lambda v: _elements(of, v))
        longer = [v for v in others if v[inner] > WARP]
        right = [{dim: values[dim] for dim in of.dims} for values in small]
        until = self.spending.left - CONFIRMING
        for values in [*longer[:1], *sorted(longer, key=lambda v: -v[inner])[:1], *others]:
            shape = {dim: values[dim] for dim in of.dims}
            if shape in right:
                continue
            if self.spending.left < until:
                break
            try:
                if not self.right(values):
                    return len(right), False
            except EmulatorFault as fault:
                if fault.kind != "unfinished":
                    return len(right), False
            except RungError:
                return len(right), False
            else:
                right.append(shape)
        return len(right), True

    def small(self) -> list[Values]:
        """Two legal cases whose sizes are above one and differ, the smaller first; one has odd rows, if that may be."""
        of, rung, dtype = self.of, self.rung, self.dtype
        completed = [of.complete(c.values) for c in of.cases]
        every = [v for v, c in zip(completed, of.cases, strict=True) if dtype.name in c.dtypes]
        fitted = list(filter(None, (rung.fitted(v, dtype) for v in every)))
        small = [v for v in fitted if _elements(of, v) <= SMALL]
        legal = [v for v in small if any(all(v[d] == one[d] for d in of.dims) for one in every)]
        if len([v for v in legal if max(v[d] for d in of.dims) > 1]) < 2:  # one number is right by any launch
            legal = fitted
        legal.sort(key=lambda v: (sum(v[d] == 1 for d in of.dims), sum(v[d] for d in of.dims)))
        if not legal:
            raise RungError("no case suits it")
        varied = [v for v in legal if len({v[d] for d in of.dims}) == len(of.dims)]
        first, odd = (varied or legal)[0], [v for v in legal if v[list(of.dims)[-1]] % 2 and v is not legal[0]]
        return [first, next(iter([*odd, *legal[:1], *legal[1:2]]))]


def _block(table: Table) -> object:
    return table["launch"][0]["block"] if "launch" in table else None


def _elements(of: Operation, values: Values) -> int:
    return math.prod(int(values[dim]) for dim in of.dims)


def _multiples(attempt: _Attempt, tile: int) -> list[str]:
    """Conditions on sizes with which a kernel of whole tiles is right; empty if it is not. There are two batches, and
    sizes that `needs` fixes follow the others."""
    of, rung, given = attempt.of, attempt.rung, attempt.small()[0]
    batch = [*of.dims][: len(of.dims) > 2]
    dims = [dim for dim in of.dims if dim not in batch]
    factors = (1, 1, 3, 4) if batch else (2, 1)
    whole = dict.fromkeys(batch, 2) | {dim: tile * factor for dim, factor in zip(dims, factors, strict=False)}

    def completed(dims: dict[str, int]) -> Values | None:
        with suppress(RungError):
            return of.complete({**{s: given[s] for s in of.scalars}, **dims})
        return None

    def fitted(dims: dict[str, int]) -> Values | None:
        values = completed(dims)
        return rung.fitted(values, attempt.dtype) if values else None

    def right(dims: dict[str, int], varied: str = "") -> bool:
        if completed(dims) is None:
            return True  # sizes that the operation does not have tell nothing
        found = fitted(dims)
        if found is None or (varied and found[varied] != dims[varied]):
            return False
        try:
            return attempt.right(found)
        except RungError:
            return False

    for dim in reversed(dims):  # such as heads that do not divide the channels
        if completed(whole) is None:
            whole[dim] = int(given[dim])
    if (found := fitted(whole)) is None:
        return []
    sizes = (of.size_of(of.operand(name), found, attempt.dtype) for name in rung.operand_names)
    if sum(sizes) > LARGEST or not right(whole):
        return []
    attempt.spending.left = max(attempt.spending.left, PROMISING)
    whole, rows = {dim: int(found[dim]) for dim in of.dims}, of.sizes[0]
    needs = {}
    powers = list[str]()
    for dim in dims:
        if (found := fitted({**whole, dim: 2 * whole[dim]})) and found[dim] == whole[dim]:
            continue  # another size says it
        steps = [n for n in (1, 2, 4, 8, 16, 32, 64, 128) if n <= tile]
        product = dim in names_in(rows) and rows in map(str, rung.header.bind.values())
        base = whole | dict.fromkeys(batch, 1) if dim in names_in(rows) else whole  # two batches have half the rows
        step = next((n for n in steps if right({**base, dim: tile * 2 + n}, dim)), 0)
        if not step:  # wrong at every other size, so also at three tiles
            if not all(right({**base, dim: tile * n}, dim) for n in (1, 2, 4)) or right({**base, dim: tile * 6}, dim):
                return []
            powers.append(f"next_pow2({dim}) == {dim}")
            continue
        needs[rows if product else dim] = step
        off = [base | {dim: more * tile + step // 2} for more in (1, 3)]  # wrong there, right in another tile
        if step > 1 and any(completed(dims) is not None and right(dims, dim) for dims in off):
            return []
        if not right({**base, dim: tile + step}, dim):
            return []
    return [*(f"{size} % {step} == 0" for size, step in needs.items() if step > 1), *powers]
