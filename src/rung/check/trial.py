"""Is a rung right? Every promise about correctness, kept in one place.

A rung runs at every case of its operation that it takes, each with its own seed, and at one case with
five. Between runs the inputs change behind the same pointers, outputs are poisoned, guards are looked
at, and inputs must be as they were. The verdict is one `Report` for each rung and dtype.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch

from rung.check.compare import Deviation, compare
from rung.check.storage import GuardedStorage
from rung.cuda.stall import stall
from rung.dtypes import Dtype
from rung.dtypes import dtype as dtype_named
from rung.errors import RungError
from rung.operation import Case, Operation, Tensors, Values
from rung.rungs.base import Device, Prepared, Rung
from rung.rungs.cuda import CudaRung

SEEDS = 5
PATIENCE = 5.0  # seconds: a case whose single run is forecast to take longer is left out, and said so
Verdict = Literal["ok", "failed", "compiled", "skipped"]
Order = Literal["forward", "reverse", "shuffled"]


@dataclass
class Report:
    """What was found about one rung in one dtype."""

    rung: str
    dtype: str
    device: str
    verdict: Verdict = "ok"
    reason: str = ""
    case: str = ""  # where it failed
    cases: int = 0
    runs: int = 0
    element: float = 0.0  # worst error / bound
    norm: float = 0.0
    norm_cap: float = 0.0
    nondeterministic: bool = False
    notes: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)  # case -> rule that excludes it

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


_remembered: dict[tuple[object, ...], Tensors] = {}  # references of small cases, by all that determines them
REMEMBERED = 256


class _Failure(Exception):
    """A rung was caught; the message says at what."""


def check(
    rung: Rung,
    dtype: str,
    *,
    device: Device,
    seed: int = 0,
    case: str | None = None,
    tuning: dict[str, int] | None = None,
    quick: bool = False,
    races: bool = False,
) -> Report:
    """Check one rung in one dtype; `quick` stops after its first case.

    With `races` the emulator looks at every access to shared memory, not only at what different orders give.
    """
    report = Report(rung.full_name, dtype, device, norm_cap=dtype_named(dtype).norm_cap)
    reason = _cannot_run(rung, device)
    if reason is not None:
        return _only_compiled(rung, dtype_named(dtype), report, reason, tuning)
    cases = list(_legal_cases(rung, dtype_named(dtype), device, case, tuning, report))
    if quick:
        cases = cases[:1]
    if not cases:
        report.verdict = "skipped" if case else "failed"
        report.reason = next(iter(report.left_out.values()), "no case of the operation applies")
        return report
    if device == "cuda":
        torch.cuda.synchronize()
    pace = 0.0  # seconds a FLOP at the largest case so far: only the naive rungs have to care
    for index, (one, values) in enumerate(cases):
        flops = rung.operation.cost(values, dtype_named(dtype).size).flops
        if pace * flops > PATIENCE:
            report.left_out[one.name] = f"{rung.full_name} would take {pace * flops:.0f} s a run"
            continue
        try:
            trial = _Trial(rung, dtype_named(dtype), one, values, device, tuning, report, races)
            trial.run(seed=seed + index, thorough=index == 0)
        except (_Failure, RungError) as failure:
            report.verdict, report.reason, report.case = "failed", str(failure), one.name
            return report
        except Exception as error:  # a Python rung or a library may raise anything
            text = f"{type(error).__name__}: {error}".splitlines()[0]
            report.verdict, report.reason, report.case = "failed", text, one.name
            return report
        report.cases += 1
        # What is shorter says how long a launch takes; the emulator only gets cases that are small.
        if device == "cuda" and trial.seconds > 0.05 and flops:
            pace = trial.seconds / flops
    return report


def _cannot_run(rung: Rung, device: Device) -> str | None:
    if device == "cuda":
        return None
    if rung.emulate:
        return rung.emulate
    if isinstance(rung, CudaRung):
        from rung import emulator

        return emulator.available()
    return None


def _only_compiled(rung: Rung, dtype: Dtype, report: Report, reason: str, tuning: dict[str, int] | None) -> Report:
    report.verdict, report.reason = "skipped", reason
    if not isinstance(rung, CudaRung):
        return report
    from rung.cuda import nvrtc

    for case in rung.operation.cases:
        values = rung.operation.complete(case.values)
        if dtype.name in case.dtypes and rung.refusal(values, dtype, tuning) is None:
            try:
                nvrtc.compile_cubin(rung.build(values, dtype, tuning), "sm_90")
            except RungError as error:
                report.verdict, report.reason, report.case = "failed", str(error), case.name
            else:
                report.verdict = "compiled"
            return report
    report.verdict, report.reason = "failed", "no case of the operation fits the rung's needs"
    return report


def _legal_cases(
    rung: Rung, dtype: Dtype, device: Device, only: str | None, tuning: dict[str, int] | None, report: Report
) -> Iterator[tuple[Case, Values]]:
    operation = rung.operation
    if only is not None and only not in [c.name for c in operation.cases]:
        names = ", ".join(repr(c.name) for c in operation.cases)
        raise RungError(f"{operation.name} has no case {only!r}; it has {names}.")
    for case in operation.cases:
        if only is not None and case.name != only:
            continue
        if dtype.name not in case.dtypes or (case.where == "cuda" and device != "cuda"):
            continue
        values = operation.complete(case.values)
        reason = rung.refusal(values, dtype, tuning, device=device)
        if reason is not None:
            report.left_out[case.name] = reason
            continue
        yield case, values


class _Trial:
    """One rung at one case: storage, inputs, reference, and the runs over them."""

    def __init__(
        self,
        rung: Rung,
        dtype: Dtype,
        case: Case,
        values: Values,
        device: Device,
        tuning: dict[str, int] | None,
        report: Report,
        races: bool,
    ) -> None:
        self.races = races
        self.rung, self.dtype, self.case, self.values = rung, dtype, case, values
        self.device, self.tuning, self.report = device, tuning, report
        self.operation: Operation = rung.operation
        self.seconds = 0.0  # the fastest single run so far

    def run(self, *, seed: int, thorough: bool) -> None:
        names = self._bound()
        self._with(names, seed, thorough=thorough)
        if not thorough:
            return
        nullable = {o.name for o in self.operation.operands if o.nullable and o.name in names}
        if nullable:
            self._with([n for n in names if n not in nullable], seed, thorough=False)
        if any(o.strided and o.name in names for o in self.operation.operands):
            self._with(names, seed, thorough=False, padded=True)

    def _bound(self) -> list[str]:
        """The operands of this call: the required ones, and the optional ones that the rung binds."""
        binds = self.rung.binds
        wholes = {o.view_of for o in self.operation.operands if o.name in binds and o.view_of}
        missing = self.operation.required - binds - wholes
        lost = [m for m in sorted(missing) if self.operation.operand(m).written]
        if lost:
            raise _Failure(f"the rung never binds the output {lost[0]}")
        chosen = []
        for operand in self.operation.operands:
            whole = operand.view_of or operand.name
            wanted = operand.name in binds or operand.name in self.operation.required
            if wanted or operand.name in wholes or (operand.view_of and whole in self.operation.required):
                chosen.append(operand.name)
        return chosen

    def _with(self, names: list[str], seed: int, *, thorough: bool, padded: bool = False) -> None:
        self.names = names
        self.storage = GuardedStorage(self.device)
        self.tensors = self._allocate(seed, padded)
        if padded and self.rung.refusal(self.values, self.dtype, self.tuning, self.tensors, self.device):
            return
        first = self._settle(seed, self._prepare())
        for other in range(1, SEEDS if thorough else 1):
            self._refill(seed + 100 * other)
            self._settle(seed + 100 * other, self._prepared)
        if self.device == "cuda":
            if thorough:
                self._delayed(seed + 7919)
                self._captured(seed + 7920)
        elif isinstance(self.rung, CudaRung) and not padded:
            self._refill(seed)
            self._other_orders(first, thorough, seed)

    def _allocate(self, seed: int, padded: bool) -> Tensors:
        strided = {o.name for o in self.operation.operands if o.strided}

        def empty(name: str, shape: tuple[int, ...], kind: torch.dtype) -> torch.Tensor:
            if padded and name in strided:
                return self.storage.empty_padded(name, shape, kind)
            return self.storage.empty(name, shape, kind)

        return self._inputs(seed, empty)

    def _inputs(self, seed: int, empty: Callable[..., torch.Tensor]) -> Tensors:
        self._seed = seed
        return self.operation.inputs(
            self.values,
            self.dtype,
            seed,
            magnitude=self.case.magnitude,
            change=self.case.change,
            empty=empty,
            names=self.names,
        )

    def _refill(self, seed: int) -> None:
        """New numbers behind the same pointers."""
        self._inputs(seed, lambda name, shape, kind: self.tensors[name])

    def _prepare(self, order: Order | None = None) -> Prepared:
        emulation = None
        if self.device == "emulator" and isinstance(self.rung, CudaRung):
            from rung.emulator import Settings

            emulation = Settings(order=order or "forward", seed=17, check_races=self.races)
        scratch = self.storage if order is None else GuardedStorage(self.device)
        self._prepared = self.rung.prepare(
            self.tensors,
            self.values,
            self.dtype,
            device=self.device,
            tuning=self.tuning,
            empty=lambda name, shape, kind: scratch.empty(f"buffer {name}", shape, kind),
            emulation=emulation,
        )
        return self._prepared

    def _outputs(self) -> list[str]:
        return [n for n in self.names if self._is_output(n)]

    def _is_output(self, name: str) -> bool:
        operand = self.operation.operand(name)
        return operand.written and operand.view_of is None

    def _poison(self) -> None:
        for name in self._outputs():
            if self.operation.operand(name).role == "out":
                self.storage.poison(name)

    def _reference(self) -> Tensors:
        """What the outputs should be; the rungs of a ladder meet the same numbers, so it is remembered."""
        key = (self.operation.name, self.case.name, self.dtype.name, self._seed, tuple(self.names))
        if self.device == "cuda" or key not in _remembered:
            reference = self._computed_reference()
            if self.device == "cuda":
                return reference
            if len(_remembered) >= REMEMBERED:
                _remembered.clear()
            _remembered[key] = reference
        return _remembered[key]

    def _computed_reference(self) -> Tensors:
        exact: Tensors = {}
        for name in self.names:
            tensor = self.tensors[name]
            if self.operation.operand(name).role != "out":
                exact[name] = tensor.double() if tensor.is_floating_point() else tensor.long()
        return self.operation.reference(exact, self.values)

    def _settle(self, seed: int, prepared: Prepared) -> Tensors:
        """Run once and look at everything that could be wrong; gives the outputs."""
        reference = self._reference()
        inputs = [n for n in self.names if n in self.storage.blocks and not self._is_output(n)]
        before = {n: self.storage.snapshot(n) for n in inputs}
        carried = {n: self.tensors[n].clone() for n in self._outputs() if self.operation.operand(n).role == "inout"}
        self._poison()
        self._go(prepared)
        self._compare(reference)
        self._look_around(before)
        first = {n: self.tensors[n].clone() for n in self._outputs()}
        for name, tensor in carried.items():
            self.tensors[name].copy_(tensor)
        self._poison()
        self._go(prepared)
        if any(not _same_bits(first[n], self.tensors[n]) for n in first):
            self.report.nondeterministic = True
            self._compare(reference)
        return first

    def _go(self, prepared: Prepared) -> None:
        start = time.perf_counter()
        prepared.run()
        if self.device == "cuda":
            try:
                torch.cuda.synchronize()
            except RuntimeError as error:
                raise _Failure(f"the GPU reports: {str(error).splitlines()[0]}") from None
        took = time.perf_counter() - start
        self.seconds = min(self.seconds or took, took)
        self.report.runs += 1

    def _look_around(self, before: Tensors) -> None:
        damage = self.storage.damaged()
        if damage:
            raise _Failure(damage)
        for name, bytes_before in before.items():
            if self.storage.changed(name, bytes_before):
                raise _Failure(f"changed its input {name}")

    def _compare(self, reference: Tensors) -> None:
        reference = self.operation.expected(reference, self.tensors, self.values)
        for name in self._outputs():
            if name not in reference:
                raise RungError(f"the reference of {self.operation.name} gives no {name!r}.")
            out = self.tensors[name]
            deviation = compare(
                name,
                out,
                reference[name].reshape(out.shape),
                self.dtype,
                self.operation.tolerance(self.values, self.dtype),
                exact=not out.is_floating_point(),
            )
            self._note(deviation)

    def _note(self, deviation: Deviation) -> None:
        self.report.element = max(self.report.element, deviation.element)
        self.report.norm = max(self.report.norm, deviation.norm)
        if not deviation.ok:
            raise _Failure(deviation.problem)

    def _other_orders(self, first: Tensors, thorough: bool, seed: int) -> None:
        """The emulator's threads and blocks in other orders: what depends on the order is a race."""
        both: tuple[Order, Order] = ("reverse", "shuffled")
        orders = both if thorough else (both[seed % 2],)
        for order in orders:
            self._refill(seed)  # what is read and written has moved on
            reference = self._reference()
            self._poison()
            self._go(self._prepare(order))
            moved = [n for n in first if not _same_bits(first[n], self.tensors[n])]
            if not moved:
                continue
            if "atomic" not in self.rung.source:
                raise _Failure(f"a race: {moved[0]} depends on the order in which threads run ({order})")
            self.report.nondeterministic = True
            self._compare(reference)

    def _delayed(self, seed: int) -> None:
        """Inputs that arrive late on the current stream: work on another stream would not have waited."""
        fresh = self._inputs(seed, lambda name, shape, kind: torch.empty(shape, dtype=kind, device="cuda"))
        torch.cuda.synchronize()
        stall(50_000_000)
        for name, tensor in fresh.items():
            if self.operation.operand(name).view_of is None and self.operation.operand(name).role != "out":
                self.tensors[name].copy_(tensor)
        self._poison()
        self._prepared.run()
        seen = {n: self.tensors[n].clone() for n in self._outputs()}
        self._go(self._prepared)  # waits for everything
        self._refill(seed)
        reference = self._reference()
        for name, tensor in seen.items():
            self.tensors[name].copy_(tensor)
        try:
            self._compare(reference)
        except _Failure as failure:
            raise _Failure(f"does not wait for the current stream: {failure}") from None

    def _captured(self, seed: int) -> None:
        """The same launches recorded once and replayed on other inputs, as the model does."""
        if not isinstance(self.rung, CudaRung):
            return
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._prepared.run()
        self._refill(seed)
        reference = self._reference()
        self._poison()
        graph.replay()
        torch.cuda.synchronize()
        try:
            self._compare(reference)
        except _Failure as failure:
            raise _Failure(f"replayed from a CUDA graph: {failure}") from None


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
