"""One set of an operation's operands: filled, poisoned, compared with the reference. Check and bench share it."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

from rung.arrays import (
    Array,
    bits_of,
    copy_of,
    is_real,
    kind_of,
    largest,
    moved,
    namespace,
    put,
    quiet,
    to_float64,
    to_kind,
)
from rung.arrays import empty as new
from rung.check.compare import Deviation, Measured
from rung.check.guarded_memory import POISONS, Block, fill
from rung.dtypes import SUMS, Dtype, element_name
from rung.errors import RungError
from rung.operation import Case, Empty, Operation, Tensors, Values


class Remembered:
    """Tensors by what determines them, the least recently used ones forgotten when there are too many bytes."""

    def __init__(self, limit: int) -> None:
        self._limit, self._held = limit, 0
        self._known: OrderedDict[Hashable, Tensors] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Tensors]) -> Tensors:
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        made = make()
        self._known[key] = made
        self._held += _bytes(made)
        while self._held > self._limit and len(self._known) > 1:
            self._held -= _bytes(self._known.popitem(last=False)[1])
        return made


def _bytes(tensors: Tensors) -> int:
    return sum(t.nbytes for t in tensors.values())


# The rungs of a ladder get the same numbers: a case's inputs and reference are computed once per process.
_references = Remembered(1 << 28)
_inputs = Remembered(1 << 28)


class Operands:
    """Tensors for one call of an operation, and what its outputs should become."""

    def __init__(
        self,
        operation: Operation,
        values: Values,
        dtype: Dtype,
        names: Sequence[str],
        seed: int,
        *,
        device: str,
        empty: Empty | None = None,
        case: Case | None = None,
    ) -> None:
        self.operation, self.values, self.dtype, self.names = operation, values, dtype, tuple(names)
        self.device, self.case = device, case
        self._given: Tensors = {}
        self._own: Tensors = {}  # the original numbers, out of reach for a rung in another process
        self.tensors: Tensors = {}
        self.last: list[Measured] = []  # the last comparison
        self.admits: set[str] = set()  # keys of the header
        self.admitted = False  # whether only_finite was of use
        self.as_the_formula = False  # an error is allowed to be twice that of the formula in the number format itself
        self.blocks: Mapping[str, Block] = {}  # the guarded memory that holds them, if any
        self.tensors = self._fill(seed, empty or (lambda _, shape, kind: new(shape, kind, device)))

    def _fill(self, seed: int, empty: Empty) -> Tensors:
        self.seed = seed
        case = self.case
        if case is None:  # for a bench: large, and needed once
            return self.operation.inputs(
                self.values, self.dtype, seed, empty=empty, names=self.names, device=self.device
            )
        usual = _inputs.get(self._key(), lambda: self._draw(case, seed))
        self._own = usual if self.device == "cpu" else {}
        owned: Tensors = {}
        for operand in map(self.operation.operand, self._owned()):
            kind = element_name(operand.dtype, self.dtype)
            owned[operand.name] = tensor = empty(operand.name, operand.size(self.values), kind)
            if operand.name in usual:
                put(tensor, usual[operand.name])
        return self.operation.viewed(owned, self.names, self.values)

    def _draw(self, case: Case, seed: int) -> Tensors:
        return self.operation.inputs(
            self.values,
            self.dtype,
            seed,
            magnitude=case.magnitude,
            change=case.change,
            names=[n for n in self._owned() if self.operation.operand(n).role != "out"],
            device=self.device,
            empty=lambda _, shape, kind: new(shape, kind, self.device),
        )

    def _key(self) -> tuple[Hashable, ...]:
        case = self.case.name if self.case else ""
        drawn = self.operation.operands  # a file may take some as numbers
        call = tuple(sorted(self.values.items()))
        return (self.operation.name, drawn, case, call, self.dtype.name, self.seed, self.names, self.device)

    def prefetch(self, seed: int) -> None:
        """Generate the numbers of a seed, for `refill` to copy."""
        before, self.seed = self.seed, seed
        assert self.case is not None
        case = self.case
        _inputs.get(self._key(), lambda: self._draw(case, seed))
        self.seed = before

    def refill(self, seed: int) -> None:
        """New numbers behind the same pointers."""
        self._fill(seed, lambda name, shape, kind: self.tensors[name])

    def _owned(self) -> list[str]:
        """Those that are no views."""
        return [n for n in self.names if self.operation.operand(n).view_of is None]

    @property
    def outputs(self) -> list[str]:
        return [n for n in self._owned() if self.operation.operand(n).written]

    @property
    def inputs(self) -> list[str]:
        return [n for n in self._owned() if not self.operation.operand(n).written]

    @property
    def bytes(self) -> int:
        return _bytes({n: self.tensors[n] for n in self._owned()})

    def poison(self, number: int = 0) -> None:
        """Overwrite the last run's outputs with poison that depends on `number`."""
        for name in self.outputs:
            if self.operation.operand(name).role == "out":
                fill(bits_of(self.tensors[name].reshape(-1), "uint8"), POISONS[number % len(POISONS)])

    def keep(self) -> None:
        """Save what calls will change, for `restore`."""
        inout = [n for n in self.names if self.operation.operand(n).role == "inout"]
        self._given = {n: copy_of(self.tensors[n]) for n in inout}

    def restore(self) -> None:
        """Restore what calls have changed."""
        for name, tensor in self._given.items():
            put(self.tensors[name], tensor)

    def reference(self, calls: int = 1) -> Tensors:
        """The expected outputs after this many calls, each starting from the state that the last one left."""
        if self.case is None:
            return self._computed(calls)
        return _references.get((*self._key(), calls), lambda: self._computed(calls))

    def representable(self) -> bool:
        """Whether the number format holds what the outputs should be."""
        held = {n: largest(kind_of(t)) for n, t in self.tensors.items() if is_real(t)}
        floats = [(n, t) for n, t in self.reference().items() if n in held and is_real(t)]
        return all(bool((abs(t) <= held[n]).all()) for n, t in floats)

    def _originals(self) -> Tensors:
        """The numbers as they were drawn, where they are kept."""
        if not self._own:
            return self.tensors
        whole = {n: self.operation.operand(n).view_of or n for n in self.names}
        return self.operation.viewed(self._own, [n for n in self.names if whole[n] in self._own], self.values)

    def _computed(self, calls: int) -> Tensors:
        exact = self.in_float64()
        with quiet():
            found: Tensors = self.operation.reference(exact, self.values)
            changed = [n for n in found if n in exact]
            for _ in range(calls - 1 if changed else 0):
                found = self.operation.reference({**exact, **{n: found[n] for n in changed}}, self.values)
        return found

    def in_float64(self) -> Tensors:
        """The inputs, as the reference takes them."""
        tensors = self._originals()
        given = {n: tensors[n] for n in self.names if self.operation.operand(n).role != "out"}
        return {n: to_kind(t, "float64" if is_real(t) else "int64") for n, t in given.items()}

    def _rounded_at_each_step(self) -> Tensors:
        """The outputs as the formula gives them in the number format itself; empty if it cannot."""
        try:
            with quiet():
                rounded: Tensors = self.operation.reference(self._originals(), self.values)
            return rounded
        except (RuntimeError, KeyError, TypeError):
            return {}

    def measured(self, reference: Tensors, rounded: Tensors | None = None) -> list[Measured]:
        """Each output with its reference; bounds are twice the errors of `rounded` results, where these are larger."""
        reference = self.operation.expected(reference, self.tensors, self.values)
        found = []
        for name in self.outputs:
            if name not in reference:
                raise RungError(f"the reference of {self.operation.name} returns no {name!r}.")
            out = self.tensors[name]
            operand = self.operation.operand(name)
            dtype = SUMS if operand.sums and self.dtype.size == 2 else self.dtype
            tolerance = self.operation.tolerance(self.values, dtype, self.names)
            exact = self.operation.exact or not (is_real(out) or operand.rounded)
            right = moved(reference[name].reshape(out.shape), out)
            if self.admits and is_real(right):
                right = self._as_admitted(out, right)
            if rounded and name in rounded:
                xp, off = namespace(out), to_float64(rounded[name].reshape(out.shape)) - right
                off, true = (one[xp.isfinite(off) & xp.isfinite(right)] for one in (off, right))
                if len(off):
                    far, size = (float(xp.sqrt(xp.sum(xp.square(one)))) for one in (off, true))
                    tolerance = max(tolerance, 2 * float(abs(off).max()) / (size or 1.0) * math.sqrt(len(off)))
                    dtype = replace(dtype, norm_cap=max(dtype.norm_cap, 2 * far / (size or 1.0)))
            kept = operand.changed(self.tensors, self.values) if operand.changed else None
            kinds = operand.apart, operand.rounded, kept
            found.append(Measured(name, out, right, dtype, tolerance, exact, *kinds))
        return found

    def _as_admitted(self, out: Array, right: Array) -> Array:
        """The reference, with what the header admits in its place."""
        xp, made = namespace(out), to_kind(out, kind_of(right))
        if "loses_nan" in self.admits:
            right = xp.where(xp.isnan(right), made, right)
        if "only_finite" in self.admits and self.infinite:
            lost = xp.isnan(made) & ~xp.isnan(right)
            self.admitted |= bool(lost.any())
            right = xp.where(lost, made, right)
        return right

    @property
    def infinite(self) -> bool:
        """Whether an input of the case holds an infinity: only a change of the usual numbers makes one."""
        given = [self.tensors[n] for n in self.inputs] if self.case and self.case.change else []
        return any(bool(namespace(t).isinf(t).any()) for t in given if is_real(t))

    def deviations(self, reference: Tensors) -> list[Deviation]:
        """How far each output is off."""
        return self.judged(reference)[0]

    def judged(self, reference: Tensors, *beside: Array) -> tuple[list[Deviation], list[float]]:
        """How far each output is off, and the values of further requested numbers, in one query of the GPU."""
        measured = self.last = self.measured(reference)
        asked = [*(m.facts for m in measured), *(to_float64(number).reshape(1) for number in beside)]
        facts = namespace(asked[0]).concatenate(asked).tolist()
        found, at = [], 0
        for one in measured:
            found.append(one.deviation(facts[at : at + len(one.facts)]))
            at += len(one.facts)
        if self.as_the_formula and not all(one.ok for one in found) and (rounded := self._rounded_at_each_step()):
            self.last = self.measured(reference, rounded)
            found = [one.deviation() for one in self.last]
        if self.operation.custom_check is not None:
            own = {n: self._own[n] for n in self.inputs if n in self._own}
            problem_text = self.operation.custom_check({**self.tensors, **own}, self.values)
            found = [d if math.isinf(d.element) else replace(d, problem=problem_text) for d in found]
        return found, facts[at:]
