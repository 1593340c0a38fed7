"""Is a rung right? All correctness checks in one place. A rung runs at every case of its operation that it supports,
twice (of a whole ladder, what takes long on a GPU, once), with poison and guards that change from run to run and are
checked after every run; the emulator runs the threads of the second run in another order. At the largest affordable
case it also gets five seeds behind the same pointers, every order of threads that the emulator has, its search for
races, late inputs and a CUDA graph. When it is checked alone, every case has the search for races and other numbers
behind the same pointers; the numbers of cases that it refuses are tried at a shape that it supports; its tunables'
other values and some hundred more runs follow. Where its grid depends on the GPU, a small and a large one are emulated
as well. The verdict is one `Report` for each rung and dtype.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch

from rung.check import pairwise
from rung.check.calls import STALLS, Here, Host, How, Order, blamed
from rung.check.compare import Deviation
from rung.check.operands import Operands
from rung.check.other_code import differs
from rung.check.placement import ALL, Kind, Placement
from rung.check.report import SHARE_REFUSED, Failure, Report
from rung.check.sizes import sizes_in
from rung.dtypes import Dtype
from rung.dtypes import dtype as dtype_named
from rung.emulator import EmulatorFault
from rung.errors import RungError
from rung.operation import Case, Operation, Tensors, Values
from rung.rungs import identity, source_file
from rung.rungs.base import USUAL, Device, Rung, emulated_multiprocessors
from rung.rungs.cuda import INCLUDE, CudaRung

SEEDS = 5
UNMOVED = 0.01  # of the results, which may come out right by chance where no kernel runs
KEPT = 3 << 30  # bytes of the GPU's memory that a process keeps for its next rung: others need some, too
SMALL = 1 << 20  # bytes of a case that the CPU compares sooner than a GPU with many processes on it
LARGE = 132  # multiprocessors of an H200
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_WAITS = re.compile(r"\bpdl_wait\(|griddepcontrol\.wait|cudaGridDependencySynchronize")
_FACTS = re.compile(r"\bsms\b|\bmax_grid_y\b")
ORDERS: tuple[Order, ...] = ("forward", "reverse", "shuffled")


@dataclass(frozen=True)
class Effort:
    """How much is checked: less for a whole ladder, more for a single rung."""

    affordable: float  # seconds of a run, for the case with all checks
    watched: float  # ... and for those with the race check
    alone: bool  # every pair of values of two tunables, and more; at every case what is otherwise checked at one
    later_runs: int  # at the smallest case, before its outputs are compared again
    slow: float = math.inf  # seconds of a kernel's run on a GPU from which one run of a case is enough
    patience: float = 5.0  # seconds: a case whose single run on a GPU is forecast to take longer is left out, and said


LADDER = Effort(0.02, 0.004, alone=False, later_runs=0, slow=0.25, patience=1.5)
ALONE = Effort(0.3, 0.3, alone=True, later_runs=400)
QUICK = Effort(0.0, 0.0, alone=False, later_runs=0)
UNFUSED = {"--fmad=false", "-fmad=false"}  # options by which a GPU's compiler fuses nothing
OFTEN = 0.03  # seconds of a run, for cases that every setting of the tunables meets
FEW_LATER = 20  # runs of the case with most blocks
BASES, TURNS = 6, 3  # small cases of which one dimension is changed: each size meets as many as there are turns
SIZES = 200  # small trials with sizes that the text names
SIZES_OF_TWO = 200  # ... with two dimensions of sizes that it names
# As many small trials takes what has to be compiled for one; as one count so many threads, so many times that one gives
# way to another, so much arithmetic and memory.
COMPILED, THREADS, SWITCHES, FLOPS, BYTES = 10, 200_000, 1_000_000, 1e6, 2e6
GROSS = 10.0  # times the bound
RESIZED = 1e7  # FLOPs at most of such a case
RESIZED_BYTES = 2e7  # gpt2's weights of one layer fit
RESIZED_THREADS = 2_000_000
FURTHER = 48  # settings of the tunables beyond every pair of values


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
    coverage: bool = False,
    effort: Effort = ALONE,
    host: Host | None = None,
) -> Report:
    """Check one rung in one dtype; `quick` stops after its first case.

    With `races` the emulator checks every access for races, not only the results of different orders; with `coverage`
    it reports which branches no case has taken.
    """
    report = Report(rung.full_name, dtype, device, norm_cap=dtype_named(dtype).norm_cap)
    reason = _cannot_run(rung, device)
    if reason is not None:
        return _only_compiled(rung, dtype_named(dtype), report, reason, tuning)
    alone = effort.alone and not quick
    cases = list(_legal_cases(rung, dtype_named(dtype), device, case, tuning, report, alone=alone))
    if not cases:
        report.verdict = "skipped" if case else "failed"
        report.reason = next(iter(report.left_out.values()), "no case of the operation applies")
        return report
    if _never_waits(rung):
        report.verdict = "failed"
        report.reason = "launched with pdl, but waits nowhere for the kernel before it (pdl_wait)"
        return report
    if device == "cuda":
        torch.cuda.synchronize()
        if torch.cuda.memory_reserved() > KEPT:
            torch.cuda.empty_cache()
    of = _Rung(rung, dtype_named(dtype), device, tuning, report, races, coverage, host or Here(device))
    if coverage:
        of.host.unreached()  # of what ran before
    of.host.unwatched()  # likewise
    try:
        of.judge(cases[:1] if quick else cases, seed, QUICK if quick else effort)
    except (Failure, RungError) as failure:
        report.verdict, report.reason = "failed", str(failure)
        of.explain()
        return report
    except Exception as error:  # a Python rung or a library may raise anything
        text = (f"{type(error).__name__}: {error}".splitlines() or [type(error).__name__])[0]
        report.verdict, report.reason = "failed", text
        return report
    report.case = ""
    if rung.operation.complaint is not None:
        report.notes.append("judged by the problem's own check_implementation; the error is rung's")
    if threads := of.host.unwatched():
        report.notes.append(f"not searched for races where {threads} threads run at once, too many for the emulator")
    if coverage:
        report.unreached = of.host.unreached()
    if of.host.library_calls:
        report.verdict = "calls the library"
        report.reason = f"right, but not by a kernel of its own: {', '.join(sorted(of.host.library_calls)[:6])}"
        return report
    if case is None and not quick and _hides(rung, dtype_named(dtype), device, tuning, report):
        rules = "; ".join(sorted({r.removeprefix(f"{rung.full_name} ") for r in report.left_out.values()}))
        report.verdict = "few cases"
        refused = len(report.left_out)
        report.reason = f"right at {report.cases}, but refuses {refused} of the operation's cases ({rules})"
    if report.verdict == "ok" and device == "emulator" and (file := _differs_on_a_gpu(rung)):
        report.verdict = "arithmetic only"
        report.reason = f"{file} has other code for the emulator than for a GPU, which was not tried"
    return report


def _differs_on_a_gpu(rung: Rung) -> str:
    """A file of the rung with different code for the emulator and for a GPU: the GPU's code was not run."""
    if rung.path is None:
        return ""
    own = (path for path in [rung.path, *identity.files(rung)] if path.resolve().parent != INCLUDE.resolve())
    return next((path.name for path in own if differs(source_file.read(path))), "")


def hangs_on_the_gpu(rung: Rung) -> bool:
    """Whether the number of multiprocessors, or of blocks that a grid may have, changes what is launched."""
    return isinstance(rung, CudaRung) and bool(_FACTS.search(rung.source + str(rung.table)))  # inherited keys, too


def _never_waits(rung: Rung) -> bool:
    """Whether a launch may begin before the kernel ahead of it has ended, and nothing in the text holds it back."""
    if not isinstance(rung, CudaRung) or not any(launch.pdl for launch in rung.header.launches):
        return False
    texts = [rung.source, *(source_file.read(path) for path in identity.files(rung) if path.name != "ptx.cuh")]
    return not any(_WAITS.search(_COMMENT.sub("", text)) for text in texts)


def _hides(rung: Rung, dtype: Dtype, device: Device, tuning: dict[str, int] | None, report: Report) -> bool:
    """Whether it refuses most of the cases, and most of the shapes of the model too."""
    if len(report.left_out) <= SHARE_REFUSED * (report.cases + len(report.left_out)):
        return False
    shapes = [rung.operation.complete(values) for values in rung.operation.shapes.values()]
    refused = [v for v in shapes if rung.refusal(v, dtype, tuning, device=device) is not None]
    return len(refused) > SHARE_REFUSED * len(shapes)


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
    rung: Rung,
    dtype: Dtype,
    device: Device,
    only: str | None,
    tuning: dict[str, int] | None,
    report: Report,
    *,
    alone: bool,
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
        for_alone = case.where == "file" or (case.where == "alone" and device != "cuda")
        if for_alone and not alone and only is None:
            continue
        values = operation.complete(case.values)
        reason = rung.refusal(values, dtype, tuning, device=device)
        if reason is not None:
            report.left_out[case.name] = reason
            continue
        yield case, values


class _Rung:
    """One rung in one dtype, at all its cases."""

    def __init__(
        self,
        rung: Rung,
        dtype: Dtype,
        device: Device,
        tuning: dict[str, int] | None,
        report: Report,
        races: bool,
        coverage: bool,
        host: Host,
    ) -> None:
        self.rung, self.dtype, self.device, self.tuning = rung, dtype, device, tuning
        self.report, self.races, self.coverage, self.host = report, races, coverage, host
        self.cuda = isinstance(rung, CudaRung)
        self.took: list[tuple[float, float, int]] = []  # seconds of a run, size and index of the cases that have run
        self.turns = 0
        self.bound = 0  # trials so far
        self.at: tuple[Case, Values, int] | None = None

    def judge(self, cases: list[tuple[Case, Values]], seed: int, effort: Effort) -> None:
        pace = 0.0  # seconds a FLOP at the largest case so far: only the naive rungs have to care
        for index, (case, values) in enumerate(cases):
            cost = self.rung.operation.cost(values, self.dtype.size)
            if pace * cost.flops > effort.patience:
                self.report.left_out[case.name] = f"{self.rung.full_name} would take {pace * cost.flops:.1f} s a run"
                continue
            trial = self._trial(case, values, seed + index, only_run=True)
            trial.twice(effort.slow if self.cuda and self.device == "cuda" else math.inf)
            if effort.alone and trial.seconds <= effort.affordable:
                trial.refill(seed + index + 50)  # a rung that caches results by pointer returns the old ones
                trial.once()
            if effort is QUICK:
                self._without_nullable(case, values, seed)
            self.report.cases += 1
            self.took.append((trial.seconds, cost.bytes + cost.flops, index))
            # What is shorter says how long a launch takes; the emulator only gets cases that are small.
            if self.device == "cuda" and trial.seconds > 0.05 and cost.flops:
                pace = trial.seconds / cost.flops
        if effort is QUICK:
            return
        largest = self._largest(effort.affordable)
        self._from_all_sides(*cases[largest], seed)
        if largest != 0:
            self._without_nullable(*cases[0], seed)  # of odd sizes, mostly
        if self.device == "emulator" and hangs_on_the_gpu(self.rung):
            self._on_a_small_gpu(cases, largest, seed)
            self._on_a_large_gpu(cases, seed)
        if self.device == "emulator" and not self.races:
            self._watch(cases, seed, effort)
        if effort.alone:
            often = self._largest(OFTEN)
            for index in dict.fromkeys((0, often)):
                self._elsewhere(*cases[index], seed)
        if effort.later_runs:
            self._trial(*cases[0], seed).later_runs(effort.later_runs)
        if effort.alone:
            for index in self._widest(cases, self._quickest(effort.affordable), self.tuning):
                self._trial(*cases[index], seed).later_runs(FEW_LATER)
            self._without_nullable_anywhere(cases, seed)
            self._sizes_in_its_text(cases, seed)
            self._numbers_refused(cases, seed)
            if self.device == "emulator" and not self.races:
                self._fused(cases, seed, effort)
            if not self.tuning:
                self._tunables(cases, largest, seed)
            if not self.cuda and self.device == "emulator":  # last: what a rung keeps between calls may be lost by it
                for index in dict.fromkeys((0, largest)):
                    self._trial(*cases[index], seed).unlaunched()

    def _watch(self, cases: list[tuple[Case, Values]], seed: int, effort: Effort) -> None:
        """Look at every access: of a rung alone at every case, since a race may be in what only one of them takes."""
        if effort.alone:
            chosen = [index for seconds, _, index in self.took if seconds <= effort.watched]
        elif self.dtype.name == self.rung.dtypes[0]:  # the others have the same text
            chosen = [self._largest(effort.watched)]
        else:
            return
        for index in chosen:  # shuffled, blocks take turns at their atomics
            how = How(self.tuning, races=True)
            self._trial(*cases[index], seed, how).once("shuffled" if effort.alone else "forward")

    def _fused(self, cases: list[tuple[Case, Values]], seed: int, effort: Effort) -> None:
        """As a GPU's compiler rounds, which fuses products and sums: where numbers are extreme. Results that are
        rounded to 16 bits afterwards do not show it."""
        if not isinstance(self.rung, CudaRung) or self.dtype.stored != "f32":
            return
        if UNFUSED & set(self.rung.header.options):
            return
        for seconds, _, index in self.took:
            if seconds <= effort.affordable and cases[index][0].change:
                try:
                    self._trial(*cases[index], seed + index, How(self.tuning, fused=True)).once()
                except Failure as failure:
                    raise Failure(f"{failure}, with products and sums fused as a GPU's compiler does") from failure

    def _numbers_refused(self, cases: list[tuple[Case, Values]], seed: int) -> None:
        """Give the numbers of cases whose shapes it refuses, and their scale or eps, to a shape that it takes."""
        operation = self.rung.operation
        quick = [cases[index][1] for seconds, _, index in self.took if seconds <= OFTEN]
        for case in operation.cases:
            if case.name not in self.report.left_out or not case.change:
                continue
            asked = operation.complete(case.values)
            depth = operation.depth(asked)
            real = {n: v for n, v in asked.items() if n in operation.scalars and isinstance(v, float)}
            for values in sorted(quick, key=lambda v: abs(math.log(operation.depth(v) / depth))):
                given = {**values, **real}
                if self.rung.refusal(given, self.dtype, self.tuning, device=self.device) is not None:
                    continue
                shape = " ".join(f"{dim}={given[dim]}" for dim in operation.dims)
                trial = self._trial(replace(case, name=f"{case.name}, at {shape}"), given, seed)
                if trial.operands.representable():
                    trial.once()
                break

    def _largest(self, affordable: float) -> int:
        """The index of the largest case whose runs take no longer; if they all do, of the one that takes least."""
        affordable = max(affordable, min(self.took)[0])
        return max((size, index) for seconds, size, index in self.took if seconds <= affordable)[1]

    def _trial(
        self,
        case: Case,
        values: Values,
        seed: int,
        how: How | None = None,
        names: list[str] | None = None,
        *,
        only_run: bool = False,
        placement: Placement | None = None,
    ) -> _Trial:
        self.at = (case, values, seed)
        self.report.case = case.name
        how = replace(how or How(self.tuning, races=self.races), coverage=self.coverage)
        return _Trial(self, case, values, how, names or self._bound(), seed, only_run, placement)

    def next_placement(self, *, looked_at: bool) -> Placement:
        """Other addresses than the last time. The data mostly ends at an unmapped page; where every access is looked
        at, that tells nothing more."""
        self.bound += 1
        kind: Kind = "end" if not looked_at else ("odd", "page")[self.bound // 2 % 2]
        return Placement(kind, below=self.bound % 2 == 1)

    def _elsewhere(self, case: Case, values: Values, seed: int) -> None:
        """The same numbers at other addresses: in each order, and aligned as little and as much as can be."""
        for placement in ALL:
            try:
                self._trial(case, values, seed, placement=placement).once()
            except Failure as failure:
                how = {"end": "the end of a page", "page": "the start of a page", "odd": "an odd multiple"}
                where = f"operands at {how[placement.kind]}, {'descending' if placement.below else 'ascending'}"
                raise Failure(f"with {where}: {failure}") from failure

    def _from_all_sides(self, case: Case, values: Values, seed: int) -> None:
        trial = self._trial(case, values, seed)
        for other in range(SEEDS):
            trial.refill(seed + 100 * other)
            trial.twice() if self.device == "cuda" else trial.once(ORDERS[other % len(ORDERS)])
        if self.device == "cuda":
            trial.late(seed + 7919)
            if self.cuda:
                trial.replayed(seed + 7920)
        self._without_nullable(case, values, seed)

    def _on_a_small_gpu(self, cases: list[tuple[Case, Values]], largest: int, seed: int) -> None:
        """With as few multiprocessors as the rung takes, where blocks then have most to do (to four times)."""
        found = []
        for _, size, index in self.took:
            values = cases[index][1]
            if few := self._fewest_multiprocessors(values):
                many, left = self._blocks(values, 64), self._blocks(values, few)
                more = max(a / b for a, b in zip(many, left, strict=False))
                found.append((min(more, 4.0), few < USUAL, index == largest, -size, index, few))
        if not found:
            return
        best = max(found)
        alike = [one for one in found if one[:2] == best[:2]] if best[0] > 1.0 and best[1] else [best]
        for *_, index, few in alike:
            self._trial(*cases[index], seed, How(self.tuning, sms=few)).once(self.next_order())

    def _on_a_large_gpu(self, cases: list[tuple[Case, Values]], seed: int) -> None:
        """With an H200's multiprocessors, where that launches more blocks; cooperative grids would take too long."""
        assert isinstance(self.rung, CudaRung)
        if any(launch.cooperative for launch in self.rung.header.launches):
            return
        found = []
        for _, size, index in self.took:
            usual, many = self._blocks(cases[index][1], USUAL), self._blocks(cases[index][1], LARGE)
            found.append((max(b / a for a, b in zip(usual, many, strict=False)), -size, index))
        more, _, index = max(found)
        if more > 1.0:
            self._trial(*cases[index], seed, How(self.tuning, sms=LARGE)).once()

    def _blocks(self, values: Values, multiprocessors: int) -> list[int]:
        return [math.prod(grid) for grid in self._grids(values, multiprocessors, self.tuning)]

    def _grids(
        self, values: Values, multiprocessors: int, tuning: dict[str, int] | None
    ) -> list[tuple[int, int, int]]:
        with emulated_multiprocessors(multiprocessors):
            assert isinstance(self.rung, CudaRung)
            launches = self.rung.launches(values, self.dtype, tuning, self.device)
        return [config.grid for _, config in launches]

    def _fewest_multiprocessors(self, values: Values) -> int | None:
        """With few multiprocessors, grid-stride loops iterate; some rungs need more than one."""
        for sms in (1, 2, 3, 5):
            with emulated_multiprocessors(sms):
                if self.rung.refusal(values, self.dtype, self.tuning, device=self.device) is None:
                    return sms
        return None

    def _required(self) -> list[str] | None:
        """The operands of a call that leaves out what it may; None if nothing may be left out."""
        names = self._bound()
        fewer = [n for n in names if not self.rung.operation.operand(n).nullable]
        return fewer if fewer != names else None

    def _without_nullable(self, case: Case, values: Values, seed: int) -> None:
        if names := self._required():
            self._trial(case, values, seed, names=names).twice()

    def _without_nullable_anywhere(self, cases: list[tuple[Case, Values]], seed: int) -> None:
        """The calls that leave operands out, at all quick cases; every access is looked at where blocks are most."""
        names = self._required()
        if not names:
            return
        for seconds, _, index in self.took:
            if seconds <= OFTEN:
                self._trial(*cases[index], seed, names=names).once(self.next_order())
        if self.device == "emulator" and self.cuda and not self.races:
            for index in self._widest(cases, self._quickest(OFTEN), self.tuning):
                self._trial(*cases[index], seed, How(self.tuning, races=True), names=names).once("shuffled")

    def _quickest(self, affordable: float, among: Iterable[int] | None = None) -> list[int]:
        """The cases (of these) whose runs take no longer; if there is none, the one that takes least."""
        allowed = {index for _, _, index in self.took} if among is None else set(among)
        took = [(seconds, index) for seconds, _, index in self.took if index in allowed]
        return [index for seconds, index in took if seconds <= affordable] or [index for _, index in sorted(took)[:1]]

    def _widest(
        self, cases: list[tuple[Case, Values]], among: list[int], tuning: dict[str, int] | None
    ) -> list[int]:
        """The cases of these with most blocks along each axis of a grid, and with most in all."""
        if not isinstance(self.rung, CudaRung):
            return among[-1:]
        grids = {i: self._grids(cases[i][1], USUAL, tuning) for i in among}
        wide = [max(grids, key=lambda i: max((g[axis] for g in grids[i]), default=0)) for axis in range(3) if grids]
        many = [max(grids, key=lambda i: max(map(math.prod, grids[i]), default=0))] if grids else []
        return list(dict.fromkeys(wide + many))

    def _several(self, values: Values, tuning: dict[str, int] | None) -> set[int]:
        """The axes along which it launches several blocks."""
        return {axis for grid in self._grids(values, USUAL, tuning) for axis in range(3) if grid[axis] > 1}

    def _sizes_in_its_text(self, cases: list[tuple[Case, Values]], seed: int) -> None:
        """A number in the rung's own text may be a size at which it does something else: small cases with one or two
        dimensions of that size, and of two more. Nobody chose their bounds, so that only gross errors count."""
        if not isinstance(self.rung, CudaRung) or self.device != "emulator":
            return
        sizes = _Sizes(self, self.rung, [(cost, *cases[index]) for _, cost, index in self.took], seed)
        figures = self.report.element, self.report.norm
        sizes.of_one()
        sizes.of_two()
        self.report.element, self.report.norm = figures
        if sizes.untried:
            listed = ", ".join(map(str, sorted(sizes.untried)))
            self.report.notes.append(f"sizes that its text names, but that were not all tried: {listed}")

    def _tunables(self, cases: list[tuple[Case, Values]], largest: int, seed: int) -> None:
        ordered = sorted(range(len(cases)), key=lambda i: i != largest)
        quick = set(self._quickest(OFTEN))
        watched = self.device == "emulator" and self.cuda and not self.races
        axes = {axis for i in quick for axis in self._several(cases[i][1], None)} if watched else set()
        seen: set[tuple[str, int]] = set()  # values of tunables with which every access was looked at

        def fitting(setting: pairwise.Setting) -> Iterator[int]:
            return (i for i in ordered if not self.rung.refusal(cases[i][1], self.dtype, setting, device=self.device))

        def settings() -> Iterator[pairwise.Setting]:
            yield from pairwise.settings(self.rung.tune)
            further = pairwise.more(self.rung.tune, self.rung.source, lambda s: next(fitting(s), None) is not None)
            yield from itertools.islice(further, FURTHER)

        for setting in settings():
            usable = list(fitting(setting))
            if not usable:
                continue
            values_text = ", ".join(f"{n}={v}" for n, v in setting.items() if v != self.rung.tune[n][0])
            try:
                self._trial(*cases[usable[0]], seed, How(setting)).twice()
                for index in usable[1:]:
                    if index in quick and self._same_code(cases[index][1], cases[usable[0]][1], setting):
                        self._trial(*cases[index], seed, How(setting)).once(self.next_order())
                if watched and set(setting.items()) - seen:
                    chosen = self._widest(cases, self._quickest(OFTEN, usable), setting)
                    for index in chosen:
                        self._trial(*cases[index], seed, How(setting, races=True)).once("shuffled")
                    if axes <= {axis for index in chosen for axis in self._several(cases[index][1], setting)}:
                        seen |= set(setting.items())  # else blocks that share nothing have hidden what races
            except (Failure, RungError) as failure:
                if "room" in str(failure) and isinstance(failure, RungError):
                    continue  # no GPU takes this setting
                raise Failure(f"with {values_text}: {failure}") from None
            self.report.tunings += 1

    def _same_code(self, one: Values, other: Values, setting: dict[str, int]) -> bool:
        """Whether nothing has to be compiled for one of them that was not for the other."""
        if not isinstance(self.rung, CudaRung):
            return False
        return self.rung.build(one, self.dtype, setting) == self.rung.build(other, self.dtype, setting)

    def _bound(self) -> list[str]:
        """The operands of this call: the required ones, and the optional ones that the rung binds."""
        operation, binds = self.rung.operation, self.rung.binds
        wholes = {o.view_of for o in operation.operands if o.name in binds and o.view_of}
        missing = operation.required - binds - wholes
        unbound = [m for m in sorted(missing) if operation.operand(m).written]
        if unbound:
            raise Failure(f"the rung never binds the output {unbound[0]}")
        chosen = []
        for operand in operation.operands:
            whole = operand.view_of or operand.name
            needed = operand.name in binds or operand.name in operation.required
            if needed or operand.name in wholes or (operand.view_of and whole in operation.required):
                chosen.append(operand.name)
        return chosen

    def explain(self) -> None:
        """A wrong value was often read before it was written: name the race if there is one."""
        wrong = any(word in self.report.reason for word in ("never written", "NaN", "values are off", "relative error"))
        if not wrong or not self.cuda or "__shared__" not in self.rung.source:
            return
        if self.device == "cuda":
            self.report.reason += "; a missing barrier looks like this too: check it with --device emulator --races"
            return
        reason = self.report.reason
        try:
            self.look_for_races()
        except EmulatorFault as fault:
            self.report.reason = f"a race: {fault} The result: {reason}"

    def look_for_races(self) -> None:
        """Run as before with the race check; a race is a fault, other failures are known already."""
        if self.races or self.at is None:
            return
        try:
            self._trial(*self.at, How(self.tuning, races=True)).once()
        except (Failure, RungError) as fault:
            if getattr(fault, "kind", "") == "race":
                raise

    def next_order(self) -> Order:
        """The unusual thread orders, in turn."""
        self.turns += 1
        return "forward" if self.device == "cuda" else ORDERS[1 + self.turns % 2]


class _Sizes:
    """Small cases of a rung, with dimensions of the sizes that its text names."""

    def __init__(self, of: _Rung, rung: CudaRung, run: list[tuple[float, Case, Values]], seed: int) -> None:
        self.of, self.rung, self.seed = of, rung, seed
        self.run = [values for *_, values in run]
        bases = sorted((one for one in run if not one[1].change), key=lambda one: one[0])[:BASES]
        self.bases = [(case, values) for _, case, values in bases]
        self.built = [rung.build(values, of.dtype, of.tuning) for values in self.run]
        self.named = sizes_in(rung.source)
        self.untried: set[int] = set()
        self.spent = 0

    def of_one(self) -> None:
        """One dimension has such a size, or two more; where the rung or the operation does not take that, another
        dimension has it too."""
        dims = self.rung.operation.dims
        met = {(dim, values[dim]) for values in self.run for dim in dims}
        self.spent = 0
        for turn, named, dim, more in itertools.product(range(TURNS), self.named, dims, (0, 2)):
            size = named + more
            if (dim, size) in met:
                continue
            if self.spent >= SIZES:
                self.untried |= {named} if turn == 0 else set()
            elif not self._tried(self.bases[turn::TURNS], {dim: size}) and turn == 0:
                any(self._tried(self.bases[:2], {dim: size, other: size}) for other in dims)

    def of_two(self) -> None:
        """Two dimensions have one each: of too many, others for another text."""
        dims = self.rung.operation.dims
        both = [{d: m, e: n} for d, e in itertools.combinations(dims, 2) for m in self.named for n in self.named]
        random.Random(self.rung.source).shuffle(both)
        self.spent = 0
        for changed in both:
            if self.spent < SIZES_OF_TWO and not any(changed.items() <= values.items() for values in self.run):
                self._tried(self.bases, changed)

    def _tried(self, bases: list[tuple[Case, Values]], changed: dict[str, int]) -> bool:
        """Runs the first of these cases that has a result when changed so; false if none has."""
        before = self.of.host.switches
        for trial in self._changed(bases, changed):
            try:
                trial.once(self.of.next_order())
            except Failure:
                if not (trial.by_chance() if trial.integers_differ else 1 < trial.worst < GROSS):
                    raise
            self.spent += (self.of.host.switches - before) // SWITCHES
            return True
        return False

    def _changed(self, bases: list[tuple[Case, Values]], changed: dict[str, int]) -> Iterator[_Trial]:
        operation, of = self.rung.operation, self.of
        for case, values in bases:
            try:
                given = operation.complete({**case.values, **{d: values[d] for d in operation.dims}, **changed})
                if self.rung.refusal(given, of.dtype, of.tuning, device=of.device) is not None:
                    continue
                if not self._small(given):
                    continue
                named = ", ".join(f"{d}={n}" for d, n in changed.items())
                trial = of._trial(replace(case, name=f"{case.name}, with {named}", values=given), given, self.seed)
                results = trial.operands.reference().values()
            except Exception:  # dimensions that do not go together
                continue
            if all(bool(one.isfinite().all()) for one in results) and trial.operands.representable():
                yield trial

    def _small(self, values: Values) -> bool:
        """Whether that little work is in it; counts it if so. Its cost model may tell less of shapes without a meaning
        than its operands take."""
        operation, dtype = self.rung.operation, self.of.dtype
        size = sum(operation.size_of(operation.operand(name), values, dtype) for name in self.of._bound())
        flops = abs(operation.cost(values, dtype.size).flops)
        launches = self.rung.launches(values, dtype, self.of.tuning, self.of.device)
        threads = sum(math.prod(config.grid) * config.threads for _, config in launches)
        if flops > RESIZED or size > RESIZED_BYTES or threads > RESIZED_THREADS:
            return False
        build = self.rung.build(values, dtype, self.of.tuning)
        self.spent += 1 if build in self.built else COMPILED
        self.spent += threads // THREADS + int(flops / FLOPS + size / BYTES)
        self.built.append(build)
        return True


class _Trial:
    """One rung bound at one case, and the runs over it; `only_run`: it is not replayed, nor are its inputs late."""

    def __init__(
        self,
        of: _Rung,
        case: Case,
        values: Values,
        how: How,
        names: list[str],
        seed: int,
        only_run: bool,
        placement: Placement | None,
    ) -> None:
        self.of, self.how, self.report = of, how, of.report
        self.operation: Operation = of.rung.operation
        self.seconds = 0.0  # the fastest single run so far
        self.turn = 0
        self.moved: list[str] = []
        self.worst = 0.0  # deviation, in units of its bound
        self.integers_differ = False
        with self.report.phase("inputs"):
            owned = [o for o in self.operation.operands if o.name in names and o.view_of is None]
            sizes = [self.operation.size_of(o, values, of.dtype) for o in owned]
            small = only_run and sum(sizes) <= SMALL
            multiple = _alignment(of.rung, values, of.dtype, how.tuning, of.device)
            self.storage = of.host.storage(
                multiple,
                placement or of.next_placement(looked_at=how.races),
                small=small,
                sizes=sizes if placement else (),
            )
            memory, empty = self.storage.memory, self.storage.empty
            self.operands = Operands(
                self.operation, values, of.dtype, names, seed, device=memory, empty=empty, case=case
            )
            self.operands.blocks = self.storage.blocks
            self.storage.only_read(self.operation.operand(name) for name in self.operands.inputs)
        with self.report.phase("compile_and_bind"):
            self.call = of.host.bind(of.rung, self.operands, how, self.storage)

    def once(self, order: Order = "forward", before: Tensors | None = None) -> Tensors:
        """Run once, and check everything."""
        try:
            return self._once(order=order, before=before)
        except Failure as failure:
            raise self._because_of(order, failure) from None

    def twice(self, slow: float = math.inf) -> None:
        """Run and check twice, with emulated threads in another order the second time: different results are a race.
        What takes so many seconds is not run again."""
        first = self._once()
        if self.seconds >= slow:
            return
        order = self.of.next_order()
        self.once(order, first)
        moved = self.moved
        if not moved or self.report.nondeterministic:
            return
        if order != "forward":
            self._once(before=first)
            if not self.moved:
                self.of.look_for_races()
                if not self.of.host.atomics:  # which may add in any order
                    raise Failure(f"a race: {moved[0]} depends on the order in which threads run ({order})")
        self.report.nondeterministic = True

    def _because_of(self, order: Order, failure: Failure) -> Failure:
        """A failure in another order of threads, if it is none in the usual one."""
        if order == "forward":
            return failure
        try:
            self._once()
        except Failure:
            return failure
        return Failure(f"a race: right in one order of threads, not in another ({order}): {failure}")

    def _once(self, how: str = "run", order: Order = "forward", before: Tensors | None = None) -> Tensors:
        """One run on poisoned outputs, the inputs and what it changes as they were; gives the outputs, and notes which
        have `moved` from those before."""
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
                if self.operation.complaint is not None:  # it looks at the inputs, too
                    self._look_around(given)
                changed = self.storage.changed(operands.inputs, given)
                differ = [_differ(tensor, operands.tensors[n]) for n, tensor in (before or {}).items()]
                flags = self._compare(reference, *changed, *differ)
                if any(flags[: len(changed)]):
                    self._look_around(given)
                self.moved = [n for n, moved in zip(before or {}, flags[len(changed) :], strict=True) if moved]
                if took is not None:
                    self.seconds = min(self.seconds or took(), took())
                return {n: operands.tensors[n].clone() for n in operands.outputs}
        finally:
            operands.restore()

    def refill(self, seed: int) -> None:
        with self.report.phase("inputs"):
            self.operands.refill(seed)

    def by_chance(self) -> bool:
        """Whether one of a few other sets of inputs gives the right integers."""
        for other in range(1, SEEDS):
            self.refill(self.operands.seed + other)
            try:
                self.once()
            except Failure:
                continue
            return True
        return False

    def _poison(self) -> None:
        self.storage.repaint(self.turn)
        for name in self.operands.outputs:
            if self.operation.operand(name).role == "out":
                self.storage.poison(name, self.turn)
        self.turn += 1

    def unlaunched(self) -> None:
        """Without its kernels, a rung's results must not be right: something else has made them then."""
        right = self._once()
        self.operands.keep()
        self._poison()
        before = {n: self.operands.tensors[n].clone() for n in right}
        try:
            if not self.call.unlaunched():
                return
            for name, tensor in right.items():
                now = self.operands.tensors[name]
                moved = ~_differing(now, tensor) & _differing(now, before[name]) & (tensor != 0)
                if moved.sum() > tensor.numel() * UNMOVED:
                    self.of.host.library_calls.add(f"{name} comes out right without its kernels")
        finally:
            self.operands.restore()

    def later_runs(self, count: int) -> None:
        """Later runs must be as right as the first."""
        try:
            self._once()
            self.call.run(count)
            self.report.runs += count
            self.refill(self.operands.seed + 1)  # what a call changes has moved on
            self._once()
        except Failure as failure:
            raise Failure(f"after {count} runs: {failure}") from None

    def late(self, seed: int) -> None:
        """Inputs that arrive late on the current stream, which work on another stream does not wait for."""
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
            raise Failure(f"does not wait for the current stream: {failure}") from None
        self.refill(seed)

    def replayed(self, seed: int) -> None:
        """The same launches captured once and replayed on other inputs, as the model does."""
        try:
            for other in range(2):
                self.refill(seed + other)
                self._once("replayed")
        except Failure as failure:
            raise Failure(f"replayed from a CUDA graph: {failure}") from None

    def _look_around(self, before: torch.Tensor) -> None:
        if touched := self.storage.touched(self.operands.inputs, before):
            raise Failure(touched)

    def _compare(self, reference: Tensors, *asked: torch.Tensor) -> list[float]:
        """Compares the outputs, and answers in the same query of the GPU what is asked beside."""
        deviations, flags = self.operands.judged(reference, *asked)
        for deviation in deviations:
            self._note(deviation)
        return flags

    def _never_written(self) -> str:
        """Which output still holds the poison of this run."""
        for name in self.operands.outputs:
            out = self.operands.tensors[name]
            left = self.storage.still_poisoned(name, self.turn - 1, out.element_size())
            if left and self.operation.operand(name).role == "out":
                return f"{name}: {left} of {out.numel()} values were never written"
        return ""

    def _note(self, deviation: Deviation) -> None:
        self.worst = max(self.worst, deviation.element, deviation.norm / (deviation.norm_cap or math.inf))
        self.report.element = max(self.report.element, deviation.element)
        if deviation.norm_cap:  # with more room for few results, in units of the usual cap
            self.report.norm = max(self.report.norm, deviation.norm * self.report.norm_cap / deviation.norm_cap)
        if not deviation.ok:
            self.integers_differ = deviation.integers
            raise Failure(self._never_written() or deviation.problem)


def _alignment(rung: Rung, values: Values, dtype: Dtype, tuning: dict[str, int] | None, device: Device) -> int:
    """The alignment of data; 1 if any element's address is valid. A Python rung that does not say calls kernels and
    libraries that expect what torch allocates."""
    from rung.check.storage import STRICTEST

    if "wmma" in rung.source or (not isinstance(rung, CudaRung) and rung.header.align is None):
        return STRICTEST
    return max(1, rung.alignment(values, dtype, tuning, device))


def _differ(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Whether their bits differ."""
    return _differing(one, other).any()


def _differing(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Where their bits differ."""
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[one.itemsize]
    return one.view(kind) != other.view(kind)
