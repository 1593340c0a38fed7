"""Shapes as large as tensors get, of which some blocks run in memory that is only reserved: there indices pass what
16, 24 and 32 bits hold, and rows pass what a capped grid reaches."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from gpuless import guard
from gpuless.facts import limits
from rung.arrays import Array, copy_of, kind_of, to_kind
from rung.check.gpu_limits import ARCH
from rung.check.guarded_memory import Block, GuardedStorage
from rung.check.operands import Operands
from rung.check.report import Failure
from rung.check.runner import PACE, Binding
from rung.check.shapes import GROSS, MOST_FLOPS
from rung.check.trial import Ran, Trials, alignment_of
from rung.dtypes import element_name
from rung.errors import EmulatorFault, RungError
from rung.operation import Tensors, Values, random_numbers
from rung.rungs.arguments import SCALAR_KINDS
from rung.rungs.cuda import CudaRung

# Elements of the largest operand, along one dimension. Code that takes sizes of 64 bits is for more than 2^31; indices
# of 32 bits need some room below it for the stride of a loop. What Python allocates and copies takes memory. Where the
# loops of a capped grid are too long, fewer blocks run, or less, and at last some more than float holds exactly.
WIDE, USUAL, NEAR, PYTHON = 1.25 * 2**32, (1.5 * 2**30, 2.0**28, 2.0**26, 1.25 * 2**24), 2.0**16, 2.0**25
BLOCKS, FEW = 40, 3  # that run
SOME_BLOCKS = "some blocks at"
TRIES = 3  # shapes of a size, where a GPU cannot launch the first
STEPS, ENDLESS = 500_000, 10  # instructions of warps that are expected of a run, at most; times these it does not end
PERIOD, DRAWN = 1021 * guard.PAGE, 8209  # bytes after which inputs repeat, of so many numbers: wrapped addresses differ
LINE = 64  # elements of a slice, or some more: there are fewer than 2^31 / LINE slices
PLACES, MOST, MOST_PAGES = 1000, 1 << 20, 4096  # that are compared, their elements, and pages that are read at once
REPEATS = 1.5  # times the stores to an element that a smaller call makes
LAST, SOME_OF_IT = 0.75, 0.01  # from here on the blocks write, at least this share of what they write
SMALL, SOME = 5, (0, 2, 3)  # slices, of which some are compared with all


class Far:
    """Raises a `Failure` if a call that large goes wrong where smaller ones do not."""

    def __init__(self, trials: Trials, ran: Sequence[Ran], seed: int) -> None:
        self.trials, self.host, self.seed = trials, trials.host, seed
        self.rung, self.operation, self.cuda = trials.rung, trials.operation, trials.cuda
        chosen = [self.operation.operand(name) for name in trials.names()]
        self.given = [o for o in chosen if o.view_of is None]
        self.names = [o.name for o in self.given]
        self.bases = [one.values for one in ran if not one.case.change]
        self.axes: dict[str, int] = {}  # of the operands that have the dimension
        self.dim = ""

    def all(self) -> None:
        header, of, known = self.rung.header, self.operation, self.rung.learned
        if known and known.guess:  # a launch that is not the file's own may not be for such sizes
            return
        if header.buffers or header.zeroed or of.draw or of.custom_check or not self.bases:
            return
        if any(o.copy_of or o.follows or o.role == "inout" for o in self.given):
            return
        for dims in (of.dims, of.dims[:0:-1]) if self.cuda else (of.dims,):  # rows at first, then columns
            if any(self._usable(dim) for dim in dims):
                self._along()

    def _usable(self, dim: str) -> bool:
        self.dim, self.axes = dim, {o.name: o.shape.index(dim) for o in self.given if dim in o.shape}
        plain = all(o.make is None for o in self.given if o.name in self.axes)
        return plain and all(o.name in self.axes for o in self.given if o.written) and self._independent()

    def _independent(self) -> bool:
        """Whether slices along the dimension are independent: the reference of some is a part of that of all."""
        with contextlib.suppress(Exception):
            values = self._with(min(self.bases, key=lambda v: self.operation.cost(v, 4).flops), SMALL)
            whole, some = self._operands(values), self._operands(self._with(values, len(SOME)))
            self._copy(whole.tensors, some.tensors, SOME)
            expected, part = some.reference(), {n: copy_of(t) for n, t in some.reference().items()}
            self._copy(whole.reference(), part, SOME)
            return all(np.allclose(part[n], expected[n], equal_nan=True) for n in some.outputs)
        return False

    def _copy(self, given: Tensors, to: Tensors, places: Sequence[int]) -> None:
        """Copies these slices of the operands."""
        for name, tensor in to.items():
            if name in self.names:
                axis = self.axes.get(name)
                some = given[name] if axis is None else np.take(given[name], places, axis)
                tensor[...] = some.reshape(tensor.shape)

    def _with(self, values: Values, size: int) -> Values:
        """The values with so many slices; what follows from sizes is calculated anew."""
        fixed = [n for n, usual in self.operation.scalars.items() if not isinstance(usual, str)]
        return self.operation.complete({**{n: values[n] for n in (*self.operation.dims, *fixed)}, self.dim: size})

    def _operands(self, values: Values) -> Operands:
        return Operands(self.operation, values, self.trials.dtype, self.names, self.seed, device="cpu")

    def _along(self) -> None:
        goals = [PYTHON]
        if self.cuda:
            every = itertools.chain.from_iterable(self.rung.parameters.values())  # type: ignore[attr-defined]
            wide = any(SCALAR_KINDS.get(p.ctype) in ("i64", "u64") for p in every if not p.pointer)
            goals = [*([WIDE] if wide else []), *USUAL]
        self.repeats, self.pace = math.inf, 0.0
        try:
            if not self._runs(NEAR):
                return
        except (Failure, EmulatorFault):  # its blocks are such that some of them do not show what is right
            self.trials.report.failure = {}
            return
        any(self._runs(goal) for goal in goals)

    def _runs(self, goal: float) -> bool:
        """Whether the blocks of a call of so many elements can be run."""
        for values in itertools.islice(self._calls(goal), TRIES):
            usable = (n for n in (BLOCKS, FEW) if self._expected(values, n) <= STEPS)
            if (blocks := next(usable, 0)) and self._judged(values, blocks):
                return True
        return False

    def _work(self, values: Values, blocks: int) -> float:
        """Elements that so many blocks of each launch make."""
        counts = [*map(math.prod, self.trials.grids(values))]
        return self._slice(values) * values[self.dim] * sum(min(blocks, n) for n in counts) / sum(counts)

    def _expected(self, values: Values, blocks: int) -> float:
        """Instructions of warps, as many for each element as in the first run."""
        return self.pace and self.pace * self._work(values, blocks)

    def _calls(self, goal: float) -> Iterator[Values]:
        """Calls of so many elements that the operation and the rung take."""
        sized = {self._slice(values): values for values in self.bases}
        for per in sorted(sized, key=lambda per: (per < LINE, abs(math.log(per / LINE)))):
            with contextlib.suppress(RungError):
                values = self._with(sized[per], int(goal / per))
                small = all(math.prod(o.size(values)) <= MOST for o in self.given if o.name not in self.axes)
                flops = self.operation.cost(self._with(values, 1), 4).flops
                if small and flops <= MOST_FLOPS and not self.trials.refuses(values) and self._fits(values):
                    yield values

    def _fits(self, values: Values) -> bool:
        if not isinstance(self.rung, CudaRung):
            return True
        launches = self.rung.launches(values, self.trials.dtype, self.trials.tuning)
        return not any(limits.refusal(limits.limits(ARCH), config) for _, config in launches)

    def _slice(self, values: Values) -> int:
        one = self._with(values, 1)
        return max(math.prod(o.size(one)) for o in self.given if o.name in self.axes)

    def _judged(self, values: Values, blocks: int) -> bool:
        """Whether the call can be run; raises a `Failure` if its blocks go wrong."""
        trials, host = self.trials, self.host
        trials.report.case = f"{SOME_BLOCKS} {' '.join(f'{dim}={values[dim]}' for dim in self.operation.dims)}"
        patterns = {o.name: self._pattern(o.name, values) for o in self.given if o.name in self.axes and not o.written}
        alignment = alignment_of(self.rung, values, trials.dtype, trials.tuning, trials.device)
        storage = host.reserved(alignment, patterns)
        sized = {o.name: (o.size(values), element_name(o.dtype, trials.dtype)) for o in self.given}
        tensors = {name: storage.empty(name, *how) for name, how in sized.items()}
        for index, o in enumerate(self.given):
            if o.name not in self.axes:
                tensors[o.name][...] = random_numbers(o, values, self.seed + index, 1.0, "cpu")
        written = [o.name for o in self.given if o.written]
        call: Any = SimpleNamespace(tensors=tensors, values=values, dtype=trials.dtype, names=self.names)
        call.inputs, call.outputs = [n for n in self.names if n not in written], written
        call.blocks = storage.blocks
        try:
            seconds = (ENDLESS * self._expected(values, blocks) or STEPS) / PACE
            bound = host.bind(self.rung, call, Binding(trials.tuning, few=blocks, seconds=seconds), storage)
            launches, steps, self.stored = host.launches, host.steps, host.stored
            bound.run()
            if self.cuda:
                self.pace = self.pace or (host.steps - steps) / self._work(values, blocks)
        except EmulatorFault as fault:
            if fault.kind in ("bounds", "race") or (fault.kind == "unfinished" and self.pace):
                trials.report.failure = trials.call_facts(values, self.names)
                raise
            return False
        except (Failure, RungError):  # what a GPU or the file refuses
            return False
        if host.launches == launches + 1 and not host.atomics and not host.keeps_state:  # else results have parts
            done = host.steps - steps
            whole = blocks > FEW or done * ENDLESS < self._expected(values, blocks)  # few blocks of unusual orders
            self._compare(values, tensors, storage, f"{blocks} blocks of the grid" if whole else "")
        return True

    def _pattern(self, name: str, values: Values) -> bytes:
        operand = self.operation.operand(name)
        made = random_numbers(replace(operand, shape=(DRAWN,)), values, self.seed + len(name), 1.0, "cpu")
        return np.resize(to_kind(made, element_name(operand.dtype, self.trials.dtype)).view(np.uint8), PERIOD).tobytes()

    def _compare(self, values: Values, tensors: Tensors, storage: GuardedStorage, of: str) -> None:
        """What the blocks have written must be right; some of them write near the end, and not all to few elements."""
        places, written, last = set[int](), 0, 0
        for name in (o.name for o in self.given if o.written):
            tensor, axis = tensors[name], self.axes[name]
            step, count = math.prod(tensor.shape[axis + 1 :]), tensor.shape[axis]
            for found in self._written(tensor, storage.blocks[name]):
                written += len(found) * tensor.itemsize
                along = found // step % count
                last += int((along >= LAST * count).sum()) * tensor.itemsize
                places |= {*along[:: max(1, len(along) // PLACES)].tolist()}
            if of and last <= SOME_OF_IT * written:
                text = f"{name}: of {of}, the last among them, none or few write to its last quarter along {self.dim}"
                self._fail(text, values)
        chosen = sorted(places)[:: -(-max(1, len(places)) * self._slice(values) // MOST)]
        operands = self._operands(self._with(values, len(chosen)))
        self._copy(tensors, operands.tensors, chosen)
        reference, operands.as_the_formula = operands.reference(), True
        zeros = 0.0
        for name in operands.outputs:
            out = operands.tensors[name]
            right = to_kind(reference[name].reshape(out.shape), kind_of(out))
            zeros = max(zeros, float((right == 0).mean()))
            out[...] = np.where(_unwritten(out), right, out)
        for off in operands.deviations(reference):
            if not off.ok and not max(off.element, off.norm / (off.norm_cap or math.inf)) < GROSS:
                self._fail(off.problem, values)
        again = (self.host.stored - self.stored) * (1 - zeros) / max(written, 1)
        if again > REPEATS * self.repeats:
            self._fail(f"{again / self.repeats:.1f} threads store to each element, and to others none", values)
        self.repeats = min(self.repeats, again)

    def _written(self, tensor: Array, block: Block) -> Iterator[Array]:
        """The elements that hold something: only of the pages that were touched, unless Python has copied all."""
        if not self.cuda:
            yield np.flatnonzero(~_unwritten(tensor))
            return
        touched = guard.touched(block.raw)
        for pages in (touched[at : at + MOST_PAGES] for at in range(0, len(touched), MOST_PAGES)):
            held = block.raw.reshape(-1, guard.PAGE)[pages].view(tensor.dtype)
            row, column = (~_unwritten(held)).nonzero()
            found = (pages[row] * guard.PAGE - block.start) // tensor.itemsize + column
            yield found[(found >= 0) & (found < tensor.size)]

    def _fail(self, text: str, values: Values) -> None:
        self.trials.report.failure = self.trials.call_facts(values, self.names)
        raise Failure(text, "values")


def _unwritten(out: Array) -> Array:
    """Reserved memory holds zeros, which are not told from such results; torch.empty gives NaN here."""
    return (out == 0) | (out != out)
