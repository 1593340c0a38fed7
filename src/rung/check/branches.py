"""Shapes that reach the code of a kernel that no case has reached.

Many calls are probed: three blocks of each run, on zeros. Of those that reach a line the cheapest are judged like any
case; what no call reaches, or only calls that are too large here, is named in the verdict.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from rung.check.report import THOROUGH, Effort
from rung.check.runner import Probe
from rung.check.shapes import Shapes, sizes_in, text_of
from rung.check.trial import Ran, Trials
from rung.emulator.coverage import Place
from rung.errors import RungError
from rung.operation import Case, Values
from rung.rungs.cuda import CudaRung

BASES = 3  # cases whose sizes are changed
WHOLE = (1, 4, 32, 128)  # what sizes are multiples of
USUAL = (1, 2, 3, 16, 17, 64, 65, 257, 1024, 1025, 2049, 4097, 8193, 16385, 32769, 65537, 1 << 17, 1 << 20)
MOST_SIZE, MOST_BYTES = 1 << 26, 6e8  # of a dimension, and of the operands of a probe
FACTORS = 24  # up to so many numbers of a source, their products are tried
PROBES, SECONDS = 3000, (1.5, 8.0)  # the most probes, and CPU seconds of all, by default and `--thorough`
LARGER = (8.0, 40.0)  # than other trials that nobody chose
WORK = (150.0, 1500.0)  # of all trials, in the units of shapes.py
EACH = 3  # shapes for a place


class Branches:
    def __init__(self, trials: Trials, rung: CudaRung, ran: Sequence[Ran], seed: int, effort: Effort) -> None:
        self.trials, self.rung, self.operation = trials, rung, rung.operation
        self.thorough = effort == THOROUGH
        plain = sorted((one for one in ran if not one.case.change), key=lambda one: (one.work, one.index))
        middle = plain[len(plain) // 3 :] or [*ran]
        flags = {tuple(one.values[s] for s in self.operation.scalars): one for one in middle[::-1]}
        self.bases = [*{one.index: one for one in [*flags.values(), *middle]}.values()][: BASES + len(flags) - 1]
        self.shapes = Shapes(trials, rung, [], [one.values for one in ran], seed, effort.shapes)
        self.shapes.larger = LARGER[self.thorough]

    def reach(self, wanted: Sequence[Place]) -> None:
        calls = [*itertools.islice(self._calls(), PROBES)]
        asked = Probe(
            self.trials.dtype.name, self.trials.tuning, self.trials.names(), [values for _, values in calls],
            list(wanted), SECONDS[self.thorough],
        )  # fmt: skip
        reaching: dict[int, list[int]] = {}
        for number, places in enumerate(self.trials.host.probe(self.rung, asked)):
            for place in places:
                reaching.setdefault(place, []).append(number)
        chosen: dict[int, list[int]] = {}  # call -> places
        for place, numbers in reaching.items():
            uneven = [n for n in numbers if self._uneven(calls[n][1])]
            for number in dict.fromkeys([*numbers[:1], *uneven[: EACH - 1], *numbers[1:]][:EACH]):
                chosen.setdefault(number, []).append(place)
        for number in sorted(chosen):
            if self.shapes.spent > WORK[self.thorough]:
                break
            base, values = calls[number]
            line = min(wanted[place][1] for place in chosen[number])
            sizes = {dim: int(values[dim]) for dim in self.operation.dims}
            self.shapes.tried([(Case(f"for line {line}", base.values), base.values)], sizes)

    def _uneven(self, values: Values) -> bool:
        """Whether its sizes tell rows from columns, and a tail from none."""
        sizes = [int(values[dim]) for dim in self.operation.dims if values[dim] > 1]
        return len(sizes) == len({*sizes}) and any(size % 2 for size in sizes)

    def _calls(self) -> Iterator[tuple[Ran, Values]]:
        """Calls that it takes, the smallest first."""
        found: dict[tuple[object, ...], tuple[float, Ran, Values]] = {}
        names, dtype = self.trials.names(), self.trials.dtype
        for base, sizes in self._sizes():
            try:
                values = self.operation.complete({**{s: base.values[s] for s in self.operation.scalars}, **sizes})
            except RungError:
                continue
            key = tuple(values.values())
            if key in found:
                continue
            owned = (o for o in map(self.operation.operand, names) if o.view_of is None)
            size = sum(self.operation.size_of(o, values, dtype) for o in owned)
            if size <= MOST_BYTES and not self.trials.refuses(values):
                found[key] = size, base, values
        for _, base, values in sorted(found.values(), key=lambda one: one[0]):
            yield base, values

    def _sizes(self) -> Iterator[tuple[Ran, dict[str, int]]]:
        """A dimension, a product of the first dimensions or of all just reaches or exceeds a number of the source."""
        dims = self.operation.dims
        numbers = sizes_in(text_of(self.rung), MOST_SIZE)
        products = {a * b for a, b in itertools.combinations_with_replacement(numbers[-FACTORS:], 2)}
        goals = sorted({*numbers, *(p for p in products if p < MOST_SIZE), *USUAL, *(4 * n for n in numbers)})
        for base, whole in itertools.product(self.bases, WHOLE):
            usual = {d: -(-int(base.values[d]) // whole) * whole if base.values[d] > 1 else 1 for d in dims}
            yield base, usual
            for goal, dim, of in itertools.product(goals, dims, range(len(dims))):
                others = math.prod(usual[d] for d in dims[:of] if d != dim) if of else 1
                if of and dim not in dims[:of]:
                    continue
                size = -(-goal // others // whole) * whole
                for one in (size, size + whole):
                    yield base, {**usual, dim: max(1, one)}
