"""Non-default tunings: every pair of values, and more, each at the cases that reveal most."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from rung.check.report import OFTEN, Failure
from rung.check.runner import How
from rung.check.trial import Ran, Trial, Trials, quick, widest
from rung.errors import RungError
from rung.operation import Values
from rung.rungs.cuda import CudaRung

FURTHER = 48  # settings beyond every pair of values


class Tunables:
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

    def _chosen(self) -> Iterator[Setting]:
        rung = self.trials.rung
        yield from settings(rung.tune)
        further = more(rung.tune, rung.source, lambda s: next(self._taking(s), None) is not None)
        yield from itertools.islice(further, FURTHER)

    def _taking(self, setting: Setting) -> Iterator[Ran]:
        return (one for one in self.ran if not self.trials.refuses(one.values, setting))

    def _tried(self, setting: Setting, usable: list[Ran]) -> None:
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

    def _several(self, values: Values, tuning: Setting | None = None) -> set[int]:
        """The grid axes along which it launches more than one block."""
        return {axis for grid in self.trials.grids(values, tuning) for axis in range(3) if grid[axis] > 1}

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
