"""A small set of settings that contains every pair of values of two tunables."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

Setting = dict[str, int]


def settings(tune: Mapping[str, Sequence[int]]) -> Iterator[Setting]:
    """Settings that together hold every pair of values; the defaults, which are checked anyway, are not among them."""
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
