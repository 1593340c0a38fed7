"""Shapes that no case of the operation has: small ones with sizes that the rung's source names, and random ones.

The budget is an amount of work, not of time, so that a verdict does not depend on the machine's speed. The bounds of
such shapes were not chosen by hand, so only errors of ten times the bound count.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import add, floordiv, lshift, mod, mul, rshift, sub

from rung.check.report import RAISED, SLOW, Failure
from rung.check.runner import Binding
from rung.check.trial import SEEDS, Trial, Trials
from rung.cuda.source import without_comments
from rung.errors import EmulatorFault, TooLarge
from rung.operation import Case, Values
from rung.rungs.cuda import CudaRung
from rung.rungs.header import DESCRIPTIVE
from rung.rungs.python import PythonRung

MOST_ONES = 12  # choices of dimensions of one
MOST_VALUES = 2  # of a scalar beside them
TURNS = 3  # base cases in which each size is tried
# The budgets: one unit per trial, COMPILED units per build, one unit per THREADS threads, STEPS instructions, ...
WORK, WORK_DRAWN = 400.0, 1000.0
COMPILED, THREADS, STEPS, FLOPS, BYTES = 10, 200_000, 1_000_000, 1e6, 2e6
GROSS, GROSS_FEW, FEW = 10.0, 100.0, 8  # times the bound; with at most FEW results, one may be near zero
FUSED = 4.0  # times the bound, where only fused arithmetic exceeds it: a right kernel may cancel, too
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
LEAST_PYTHON = 0.5  # of that, what the default check keeps
MOST_BYTES_PYTHON = 4e6  # of a trial
FLAG = 2  # scalars up to this value select a variant of the formula
ATTEMPTS = 40  # to find a shape that the operation and the rung support
DRAWN = 100  # the most random shapes
SMALLER = 2  # they have fewer FLOPs than others by this factor, and their bytes cost as much more


class Shapes:
    """Runs a rung at further shapes."""

    def __init__(
        self,
        trials: Trials,
        rung: CudaRung | PythonRung,
        bases: Sequence[tuple[Case, Values]],
        ran: list[Values],
        seed: int,
        scale: float = 1.0,
    ) -> None:
        self.trials, self.rung, self.bases, self.seed = trials, rung, bases, seed
        self.scale = scale if isinstance(rung, CudaRung) else max(scale, LEAST_PYTHON)
        self.dims = rung.operation.dims
        self.known = {self._dims(values) for values in ran}
        self.built = [self._build(values) for values in ran]
        if isinstance(rung, CudaRung):
            self.named, self.share = sizes_in(text_of(rung)), 1.0
        else:
            self.named = sizes_in_python(rung.source)
            self.share = SHARE if trials.dtype.name == rung.dtypes[0] else SHARE_AGAIN
        self.untried: set[int] = set()
        self.slow: list[str] = []  # shapes that take too long here
        self.raised: list[str] = []  # shapes that the file itself refuses
        self.spent = 0.0
        self.smaller = 1
        self.left = math.inf  # of the budget of random shapes
        self.larger = 1.0  # than the usual limits of a trial

    def add_sizes_of_one(self) -> None:
        """One dimension, or two, of one among ordinary others; one also with each value of an integer scalar."""
        self.spent = 0.0
        few = [*((dim,) for dim in self.dims), *itertools.combinations(self.dims, 2)]
        for some in few[:MOST_ONES]:
            self.tried(self.bases, dict.fromkeys(some, 1))
        for dim, (name, values) in itertools.product(self.dims, self._seen().items()):
            tried = (self.tried(self.bases, {dim: 1, name: value}) for value in values)
            next(itertools.islice(filter(None, tried), MOST_VALUES - 1, None), None)

        for dim, other in itertools.permutations(self.dims, 2):  # a single row may have a way of its own
            for named in self.named:
                if self.spent < self.scale * self.share * WORK:
                    self.tried(self.bases, {dim: 1, other: named + 1})

    def _seen(self) -> dict[str, list[int]]:
        """The values of integer scalars that cases have."""
        cases, names = self.rung.operation.cases, self.rung.operation.scalars
        found = {n: {v for one in cases if isinstance(v := one.values.get(n), int)} for n in names}
        return {name: sorted(values) for name, values in found.items() if values}

    def with_one_named(self) -> None:
        """One dimension has such a size, or two more than it; if the rung or the operation refuses that, another
        dimension has it too."""
        self.spent = 0.0
        for turn, named, dim, more in itertools.product(range(TURNS), self.named, self.dims, (0, 2, 1)):
            size = named + more
            if self.spent >= self.scale * self.share * WORK:
                self.untried |= {named} if turn == 0 else set()
            elif not self.tried(self.bases[turn::TURNS], {dim: size}) and turn == 0:
                any(self.tried(self.bases, {dim: size, other: size}) for other in self.dims)

    def with_two_named(self) -> None:
        """Two dimensions have one size each; if there are too many pairs, the selection depends on the source."""
        sizes = [named + more for named in self.named for more in (0, 2)]
        pairs = itertools.combinations(self.dims, 2)
        both = [{d: m, e: n} for d, e in pairs for m in sizes for n in sizes]
        random.Random(self.rung.source).shuffle(both)
        self.spent = 0.0
        for changed in both:
            if self.spent < self.scale * self.share * WORK:
                self.tried(self.bases, changed)

    def drawn(self) -> None:
        """All dimensions are random, depending on the source, and one of them is large."""
        if not self.bases:
            return
        draws = random.Random(f"drawn {self.rung.source}")
        self.spent, self.smaller = 0.0, SMALLER
        for number in range(DRAWN):
            self.left = self.scale * self.share * WORK_DRAWN - self.spent
            large = self.dims[number % len(self.dims)]
            for _ in range(ATTEMPTS):
                if self.left <= 0:
                    return
                changed = {dim: draws.choice(draws.choice((SMALL, SMALL, MEDIUM))) for dim in self.dims}
                changed |= {large: draws.choice(LARGE)} | self._scalars(draws)
                if self.tried([draws.choice(self.bases)], changed):
                    break

    def _scalars(self, draws: random.Random) -> dict[str, int]:
        """Integer scalars, in half of the shapes: a value that some case has, or any size if they are not flags."""
        found = {}
        for name, seen in self._seen().items():
            if draws.random() < 0.5:
                found[name] = draws.choice(seen + list(MEDIUM + LARGE) * (seen[-1] > FLAG))
        return found

    def _dims(self, values: Values) -> tuple[object, ...]:
        return tuple(sorted(values.items()))

    def tried(self, bases: Sequence[tuple[Case, Values]], changed: dict[str, int]) -> bool:
        """Runs the first of these cases that has a result with these changes; false if none has."""
        host = self.trials.host
        before = host.steps
        trial = next(self._changed(bases, changed), None)
        if trial is None:
            return False
        try:
            trial.once(self.trials.next_order())
        except TooLarge as large:
            self.raised.append(f"{trial.report.case} ({large})")
            return True
        except (Failure, EmulatorFault) as failure:
            if failure.kind == RAISED:
                self.raised.append(f"{trial.report.case} ({failure})")
                return True
            if failure.kind == SLOW:
                self.spent += TOO_SLOW
                self.slow.append(trial.report.case)
                return True
            if isinstance(failure, EmulatorFault):
                raise
            if not (_by_chance(trial) if trial.integers_differ else 1 < trial.worst < _gross(trial)):
                raise
        self.spent += (host.steps - before) / STEPS
        return True

    def _changed(self, bases: Sequence[tuple[Case, Values]], changed: dict[str, int]) -> Iterator[Trial]:
        operation, trials = self.rung.operation, self.trials
        for case, values in bases:
            try:
                given = operation.complete({**case.values, **{d: values[d] for d in self.dims}, **changed})
                if (key := self._dims(given)) in self.known:
                    continue
                if trials.refuses(given) or (work := self._work(given)) is None:
                    continue
                if work > self.left:
                    continue
                self.known.add(key)
                named = ", ".join(f"{d}={n}" for d, n in changed.items())
                how = Binding(trials.tuning)
                trial = trials.at(replace(case, name=f"{case.name}, with {named}", values=given), given, self.seed, how)
                # Nobody has chosen the size for these numbers: two large ones nearly cancel in a mean of two.
                trial.operands.as_the_formula |= trials.dtype.name == "f32"
                usable = _has_results(trial)
            except Exception:  # dimensions that do not fit together
                continue
            self.spent += work if usable else min(work, 1 + COMPILED)
            if usable:
                yield trial

    def _work(self, values: Values) -> float | None:
        """The amount of work in it; None if too much. For unusual sizes the cost model may be too low."""
        operation, dtype, tuning = self.rung.operation, self.trials.dtype, self.trials.tuning
        size = sum(operation.size_of(operation.operand(name), values, dtype) for name in self.trials.names())
        flops = abs(operation.cost(values, dtype.size).flops)
        if isinstance(self.rung, PythonRung):
            return None if flops > MOST_FLOPS or size > MOST_BYTES_PYTHON else 1 + flops / FLOPS + size / BYTES
        launches = self.rung.launches(values, dtype, tuning, self.trials.device)
        threads = sum(math.prod(config.grid) * config.threads for _, config in launches)
        if (
            flops > MOST_FLOPS / self.smaller * self.larger
            or size > MOST_BYTES * self.larger
            or threads > MOST_THREADS * max(self.scale, LEAST_THREADS) * self.larger
        ):
            return None
        build = self._build(values)
        compiled = COMPILED * (build not in self.built)
        self.built.append(build)
        return 1 + compiled + threads / THREADS + flops / FLOPS + size / BYTES * self.smaller

    def _build(self, values: Values) -> object:
        """What is compiled for this shape; nothing for a rung of Python."""
        rung = self.rung
        return rung.build(values, self.trials.dtype, self.trials.tuning) if isinstance(rung, CudaRung) else None


def text_of(rung: CudaRung) -> str:
    """What may name sizes: the source, the expressions of its header, and the defaults of its tunables."""
    constants = "".join(f"constexpr int {name} = {choices[0]};\n" for name, choices in rung.tune.items())
    return f"{constants}{_expressions(rung.table)}\n{rung.source}"


def _expressions(table: object) -> str:
    """The numbers and expressions of a header, without its prose and the choices of tunables."""
    if isinstance(table, dict):
        return "\n".join(_expressions(v) for k, v in table.items() if k not in (*DESCRIPTIVE, "tune"))
    if isinstance(table, list):
        return "\n".join(map(_expressions, table))
    return f"({table})" if isinstance(table, int | str) and not isinstance(table, bool) else ""


def _has_results(trial: Trial) -> bool:
    results = trial.operands.reference().values()
    return all(bool(one.isfinite().all()) for one in results) and trial.operands.representable()


def _gross(trial: Trial) -> float:
    results = trial.operands.reference().values()
    return GROSS if all(one.numel() >= FEW for one in results) else GROSS_FEW


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


MOST = 70_000  # GPT-2's sizes are smaller
ROUNDS = 12  # how often calculations in a source are replaced by their results
_BLANKS, _BREAKS = re.compile(r"[^\S\n]+"), re.compile(r"(?: ?\n ?)+")
_NUMBER = re.compile(r"(?<![\w.])(0[xX][0-9a-fA-F]+|[1-9]\d*)[uUlL]*(?![\w.])")
_NAMED = re.compile(
    r"(?:\b(?:constexpr|const|enum)\b[\w :{]{0,80}?|#define)[\s{]([A-Za-z_]\w*) ?[={ ] ?(\d{1,10})(?= ?[;,}\n])"
)
_CALCULATED = re.compile(
    r"(?<![\w)\s])\s?\(\s?(\d{1,10})\s?\)|(?<![\w.])(\d{1,10})\s?(<<|>>|[*/%+-])\s?(\d{1,10})(?![\w.])"
)
_NEVER = re.compile(r"(?!)")
_PROSE = re.compile(r"(\"{3}|'{3}).*?\1|#[^\n]*|\"[^\"\n]{61,}\"|'[^'\n]{61,}'", re.S)  # and no condition
_TUNED = re.compile(r"^TUNE\b.*?\}", re.M | re.S)
_OPERATORS = {"*": mul, "/": floordiv, "%": mod, "+": add, "-": sub, "<<": lshift, ">>": rshift}


def sizes_in(source: str, most: int = MOST) -> list[int]:
    """The numbers in a source that a dimension may have, the largest first, including what the source calculates from
    numbers and from its names for them. Operators are evaluated without precedence: a few superfluous numbers do no
    harm."""
    body = _BREAKS.sub("\n", _BLANKS.sub(" ", without_comments(source)))
    body = _NUMBER.sub(lambda number: str(int(number[1], 0)), body)
    found = {int(number) for number in _NUMBER.findall(body)}
    for _ in range(ROUNDS):
        folded = _CALCULATED.sub(_calculate, _with_names_replaced(body))
        if folded == body:
            break
        body = folded
        found |= {int(number) for number in _NUMBER.findall(body)}
    return sorted((n for n in found if 4 < n < most), reverse=True)


def sizes_in_python(source: str) -> list[int]:
    """The same for a rung of Python, including numbers in short strings and the defaults of tunables."""
    body = _PROSE.sub("", source).replace("//", "/")
    body = _TUNED.sub(lambda table: re.sub(r"(\[[^\],]*),[^\]]*", r"\1", table[0]), body)
    return sizes_in(re.sub(r"^(\w+) *= *(.*)$", r"const \1 = \2;", re.sub(r"\b(\d+)\.0\b", r"\1", body), flags=re.M))


def _with_names_replaced(body: str) -> str:
    named: dict[str, str] = dict(_NAMED.findall(body))
    names = re.compile(rf"\b({'|'.join(map(re.escape, named))})\b(?! ?=[^=])") if named else _NEVER
    return names.sub(lambda name: named[name[0]], body)


def _calculate(match: re.Match[str]) -> str:
    """C's result for two numbers and an operator, or for one in parentheses; the text itself if that is irrelevant."""
    alone, left, operator, right = match.groups()
    if alone is not None:
        return str(alone)
    a, b = int(left), int(right)
    if (operator in ("/", "%") and b == 0) or (operator in ("<<", ">>") and b > 31):
        return match[0]
    value = _OPERATORS[operator](a, b)
    return str(value) if 0 <= value < 1 << 32 else match[0]
