"""Non-default tunings: every pair of values, and more, each at the cases that reveal most."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from rung.check import pairwise
from rung.check.calls import How
from rung.check.effort import OFTEN
from rung.check.ran import Ran, quick, widest
from rung.check.report import Failure
from rung.check.trial import Trial, Trials
from rung.errors import RungError
from rung.operation import Values
from rung.rungs.cuda import CudaRung

FURTHER = 48  # settings beyond every pair of values


class Settings:
    """Every setting runs at the largest case that it takes and at the quick ones; each value of a tunable gets a race
    check."""

    def __init__(self, trials: Trials, ran: Sequence[Ran], largest: Ran, seed: int) -> None:
        self.trials, self.seed = trials, seed
        self.ran = [largest, *(one for one in ran if one is not largest)]
        self.quick = quick(ran, OFTEN)
        self.races = trials.device == "emulator" and trials.cuda and not trials.races
        self.axes = {axis for one in self.quick for axis in self._several(one.values)} if self.races else set()
        self.seen: set[tuple[str, int]] = set()  # values of tunables that had the race check

    def all(self) -> None:
        tune = self.trials.rung.tune
        for setting in self._chosen():
            usable = list(self._taking(setting))
            if not usable:
                continue
            try:
                self._tried(setting, usable)
            except (Failure, RungError) as failure:
                told = ", ".join(f"{n}={v}" for n, v in setting.items() if v != tune[n][0])
                raise Failure(f"with {told}: {failure}", failure.kind) from None
            self.trials.report.tunings += 1

    def _chosen(self) -> Iterator[pairwise.Setting]:
        rung = self.trials.rung
        yield from pairwise.settings(rung.tune)
        further = pairwise.more(rung.tune, rung.source, lambda s: next(self._taking(s), None) is not None)
        yield from itertools.islice(further, FURTHER)

    def _taking(self, setting: pairwise.Setting) -> Iterator[Ran]:
        return (one for one in self.ran if not self.trials.refuses(one.values, setting))

    def _tried(self, setting: pairwise.Setting, usable: list[Ran]) -> None:
        first, *others = usable
        self._at(first, How(setting)).twice()
        for one in others:
            if one in self.quick and self._same_code(one.values, first.values, setting):
                self._at(one, How(setting)).once(self.trials.next_order())
        if self.races and set(setting.items()) - self.seen:
            chosen = widest(self.trials, quick(usable, OFTEN), setting)
            for one in chosen:
                self._at(one, How(setting, races=True)).once("shuffled")
            if self.axes <= {axis for one in chosen for axis in self._several(one.values, setting)}:
                self.seen |= set(setting.items())  # otherwise a race may be hidden: blocks shared nothing

    def _at(self, one: Ran, how: How) -> Trial:
        return self.trials.at(one.case, one.values, self.seed, how)

    def _several(self, values: Values, tuning: pairwise.Setting | None = None) -> set[int]:
        """The grid axes along which it launches more than one block."""
        return {axis for grid in self.trials.grids(values, tuning) for axis in range(3) if grid[axis] > 1}

    def _same_code(self, one: Values, other: Values, setting: pairwise.Setting) -> bool:
        """Whether both use the same compiled code."""
        rung, dtype = self.trials.rung, self.trials.dtype
        return isinstance(rung, CudaRung) and rung.build(one, dtype, setting) == rung.build(other, dtype, setting)
