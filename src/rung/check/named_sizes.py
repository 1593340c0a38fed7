"""Small cases of a rung with the sizes that its source names, at which it may behave differently."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rung.check.report import Failure
from rung.check.sizes import sizes_in
from rung.check.trial import SEEDS, Trial, Trials
from rung.operation import Case, Values
from rung.rungs.cuda import CudaRung

TURNS = 3  # base cases in which each size is tried
# The budget for one dimension, and again for two, in units of small trials: ten units per compiled trial, one unit per
# THREADS threads, per SWITCHES fiber switches, per FLOPS FLOPs and per BYTES bytes.
WORK = 400.0
COMPILED, THREADS, SWITCHES, FLOPS, BYTES = 10, 200_000, 1_000_000, 1e6, 2e6
GROSS = 10.0  # times the bound, since these bounds were not chosen by hand
MOST_FLOPS, MOST_BYTES, MOST_THREADS = 1e7, 2e7, 2_000_000  # per case; the bytes of a layer of gpt2


class NamedSizes:
    """The budget is an amount of work, so that a verdict does not depend on the machine's speed."""

    def __init__(
        self, trials: Trials, rung: CudaRung, bases: Sequence[tuple[Case, Values]], ran: list[Values], seed: int
    ) -> None:
        self.trials, self.rung, self.bases, self.ran, self.seed = trials, rung, bases, ran, seed
        self.built = [rung.build(values, trials.dtype, trials.tuning) for values in ran]
        self.named = sizes_in(rung.source)
        self.untried: set[int] = set()
        self.spent = 0.0

    def of_one(self) -> None:
        """One dimension has such a size, or two more than it; if the rung or the operation refuses that, another
        dimension has it too."""
        dims = self.rung.operation.dims
        met = {(dim, values[dim]) for values in self.ran for dim in dims}
        self.spent = 0.0
        for turn, named, dim, more in itertools.product(range(TURNS), self.named, dims, (0, 2)):
            size = named + more
            if (dim, size) in met:
                continue
            if self.spent >= WORK:
                self.untried |= {named} if turn == 0 else set()
            elif not self._tried(self.bases[turn::TURNS], {dim: size}) and turn == 0:
                any(self._tried(self.bases[:2], {dim: size, other: size}) for other in dims)

    def of_two(self) -> None:
        """Two dimensions have one size each; if there are too many pairs, the selection depends on the source."""
        dims = self.rung.operation.dims
        both = [{d: m, e: n} for d, e in itertools.combinations(dims, 2) for m in self.named for n in self.named]
        random.Random(self.rung.source).shuffle(both)
        self.spent = 0.0
        for changed in both:
            if self.spent < WORK and not any(changed.items() <= values.items() for values in self.ran):
                self._tried(self.bases, changed)

    def _tried(self, bases: Sequence[tuple[Case, Values]], changed: dict[str, int]) -> bool:
        """Runs the first of these cases that has a result with these changes; false if none has."""
        host = self.trials.host
        before = host.switches
        trial = next(self._changed(bases, changed), None)
        if trial is None:
            return False
        try:
            trial.once(self.trials.next_order())
        except Failure:
            if not (_by_chance(trial) if trial.integers_differ else 1 < trial.worst < GROSS):
                raise
        self.spent += (host.switches - before) / SWITCHES
        return True

    def _changed(self, bases: Sequence[tuple[Case, Values]], changed: dict[str, int]) -> Iterator[Trial]:
        operation, trials = self.rung.operation, self.trials
        for case, values in bases:
            try:
                given = operation.complete({**case.values, **{d: values[d] for d in operation.dims}, **changed})
                if trials.refuses(given) or (work := self._work(given)) is None:
                    continue
                named = ", ".join(f"{d}={n}" for d, n in changed.items())
                trial = trials.at(replace(case, name=f"{case.name}, with {named}", values=given), given, self.seed)
                usable = _has_results(trial)
            except Exception:  # dimensions that do not fit together
                continue
            self.spent += work if usable else min(work, 1 + COMPILED)
            if usable:
                yield trial

    def _work(self, values: Values) -> float | None:
        """The amount of work in it; None if too much. For unusual sizes the cost model may be too low: the operands'
        sizes count as well."""
        operation, dtype, tuning = self.rung.operation, self.trials.dtype, self.trials.tuning
        size = sum(operation.size_of(operation.operand(name), values, dtype) for name in self.trials.names())
        flops = abs(operation.cost(values, dtype.size).flops)
        launches = self.rung.launches(values, dtype, tuning, self.trials.device)
        threads = sum(math.prod(config.grid) * config.threads for _, config in launches)
        if flops > MOST_FLOPS or size > MOST_BYTES or threads > MOST_THREADS:
            return None
        build = self.rung.build(values, dtype, tuning)
        compiled = COMPILED * (build not in self.built)
        self.built.append(build)
        return 1 + compiled + threads / THREADS + flops / FLOPS + size / BYTES


def _has_results(trial: Trial) -> bool:
    results = trial.operands.reference().values()
    return all(bool(one.isfinite().all()) for one in results) and trial.operands.representable()


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
