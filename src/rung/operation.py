"""The definition of an operation: operands and shapes, a float64 reference, costs, cases and the library calls.

Each ladder's `operation.py` makes one `Operation`. Shapes are tuples of expressions over the
operation's dims, so that one declaration serves every size.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gpuless.base.expressions import Number, evaluate, evaluate_int, product
from rung import plugins
from rung.arrays import Array, Generator, integers, is_real, moved, normal, quiet
from rung.dtypes import DTYPES, Dtype, element_name, element_size
from rung.errors import RungError
from rung.inputs import Change
from rung.lazy import torch

Values = dict[str, Number]
Tensors = dict[str, Array]
Empty = Callable[[str, tuple[int, ...], str], Array]  # memory for a name, a shape and a format

LARGE = 1 << 22  # elements per call


@dataclass(frozen=True)
class Operand:
    """A tensor of an operation.

    An optional input is part of the computation if a rung binds it; an optional output is checked if a rung binds it.
    Its bytes are added to the operation's cost, unless they are already included (`counted`), in proportion to what a
    call moves of them (`share`); `instead`: the operand that is then not read. A `copy_of` another is its `view` in
    separate memory without gaps, for kernels of that layout; as an output it takes the other's place. A nullable
    operand may also be left out of a call: the kernel then gets a null pointer. `view_of` makes it a strided view of
    another operand, without memory of its own. A 32-bit output of `sums` over operands is checked with float32's
    precision, whatever the operands' format. An output's sizes may differ along the dimension `apart`. Products of an
    input with `sum_bits` may be accumulated in this many bits. An output that `follows` is compared with this function
    of the call's other outputs and of the reference's (an argmax would otherwise depend on rounding of its input). A
    parameter of the model is `constant`: a kernel may read it before the kernel ahead of it has ended; with a `neutral`
    number everywhere it changes nothing, so that a kernel may be without it. `aliases` are
    its names in files that were not written for rung, best first, where rungs/words.py has none. One that is `alike`
    holds the number that `make` gives everywhere, in each case.
    """

    name: str
    shape: tuple[str | int, ...]
    role: Literal["in", "out", "inout"] = "in"
    dtype: str = "real"
    optional: bool = False
    nullable: bool = False
    counted: bool = False
    sums: bool = False
    apart: int | None = None
    sum_bits: int | None = None
    instead: str | None = None
    below: str | int | None = None
    make: Callable[[Values, Generator], Array] | None = None
    view_of: str | None = None
    view: Callable[[Any, Values], Any] | None = None
    copy_of: str | None = None
    follows: Callable[[Tensors, Values], Array] | None = None
    changed: Callable[[Tensors, Values], Array] | None = None
    rounded: bool = False
    share: float = 1.0
    constant: bool = False
    neutral: float | None = None
    aliases: tuple[str, ...] = ()
    alike: bool = False

    @property
    def written(self) -> bool:
        return self.role != "in"

    def size(self, values: Mapping[str, Number]) -> tuple[int, ...]:
        """The shape at these dims."""
        return tuple(evaluate_int(s, values, f"a dimension of {self.name}") for s in self.shape)


@dataclass(frozen=True)
class Cost:
    """The least work of the operation: arithmetic, and bytes to and from memory, each counted once."""

    flops: float
    bytes: float


@dataclass(frozen=True)
class Case:
    """One shape to check at. `where="cuda"` marks those that are too large for the emulator; with `where="alone"` the
    emulator runs them only for a rung that is checked alone; with `where="file"` a GPU does so as well."""

    name: str
    values: Values
    magnitude: float = 1.0
    where: Literal["any", "alone", "file", "cuda"] = "any"
    dtypes: tuple[str, ...] = tuple(DTYPES)
    change: Mapping[str, Change] = field(default_factory=dict)  # by operand: what becomes of its usual numbers


def sizes(*given: Values) -> tuple[Case, ...]:
    """Cases of further sizes, to catch files that are right only up to the other cases' sizes."""
    return tuple(Case(" ".join(f"{n}={v}" for n, v in values.items()), values, where="file") for values in given)


@dataclass(frozen=True)
class Library:
    """The library call that a user would make: takes operands and values by name, returns `out` or all outputs."""

    name: str
    run: Callable[..., Any]
    dtypes: tuple[str, ...] = ("f32", "f16", "bf16")
    where: Literal["any", "cuda"] = "any"
    note: str = ""
    needs: tuple[str, ...] = ()
    products: str = ""  # the format of its products, if that is not the dtype
    serves: Mapping[str, int | str] = field(default_factory=dict)  # as in a rung's header


@dataclass(frozen=True)
class Race:
    """A race of `rung bench all`: one of the operation's shapes in some number formats."""

    shape: str
    dtypes: tuple[str, ...]
    patience: float = 1.0  # seconds that a single call may take


@dataclass(frozen=True)
class Role:
    """What rungs of an operation are in a model: those that bind the operand, if the role has one."""

    name: str
    parts: tuple[str, ...] = ()  # the operations that it does at once
    operand: str = ""
    swaps: bool = True  # whether a user may choose its rung
    sizes: Mapping[str, str] = field(default_factory=dict)  # dimensions that differ from the config's of the same name


# Sizes that counting without a GPU makes smaller, in this order, to multiples of these numbers.
SHRINKS: Mapping[str, int] = {"B": 1, "NH": 1, "NKV": 1, "T": 128, "OC": 256, "R": 128}


@dataclass(frozen=True)
class Operation:
    """An operation of the model: everything about it that does not depend on how it is computed."""

    name: str
    summary: str
    dims: tuple[str, ...]
    operands: tuple[Operand, ...]
    reference: Callable[[Any, Values], Any]  # of operands in float64, of numpy or torch (arrays.py)
    cost: Callable[[Values, int], Cost]
    cases: tuple[Case, ...]
    shapes: dict[str, Values]
    reduction: str | int = 1
    derived: dict[str, str] = field(default_factory=dict)
    inverse: dict[str, str] = field(default_factory=dict)  # dims that a caller's views determine
    scalars: dict[str, Number | str] = field(default_factory=dict)
    alone: dict[str, Number] = field(default_factory=dict)  # scalars outside the model: defaults of `rung.ops`
    rules: tuple[str, ...] = ()  # what dims and scalars satisfy
    libraries: tuple[Library, ...] = ()
    story: str = ""
    custom_check: Callable[[Tensors, Values], str] | None = None  # if given, decides in place of the error bound
    exact: bool = False  # nothing is computed: every number must arrive unchanged
    draw: Callable[[Values, int], Tensors] | None = None  # all inputs of a case and a seed at once
    races: tuple[Race, ...] = ()  # default: all shapes, in all formats that its rungs have
    roles: tuple[Role, ...] = ()  # in a model
    shrinks: Mapping[str, int] = field(default_factory=lambda: SHRINKS)
    # Numbers where the formula has an edge (rows of zeros, ties), by name: tried at shapes that the rung takes.
    edges: Mapping[str, Mapping[str, Change]] = field(default_factory=dict)
    words: tuple[str, ...] = ()  # that speak of it in names of files and kernels, beside its own name

    def __post_init__(self) -> None:
        roles = {o.role for o in self.operands}
        if not roles <= {"in", "out", "inout"} or roles <= {"in"}:  # nothing would be compared
            given = ", ".join(sorted(roles))
            raise RungError(f"{self.name} has operands with roles {given}; take in, out or inout, one is a result.")

    def operand(self, name: str) -> Operand:
        """The operand called `name`."""
        for operand in self.operands:
            if operand.name == name:
                return operand
        known = ", ".join(o.name for o in self.operands)
        raise RungError(f"{self.name} has no operand {name!r}; it has {known}.")

    @property
    def required(self) -> frozenset[str]:
        """The operands that every rung works on (views aside: a rung may bind the view or the whole)."""
        return frozenset(o.name for o in self.operands if not o.optional and o.view_of is None)

    @property
    def sizes(self) -> tuple[str, str, str]:
        """Rows and columns of the first input, and the number of results, as expressions."""
        result = next(o for o in self.operands if o.role != "in" and not o.optional)
        inputs = (o for o in self.operands if o.role == "in" and not o.constant and o.dtype == "real")
        shape = [str(d) for d in next((o for o in inputs if len(o.shape) > 1), result).shape]
        return product(shape[:-1]) or "1", shape[-1], product([str(d) for d in result.shape])

    def with_numbers(self, given: Mapping[str, float | None]) -> Operation:
        """The operation whose named operands hold one number everywhere, this one or any: for rungs that take a number
        in place of an operand, or not even that."""
        alike = {o.name: functools.partial(_alike, o, given[o.name]) for o in self.operands if o.name in given}
        operands = (replace(o, make=alike[o.name], alike=True) if o.name in alike else o for o in self.operands)
        return replace(self, operands=tuple(operands)) if alike else self

    def replaced(self, binds: Container[str]) -> set[str | None]:
        """Outputs in whose place a rung that binds these operands writes a copy."""
        return {o.copy_of for o in self.operands if o.copy_of and o.written and o.name in binds}

    def complete(self, given: Mapping[str, Number]) -> Values:
        """The given dims with derived dims and the scalars' defaults filled in."""
        values: Values = dict(given)
        missing = [d for d in self.dims if d not in values and d not in self.derived]
        if missing:
            raise RungError(f"{self.name} needs the dimension {missing[0]}; give {' '.join(self.dims)}.")
        known = {*self.dims, *self.derived, *self.scalars}
        unknown = [n for n in values if n not in known]
        if unknown:
            raise RungError(f"{self.name} has no dimension {unknown[0]!r}; it has {', '.join(sorted(known))}.")
        for name, expression in [*self.derived.items(), *self.scalars.items()]:
            if name not in values:
                values[name] = evaluate(expression, values)
        bad = [d for d in self.dims if values[d] < 1]
        if bad:
            raise RungError(f"{self.name} at {bad[0]} = {values[bad[0]]} is empty; every dimension is at least 1.")
        for rule in self.rules:
            if not evaluate(rule, values):
                shown = " ".join(f"{n}={v}" for n, v in values.items() if isinstance(v, int))
                raise RungError(f"{self.name} needs {rule}; that does not hold for {shown}.")
        return values

    def cost_with(self, values: Values, dtype: Dtype, binds: Container[str]) -> Cost:
        """The cost for a rung that binds these operands, including the optional ones."""
        cost = self.cost(values, dtype.size)
        moved = cost.bytes
        for operand in self.operands:
            if operand.name not in binds or not operand.optional or operand.nullable:
                continue
            if operand.view_of or operand.copy_of:
                continue
            if not operand.counted:
                moved += operand.share * self.size_of(operand, values, dtype)
            if operand.instead is not None and operand.instead not in binds:
                other = self.operand(operand.instead)
                moved -= other.share * self.size_of(other, values, dtype)
        return Cost(cost.flops, moved)

    def size_of(self, operand: Operand, values: Values, dtype: Dtype) -> int:
        """The bytes of an operand."""
        return math.prod(operand.size(values)) * element_size(operand.dtype, dtype)

    def viewed(self, owned: Tensors, names: Iterable[str], values: Values) -> Tensors:
        """The named operands, of which some are views of the tensors given."""
        found: Tensors = {}
        for operand in map(self.operand, names):
            view, whole = operand.view, operand.view_of
            found[operand.name] = view(found[whole], values) if view and whole else owned[operand.name]
        return found

    def inputs(
        self,
        values: Values,
        dtype: Dtype,
        seed: int,
        *,
        magnitude: float = 1.0,
        change: Mapping[str, Change] | None = None,
        empty: Empty,
        names: Sequence[str] | None = None,
        device: str = "cpu",
    ) -> Tensors:
        """Operands filled with random numbers (outputs left as `empty` gave them), views included. Without names, all
        that belong to one call: none that is read instead of another."""
        names = [o.name for o in self.operands if o.instead is o.copy_of is None] if names is None else names
        tensors: Tensors = {}
        from_draw = self.draw(values, seed) if self.draw else {}
        chosen = [o for o in self.operands if o.name in names and o.view_of is None]
        # Large inputs are made on the GPU, which is fast; small ones have the same values on CPU and GPU.
        maker = device if sum(math.prod(o.size(values)) for o in chosen) > LARGE else "cpu"
        for index, operand in enumerate(self.operands):
            if operand.name not in names:
                continue
            if operand.view_of is not None:
                assert operand.view is not None
                tensors[operand.name] = operand.view(tensors[operand.view_of], values)
                continue
            tensor = empty(operand.name, operand.size(values), element_name(operand.dtype, dtype))
            if operand.role != "out" and operand.copy_of is not None:
                assert operand.view is not None
                tensor[...] = operand.view(tensors[operand.copy_of], values)
            elif operand.role != "out":
                size, changes = (1.0, {}) if operand.alike else (magnitude, change or {})
                with quiet():
                    drawn = from_draw and not operand.alike
                    random = (operand, values, seed * 1009 + index, size, maker)
                    made = moved(from_draw[operand.name] if drawn else random_numbers(*random), tensor)
                    tensor[...] = changes[operand.name](made, values) if operand.name in changes else made
            tensors[operand.name] = tensor
        return tensors

    def expected(self, reference: Tensors, tensors: Tensors, values: Values) -> Tensors:
        """The reference, together with what follows from a call's outputs."""
        known = {**reference, **tensors}
        following = {o.name: o.follows(known, values) for o in self.operands if o.follows and o.name in tensors}
        return {**reference, **following}

    def tolerance(self, values: Values, dtype: Dtype, binds: Container[str] = ()) -> float:
        """The absolute tolerance for outputs of unit size: it grows with the reduction's length.

        A sum with few bits is truncated after every 32 products, which loses half of its last bit on average.
        """
        bits = [o.sum_bits for o in self.operands if o.sum_bits is not None and o.name in binds]
        cut = self.depth(values) / 32 * 0.5 ** (min(bits) + 1) if bits else 0.0
        return max(dtype.atol, 1e-4 * math.sqrt(self.depth(values))) + cut

    def depth(self, values: Values) -> int:
        """How many products or numbers a result sums."""
        return evaluate_int(self.reduction, values, "the reduction's length")


def _alike(operand: Operand, number: float | None, values: Values, _: object = None) -> Array:
    """One number; if none is given, one by the size: never 0 or 1, and such that every format holds it."""
    if number is None:
        sizes = sum(int(value * (2 * i + 3)) for i, value in enumerate(values.values()))
        number = ((len(operand.name) * 7 + sizes * 5) % 37 - 18 + 0.5) / 8
    return np.full(operand.size(values), number, np.float32)


def random_numbers(operand: Operand, values: Values, seed: int, magnitude: float, device: str) -> Array:
    generator: Generator = np.random.default_rng(seed)
    if device != "cpu":
        generator = torch.Generator(device=device).manual_seed(seed)
    if operand.make is not None:
        made = operand.make(values, generator)
        return made * magnitude if is_real(made) else made
    if operand.below is not None:
        high = evaluate_int(operand.below, values, f"the bound of {operand.name}")
        return integers(generator, 0, high, *operand.size(values))
    return normal(generator, *operand.size(values)) * magnitude


LADDERS = Path(__file__).parent / "ladders"  # those shipped with rung
MORE_LADDERS = "RUNG_LADDERS"  # lists folders of further ladders, in PATH's format; child processes inherit it


def folders() -> dict[str, Path]:
    """Operation -> the folder of its operation.py, of those that come with rung, of other packages' and the user's."""
    return {name: places[0] for name, places in _ladders().items()}


def rung_folders(name: str) -> tuple[Path, ...]:
    """The folders that hold rungs of an operation: its own, then those that add rungs to it."""
    return _ladders()[name]


def _ladders() -> dict[str, tuple[Path, ...]]:
    more = [Path(folder).resolve() for folder in os.environ.get(MORE_LADDERS, "").split(os.pathsep) if folder]
    for place in more:
        if not place.is_dir():
            raise RungError(f"there is no folder {place} of further ladders; correct --ladders or {MORE_LADDERS}.")
    places = (LADDERS, *plugins.folders(plugins.LADDERS), *more)
    found = _find_folders(places, tuple(place.stat().st_mtime_ns for place in places))
    for place in more:
        inside = (folder for folders in found.values() for folder in folders if place in folder.parents)
        if next(inside, None) is None and next(place.iterdir(), None):  # an empty one may yet be filled
            raise RungError(f"{place} holds no OPERATION/operation.py and no OPERATION/40_mine.cu; correct --ladders.")
    return found


@functools.cache
def _find_folders(places: tuple[Path, ...], _changed: tuple[int, ...]) -> dict[str, tuple[Path, ...]]:
    """Looked up again if a folder was added or removed since."""
    found: dict[str, tuple[Path, ...]] = {}
    for place in places:
        for path in sorted(place.glob("*/operation.py")):
            if path.parent.name in found:
                raise RungError(f"{path.parent} and {found[path.parent.name][0]} hold the same operation; rename one.")
            found[path.parent.name] = (path.parent,)
    for place in places:
        for name, (own, *others) in found.items():
            folder = place / name
            if folder != own and folder.is_dir() and any(folder.glob("[0-9]*_*")):
                found[name] = (own, *others, folder)
    return found
