"""What a wrong rung needs to be right: sizes and scalars. Nothing is told that new calls have not confirmed."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence

from gpuless.base.expressions import Number, evaluate, names_in
from rung.check.report import Failure
from rung.check.shapes import MOST_BYTES, MOST_FLOPS
from rung.check.trial import WRONG, Trials
from rung.errors import RungError
from rung.operation import Case, Values

CALLS, SECONDS = 80, 4.0  # of their runs
LARGER = 4  # times the work of a further shape, that a call here may have
MULTIPLES = (2, 4, 8, 16, 32, 64, 128)
BATCH = 4  # a dimension up to this size may be a batch's or the heads'
CONFIRMED = 2  # new calls on each side of a condition
Tried = dict[Number, bool | None]  # whether a call is right, by the one value that differs; None: not known
Rule = tuple[str, list[int], list[int]]  # a condition, and sizes on its right and on its wrong side


class Advice:
    """Calls that differ from a right one in one size or scalar only, and what those that are right have in common."""

    def __init__(
        self, trials: Trials, seed: int, wrong: Values, kinds: Sequence[str] = WRONG, *, bounds: bool = False
    ) -> None:
        """Calls that fail in one of these ways are wrong; with `bounds`, only what a size may be at most is told."""
        self.trials, self.seed, self.of, self.wrong = trials, seed, trials.operation, wrong
        self.kinds, self.bounds = kinds, bounds
        self.calls, self.left = CALLS, SECONDS
        self.known: dict[tuple[tuple[str, Number], ...], bool | None] = {self._key(wrong): False}

    def needs(self, right: Sequence[Values]) -> str:
        """An expression for the header's `needs`; empty if none is confirmed."""
        self.known |= {self._key(values): True for values in right}
        base = self._ordinary(right) if right else self._whole()
        if base is None:
            return ""
        if rule := self._of_products(base):
            return rule
        rules = list[str]()
        fixed = [name for name, usual in self.of.scalars.items() if not names_in(str(usual))]
        for name in dict.fromkeys([*fixed, *self.of.derived, *self.of.dims]):
            own = base[name]
            others = [self.wrong[name], *([own + 1, 2 * own + 1, 3 * own] if name not in fixed else [])]
            tried = {own: True, **{n: self._tried(base, name, n) for n in others if n != own}}
            calls = [self._with(base, name, value) or base for value, right in tried.items() if right is False]
            if all(any(not evaluate(rule, call) for rule in rules) for call in calls):
                continue  # it does not matter, or only as another size that follows from it
            rule = self._scalar(base, name) if name in fixed else self._size(base, name, tried)
            if not rule:
                return ""
            rules.append(rule)
        told = " and ".join(rules)
        return told if told and self._agrees(told) else ""

    def _agrees(self, rule: str) -> bool:
        """Whether it tells the right calls so far from the others."""
        return all(ok is None or bool(evaluate(rule, dict(key))) == ok for key, ok in self.known.items())

    def _of_products(self, base: Values) -> str:
        """A number of elements or rows that is a multiple, however its dimensions share the factors."""
        products = {text: names_in(text) for text in (self.of.sizes[2], self.of.sizes[0])} if not self.bounds else {}
        for (text, names), n in itertools.product(products.items(), MULTIPLES):
            rule, odd = f"{text} % {n} == 0", dict(zip(names, (3, 5, 7, 9), strict=False))
            if len(names) < 2 or not self._agrees(rule):
                continue
            first, *_, last = names
            right = [{first: 3 * n}, {first: n // 2, last: 10}] if n > 2 else [{first: 6}, {first: 10}]
            wrong = [{first: 3 * n // 2}, {last: 5 * n // 2}] if n > 2 else [{first: 5}, {last: 9}]
            calls = [(asked, {**odd, **one}) for asked, some in ((True, right), (False, wrong)) for one in some]
            given = {name: base[name] for name in (*self.of.dims, *self.of.scalars)}
            if all(self._completed({**given, **sizes}, rule) is asked for asked, sizes in calls):
                return rule
        return ""

    def _completed(self, sizes: Values, name: str) -> bool | None:
        with contextlib.suppress(RungError):
            return self._is_right(self.of.complete(sizes), name)
        return None

    def _scalar(self, base: Values, name: str) -> str:
        """Right at one value only, whatever the sizes are."""
        own, first = base[name], self.of.dims[0]
        near = [given for more in (1, 2) if (given := self._with(base, first, base[first] + more))]
        others = [self.wrong[name], *([own * 64, own * 1024] if isinstance(own, float) else [])]
        right = [self._tried(shape, name, own) for shape in (self.wrong, *near)]
        wrong = [self._tried(shape, name, other) for shape in (base, *near) for other in others]
        agrees = False not in right and True not in wrong
        return f"{name} == {own:g}" if agrees and min(right.count(True), wrong.count(False)) >= CONFIRMED else ""

    def _size(self, base: Values, name: str, tried: Tried) -> str:
        """The first rule that all calls obey, and two new ones on each side of it."""
        for rule, right, wrong in self._rules(base, name, tried):
            agrees = all(ok is None or ok == evaluate(rule, {name: value}) for value, ok in tried.items())
            for asked, values in ((True, right), (False, wrong)) if agrees else ():
                new = (self._told(base, name, n, tried) for n in values if n > 0 and n not in tried)
                found = list(itertools.islice((ok for ok in new if ok is not None), CONFIRMED))
                agrees &= found == [asked] * CONFIRMED
                if not agrees:
                    break
            if agrees:
                return rule
        return ""

    def _rules(self, base: Values, name: str, tried: Tried) -> Iterator[Rule]:
        """What sizes may need, the weakest first."""
        for n in MULTIPLES if not self.bounds else ():
            odd = [3 * n + 1, 5 * n + n // 2, 2 * n - 1, n + n // 2]
            yield f"{name} % {n} == 0", [k * n for k in (3, 2, 5, 7)], odd
        if not self.bounds:
            yield f"next_pow2({name}) == {name}", [16, 32, 64, 128, 8, 256], [48, 96, 24, 40]
        for sign, more in (("<=", 1), (">=", -1))[: 1 if self.bounds else 2]:
            right = max((int(n) for n, ok in tried.items() if ok), key=lambda n: n * more)
            beyond = [int(n) for n, ok in tried.items() if ok is False and (n - right) * more > 0]
            wrong = min(beyond, key=lambda n: n * more, default=right)
            while abs(wrong - right) > 1 and (ok := self._told(base, name, (right + wrong) // 2, tried)) is not None:
                right, wrong = ((right + wrong) // 2, wrong) if ok else (right, (right + wrong) // 2)
            above = [right + 1, 2 * right + 1, 3 * right + 1, right + 3, right + 5]
            below = [right - 1, right // 2 + 1, right // 3 + 1, right - 3, right - 5]
            yield f"{name} {sign} {right}", *((below, above) if more > 0 else (above, below))

    def _told(self, base: Values, name: str, value: int, tried: Tried) -> bool | None:
        if value not in tried:
            tried[value] = self._tried(base, name, value)
        return tried[value]

    def _tried(self, base: Values, name: str, value: Number) -> bool | None:
        given = self._with(base, name, value)
        return None if given is None else self._is_right(given, f"{name} = {value:g}")

    def _is_right(self, values: Values, name: str) -> bool | None:
        """None where the rung refuses the call, it costs too much, or it fails in another way, as by a race."""
        if (key := self._key(values)) in self.known:
            return self.known[key]
        if self._work(values) > 1 or self.trials.refuses(values) or not self.calls or self.left < 0:
            return None
        self.calls -= 1
        try:
            trial = self.trials.at(Case(name, values), values, self.seed, only_run=True)
            trial.once()
            self.left -= trial.seconds
            self.known[key] = True
        except (Failure, RungError) as failure:
            # Numbers that nothing writes may all be zeros of the result at one size.
            unwritten = failure.kind == "zeroed" and "values" in self.kinds
            self.known[key] = False if unwritten or failure.kind in self.kinds else None
        return self.known[key]

    def _key(self, values: Values) -> tuple[tuple[str, Number], ...]:
        return tuple(sorted(values.items()))

    def _work(self, values: Values) -> float:
        cost = self.of.cost(values, self.trials.dtype.size)
        return max(cost.flops / MOST_FLOPS, cost.bytes / MOST_BYTES) / LARGER

    def _ordinary(self, some: Sequence[Values]) -> Values:
        """The first call with two sizes that are not a batch's, if there is one."""
        least, dims = min(2, len(self.of.dims)), self.of.dims
        return next((values for values in some if sum(values[dim] > BATCH for dim in dims) >= least), some[-1])

    def _whole(self) -> Values | None:
        """A right call of whole tiles or of powers of two, in as few dimensions as it takes; a batch's size stays."""
        cases = [self.of.complete(one.values) for one in self.of.cases if self.trials.dtype.name in one.dtypes]
        start = self._ordinary([self.wrong, *cases])
        dims = {dim: int(start[dim]) for dim in self.of.dims}
        tiles = [{dim: -(-n // m) * m for dim, n in dims.items() if n > BATCH} for m in MULTIPLES[::-1]]
        powers = {dim: max(MULTIPLES[-1], 1 << (n - 1).bit_length()) for dim, n in dims.items() if n > BATCH}
        for sizes in (*tiles, powers):
            base = self._right_at(start, sizes)
            for dim in [*sizes] if base else []:
                if fewer := self._right_at(start, {other: n for other, n in sizes.items() if other != dim}):
                    base = fewer
                    del sizes[dim]
            if base:
                return base
        return None

    def _right_at(self, start: Values, sizes: Mapping[str, int]) -> Values | None:
        given = {name: start[name] for name in (*self.of.dims, *self.of.scalars)} | dict(sizes)
        return self.of.complete(given) if self._completed(given, "whole tiles") else None

    def _with(self, values: Values, name: str, value: Number) -> Values | None:
        """The call with another size or scalar; of a derived one, by a size that gives it. None if none is legal."""
        given = {n: values[n] for n in (*self.of.dims, *self.of.scalars)}
        factors = itertools.product(self.of.dims, sorted({1, *(int(values[dim]) for dim in self.of.dims)}))
        changes = [{name: value}] if name in given else [{dim: int(value) * n} for dim, n in factors]
        for change in changes:
            try:
                found = self.of.complete({**given, **change})
            except RungError:
                continue
            if found[name] == value:
                return found
        return None
