"""A small set of settings that contains every pair of values of two tunables, and more that contain every three."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

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
