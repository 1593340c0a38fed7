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

import torch

import gpuless
from gpuless.base.expressions import names_in
from gpuless.base.processors import cpu_seconds
from rung import progress
from rung.apart import Apart
from rung.check.report import OF_THE_KERNEL, CheckRequest, Failure, Report
from rung.check.runner import Binding, LocalRunner
from rung.check.trial import Trials
from rung.dtypes import dtype as dtype_named
from rung.errors import EmulatorFault, RungError
from rung.operation import Case, Operation, Values
from rung.rungs import catalogue
from rung.rungs.learned import LearnedCall
from rung.rungs.python import PythonRung

WARP, SMALL, LARGE = 32, 1 << 14, 1 << 17
TILED, TILED_FIRST = 16, 4  # of the likeliest, which are tried at whole tiles; before further proposals
TILES = (32, 64, 128)
LOADING = 20.0  # CPU seconds that do not count, until the first call is tried
CONFIRMING = 1.5  # CPU seconds for further cases
PROMISING = 10.0  # more CPU seconds for a call that is right at the smallest shapes: each other may be compiled
MOST_SECONDS, ENDLESS = 1.0, 2  # until a launch is stopped; launches that were, until no other call is tried
IDLE, TICK = 20, 0.5  # times the limit on CPU time, for a process that waits; seconds between two looks at the clock
LIKELIEST = "likeliest"  # what the first proposal gave, while others are tried
Table = Mapping[str, Any]


@dataclasses.dataclass
class Outcome:
    """What trials of some tables have found: one that is right, with the conditions under which it is; else the fault
    and the result of the likeliest one."""

    table: Table | None = None
    needs: list[str] = dataclasses.field(default_factory=list)
    why: str = ""
    fault: dict[str, Any] = dataclasses.field(default_factory=dict)
    failure: dict[str, Any] = dataclasses.field(default_factory=dict)


class Budget:
    """CPU seconds that all searches of a file share: what they find does not depend on other load. What led to a call
    is not counted."""

    def __init__(self, seconds: float) -> None:
        self.left = seconds

    def search(self, of: Operation, path: Path, kind: str, tables: Sequence[Table], *, own: bool = False) -> Outcome:
        """The first table that is right at all shapes tried, or else at most. `own`: the first is the launch that the
        file itself makes."""
        if gpuless.available() is None:
            gpuless.compiled()  # once for a machine; it is not the file's time
        outcome, likeliest, begun, first, spent = Outcome(), Outcome(), 0, 0, 0.0
        began, seconds, promised = time.monotonic(), self.left, 0.0
        method = "fork" if threading.active_count() == 1 else "spawn"
        every = len([*order(len(tables))])
        while first < every and self.left + promised > spent:
            used, begun = 0.0, first - 1
            work = (_search, of.name, str(path), kind, [dict(t) for t in tables], first, own)
            with suppress(EOFError), Apart(*work, method=method) as trial:
                start = LOADING  # its CPU seconds before the first call, at most: imports, and the file's own code
                while self.left + promised > spent + used and time.monotonic() < began + IDLE * seconds:
                    used = max(used, _cpu(trial.process.pid) - start)
                    if not trial.pipe.poll(TICK):
                        continue
                    answer = json.loads(trial.pipe.recv_bytes())
                    if isinstance(answer, float):  # its CPU seconds so far: the call is right at the smallest shapes
                        promised = max(promised, spent + answer - start + PROMISING - self.left)
                    elif isinstance(answer, list):
                        start = min(start, answer[1])
                        begun, used = int(answer[0]), max(used, answer[1] - start)
                        progress.doing(f"call {begun + 1} of {every} is tried")
                    elif answer["why"] == LIKELIEST:
                        likeliest = Outcome(**answer)
                    else:
                        outcome = Outcome(**answer)
                        begun = begun if outcome.why else every  # with a reason, others are still tried
                        if begun == every:
                            break
            spent += used
            if begun < first:
                break
            first = begun + 1  # the proposal has ended its process
        if outcome.table is not None:
            return dataclasses.replace(outcome, why="")
        self.left -= spent
        tried = min(max(begun, 0) + 1, len(tables))
        why = f"{tried} of {len(tables)} calls were tried, and none gave the right result"
        return dataclasses.replace(likeliest, why=why)


def _cpu(pid: int | None) -> float:
    with suppress(OSError):
        return cpu_seconds(pid or 0)
    return 0.0


def _search(
    answer: Connection, operation: str, file: str, kind: str, tables: list[dict[str, Any]], first: int, own: bool
) -> None:
    """In a process of its own: sends the number of each trial before it begins, then an `Outcome`; one that is right at
    some shapes only, while others are tried, says so in `why`."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    for standard in (1, 2):
        os.dup2(quiet, standard)
    torch.set_num_threads(1)

    def tell(what: object) -> None:  # as JSON: a Python file's own code may write there as well
        answer.send_bytes(json.dumps(what).encode())

    found = Search(catalogue.operation(operation), Path(file), kind, tables, own, tell).run(first)
    tell(dataclasses.asdict(found))


def order(count: int) -> Iterator[tuple[int, int]]:
    """Which table is tried at plain sizes (0) or at whole tiles of a size."""
    yield from ((0, n) for n in range(min(TILED, count)))
    yield from ((tile, n) for tile in TILES for n in range(min(TILED_FIRST, count)))
    yield from ((0, n) for n in range(TILED, count))
    yield from ((tile, n) for tile in TILES for n in range(TILED_FIRST, min(TILED, count)))


class Search:
    def __init__(
        self, of: Operation, path: Path, kind: str, tables: list[dict[str, Any]], own: bool,
        tell: Callable[[object], None],
    ) -> None:  # fmt: skip
        self.of, self.path, self.kind, self.tables, self.own, self.tell = of, path, kind, tables, own, tell
        self.best: Outcome | None = None  # right at some shapes: another may be right at all
        self.most = 0  # shapes at which it is
        self.likeliest = Outcome()
        self.first_fault: dict[str, Any] = {}  # of the likeliest, at plain sizes

    def run(self, first: int) -> Outcome:
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
                return self.best
            self.tell([number, sum(os.times()[:4])])
            attempt: _Attempt | None = None
            try:
                attempt = _Attempt(self.of, self.path, self.kind, self.tables[at], self.tell)
                if (found := self._tiles(attempt, tile) if tile else self._plain(attempt)) is not None:
                    return found
            except EmulatorFault as fault:
                endless += fault.kind in ("deadlock", "unfinished")
                if fault.kind == "unsupported":  # whatever the call
                    return Outcome(table=self.tables[0])
                if endless == ENDLESS:
                    break
            except Exception:  # a RungError, or one of the file's own Python; a compiler's, of another kernel
                continue
            finally:
                if at == 0 and attempt is not None:
                    self._of_the_likeliest(attempt, tile)
        return self.best or self.likeliest

    def _plain(self, attempt: _Attempt) -> Outcome | None:
        if not (found := attempt.shapes()):
            return None
        right, everywhere = found
        outcome = Outcome(attempt.table)
        if everywhere:
            return outcome
        if right > self.most:
            self.best, self.most = outcome, right
            self.tell(dataclasses.asdict(dataclasses.replace(outcome, why="right at some shapes")))
        return None

    def _tiles(self, attempt: _Attempt, tile: int) -> Outcome | None:
        return Outcome(attempt.table, needs) if (needs := _multiples(attempt, tile)) else None

    def _of_the_likeliest(self, attempt: _Attempt, tile: int) -> None:
        """A fault of the file's own launch counts if sizes that are whole tiles have it as well."""
        if not tile:
            self.first_fault = attempt.fault if self.own else {}
            self.likeliest = Outcome(failure=attempt.failure)
        elif self.first_fault and attempt.fault.get("kind") == self.first_fault["kind"]:
            self.likeliest.fault = self.first_fault
        self.tell(dataclasses.asdict(dataclasses.replace(self.likeliest, why=LIKELIEST)))


class _Attempt:
    """A proposed call, and its trials."""

    def __init__(self, of: Operation, path: Path, kind: str, table: Table, tell: Callable[[object], None]) -> None:
        self.of, self.path, self.kind, self.table, self.tell = of, path, kind, dict(table), tell
        self.fault: dict[str, Any] = {}  # the first that is the kernel's
        self.failure: dict[str, Any] = {}  # what the first wrong trial computed
        self._bind()

    def _bind(self) -> None:
        call: Any = LearnedCall("", self.kind, (), {**self.table, "adopted": "trial"})  # type: ignore[arg-type]
        self.rung = catalogue.rung_of_call(self.of, self.path, call)
        self.dtype = dtype_named(self.rung.dtypes[0])

    def right(self, values: Values) -> bool:
        """Whether a run is right; an output that is read before it is written gets another run, of zeros."""
        case = Case("trial", values)
        for _ in range(2):
            report = Report(self.rung.full_name, self.dtype.name, "emulator")
            trials = Trials(self.rung, self.dtype, "emulator", report, LocalRunner("emulator"), CheckRequest())
            try:
                trials.at(case, values, 0, Binding(seconds=MOST_SECONDS), only_run=True).once()
                return True
            except EmulatorFault as fault:
                if fault.kind in OF_THE_KERNEL and (fault.kind != "race" or fault.record.get("memory") == "shared"):
                    told = {"kind": fault.kind, "text": str(fault), "place": fault.place, "related": fault.related}
                    self.fault = self.fault or told
                self.failure = self.failure or {"error": str(fault), **trials.last_call()}
                raise
            except Failure as failure:
                if failure.zeroed and not self.table.get("zeroed"):
                    self.table["zeroed"] = failure.zeroed
                    self._bind()
                    continue
                self.failure = self.failure or {"error": str(failure), **(report.failure or trials.last_call())}
                return False
        return False

    def shapes(self) -> tuple[int, bool] | None:
        """At how many shapes of the operation's cases a run is right, and whether at all that were tried; None if at
        one of the two smallest it is not. The smallest of rows longer than a warp and the longest rows are next: there
        a block with too many threads and a grid with a block for each row differ from others."""
        of, small, inner = self.of, self.small(), list(self.of.dims)[-1]
        if not all(self.right(values) for values in small):
            return None
        self.tell(sum(os.times()[:4]))
        cases = (of.complete(c.values) for c in of.cases if self.dtype.name in c.dtypes)
        fitted = filter(None, (self.rung.fitted(values, self.dtype) for values in cases))
        others = sorted((v for v in fitted if _elements(of, v) <= LARGE), key=lambda v: _elements(of, v))
        longer = [v for v in others if v[inner] > WARP]
        right = [{dim: values[dim] for dim in of.dims} for values in small]
        began = time.process_time()
        for values in [*longer[:1], *sorted(longer, key=lambda v: -v[inner])[:1], *others]:
            shape = {dim: values[dim] for dim in of.dims}
            if shape in right:
                continue
            if time.process_time() - began > CONFIRMING:
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


def _elements(of: Operation, values: Values) -> int:
    return math.prod(int(values[dim]) for dim in of.dims)


def _multiples(attempt: _Attempt, tile: int) -> list[str]:
    """Conditions on sizes with which a kernel of whole tiles is right; empty if it is not."""
    of, rung, given = attempt.of, attempt.rung, attempt.small()[0]
    batch, *dims = of.dims
    whole = {batch: 1, **{dim: tile * factor for dim, factor in zip(dims, (2, 1, 3, 4), strict=False)}}

    def completed(dims: dict[str, int]) -> Values | None:
        with suppress(RungError):
            return of.complete({**{s: given[s] for s in of.scalars}, **dims})
        return None

    def right(dims: dict[str, int]) -> bool:
        values = completed(dims)
        if values is None:
            return True  # sizes that the operation does not have tell nothing
        try:
            return rung.refusal(values, attempt.dtype) is None and attempt.right(values)
        except RungError:
            return False

    for dim in reversed(dims):  # such as heads that do not divide the channels
        if completed(whole) is None:
            whole[dim] = int(given[dim])
    if not dims or completed(whole) is None or not right(whole):
        return []
    rows = of.sizes[0]
    needs = {}
    powers = list[str]()
    for dim in dims:
        steps = [n for n in (1, 2, 4, 8, 16, 32, 64, 128) if n <= tile]
        product = dim in names_in(rows) and rows in map(str, rung.header.bind.values())
        step = next((n for n in steps if right({**whole, dim: tile * 2 + n})), 0)
        if not step:  # wrong at every other size, so also at three tiles
            if not all(right({**whole, dim: tile * n}) for n in (1, 2, 4)) or right({**whole, dim: tile * 6}):
                return []
            powers.append(f"next_pow2({dim}) == {dim}")
            continue
        needs[rows if product else dim] = step
        off = [whole | {dim: more * tile + step // 2} for more in (1, 3)]  # wrong there, right in another tile
        if step > 1 and any(completed(dims) is not None and right(dims) for dims in off):
            return []
        if not right({**whole, dim: tile + step}):
            return []
    return [*(f"{size} % {step} == 0" for size, step in needs.items() if step > 1), *powers]
