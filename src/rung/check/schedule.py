"""What is tried with one rung in one dtype, and in which order.

A rung runs at every case of its operation that it supports, twice (in the check of a whole ladder, cases that are slow
on a GPU run once), with poison and guards that change from run to run and are checked after every run; the emulator
runs the threads of the second run in another order. At the largest affordable case it also gets five seeds behind the
same pointers, every thread order of the emulator, the race check, late inputs and a CUDA graph. If its grid depends on
the GPU, a small and a large GPU are emulated as well.

A rung that is checked alone gets more: every case has the race check and other numbers behind the same pointers, and
the numbers of cases that it refuses are tried at a shape that it supports. Other addresses, about a hundred more runs,
the sizes that its source names and the other values of its tunables follow.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuless.compile.source import without_comments
from gpuless.counts.coverage import OF_TRITON, SPACES, merged, missed
from gpuless.facts import gpus
from rung.check.advice import Advice
from rung.check.far import SOME_BLOCKS, Far
from rung.check.guarded_memory import ALL, STRICTEST, Placement
from rung.check.report import OFTEN, QUICK, SLOW, THOROUGH, Effort, Failure
from rung.check.runner import Binding
from rung.check.shapes import MOST_FLOPS, Shapes
from rung.check.trial import ORDERS, SEEDS, WRONG, Ran, Trial, Trials, alignment_of, largest, quick, widest
from rung.errors import CompileError, EmulatorFault, RungError, TooLarge
from rung.inputs import with_zeros
from rung.operation import Case, Operation, Values
from rung.rungs import catalogue
from rung.rungs.base import USUAL, Rung, emulated_multiprocessors
from rung.rungs.cuda import CudaRung
from rung.rungs.python import PythonRung

MULTIPROCESSORS = (46, 58, 78, 84, 108, 114, 128, 144, 148, 160, 170)  # of further GPUs, of which one is drawn
FIRST_CASES = 3
LATER_PYTHON = 150  # later runs of a Python file: its own code takes time, too
SLOW_EMULATED = 0.4  # seconds of a run from which one run of a case is enough
FEW_LATER, LATER_SECONDS = 20, 0.1  # runs of the cases with most blocks
EMULATED_ARCH, MOST_ARCHITECTURES = 900, 6  # of which code is run
_ARCHITECTURES = re.compile(r"__CUDA_ARCH__\s*[<>=!]=?\s*(\d+)|(\d+)\s*[<>=!]=?\s*__CUDA_ARCH__")
_FACTS = re.compile(r"\bsms\b|\bmax_grid_y\b")
Beside = Callable[[Callable[[], None]], AbstractContextManager[None]]  # runs it before the context ends


@contextmanager
def afterwards(work: Callable[[], None]) -> Iterator[None]:
    yield
    work()


class Procedure:
    """Raises a `Failure` at the first error."""

    def __init__(self, trials: Trials, seed: int, effort: Effort, tell: Callable[[str], None] = lambda _: None) -> None:
        self.trials, self.seed, self.effort, self.tell = trials, seed, effort, tell
        self.rung, self.operation, self.report = trials.rung, trials.operation, trials.report
        self.emulated = trials.device == "emulator"
        self.python = self.emulated and not trials.cuda and effort != THOROUGH
        self.ran: list[Ran] = []

    def follow(self, cases: Sequence[tuple[Case, Values]], beside: Beside = afterwards) -> None:
        self._every_case(cases)
        if self.effort == QUICK:
            return
        with beside(self._at_other_shapes) if self.effort.alone else nullcontext():
            self.tell(f"{len(self.ran)} cases are right; now other GPUs, seeds and many runs")
            most = largest(self.ran, self.effort.affordable)
            self._at_the_cases(most)
        if self.effort.alone and self.emulated and not self.trials.cuda:
            for one in _each(self.ran[0], most):  # last, since it may discard what a rung keeps between calls
                self._at(one).unlaunched()

    def advise(self) -> None:
        """Adds to a failure what the rung needs to be right, if further calls confirm that."""
        report, trials = self.report, self.trials
        failure = report.failure = report.failure or trials.last_call()
        facts = {**failure.get("dims", {}), **failure.get("scalars", {})}
        if not self.effort.alone or not facts or trials.operation.custom_check is not None or self._of_a_few_blocks():
            return
        values = report.cause in WRONG
        if values and _in_one_row(failure):  # a size explains that by chance only
            return
        self.tell("wrong; now calls that show which sizes are right")
        before = {name: getattr(report, name) for name in ("reason", "case", "element", "norm", "runs")}
        right = [one.values for one in self.ran if one.case.name != report.case and not one.case.change]
        kinds = WRONG if values else (report.cause,)
        of = Advice(trials, self.seed, trials.operation.complete(facts), kinds, bounds="NaN" in report.reason)
        needs = of.needs(right)
        report.__dict__.update(before)
        report.failure = failure | ({"needs": needs} if needs else {})

    def confirmed(self) -> bool:
        """Whether usual numbers come out right at the shape that failed: the call is right there, the kernel wrong."""
        report, trials = self.report, self.trials
        if self._of_a_few_blocks():
            return True
        values = trials.operation.complete({**report.failure.get("dims", {}), **report.failure.get("scalars", {})})
        before = vars(report).copy()
        try:
            trials.at(Case("trial", values), values, self.seed + 1, only_run=True).once()
        except (Failure, RungError):
            return False
        finally:
            vars(report).update(before)
        return True

    def _of_a_few_blocks(self) -> bool:
        return self.report.case.startswith(SOME_BLOCKS)

    def _every_case(self, cases: Sequence[tuple[Case, Values]]) -> None:
        effort, trials, slow = self.effort, self.trials, self._slow()
        pace = 0.0  # seconds per FLOP at the largest case so far, for a forecast; only naive rungs exceed the limit
        for index, (case, values) in enumerate(cases):
            cost = self.operation.cost(values, trials.dtype.size)
            if pace * cost.flops > effort.patience:
                self.report.left_out[case.name] = f"{self.rung.full_name} would take {pace * cost.flops:.1f} s per run"
                continue
            how = Binding(trials.tuning)
            trial = trials.at(case, values, self.seed + index, how, only_run=True)
            if index == 0:
                self.tell("names, types and compilation are right; now the cases")
            try:
                trial.twice(slow)
            except TooLarge as large:
                if not self.ran:
                    raise
                self.report.left_out[case.name] = f"{self.rung.full_name}: {large}"
                continue
            except Failure as failure:
                if failure.kind != SLOW or not self.ran:  # the first is small: it does not end
                    raise
                self.report.left_out[case.name] = f"{self.rung.full_name} is too slow here: {failure}"
                continue
            if effort.alone and trial.seconds <= effort.affordable and trials.keeps_state:
                trial.refill(self.seed + index + 50)  # a rung that caches results by pointer would return the old ones
                trial.once()
            if index == FIRST_CASES - 1:
                self.tell(f"the first {FIRST_CASES} cases are right")
            self.ran.append(Ran(trial.seconds, cost.bytes + cost.flops, index, case, values))
            if effort == QUICK:
                self._without_nullable(self.ran[-1])
            self.report.cases += 1
            # Shorter runs measure only the launch; the emulator gets only small cases.
            if trials.device == "cuda" and trial.seconds > 0.05 and cost.flops:
                pace = trial.seconds / cost.flops

    def _slow(self) -> float:
        """Seconds of a run from which one run of a case is enough."""
        if self.emulated:
            return math.inf if self.effort == THOROUGH else SLOW_EMULATED
        return self.effort.slow if self.trials.cuda else math.inf

    def _at_the_cases(self, most: Ran) -> None:
        self._full_checks_at(most)
        self._numbers()
        if most is not self.ran[0]:
            self._without_nullable(self.ran[0])  # of odd sizes, mostly
        if self.emulated and grid_depends_on_gpu(self.rung):
            self._on_a_small_gpu(most)
            self._on_a_large_gpu()
        if not self.effort.alone:
            return
        fastest = min(self.ran, key=lambda one: one.seconds)
        if self.trials.keeps_state:
            if count := self.effort.later_runs:
                self._at(fastest).later_runs(min(count, LATER_PYTHON) if self.python else count)
            for one in widest(self.trials, quick(self.ran, self.effort.affordable)):
                few = max(FEW_LATER // 5, round(LATER_SECONDS / max(one.seconds, 1e-6)))
                self._at(one).later_runs(FEW_LATER if self.effort.shapes == 1.0 else min(FEW_LATER, few))
        if not self.trials.tuning:
            if any(len(choices) > 1 for choices in self.rung.tune.values()):
                self.tell("now other values of tunables")
            Tunables(self.trials, self.ran, most, self.seed).all()

    def _at_other_shapes(self) -> None:
        self.tell("now addresses, calls without optional operands, further shapes")
        for one in _each(self.ran[0], largest(self.ran, OFTEN)):
            self._elsewhere(one)
        self._for_other_architectures()
        self._without_nullable_anywhere()
        self._further_shapes()
        if self.emulated and not catalogue.shipped(self.rung):
            figures = self.report.element, self.report.norm
            Far(self.trials, self.ran, self.seed).all()
            self.report.element, self.report.norm = figures

    def _at(self, one: Ran, how: Binding | None = None, names: list[str] | None = None) -> Trial:
        return self.trials.at(one.case, one.values, self.seed, how, names)

    def _binding(self, sms: int) -> Binding:
        return Binding(self.trials.tuning, sms=sms)

    def at_branches(self) -> None:
        """Shapes that reach what no run has reached so far."""
        rung, trials = self.rung, self.trials
        if not (self.effort.alone and trials.coverage) or rung.operation.custom_check:
            return
        trials.ran = merged(trials.ran, trials.host.coverage())
        own = rung.path and rung.path.resolve()
        spaces = SPACES if trials.cuda else OF_TRITON
        if wanted := [place for place in missed(trials.ran, spaces) if Path(place[0]).resolve() == own]:
            self.tell(f"now shapes for {len({line for _, line, _ in wanted})} lines that no run has reached")
            figures = self.report.element, self.report.norm
            Shapes(trials, self.ran, self.seed, self.effort).reach(wanted)
            self.report.element, self.report.norm = figures

    def _numbers(self) -> None:
        """The formula's edges at shapes that the rung takes, a small and a large one; and the numbers of cases that it
        refuses: with scalars and sizes made to fit it, else at such a shape with their scale or eps."""
        operation, alone = self.operation, self.effort.alone
        plain = [one for one in quick(self.ran, OFTEN) if not one.case.change and one.index]
        shapes = [one.values for one in plain or self.ran[-1:]]
        few = shapes[:: max(1, len(shapes) - 1)] if alone else shapes[-1:]
        inputs = [o.name for o in operation.operands if o.dtype == "real" and o.role == "in"]
        zeros = {"zeros": dict.fromkeys(inputs, with_zeros)} if operation.custom_check is None else {}
        for name, change in {**operation.edges, **zeros}.items():
            for values in few:
                self._with_numbers(Case(name, values, change=change), values)
        for case in operation.cases:
            if not alone or case.name not in self.report.left_out or not case.change:
                continue
            asked = operation.complete(case.values)
            depth = operation.depth(asked)
            real = {n: v for n, v in asked.items() if n in operation.scalars and isinstance(v, float)}
            near = sorted(shapes, key=lambda v: abs(math.log(operation.depth(v) / depth)))
            refused = self.trials.refuses(asked)  # else it was too slow
            fitted = self.trials.rung.fitted(asked, self.trials.dtype, self.trials.device) if refused else None
            for given in [*filter(None, [fitted]), *({**values, **real} for values in near)]:
                cheap = operation.cost(given, self.trials.dtype.size).flops <= MOST_FLOPS
                if cheap and not self.trials.refuses(given) and self._with_numbers(case, given):
                    break

    def _with_numbers(self, case: Case, values: Values) -> bool:
        """Whether it took no longer than a run may."""
        name = f"{case.name}, at {shape_text(self.operation, values)}"
        trial = self.trials.at(replace(case, name=name), values, self.seed)
        if trial.operands.representable():
            try:
                trial.once()
            except Failure as failure:
                if failure.kind != SLOW:
                    raise
                return False
        return True

    def _elsewhere(self, one: Ran) -> None:
        """The same numbers at other addresses: in each order, and aligned as little and as much as can be."""
        names = [n for n in self.trials.names() if self.operation.operand(n).view_of is None]
        apart = [Placement("odd", only=name) for name in names] if self._least_alignment(one) < STRICTEST else []
        for placement in (*ALL, *(apart if len(names) > 1 else [])):
            try:
                self.trials.at(one.case, one.values, self.seed, placement=placement).once()
            except Failure as failure:
                how = {"end": "the end of a page", "page": "the start of a page", "odd": "an odd multiple"}
                where = f"operands at {how[placement.kind]}, {'descending' if placement.below else 'ascending'}"
                where = f"{placement.only} alone at an odd multiple" if placement.only else where
                raise Failure(f"with {where}: {failure}", failure.kind) from failure

    def _least_alignment(self, one: Ran) -> int:
        trials = self.trials
        return alignment_of(self.rung, one.values, trials.dtype, trials.tuning, trials.device)

    def _full_checks_at(self, one: Ran) -> None:
        trial, seed = self._at(one), self.seed
        for other in range(SEEDS):
            trial.refill(seed + 100 * other)
            if self.trials.device == "cuda":
                trial.twice()
            else:
                trial.once(ORDERS[other % len(ORDERS)])
        if self.trials.device == "cuda":
            trial.late(seed + 7919)
            if self.trials.cuda:
                trial.replayed(seed + 7920)
        self._without_nullable(one)

    def _on_a_small_gpu(self, most: Ran) -> None:
        """With as few multiprocessors as the rung takes, so that each block has most work (up to four times)."""
        found = []
        for one in self.ran:
            if few := self._fewest_multiprocessors(one.values):
                many, left = self._blocks(one, 64), self._blocks(one, few)
                more = max(a / b for a, b in zip(many, left, strict=False))
                found.append((min(more, 4.0), few < USUAL, one is most, -one.work, one.index, few, one))
        if not found:
            return
        best = max(found)
        alike = [each for each in found if each[:2] == best[:2]] if best[0] > 1.0 and best[1] else [best]
        for *_, few, one in alike:
            self._at(one, self._binding(few)).once(self.trials.next_order())

    def _on_a_large_gpu(self) -> None:
        """With an H200's multiprocessors and with another GPU's, if that launches more blocks; blocks of a cooperative
        grid run at the same time, which takes long: those at the smallest case, where most have no work."""
        assert isinstance(self.rung, CudaRung)
        together = any(launch.cooperative for launch in self.rung.header.launches)
        other = random.Random(self.rung.source).choice(MULTIPROCESSORS)
        for large in (gpus.usual().multiprocessors, *(() if together else (other,))):
            found = []
            for one in self.ran:
                usual, many = self._blocks(one, USUAL), self._blocks(one, large)
                found.append((max(b / a for a, b in zip(usual, many, strict=False)), -one.work, one.index, one))
            more, *_, one = max(found, key=lambda each: each[1:] if together else each)
            if more > 1.0:
                self._at(one, self._binding(large)).once()

    def _blocks(self, one: Ran, multiprocessors: int) -> list[int]:
        return [math.prod(grid) for grid in self.trials.grids(one.values, multiprocessors=multiprocessors)]

    def _fewest_multiprocessors(self, values: Values) -> int | None:
        """With few multiprocessors, grid-stride loops iterate; some rungs need more than one."""
        for sms in (1, 2, 3, 5):
            with emulated_multiprocessors(sms):
                if not self.trials.refuses(values):
                    return sms
        return None

    def _for_other_architectures(self) -> None:
        """The branches for other GPUs, as far as they compile for this one, on both sides of each number; one that
        writes nothing refuses its GPUs."""
        text = without_comments(self.rung.source)
        numbers = {int(n) for pair in _ARCHITECTURES.findall(text) for n in pair if n}
        if not numbers or not self.emulated or catalogue.shipped(self.rung):
            return
        one = largest(self.ran, OFTEN)
        for arch in sorted({*numbers, *(n - 10 for n in numbers)} - {EMULATED_ARCH})[:MOST_ARCHITECTURES]:
            with suppress(CompileError):
                try:
                    self._at(one, Binding(self.trials.tuning, arch=arch)).once()
                except (Failure, EmulatorFault) as failure:
                    unwritten = isinstance(failure, Failure) and failure.unwritten
                    if failure.kind not in ("unsupported", "trap", SLOW) and not unwritten:
                        raise Failure(f"where __CUDA_ARCH__ is {arch}: {failure}", failure.kind) from failure
        self.report.notes.append("its code for other __CUDA_ARCH__ was run, too, where it compiles for sm_90")

    def _without_nullable(self, one: Ran) -> None:
        if names := self.trials.fewer_names():
            self._at(one, names=names).twice()

    def _without_nullable_anywhere(self) -> None:
        """The calls that leave operands out, at all quick cases; the cases with most blocks have the race check."""
        names = self.trials.fewer_names()
        if not names:
            return
        for one in self.ran:
            if one.seconds <= OFTEN:
                self._at(one, names=names).once(self.trials.next_order())

    def _further_shapes(self) -> None:
        """A number in the rung's own source may be a size at which it behaves differently."""
        if not isinstance(self.rung, CudaRung | PythonRung) or not self.emulated:
            return
        if self.operation.custom_check is not None:  # a problem's data has the sizes of its tests only
            return
        figures = self.report.element, self.report.norm
        shapes = Shapes(self.trials, self.ran, self.seed, self.effort)
        shapes.all()
        self.report.element, self.report.norm = figures
        if shapes.slow:
            self.report.notes.append(f"left out, too slow here: {'; '.join(shapes.slow)}")
        if shapes.raised:
            self.report.notes.append(
                f"left out, since it raises: {shapes.raised[0]}; needs should say which sizes it takes"
            )
        if shapes.untried:
            listed = ", ".join(map(str, sorted(shapes.untried)))
            self.report.notes.append(f"sizes that its text names, but that were not all tried: {listed}")


def _in_one_row(failure: Mapping[str, Any]) -> bool:
    shape = failure.get("shape", [1])
    return bool(math.prod(shape[:-1]) > 1 and failure["wrong"] <= shape[-1])


def shape_text(operation: Operation, values: Values) -> str:
    return " ".join(f"{dim}={values[dim]}" for dim in operation.dims)


def grid_depends_on_gpu(rung: Rung) -> bool:
    """Whether the launch depends on the number of multiprocessors, or on the largest possible grid."""
    return isinstance(rung, CudaRung) and bool(_FACTS.search(rung.source + str(rung.table)))  # inherited keys, too


def _each(*some: Ran) -> list[Ran]:
    return list({one.index: one for one in some}.values())


# ---- other values of tunables: every pair of values, and more, each at the cases that reveal most ----

FURTHER = 48  # settings beyond every pair of values


class Tunables:
    """Every setting runs at the largest case that it takes and at the quick ones."""

    def __init__(self, trials: Trials, ran: Sequence[Ran], largest: Ran, seed: int) -> None:
        self.trials, self.seed = trials, seed
        self.ran = [largest, *(one for one in ran if one is not largest)]
        self.quick = quick(ran, OFTEN)

    def all(self) -> None:
        tune = self.trials.rung.tune
        for setting in self._chosen():
            usable = list(self._taking(setting))
            if not usable:
                continue
            try:
                self._tried(setting, usable)
            except TooLarge:  # a GPU refuses it, as it refuses other settings that `needs` does
                continue
            except (Failure, RungError) as failure:
                told = ", ".join(f"{n}={v}" for n, v in setting.items() if v != tune[n][0])
                raise Failure(f"with {told}: {failure}", failure.kind) from None
            self.trials.report.tunings += 1

    def _chosen(self) -> Iterator[Setting]:
        rung = self.trials.rung
        yield from settings(rung.tune)
        further = more(rung.tune, rung.source, lambda s: next(self._taking(s), None) is not None)
        yield from itertools.islice(further, FURTHER)

    def _taking(self, setting: Setting) -> Iterator[Ran]:
        return (one for one in self.ran if not self.trials.refuses(one.values, setting))

    def _tried(self, setting: Setting, usable: list[Ran]) -> None:
        first, *others = usable
        self._at(first, Binding(setting)).twice()
        for one in others:
            if one in self.quick and self._same_code(one.values, first.values, setting):
                self._at(one, Binding(setting)).once(self.trials.next_order())

    def _at(self, one: Ran, how: Binding) -> Trial:
        return self.trials.at(one.case, one.values, self.seed, how)

    def _same_code(self, one: Values, other: Values, setting: Setting) -> bool:
        """Whether both use the same compiled code."""
        rung, dtype = self.trials.rung, self.trials.dtype
        return isinstance(rung, CudaRung) and rung.build(one, dtype, setting) == rung.build(other, dtype, setting)


Setting = dict[str, int]
FEW = 64  # up to this many settings, all are tried
DRAWS = 20  # draws until the rung accepts one


def settings(tune: Mapping[str, Sequence[int]]) -> Iterator[Setting]:
    """Settings that together contain every pair of values, without the defaults, which are checked anyway."""
    names = [name for name, choices in tune.items() if len(choices) > 1]
    default = {name: choices[0] for name, choices in tune.items()}
    if len(names) == 1:
        yield from ({**default, names[0]: value} for value in tune[names[0]][1:])
        return
    missing = {
        ((a, x), (b, y))
        for a, b in itertools.combinations(names, 2)
        for x, y in itertools.product(tune[a], tune[b])
        if (x, y) != (tune[a][0], tune[b][0])
    }
    while missing:
        setting = dict(min(missing))
        for name in names:
            if name not in setting:
                setting[name] = max(tune[name], key=lambda value: _gain(setting, name, value, missing))
        missing -= {p for p in missing if all(setting[n] == v for n, v in p)}
        yield {**default, **setting}


def _gain(setting: Setting, name: str, value: int, missing: set[tuple[tuple[str, int], tuple[str, int]]]) -> int:
    trial = {**setting, name: value}
    return sum(any(n == name for n, _ in pair) and all(trial.get(n) == v for n, v in pair) for pair in missing)


def more(tune: Mapping[str, Sequence[int]], text: str, usable: Callable[[Setting], bool]) -> Iterator[Setting]:
    """Settings beyond those: all others if there are few, else every possible combination of three values, with random
    values of the other tunables. The order and the random values depend on the rung's source."""
    drawn = random.Random(text)
    names = [name for name, choices in tune.items() if len(choices) > 1]
    default = {name: choices[0] for name, choices in tune.items()}
    done = [default, *settings(tune)]
    if math.prod(len(tune[name]) for name in names) <= FEW:
        rest = [{**default, **dict(zip(names, v, strict=True))} for v in itertools.product(*(tune[n] for n in names))]
        rest = [setting for setting in rest if setting not in done]
        drawn.shuffle(rest)
        yield from filter(usable, rest)
        return
    threes = list(itertools.combinations(names, 3))
    covered = {(three, tuple(s[n] for n in three)) for s in done for three in threes}
    missing = [(three, v) for three in threes for v in itertools.product(*(tune[n] for n in three))]
    drawn.shuffle(missing)
    for three, values in missing:
        if (three, values) in covered:
            continue
        for _ in range(DRAWS):
            others = {name: drawn.choice(tune[name]) for name in names}
            setting = {**default, **others, **dict(zip(three, values, strict=True))}
            if usable(setting):
                covered |= {(other, tuple(setting[n] for n in other)) for other in threes}
                yield setting
                break
