"""One rung bound at one case: its runs, and the checks after each."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuless import EmulatorFault
from gpuless.counts.coverage import Coverage
from rung.arrays import Array, bits_of, copy_of, to_host
from rung.check.compare import Deviation, Measured
from rung.check.guarded_memory import POISONS, STRICTEST, Kind, Placement
from rung.check.operands import Operands
from rung.check.report import ADMITS, SLOW, CheckRequest, Failure, Report, admitted_by
from rung.check.runner import STALLS, Binding, LocalRunner, Order, blamed
from rung.dtypes import Dtype
from rung.errors import RungError
from rung.explain.diagnosis import index_names
from rung.explain.likeness import alternatives
from rung.operation import Case, Tensors, Values
from rung.rungs.base import USUAL, Device, Rung, emulated_multiprocessors
from rung.rungs.cuda import CudaRung

SEEDS = 5
_HALF = re.compile(
    r"\b(?:__h(?:add|sub|mul|fma|div)\w*|h2?(?:exp|exp2|exp10|tanh|log|sqrt|rsqrt|rcp|sin|cos)(?:_approx)?)\s*\("
)
WRONG = ("values", "bounds")  # kinds of failures that depend on sizes and scalars
NAN = b"\xff"
BY_CHANCE = {2: 2.0**-12}  # share of numbers of so many bytes that are the poison by chance
UNMOVED = 0.01  # share of the results that may be right by chance when no kernel runs
SMALL = 1 << 20  # up to these bytes per case, the CPU compares faster than a GPU shared by many processes
ORDERS: tuple[Order, ...] = ("forward", "reverse", "shuffled")


class Trials:
    """Makes the trials of one rung in one dtype, each with different addresses and a different thread order."""

    def __init__(
        self, rung: Rung, dtype: Dtype, device: Device, report: Report, host: LocalRunner, asked: CheckRequest
    ) -> None:
        self.rung, self.dtype, self.device, self.tuning = rung, dtype, device, asked.tuned
        self.report, self.host = report, host
        alone = asked.effort.alone and device == "emulator"
        self.coverage = asked.coverage or (alone and rung.kind in ("cuda", "triton"))
        self.ran: Coverage = {}  # what launches have run, of processes that have told
        self.before_first_run: Callable[[], None] | None = None  # called once, when the first case is bound
        self.operation = rung.operation
        self.cuda = isinstance(rung, CudaRung)
        self.half_arithmetic = dtype.size == 2 and isinstance(rung, CudaRung) and _HALF.search(rung.source) is not None
        if self.half_arithmetic:
            report.notes.append("computes in 16 bits: bounds are twice the errors of the formula in 16 bits")
        self.in_order = False  # blocks wait for those of lower numbers
        self._orders = 0  # given so far
        self._bound = 0  # trials so far
        self.explains = True  # what wrong numbers may be instead
        self._last: tuple[Case, Values, int, list[str]] | None = None

    def at(
        self,
        case: Case,
        values: Values,
        seed: int,
        how: Binding | None = None,
        names: list[str] | None = None,
        *,
        only_run: bool = False,
        placement: Placement | None = None,
    ) -> Trial:
        names = names or self.names()
        self._last = (case, values, seed, names)
        self.report.case = case.name
        how = replace(how or Binding(self.tuning), coverage=self.coverage)
        return Trial(self, case, values, how, names, seed, only_run, placement)

    def call_facts(self, values: Values, names: Sequence[str]) -> dict[str, Any]:
        """A call, as a failure tells it."""
        left_out = [o.name for o in self.operation.operands if o.nullable and o.name not in names]
        return {
            "dims": {d: values[d] for d in self.operation.dims},
            "scalars": {s: values[s] for s in self.operation.scalars},
            "dtype": self.dtype.name,
            "without": [n for n in left_out if n in self.rung.binds],
        }

    def last_call(self) -> dict[str, Any]:
        return self.call_facts(self._last[1], self._last[3]) if self._last else {}

    def refuses(self, values: Values, tuning: dict[str, int] | None = None) -> bool:
        tuning = self.tuning if tuning is None else tuning
        return self.rung.refusal(values, self.dtype, tuning, device=self.device) is not None

    def grids(
        self, values: Values, tuning: dict[str, int] | None = None, multiprocessors: int = USUAL
    ) -> list[tuple[int, int, int]]:
        """Of each launch; empty for a rung that is not CUDA C++."""
        if not isinstance(self.rung, CudaRung):
            return []
        with emulated_multiprocessors(multiprocessors):
            launches = self.rung.launches(values, self.dtype, tuning or self.tuning, self.device)
        return [config.grid for _, config in launches]

    def next_order(self) -> Order:
        """The unusual thread orders, in turn."""
        self._orders += 1
        return "forward" if self.device == "cuda" else ORDERS[1 + self._orders % 2]

    def next_placement(self) -> Placement:
        """Different addresses from the last time."""
        self._bound += 1
        kind: Kind = ("odd", "page")[self._bound // 2 % 2]
        return Placement(kind, below=self._bound % 2 == 1)

    @property
    def keeps_state(self) -> bool:
        """Whether a later call may find what an earlier one has left: not if all memory that a kernel may write to is
        poisoned before each call."""
        plain = isinstance(self.rung, CudaRung) and not self.rung.header.buffers
        changed = any(self.operation.operand(name).role == "inout" for name in self.names())
        return self.device == "cuda" or not plain or changed or self.host.keeps_state

    def names(self) -> list[str]:
        """The operands of this call: the required ones, and the optional ones that the rung binds."""
        operation, binds = self.operation, self.rung.binds
        wholes = {o.view_of for o in operation.operands if o.name in binds and o.view_of}
        replaced = operation.replaced(binds)
        missing = operation.required - binds - wholes - replaced
        unbound = [m for m in sorted(missing) if operation.operand(m).written]
        if unbound:
            raise Failure(f"the rung never binds the output {unbound[0]}")
        chosen = []
        for operand in operation.operands:
            whole = operand.view_of or operand.name
            needed = operand.name in binds or operand.name in operation.required
            if operand.name in replaced:
                continue
            if needed or operand.name in wholes or (operand.view_of and whole in operation.required):
                chosen.append(operand.name)
        return chosen

    def fewer_names(self) -> list[str] | None:
        """The operands of a call without the nullable ones, but for those that it demands; None if there are none."""
        names = self.names()
        fewer = [n for n in names if not self.operation.operand(n).nullable or n in self.rung.needs]
        return fewer if fewer != names else None


class Trial:
    """One rung bound at one case, and its runs; with `only_run`, without replays and late inputs."""

    def __init__(
        self,
        of: Trials,
        case: Case,
        values: Values,
        how: Binding,
        names: list[str],
        seed: int,
        only_run: bool,
        placement: Placement | None,
    ) -> None:
        self.of, self.how, self.report = of, how, of.report
        self.operation = of.operation
        self.seconds = 0.0  # the fastest single run so far
        self.turn = 0
        self.moved: list[str] = []
        self._zeroed: set[str] = set()  # outputs that start as zeros instead of poison
        self.worst = 0.0  # deviation, in units of its bound
        self.integers_differ = False
        self.values, self.names = values, names
        with self.report.phase("inputs"):
            owned = [o for o in self.operation.operands if o.name in names and o.view_of is None]
            sizes = [self.operation.size_of(o, values, of.dtype) for o in owned]
            small = only_run and sum(sizes) <= SMALL
            multiple = alignment_of(of.rung, values, of.dtype, how.tuning, of.device)
            self.storage = of.host.storage(
                multiple,
                placement or of.next_placement(),
                small=small,
                sizes=sizes if placement else (),
            )
            memory, empty = self.storage.memory, self.storage.empty
            self.operands = Operands(
                self.operation, values, of.dtype, names, seed, device=memory, empty=empty, case=case
            )
            self.operands.blocks = self.storage.blocks
            self.operands.as_the_formula = of.half_arithmetic
            self.operands.admits = {key for key in ADMITS if getattr(of.rung.header, key)}
            if of.rung.foreign:
                self.operands.admits.add("only_finite")
            self.storage.only_read(self.operation.operand(name) for name in self.operands.inputs)
        with self.report.phase("compile_and_bind"):
            self.call = of.host.bind(of.rung, self.operands, how, self.storage)
        if of.before_first_run:
            of.before_first_run()
            of.before_first_run = None

    def once(self, order: Order = "forward", before: Tensors | None = None) -> Tensors:
        """Run once, and check everything."""
        if self.of.in_order:
            order = "forward"
        try:
            return self._once(order=order, before=before)
        except EmulatorFault as fault:
            if fault.kind == "unfinished":
                raise Failure(str(fault), SLOW) from None
            if order == "forward" or fault.kind != "deadlock":
                raise
            outputs = self._once(before=before)
            self.of.in_order = True
            self.report.notes.append(
                "its blocks wait for blocks of lower numbers: GPUs start these first, but CUDA does not promise it (a "
                "number from atomicAdd would be safe); only that order was tried"
            )
            return outputs
        except Failure as failure:
            if POISONS[(self.turn - 1) % len(POISONS)] == NAN:
                failure = self._of_nan(failure)
            raise self._because_of(order, failure) from None

    def _of_nan(self, failure: Failure) -> Failure:
        """Poison of NaN also remains where a kernel computes with it, or writes that NaN."""
        tensors = {n: self.operands.tensors[n] for n in self.operands.outputs}
        read = [n for n, t in tensors.items() if self.operation.operand(n).role == "out" and bool((t != t).any())]
        if read and self._right_with(read) and not self._right_with([]):
            lacks = "read before it is written (leave `beta * C` out where beta is 0)"
            lacks = "not written where its result is 0" if self._leaves_zeros(read) else lacks
            text = f"{read[0]} is {lacks}: right only if it starts as zeros; else add zeroed = {json.dumps(read)}"
            return Failure(text, "zeroed", read)
        if not failure.unwritten:
            return failure
        try:
            self._once()
        except Failure as again:
            if not again.unwritten:
                return Failure(f"NaN is written, from memory that was never set: {again}", again.kind)
        return failure

    def _leaves_zeros(self, names: Sequence[str]) -> bool:
        """Whether NaN is left only where the result is 0."""
        tensors, right = self.operands.tensors, self.operands.reference()
        return all(not bool(right[n].reshape(t.shape)[t != t].any()) for n in names for t in [tensors[n]])

    def _right_with(self, zeroed: Sequence[str]) -> bool:
        """Whether the last run is right when it is repeated, in memory of the same poison but for these outputs."""
        self._zeroed, self.turn = set(zeroed), self.turn - 1
        try:
            self._once()
        except (Failure, RungError):
            return False
        finally:
            self._zeroed = set()
        return True

    def twice(self, slow: float = math.inf) -> None:
        """Run and check twice, with emulated threads in another order the second time: different results are a race.
        If the first run takes this many seconds, there is no second."""
        first = self.once()
        if self.seconds >= slow:
            return
        order = self.of.next_order()
        self.once(order, first)
        moved = self.moved
        if not moved or self.report.nondeterministic:
            return
        if order != "forward":
            self._once(before=first)
            if not self.moved and not self.of.host.atomics:  # which may add in any order
                raise Failure(f"a race: {moved[0]} depends on the order in which threads run ({order})")
        self.report.nondeterministic = True

    def _because_of(self, order: Order, failure: Failure) -> Failure:
        """A failure in another thread order is a race if the usual order is right."""
        if order == "forward" or failure.kind == SLOW:
            return failure
        try:
            self._once()
        except Failure:
            return failure
        return Failure(f"a race: right in one order of threads, not in another ({order}): {failure}", "race")

    def _once(self, how: str = "run", order: Order = "forward", before: Tensors | None = None) -> Tensors:
        """One run on poisoned outputs, with inputs and state restored; returns the outputs, and records which have
        `moved` since the previous run."""
        operands, phase, took = self.operands, self.report.phase, None
        with phase("reference"):
            reference = operands.reference()
        with phase("preparation"):
            operands.keep()
            given = self.storage.snapshot(operands.inputs)
            self._poison()
        try:
            with phase("runs" if self.seconds else "first_runs"):
                if how == "replayed":
                    self.call.replayed()
                else:
                    took = self.call.run(order=order)
            self.report.runs += 1
            with phase("comparison"), blamed(self.of.device):
                if self.operation.custom_check is not None:  # it also compares the inputs
                    self._look_around(given)
                changed = self.storage.changed(operands.inputs, given)
                differ = [_differ(tensor, operands.tensors[n]) for n, tensor in (before or {}).items()]
                flags = self._compare(reference, *changed, *differ)
                if any(flags[: len(changed)]):
                    self._look_around(given)
                self.moved = [n for n, moved in zip(before or {}, flags[len(changed) :], strict=True) if moved]
                if took is not None:
                    self.seconds = min(self.seconds or took(), took())
                return {n: copy_of(operands.tensors[n]) for n in operands.outputs}
        finally:
            operands.restore()

    def refill(self, seed: int) -> None:
        with self.report.phase("inputs"):
            self.operands.refill(seed)

    def _poison(self) -> None:
        self.storage.repaint(self.turn)
        for name in self.operands.outputs:
            if self.operation.operand(name).role == "out":
                self.storage.poison(name, self.turn)
            if name in self._zeroed:
                self.operands.tensors[name][...] = 0
        self.turn += 1

    def unlaunched(self) -> None:
        """Without its kernels, a rung's results must not be right: otherwise something else computed them."""
        right = self._once()
        self.operands.keep()
        self._poison()
        before = {n: copy_of(self.operands.tensors[n]) for n in right}
        try:
            if not self.call.unlaunched():
                return
            for name, tensor in right.items():
                now = self.operands.tensors[name]
                moved = ~_differing(now, tensor) & _differing(now, before[name]) & (tensor != 0)
                if moved.sum() > math.prod(tensor.shape) * UNMOVED:
                    self.of.host.library_calls.add(f"{name} comes out right without its kernels")
        finally:
            self.operands.restore()

    def later_runs(self, count: int) -> None:
        """Later runs must be as right as the first."""
        try:
            self._once()
            self.call.run(count)
            self.report.runs += count
            self.refill(self.operands.seed + 1)  # the state that a call changes has advanced
            self._once()
        except Failure as failure:
            raise Failure(f"after {count} runs: {failure}", failure.kind) from None

    def late(self, seed: int) -> None:
        """Inputs arrive late on the current stream; work on another stream does not wait for them."""
        self.refill(seed)
        reference = self.operands.reference()  # of what a call changes, before one has
        with self.report.phase("late"):
            for cycles in STALLS:
                self.refill(seed + 1)  # work that runs too early reads other inputs
                self._poison()
                if self.call.late(seed, cycles):
                    break
        try:
            self._compare(reference)
        except Failure as failure:
            raise Failure(f"does not wait for the current stream: {failure}", failure.kind) from None
        self.refill(seed)

    def replayed(self, seed: int) -> None:
        """The same launches captured once and replayed on other inputs, as the model does."""
        try:
            for other in range(2):
                self.refill(seed + other)
                self._once("replayed")
        except Failure as failure:
            raise Failure(f"replayed from a CUDA graph: {failure}", failure.kind) from None

    def _look_around(self, before: Array) -> None:
        if touched := self.storage.touched(self.operands.inputs, before):
            raise Failure(touched)

    def _compare(self, reference: Tensors, *asked: Array) -> list[float]:
        """Compares the outputs, and fetches further requested numbers in the same query of the GPU."""
        deviations, flags = self.operands.judged(reference, *asked)
        text = admitted_by("only_finite")
        if self.operands.admitted and not self.of.rung.header.only_finite and text not in self.report.notes:
            self.report.notes.append(text)
        for deviation in deviations:
            self._note(deviation)
        return flags

    def _never_written(self) -> str:
        """Which output still holds the poison of this run."""
        for name in self.operands.outputs:
            out = self.operands.tensors[name]
            left, of = self.storage.still_poisoned(name, self.turn - 1, out.itemsize), math.prod(out.shape)
            if left > of * BY_CHANCE.get(out.itemsize, 0.0) and self.operation.operand(name).role == "out":
                return f"{name}: {left} of {of} values were never written"
        return ""

    def _note(self, deviation: Deviation) -> None:
        self.worst = max(self.worst, deviation.element, deviation.norm / (deviation.norm_cap or math.inf))
        self.report.element = max(self.report.element, deviation.element)
        if deviation.norm_cap:  # with a tolerance for few results, in units of the usual cap
            self.report.norm = max(self.report.norm, deviation.norm * self.report.norm_cap / deviation.norm_cap)
        if not deviation.ok:
            self.integers_differ = deviation.integers
            measured = next((m for m in self.operands.last if m.name == deviation.name), None)
            facts = self.of.call_facts(self.values, self.names)
            about = self._about(measured) if measured and self.of.explains else None
            if measured and about and (found := measured.diagnosis(infinite=self.operands.infinite, **about)):
                facts |= found.as_json()
            never = self._never_written()
            self.report.failure = facts | ({"unwritten": True} if never else {})
            reads = self.of.host.unwritten if self.of.cuda else ""  # Triton reads for idle lanes
            said = (never or deviation.problem) + (f"; {reads}" if reads else "")
            raise Failure(said, "values", unwritten=bool(never))

    def _about(self, measured: Measured) -> dict[str, Any]:
        """Names of the axes, and what the numbers may be instead."""
        name = measured.name
        inputs = self.operands.in_float64()
        other = alternatives(self.operation, self.values, inputs, name, self.of.dtype.size)
        axes = index_names(self.operation.operand(name).shape, measured.out.ndim)
        return {"axes": axes, "alternatives": other, "inputs": {n: to_host(t) for n, t in inputs.items()}}


def alignment_of(rung: Rung, values: Values, dtype: Dtype, tuning: dict[str, int] | None, device: Device) -> int:
    """The alignment of data; 1 if any element's address is valid. A Python rung without `align` gets torch's alignment,
    which its kernels and libraries expect."""
    if not isinstance(rung, CudaRung) and rung.header.align is None:
        return STRICTEST
    return max(1, rung.alignment(values, dtype, tuning, device))


def _differ(one: Array, other: Array) -> Array:
    """Whether their bits differ."""
    return _differing(one, other).any()


def _differing(one: Array, other: Array) -> Array:
    """Where their bits differ."""
    kind = f"uint{8 * one.itemsize}"
    return bits_of(one, kind) != bits_of(other, kind)


@dataclass(frozen=True)
class Ran:
    """A case, the duration of a run, and the amount of work in it."""

    seconds: float
    work: float  # FLOPs and bytes
    index: int  # among all cases
    case: Case
    values: Values


def largest(ran: Sequence[Ran], affordable: float) -> Ran:
    """The case with most work whose runs take at most this long; if all take longer, the fastest."""
    affordable = max(affordable, min(one.seconds for one in ran))
    return max((one for one in ran if one.seconds <= affordable), key=lambda one: (one.work, one.index))


def quick(ran: Sequence[Ran], affordable: float) -> list[Ran]:
    """The cases whose runs take at most this long, in the operation's order; if there is none, the fastest."""
    found = [one for one in ran if one.seconds <= affordable] or sorted(ran, key=lambda one: one.seconds)[:1]
    return sorted(found, key=lambda one: one.index)


def widest(trials: Trials, among: Sequence[Ran], tuning: dict[str, int] | None = None) -> list[Ran]:
    """Those with most blocks along each axis of a grid, and with most in all."""
    if not trials.cuda:
        return list(among[-1:])
    grids = [(one, trials.grids(one.values, tuning)) for one in among]
    counts = [lambda grid, axis=axis: grid[axis] for axis in range(3)] + [math.prod]
    chosen = [max(grids, key=lambda g: max(map(count, g[1]), default=0))[0] for count in counts if grids]
    return list({one.index: one for one in chosen}.values())
