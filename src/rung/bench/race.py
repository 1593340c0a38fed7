"""Times rungs and libraries against each other, checked in the same run.

For one operation, shape and dtype: every rung and library gets its own sets of operands, is compared with the float64
reference before it is timed, and once more on the outputs that its timed graphs produce from inputs changed behind the
same pointers. If either comparison fails, no time is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch

from gpuless.base.expressions import Number
from rung import arrays
from rung.arrays import Array
from rung.bench import timing
from rung.check.operands import Operands
from rung.cuda.driver import occupy_stream
from rung.dtypes import Dtype
from rung.dtypes import dtype as dtype_named
from rung.errors import RungError, first_line
from rung.operation import Cost, Operation, Tensors, Values
from rung.results import machine, statistics
from rung.results.current import TOO_SLOW
from rung.results.row import Row as Result
from rung.rungs import base, catalogue, identity
from rung.rungs.base import Prepared, Rung
from rung.rungs.library import LibraryRung


@dataclass
class Timed:
    """One rung at one shape and dtype."""

    operation: str
    rung: str
    kind: str
    dtype: str
    shape: str
    values: dict[str, Number]
    tuning: dict[str, int] = field(default_factory=dict)
    verdict: str = "ok"  # or failed, refused, "too slow"
    reason: str = ""
    cold_us: float | None = None
    cold_p20_us: float | None = None
    cold_p80_us: float | None = None
    n: int = 0
    warm_us: float | None = None
    gbps: float | None = None
    tflops: float | None = None
    of_bandwidth: float | None = None  # share of the measured ceiling
    of_rate: float | None = None
    of_datasheet: float | None = None  # share of the nearer datasheet ceiling
    against_before: str = ""
    against_library: str = ""
    library_ratio: float | None = None  # best library's time / ours
    element: float = 0.0
    norm: float = 0.0
    notes: list[str] = field(default_factory=list)
    cold_samples_us: list[float] = field(default_factory=list)
    forecast_s: float | None = None  # forecast per call, if the rung was left out because of it


@dataclass(frozen=True)
class Ceilings:
    """The limits of this machine: bytes/s and FLOP/s, measured here."""

    bytes: float
    flops: Mapping[str, float]


def bench(
    chosen: Sequence[Rung],
    *,
    shape: str,
    values: Mapping[str, Number],
    dtype: str,
    tunings: Mapping[str, dict[str, int]] | None = None,
    ceilings: Ceilings | None = None,
    seconds: float = 0.6,
    warm: bool = True,
    pace: Pace | None = None,
    patience: float = 2.0,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Timed]:
    """Race the chosen rungs of one operation at one shape and dtype.

    A rung that, judging by its speed at other shapes, would need more than `patience` seconds for one call is left out,
    with the forecast as its reason.
    """
    if not torch.cuda.is_available():
        raise RungError("no CUDA device was found, and times on the emulator are meaningless; use a GPU.")
    operation = chosen[0].operation
    race = _Race(operation, shape, operation.complete(values), dtype_named(dtype))
    race.leave_out(chosen, pace or Pace(), patience)
    return race.run(chosen, tunings or {}, ceilings, seconds, warm, progress)


class Pace:
    """Seconds per FLOP of each rung in its largest race so far; small shapes have more overhead."""

    def __init__(self, stored: Iterable[Result] = ()) -> None:
        """`stored`: earlier results of this GPU and number format, forecasts included."""
        self._seen: dict[str, tuple[float, float]] = {}  # FLOPs, seconds for one
        for row in stored:
            seconds = row.metrics.get("cold_us", 0.0) / 1e6 or row.metrics.get("forecast_s", 0.0)
            operation = catalogue.operations().get(row.operation)
            if operation is None or not seconds or not set(operation.dims) <= set(row.values):
                continue
            flops = operation.cost(operation.complete(row.values), dtype_named(row.dtype).size).flops
            self._note(row.what, flops, seconds)

    def learn(self, rows: Iterable[Timed]) -> None:
        for row in rows:
            if row.cold_us and row.tflops:
                self._note(row.rung, row.tflops * row.cold_us * 1e6, row.cold_us / 1e6)

    def _note(self, rung: str, flops: float, seconds: float) -> None:
        if flops > 0:
            seen = (flops, seconds / flops)
            self._seen[rung] = max(self._seen.get(rung, seen), seen)

    def forecast(self, rung: str, flops: float) -> float:
        """Seconds; None for a rung that was never timed."""
        return self._seen[rung][1] * flops if rung in self._seen else 0.0


class _Race:
    def __init__(self, operation: Operation, shape: str, values: Values, dtype: Dtype) -> None:
        self.operation, self.shape, self.values, self.dtype = operation, shape, values, dtype
        self.too_slow: dict[str, float] = {}
        self.patience = float("inf")
        self.changed: dict[tuple[int, int], Tensors] = {}  # references of changed inputs, by set and calls

    def leave_out(self, chosen: Sequence[Rung], pace: Pace, patience: float) -> None:
        """Forecast each rung's time from its speed and drop those that exceed the patience."""
        self.patience = patience
        flops = self.operation.cost(self.values, self.dtype.size).flops
        forecast = {r.full_name: pace.forecast(r.full_name, flops) for r in chosen}
        self.too_slow = {name: seconds for name, seconds in forecast.items() if seconds > patience}

    def run(
        self,
        chosen: Sequence[Rung],
        tunings: Mapping[str, dict[str, int]],
        ceilings: Ceilings | None,
        seconds: float,
        warm: bool,
        progress: Callable[[str], None],
    ) -> list[Timed]:
        rows = {r.full_name: self._row(r, tunings.get(r.full_name)) for r in chosen}
        self.reset_persisting_l2()
        groups: dict[tuple[str, ...], list[Rung]] = {}
        for rung in chosen:
            groups.setdefault(tuple(rung.operand_names), []).append(rung)
        entrants: list[tuple[Rung, timing.Contestant, list[Operands]]] = []
        for names, members in groups.items():
            sets = [Operands(self.operation, self.values, self.dtype, names, 1, device="cuda")]
            sets += [
                Operands(self.operation, self.values, self.dtype, names, 1 + i, device="cuda")
                for i in range(1, self._fits(sets[0].bytes))
            ]
            sets[0].keep()
            reference = sets[0].reference()
            for rung in members:
                progress(f"{rung.full_name} {self.dtype.name} {self.shape}: checking")
                contestant = self._enter(rung, rows[rung.full_name], sets, reference, tunings)
                if contestant is not None:
                    entrants.append((rung, contestant, sets))
        progress(f"{self.operation.name} {self.dtype.name} {self.shape}: timing {len(entrants)}")
        timing.race([c for _, c, _ in entrants], cap=seconds, warm=warm)
        for rung, contestant, sets in entrants:
            self._again(rows[rung.full_name], contestant, sets)
        timed = {r.full_name: c for r, c, _ in entrants if rows[r.full_name].verdict == "ok"}
        for rung, contestant, _ in entrants:
            self._conclude(rung, rows[rung.full_name], contestant, timed, chosen, ceilings)
        return list(rows.values())

    def _row(self, rung: Rung, tuning: dict[str, int] | None) -> Timed:
        return Timed(
            self.operation.name,
            rung.full_name,
            rung.kind,
            self.dtype.name,
            self.shape,
            dict(self.values),
            rung.tuned(tuning),
        )

    def _fits(self, bytes_of_a_set: int) -> int:
        free, _ = torch.cuda.mem_get_info()
        sets = max(2, int(free * 0.3) // max(1, bytes_of_a_set))
        return min(timing.sets_needed(bytes_of_a_set), sets)

    def _enter(
        self, rung: Rung, row: Timed, sets: list[Operands], reference: Tensors, tunings: Mapping[str, dict[str, int]]
    ) -> timing.Contestant | None:
        tuning = tunings.get(rung.full_name)
        reason = rung.refusal(self.values, self.dtype, tuning, sets[0].tensors, "cuda")
        if rung.full_name in self.too_slow:
            row.forecast_s = forecast = self.too_slow[rung.full_name]
            seconds = f"{forecast:.0f}" if forecast >= 1 else f"{forecast:.1g}"
            row.verdict, row.reason = TOO_SLOW, f"a call would take about {seconds} s; more patience allows for it"
            return None
        if reason is not None:
            row.verdict, row.reason = "refused", reason
            return None
        scratch: Tensors = {}  # shared by the sets: they run one after another

        def empty(name: str, size: tuple[int, ...], kind: str) -> Array:
            if name not in scratch:
                scratch[name] = arrays.empty(size, kind, "cuda")
            return scratch[name]

        try:
            prepared: list[Prepared] = [
                rung.prepare(s.tensors, self.values, self.dtype, device="cuda", tuning=tuning, empty=empty)
                for s in sets
            ]
            sets[0].restore()
            sets[0].poison()
            took = timing.seconds(prepared[0].run)
            if took > self.patience and rung.kind != "cuda":  # the first call included compiling
                sets[0].restore()
                took = timing.seconds(prepared[0].run)
            problem = self._compare(sets[0], reference, row)
        except (RungError, RuntimeError) as error:
            row.verdict, row.reason = "failed", first_line(error)
            return None
        if problem:
            row.verdict, row.reason = "failed", problem
            return None
        module = prepared[0].module
        if module is not None:
            spilled = [k for k, r in module.resources.items() if r.spill_stores]
            if spilled:
                row.notes.append(f"spills registers ({', '.join(spilled)})")
        if took > self.patience:
            row.notes.append("one run only, the first")
            row.cold_us, row.n, row.cold_samples_us = took * 1e6, 1, [took * 1e6]
            row.tflops = self.operation.cost(self.values, self.dtype.size).flops / took / 1e12
            return None
        calls = [p.bare or p.run for p in prepared]
        contestant = timing.Contestant(rung.full_name, calls, copy_back=prepared[0].copy_back)
        try:
            contestant.get_ready()
        except (RungError, RuntimeError) as error:
            row.verdict, row.reason = "failed", first_line(error)
            return None
        return contestant

    def _compare(self, one: Operands, reference: Tensors, row: Timed) -> str:
        for deviation in one.deviations(reference):
            row.element, row.norm = max(row.element, deviation.element), max(row.norm, deviation.norm)
            if not deviation.ok:
                return deviation.problem
        return ""

    def _again(self, row: Timed, contestant: timing.Contestant, sets: list[Operands]) -> None:
        """The timed graphs' results for changed inputs must be right as well."""
        first = sets[0]
        first.refill(4242)
        key = (id(first), contestant.replayed)
        if key not in self.changed:  # the same for all rungs with these operands
            self.changed[key] = first.reference(contestant.replayed)
        reference = self.changed[key]
        first.poison()
        torch.cuda.synchronize()
        occupy_stream(2_000_000)  # work on another stream would now read old inputs
        contestant.replay()
        torch.cuda.synchronize()
        problem = self._compare(first, reference, row)
        if problem:
            row.verdict, row.reason = "failed", f"wrong inside the timed loop: {problem}"

    def _conclude(
        self,
        rung: Rung,
        row: Timed,
        contestant: timing.Contestant,
        timed: dict[str, timing.Contestant],
        chosen: Sequence[Rung],
        ceilings: Ceilings | None,
    ) -> None:
        row.notes += contestant.notes
        if row.verdict != "ok":
            return
        summary = statistics.summarise(contestant.cold)
        row.cold_us, row.n = summary.median * 1e6, summary.n
        row.cold_p20_us, row.cold_p80_us = summary.p20 * 1e6, summary.p80 * 1e6
        row.cold_samples_us = [round(s * 1e6, 4) for s in contestant.cold]
        if contestant.warm:
            row.warm_us = statistics.summarise(contestant.warm).median * 1e6
        cost = self.operation.cost_with(self.values, self.dtype, rung.binds)
        row.gbps = cost.bytes / summary.median / 1e9
        row.tflops = cost.flops / summary.median / 1e12
        self._ceilings(rung, row, cost, summary.median, ceilings)
        libraries = [c for n, c in timed.items() if isinstance(_by_name(chosen, n), LibraryRung)]
        if libraries and not isinstance(rung, LibraryRung):
            best = min(libraries, key=lambda c: statistics.summarise(c.cold).median)
            verdict = statistics.verdict(contestant.cold, best.cold)
            row.against_library = f"{verdict} {'with' if verdict == 'tie' else 'than'} {best.name}"
            row.library_ratio = statistics.summarise(best.cold).median / summary.median
        previous = catalogue.parent(rung) if rung.number is not None else None
        if previous is not None and previous.full_name in timed:
            row.against_before = statistics.verdict(contestant.cold, timed[previous.full_name].cold)

    def _ceilings(self, rung: Rung, row: Timed, cost: Cost, seconds: float, ceilings: Ceilings | None) -> None:
        sheet = machine.datasheet()
        shares = []
        if "bytes" in sheet:
            shares.append(cost.bytes / seconds / sheet["bytes"])
        if (most := machine.rate_limit(sheet, self.dtype.name, rung.products)) is not None:
            shares.append(cost.flops / seconds / most)
        row.of_datasheet = max(shares, default=None)
        if row.of_datasheet is not None and row.of_datasheet > 1.02:
            row.verdict = "failed"
            row.reason = f"{row.of_datasheet:.0%} of the datasheet's ceiling: an error of measurement, not a record"
        if ceilings is not None:
            row.of_bandwidth = cost.bytes / seconds / ceilings.bytes
            if rate := machine.rate(ceilings.flops, self.dtype.name, rung.products):
                row.of_rate = cost.flops / seconds / rate

    def reset_persisting_l2(self) -> None:
        """L2 lines that an earlier kernel marked as persisting would make the next reader look faster."""
        from cuda.bindings import driver

        driver.cuCtxResetPersistingL2Cache()


def _by_name(chosen: Sequence[Rung], name: str) -> Rung:
    return next(r for r in chosen if r.full_name == name)


@cache
def measure_ceilings() -> Ceilings:
    """Copy bandwidth (read and write counted) and the matrix rate of each number format; measured once a process."""
    bandwidth = _copy_bandwidth()
    contestants: dict[str, timing.Contestant] = {}
    n = 8192
    measured = {}
    for name, kind in (
        ("f32", torch.float32),
        ("tf32", torch.float32),
        ("f16", torch.float16),
        ("bf16", torch.bfloat16),
    ):
        x, y = torch.randn(n, n, device="cuda", dtype=kind), torch.randn(n, n, device="cuda", dtype=kind)
        measured[name] = (x, y, torch.empty_like(x))
        contestants[name] = timing.Contestant(name, [_matmul(*measured[name], tf32=name == "tf32")])
        contestants[name].get_ready()
    timing.race(list(contestants.values()), cap=0.5, warm=False)
    rate = {k: 2 * n**3 / statistics.summarise(c.cold).median for k, c in contestants.items()}
    return Ceilings(bandwidth, rate)


def _copy_bandwidth() -> float:
    size = min(4 << 30, torch.cuda.mem_get_info()[0] // 4)
    a = torch.zeros(size // 4, dtype=torch.float32, device="cuda")
    b = torch.zeros_like(a)
    # Not as a graph: there a copy becomes a node for the copy engine, which is a third slower than the SMs.
    return 2 * size / min(timing.seconds(lambda: b.copy_(a)) for _ in range(12))


def _matmul(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, *, tf32: bool) -> Callable[[], None]:
    def call() -> None:
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = tf32
        try:
            torch.mm(x, y, out=out)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    return call


METRICS = {  # names in a row of the race, and in the results
    "cold_us": "cold_us", "cold_p20_us": "cold_p20_us", "cold_p80_us": "cold_p80_us", "n": "n", "warm_us": "warm_us",
    "gbps": "gbps", "tflops": "tflops", "of_bandwidth": "of_bandwidth", "of_rate": "of_rate",
    "of_datasheet": "of_datasheet", "library_ratio": "vs_library", "element": "error_element", "norm": "error_norm",
    "forecast_s": "forecast_s",
}  # fmt: skip


def as_result(row: Timed, rung: Rung, *, quick: bool = False) -> Result:
    """A row as the results store keeps it."""
    detail = {"language": row.kind, "against_before": row.against_before, "against_library": row.against_library}
    figures = {result: float(value) for own, result in METRICS.items() if (value := getattr(row, own))}
    code = ""
    if row.verdict == "ok":
        code = identity.code(rung, row.values, row.dtype, row.tuning, base.arch())
    return Result(
        kind="bench",
        what=row.rung,
        dtype=row.dtype,
        shape=row.shape,
        values=dict(row.values),
        tuning=row.tuning,
        texts={row.rung: identity.text(rung)},
        code=code,
        verdict=row.verdict,
        reason=row.reason,
        metrics=figures,
        samples={"cold_us": row.cold_samples_us} if row.cold_samples_us else {},
        detail={name: value for name, value in detail.items() if value},
        notes=row.notes,
        quick=quick,
        machine=machine.facts(),
        state=machine.state(),
    )


def ceilings_result(ceilings: Ceilings) -> Result:
    """The ceilings as the results store keeps them."""
    rates = {f"{name}_flops": rate for name, rate in ceilings.flops.items()}
    figures = {"copy_bytes_per_s": ceilings.bytes, **rates}
    return Result(kind="ceilings", what="machine", metrics=figures, machine=machine.facts(), state=machine.state())
