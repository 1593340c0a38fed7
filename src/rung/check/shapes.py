"""Shapes that no case of the operation has: sizes of one, sizes that the rung's text names, random ones, and those that
reach code that no run has reached.

The budgets are amounts of work, not of time, so that a verdict does not depend on the machine's speed. The bounds of
such shapes were not chosen by hand, so only errors of ten times the bound count.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from gpuless.counts.coverage import Place
from rung.arrays import namespace
from rung.check.report import RAISED, REFUSES, SLOW, THOROUGH, Effort, Failure
from rung.check.runner import Binding, Probe
from rung.check.trial import SEEDS, Ran, Trial, Trials
from rung.errors import CompileError, EmulatorFault, TooLarge
from rung.operation import Case, Values
from rung.rungs.cuda import CudaRung
from rung.rungs.numbers import sizes_of

BASES = 6  # small cases whose dimensions are changed
MOST_ONES = 12  # choices of dimensions of one
MOST_VALUES = 2  # of a scalar beside them
TURNS = 3  # base cases in which each size is tried
# The budgets: one unit per trial, COMPILED units per build, one unit per THREADS threads, STEPS instructions, ...
WORK, WORK_DRAWN, WORK_REACHING = 250.0, 500.0, 1500.0
COMPILED, THREADS, STEPS, FLOPS, BYTES = 10, 200_000, 1_000_000, 1e6, 2e6
GROSS, GROSS_FEW, FEW = 10.0, 100.0, 8  # times the bound; with at most FEW results, one may be near zero
MOST_FLOPS, MOST_BYTES, MOST_THREADS = 3e7, 2e7, 2_000_000  # per trial; the bytes of a layer of gpt2
# Random sizes: small ones, some larger than a tile, and large ones: GPT-2's, powers of two and their neighbours.
SMALL, MEDIUM = (2, 3, 4, 5, 6, 7, 9, 12, 16, 20), (33, 40, 48, 60, 64, 65, 70, 80, 96, 100, 128, 130, 132, 160, 192)
LARGE = (
    *(200, 256, 257, 300, 320, 384, 500, 512, 514, 600, 640, 768, 1000, 1024, 1028, 1280, 1536, 1600, 2050, 2304, 3000),
    *(4096, 5000),
)
# Of that work, what a rung of Python gets: new sizes may need a new compilation, and all dtypes have the same text.
SHARE, SHARE_AGAIN = 0.05, 0.015
TOO_SLOW = 20  # work of a shape that was stopped
LEAST_THREADS = 0.2  # of the threads of a trial, what the default check keeps
MOST = 3.0  # units of a trial in a default check
RACED = 1.5  # units of a trial from which races are looked for only where blocks are of a new kind
LEAST_PYTHON = 0.5  # of that, what the default check keeps
MOST_BYTES_PYTHON = 4e6  # of a trial
FLAG = 2  # scalars up to this value select a variant of the formula
ATTEMPTS = 40  # to find a shape that the operation and the rung support
DRAWN = 100  # the most random shapes
SMALLER = 2  # they have fewer FLOPs than others by this factor, and their bytes cost as much more
# Shapes that reach a place of the code: the work of probing in a default check and a thorough one, and times the usual
# limits of a trial.
PROBING, LARGER = (10_000_000, 50_000_000), (8.0, 40.0)
LEAST_REACHING = 0.1  # of the work
WHOLE = (1, 4, 32, 128)  # what their sizes are multiples of
USUAL = (1, 2, 3, 16, 17, 64, 65, 257, 1024, 1025, 2049, 4097, 8193, 16385, 32769, 65537, 1 << 17, 1 << 20)
MOST_SIZE, MOST_PROBED = 1 << 26, 6e8  # of a dimension, and of the operands of a probe
FACTORS = 24  # up to so many numbers of a text, their products are tried
EACH = 3  # shapes for a place
Call = tuple[Case, Values, dict[str, int]]  # a case, its values, and what changes


class Shapes:
    """Runs a rung at further shapes: of each choice of calls, the first that it takes and that has a result."""

    def __init__(self, trials: Trials, ran: Sequence[Ran], seed: int, effort: Effort) -> None:
        self.trials, self.rung, self.seed, self.effort = trials, trials.rung, seed, effort
        self.operation = self.rung.operation
        self.dims, self.scalars = self.operation.dims, self.operation.scalars
        plain = [one for one in ran if not one.case.change]  # dimensions of one show little
        plain.sort(key=lambda one: (sum(one.values[dim] == 1 for dim in self.dims), one.work, one.index))
        self.plain = [(one.case, one.values) for one in plain]
        self.bases = self.plain[:BASES]
        self.known = {self._key(one.values) for one in ran}
        self.built = [self._build(one.values) for one in ran]
        self.dearer = 1.0  # than the cost model says
        self.raced = set(itertools.chain.from_iterable(self._kinds(one.values) for one in ran))
        cuda, first = isinstance(self.rung, CudaRung), trials.dtype.name == self.rung.dtypes[0]
        self.scale = effort.shapes if cuda else max(effort.shapes, LEAST_PYTHON)
        self.share = 1.0 if cuda else SHARE if first else SHARE_AGAIN
        self.named = sizes_of(self.rung)
        self.untried: set[int] = set()  # of those, but that of a rung of Python in its first dtype
        self.slow: list[str] = []  # shapes that take too long here
        self.raised: list[str] = []  # shapes that the file itself refuses
        self.spent = 0.0
        self.smaller, self.larger = 1, 1.0  # than the usual limits of a trial
        self.left = math.inf  # of the budget of random shapes

    def all(self) -> None:
        self._follow(self._ones())
        pairs = itertools.product(itertools.permutations(self.dims, 2), self.named)  # a single row may have its own way
        self._follow((self._at({dim: 1, other: named + 1}) for (dim, other), named in pairs), WORK)
        every = itertools.product(range(TURNS), self.named, self.dims, (0, 2, 1))
        self.spent = 0.0
        self._follow((self._one_named(*each) for each in every), WORK)
        if self.share != SHARE_AGAIN:
            self.untried = {named for turn, named, *_ in every if turn == 0}
        self.spent = 0.0
        self._follow(map(self._at, self._two_named()), WORK)
        if self.bases:
            self.spent, self.smaller = 0.0, SMALLER if self.share == 1.0 else 1
            self._follow(self._drawn(), WORK_DRAWN, drawn=True)

    def _ones(self) -> Iterator[Iterator[Call]]:
        """One dimension, or two, of one among ordinary others; one also with values of an integer scalar."""
        few = [*((dim,) for dim in self.dims), *itertools.combinations(self.dims, 2)]
        yield from (self._at(dict.fromkeys(some, 1)) for some in few[:MOST_ONES])
        for dim, (name, seen) in itertools.product(self.dims, self._seen().items()):
            yield from itertools.repeat(((*base, {dim: 1, name: n}) for base in self.bases for n in seen), MOST_VALUES)

    def _one_named(self, turn: int, named: int, dim: str, more: int) -> Iterator[Call]:
        """One dimension has such a size, or two more than it; if the rung or the operation refuses that, another
        dimension has it too."""
        size = named + more
        yield from ((*base, {dim: size}) for base in self.bases[turn::TURNS])
        for other in self.dims if turn == 0 else ():
            yield from self._at({dim: size, other: size})

    def _two_named(self) -> list[dict[str, int]]:
        """Two dimensions have one size each; if there are too many pairs, the selection depends on the source."""
        sizes = [named + more for named in self.named for more in (0, 2)]
        pairs = itertools.combinations(self.dims, 2)
        both = [{d: m, e: n} for d, e in pairs for m in sizes for n in sizes]
        random.Random(self.rung.source).shuffle(both)
        return both

    def _drawn(self) -> Iterator[Iterator[Call]]:
        """All dimensions are random, depending on the source, and one of them is large."""
        draws = random.Random(f"drawn {self.rung.source}")
        for number in range(DRAWN):
            large = self.dims[number % len(self.dims)]
            yield (self._random(draws, large) for _ in range(ATTEMPTS))

    def _random(self, draws: random.Random, large: str) -> Call:
        changed = {dim: draws.choice(draws.choice((SMALL, SMALL, MEDIUM))) for dim in self.dims}
        changed[large] = draws.choice(LARGE)
        for name, seen in self._seen().items():  # a value that some case has, or any size if they are not flags
            if draws.random() < 0.5:
                changed[name] = draws.choice(seen + list(MEDIUM + LARGE) * (seen[-1] > FLAG))
        return *draws.choice(self.bases), changed

    def _seen(self) -> dict[str, list[int]]:
        """The values of integer scalars that cases have."""
        cases = self.operation.cases
        found = {n: {v for one in cases if isinstance(v := one.values.get(n), int)} for n in self.scalars}
        return {name: sorted(values) for name, values in found.items() if values}

    def reach(self, wanted: Sequence[Place]) -> None:
        """Shapes at which these places are reached. Many calls are probed, three blocks of each on zeros, the smallest
        first; of those that reach a place some are judged."""
        thorough = self.effort == THOROUGH
        trials, found = self.trials, dict[object, tuple[float, Call, Values]]()
        for call in self._around_numbers():
            if (given := self._legal(*call, small=False)) and (size := self._size(given)) <= MOST_PROBED:
                found.setdefault(self._key(given), (size, call, given))
        sized = sorted(found.values(), key=lambda one: one[0])
        calls = [given for *_, given in sized]
        asked = Probe(trials.dtype.name, trials.tuning, trials.names(), calls, list(wanted), PROBING[thorough])
        reached = trials.host.probe(self.rung, asked)
        chosen: dict[int, list[int]] = {}  # call -> lines
        for place, (_, line, _) in enumerate(wanted):
            numbers = [number for number, places in enumerate(reached) if place in places]
            uneven = [number for number in numbers if self._uneven(calls[number])]
            for number in [*dict.fromkeys([*numbers[:1], *uneven[: EACH - 1], *numbers[1:]])][:EACH]:
                chosen.setdefault(number, []).append(line)
        self.larger, self.scale = LARGER[thorough], max(self.scale, LEAST_REACHING)
        lines = ((min(some), *sized[number][1]) for number, some in sorted(chosen.items()))
        some = ([(replace(case, name=f"for line {n}"), values, changed)] for n, case, values, changed in lines)
        self._follow(some, WORK_REACHING)

    def _uneven(self, values: Values) -> bool:
        """Whether its sizes tell rows from columns, and a tail from none."""
        sizes = [int(values[dim]) for dim in self.dims if values[dim] > 1]
        return len(sizes) == len({*sizes}) and any(size % 2 for size in sizes)

    def _around_numbers(self) -> Iterator[Call]:
        """A dimension, a product of the first dimensions or of all just reaches or exceeds a number of the text."""
        numbers, middle = sizes_of(self.rung, MOST_SIZE), self.plain[len(self.plain) // 3 :]
        products = {a * b for a, b in itertools.combinations_with_replacement(numbers[-FACTORS:], 2)}
        goals = sorted({*numbers, *(p for p in products if p < MOST_SIZE), *USUAL, *(4 * n for n in numbers)})
        flags = {tuple(values[s] for s in self._seen()): (case, values) for case, values in middle[::-1]}
        firsts = [*((dim,) for dim in self.dims), *(self.dims[:n] for n in range(2, len(self.dims) + 1))]
        for (case, values), whole in itertools.product([*flags.values(), *middle[1:3]], WHOLE):
            usual = {d: -(-int(values[d]) // whole) * whole if values[d] > 1 else 1 for d in self.dims}
            yield case, values, usual
            others = {(dim, math.prod(usual[d] for d in some if d != dim)) for some in firsts for dim in some}
            sizes = {(dim, -(-goal // n // whole) * whole) for dim, n in others for goal in goals}
            for dim, size in sorted({(dim, max(1, size + more)) for dim, size in sizes for more in (0, whole)}):
                yield case, values, {**usual, dim: size}

    def _size(self, values: Values) -> float:
        """Bytes of the operands."""
        of = self.operation
        return sum(of.size_of(of.operand(name), values, self.trials.dtype) for name in self.trials.names())

    def _at(self, changed: dict[str, int]) -> Iterator[Call]:
        return ((*base, changed) for base in self.bases)

    def _key(self, values: Values) -> tuple[object, ...]:
        return tuple(sorted(values.items()))

    def _legal(self, case: Case, values: Values, changed: dict[str, int], *, small: bool = True) -> Values | None:
        """The call, if it is new, as small as is asked, and the operation and the rung take it."""
        try:
            given = self.operation.complete({**case.values, **{d: values[d] for d in self.dims}, **changed})
            too_large = small and self._of_the_model(given) is None
            return None if self._key(given) in self.known or too_large or self.trials.refuses(given) else given
        except Exception:  # dimensions that do not fit together
            return None

    def _follow(self, choices: Iterator[Iterable[Call]], most: float = math.inf, *, drawn: bool = False) -> None:
        """Runs one call of each choice, until that much work is done."""
        end = most * self.scale * self.share
        while self.spent + drawn < end and (calls := next(choices, None)) is not None:
            self.left = end - self.spent if drawn else math.inf
            if trial := next(self._having_results(calls), None):
                self._run(trial)

    def _run(self, trial: Trial) -> None:
        host = self.trials.host
        before = host.steps
        try:
            trial.once(self.trials.next_order())
        except (Failure, EmulatorFault, TooLarge, CompileError) as failure:
            if failure.kind in (RAISED, REFUSES, TooLarge.kind, CompileError.kind):
                self.raised.append(f"{trial.report.case} ({failure})")
            elif failure.kind == SLOW:
                self.spent += TOO_SLOW
                self.slow.append(trial.report.case)
            elif isinstance(failure, EmulatorFault) or not (
                _by_chance(trial) if trial.integers_differ else 1 < trial.worst < _gross(trial)
            ):
                raise
        executed = (host.steps - before) / STEPS
        self.spent += executed
        self.dearer = max(self.dearer, executed / (self._work(trial.values) or 1.0))

    def _having_results(self, calls: Iterable[Call]) -> Iterator[Trial]:
        for case, values, changed in calls:
            if (given := self._legal(case, values, changed)) is None:
                continue
            try:
                if (work := self._work(given)) is None or work > self.left:
                    continue
                kinds = self._kinds(given)
                races = work <= RACED or not kinds <= self.raced
                self.raced |= kinds
                self.known.add(self._key(given))
                name = f"{case.name}, with {', '.join(f'{d}={n}' for d, n in changed.items())}"
                how = Binding(self.trials.tuning, races=races)
                trial = self.trials.at(replace(case, name=name, values=given), given, self.seed, how)
                # Nobody has chosen the size for these numbers: two large ones nearly cancel in a mean of two.
                trial.operands.as_the_formula |= self.trials.dtype.name == "f32"
                usable = _has_results(trial)
            except Exception:  # dimensions that do not fit together
                continue
            self.spent += work if usable else min(work, 1 + COMPILED)
            if usable:
                yield trial

    def _of_the_model(self, values: Values) -> float | None:
        """The amount of work in it by the cost model, which may be too low for unusual sizes; None if too much."""
        size, flops = self._size(values), abs(self.operation.cost(values, self.trials.dtype.size).flops)
        most_bytes = MOST_BYTES if isinstance(self.rung, CudaRung) else MOST_BYTES_PYTHON
        if flops > MOST_FLOPS / self.smaller * self.larger or size > most_bytes * self.larger:
            return None
        done = 1 + flops / FLOPS + size / BYTES * self.smaller
        return None if self.scale < 1 and done * self.dearer > MOST * self.larger else done

    def _work(self, values: Values) -> float | None:
        """The amount of work in it; None if too much."""
        if (done := self._of_the_model(values)) is None:
            return None
        dtype, tuning, threads = self.trials.dtype, self.trials.tuning, 0
        if isinstance(self.rung, CudaRung):
            launches = self.rung.launches(values, dtype, tuning, self.trials.device)
            threads = sum(math.prod(config.grid) * config.threads for _, config in launches)
        if threads > MOST_THREADS * max(self.scale, LEAST_THREADS) * self.larger:
            return None
        build = self._build(values)
        done += threads / THREADS
        if done * self.dearer > MOST * self.larger and self.scale < 1:
            return None
        compiled = COMPILED * (build not in self.built)
        self.built.append(build)
        return done + compiled

    def _kinds(self, values: Values) -> set[object]:
        """The blocks of its launches: of one kind those meet that have raced elsewhere."""
        rung, trials = self.rung, self.trials
        if not isinstance(rung, CudaRung):
            return {self._key(values)}
        launches = rung.launches(values, trials.dtype, trials.tuning, trials.device)
        build = self._build(values)
        return {(build, kernel, replace(how, grid=(min(2, math.prod(how.grid)), 1, 1))) for kernel, how in launches}

    def _build(self, values: Values) -> object:
        """What is compiled for this shape; nothing for a rung of Python."""
        rung = self.rung
        return rung.build(values, self.trials.dtype, self.trials.tuning) if isinstance(rung, CudaRung) else None


def _has_results(trial: Trial) -> bool:
    results = trial.operands.reference().values()
    return all(bool(namespace(one).isfinite(one).all()) for one in results) and trial.operands.representable()


def _gross(trial: Trial) -> float:
    results = trial.operands.reference().values()
    return GROSS if all(math.prod(one.shape) >= FEW for one in results) else GROSS_FEW


def _by_chance(trial: Trial) -> bool:
    """Whether one of a few other sets of inputs gives the right integers."""
    for other in range(1, SEEDS):
        trial.refill(trial.operands.seed + other)
        try:
            trial.once()
        except Failure:
            continue
        return True
    return False
