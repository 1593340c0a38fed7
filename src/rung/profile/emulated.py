"""What a rung asks of memory, counted on the emulator under the names of Nsight Compute's counters.

A large shape is counted at parts of it: each kernel's counts are affine in the number of batches and heads, as far as
these only make the grid larger. Two sizes give the line, and a further size must lie on it.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

import gpuless
from gpuless import cubins, guard, machine
from gpuless.base.expressions import evaluate
from gpuless.counts.counters import Counts, Launched
from gpuless.counts.counters_explained import INSTRUCTIONS, figures, is_ratio
from gpuless.facts import gpus
from gpuless.launch import LaunchConfig
from rung.arrays import Array, address_of, bits_of, dtype_of
from rung.check.operands import Operands
from rung.cuda import triton_driver
from rung.errors import RungError
from rung.operation import Values
from rung.profile.counted import PATIENCE, Counted, Tensor
from rung.results.machine import facts
from rung.results.row import Row
from rung.rungs import identity
from rung.rungs.base import Subject, emulated_multiprocessors
from rung.rungs.cuda import CudaRung
from rung.rungs.python import PythonRung
from rung.rungs.subjects import subject_of

ALIGNED = 512  # as a GPU's allocator aligns memory
MOST_WORK = 2e8  # operations and numbers of a shape that is counted as it is
PART_WORK = 5e7  # of a smaller shape that a larger one is counted at
WHOLE_WORK = 4e9  # of a shape that is counted as it is if that fails
LITTLE_WORK = 1e6  # of a case that is counted after a check
DRAWN_WORK = 4e6  # of a case that is drawn
FEW_SMS = 8  # multiprocessors of the GPU that grids are for: of a drawing
Tuning = Mapping[str, int] | None


def figure(what: str, name: str, *, kernel: str = "", dtype: str | None = None, shape: str | None = None) -> float:
    """One counter of a rung, counted without a GPU: the sum over its launches, or over those of `kernel`; for a ratio,
    that of the first launch."""
    found = [figures(k) for k in count(subject_of(what, None, shape, dtype)).kernels if kernel in ("", k.kernel)]
    values = [f[name] for f in found if name in f]
    if not values:
        raise RungError(f"{what} has no counter {name!r} here; there are {', '.join(found[0] if found else ())}.")
    return values[0] if is_ratio(name) else sum(values)


def small(subject: Subject) -> Subject:
    """The same at the largest case of its operation that is counted in about a second."""
    operation, dtype = subject.rung.operation, subject.dtype
    legal = [values for _, values in subject.rung.cases(dtype)]
    sizes = sorted((work(subject, values), i) for i, values in enumerate(legal))
    chosen = max((one for one in sizes if one[0] <= LITTLE_WORK), default=sizes[0] if sizes else None)
    if chosen is None:
        return subject
    values = legal[chosen[1]]
    return replace(subject, values=values, shape=_name({d: int(values[d]) for d in operation.dims}))


def count_small_case(subject: Subject) -> list[Launched]:
    """What the kernels ask of memory at a small case, for a sentence about the most expensive line."""
    return run(small(subject)).kernels


LINE = 32  # elements, which lie in whole sectors


def to_draw(subject: Subject) -> Subject:
    """The same at a case of its operation that is small and shows much: with several rows, columns and blocks, rows
    that begin at sectors' boundaries, and no mask, which would leave little to the first block."""
    operation, dtype = subject.rung.operation, subject.dtype
    fitting: list[tuple[int, float, int, Values]] = []
    for _, values in subject.rung.cases(dtype):
        if (much := work(subject, values)) <= DRAWN_WORK:
            most = 64 if len(operation.dims) > 1 else 4096
            shown = math.prod(min(int(values[d]), 2 if operation.shrinks.get(d) == 1 else most) for d in operation.dims)
            fitting.append((-shown, much, len(fitting), values))
    if not fitting:
        return small(subject)
    values = min(fitting)[-1]
    plain = {**values, **({"causal": 0} if "causal" in values else {})}
    if (length := int(values[operation.dims[-1]])) > LINE:
        plain[operation.dims[-1]] = -(-length // LINE) * LINE
    if subject.rung.refusal(plain, dtype) is None:
        values = plain
    return replace(subject, values=values, shape=_name({d: int(values[d]) for d in operation.dims}))


def aligned_empty(name: str, shape: tuple[int, ...], kind: str) -> Array:
    size = math.prod(shape) * dtype_of(kind, np).itemsize
    # Before it and behind it are pages that fault.
    memory = guard.guarded_empty(-(-size // ALIGNED) * ALIGNED, filled=False)
    return bits_of(memory[:size], kind).reshape(shape)


def run(subject: Subject, tuning: Tuning = None, *, trace: bool = False) -> Counted:
    """Counts at this very shape, of grids for this GPU; with a trace of requests, if wanted."""
    sms = gpus.usual().multiprocessors
    rung, values, dtype = subject.rung, subject.values, subject.dtype
    if rung.kind not in ("cuda", "triton"):
        raise RungError(f"{rung.full_name} is a {rung.kind} rung: only kernels in CUDA C++ and Triton are counted.")
    memory: list[Tensor] = []

    def empty(name: str, shape: tuple[int, ...], kind: str) -> Array:
        made = aligned_empty(name, shape, kind)
        memory.append(Tensor(name, shape, made.itemsize, address_of(made)))
        return made

    operands = Operands(rung.operation, values, dtype, rung.operand_names, 1, device="cpu", empty=empty)
    with contextlib.ExitStack() as here:
        here.enter_context(emulated_multiprocessors(FEW_SMS if trace else sms))
        launches = here.enter_context(gpuless.current().recorded())
        here.enter_context(gpuless.under(counters=True, poison=False, seconds=PATIENCE))
        prepared = rung.prepare(operands.tensors, values, dtype, device="emulator", tuning=tuning, empty=empty)
        launches.clear()
        if trace:
            here.enter_context(gpuless.current().traced())
        machine.clear_caches()
        prepared.run()
    sizes = (subject.shape,)
    return Counted(rung.full_name, dtype.name, subject.shape, launches, rung.tuned(tuning), sizes=sizes, memory=memory)


def count(subject: Subject, tuning: Tuning = None) -> Counted:
    """Counts at this shape, taken from smaller shapes if it is large."""
    parts = _parts(subject, tuning) if work(subject, subject.values) > MOST_WORK else {}
    if not parts:
        return run(subject, tuning)
    try:
        return _extend(subject, parts, tuning)
    except RungError:
        if work(subject, subject.values) > WHOLE_WORK:
            raise
        return run(subject, tuning)


def as_result(subject: Subject, tuning: Tuning = None) -> Row:
    """The counts as the results store keeps them, or a row with the reason why there are none."""
    rung = subject.rung
    given = {"tuning": "given"} if tuning else {}
    made = Row(
        kind="count", what=rung.full_name, dtype=subject.dtype.name, shape=subject.shape, values=dict(subject.values),
        tuning=rung.tuned(tuning), options={"device": "emulator", **given}, texts={rung.full_name: identity.text(rung)},
        machine=facts(),
    )  # fmt: skip
    began = time.process_time()
    try:
        found = count(subject, tuning or None)
    except RungError as error:
        return replace(made, verdict="failed", reason=str(error))
    kernels = [{k: v for k, v in kernel.items() if k not in ("lines", "mix")} for kernel in found.as_json()["kernels"]]
    detail = {"kernels": kernels, "sizes": list(found.sizes)}
    return replace(made, detail=detail, metrics={"count_s": time.process_time() - began})


def _extend(subject: Subject, parts: Mapping[str, int], tuning: Tuning) -> Counted:
    """The counts at this shape from those at its parts, which must be affine in the numbers of parts."""

    def at(units: tuple[int, ...]) -> Counted:
        sizes = {d: int(subject.values[d]) // parts[d] * n for d, n in zip(parts, units, strict=True)}
        return run(replace(subject, values=_with(subject, subject.values, sizes), shape=_name(sizes)), tuning)

    ones = (1,) * len(parts)
    base = at(ones)
    steps = [at((*ones[:i], 2, *ones[i + 1 :])) for i in range(len(parts))]
    further = tuple(min(3, n) for n in parts.values())
    proof = at(further)
    predicted = _on_line(base, steps, further)
    for kernel, expected in zip(proof.kernels, predicted, strict=True):
        for figure, counted in figures(kernel).items():
            # Of instructions a few depend on the numbers: how often a maximum rises.
            most = 1e-3 if figure in INSTRUCTIONS else 1e-9
            if not is_ratio(figure) and abs(counted - figures(expected).get(figure, 0.0)) > most * abs(counted) + 1e-9:
                raise RungError(
                    f"{base.rung}: {figure} of {kernel.kernel} is not affine in {', '.join(parts)}; count it "
                    "at a smaller --shape."
                )
    kernels = _on_line(base, steps, tuple(parts.values()))
    planned = _planned(subject, tuning, gpus.usual().multiprocessors)
    for number, (kernel, (name, config, code)) in enumerate(zip(kernels, planned, strict=True)):
        one, *others = (c.kernels[number].config.blocks for c in (base, *steps))
        if code and any(c.kernels[number].code != code for c in (base, *steps, proof)):
            raise RungError(f"{base.rung}: {name} is compiled to other code there; count it at a smaller --shape.")
        if name != kernel.kernel or config.blocks != _extrapolate(one, others, tuple(parts.values())):
            raise RungError(f"{base.rung}: {name} has another number of blocks there; count it at a smaller --shape.")
        kernel.config = config
    sizes = tuple(c.shape for c in (base, *steps, proof))
    return Counted(base.rung, base.dtype, subject.shape, kernels, base.tuning, exact=False, sizes=sizes)


def _planned(subject: Subject, tuning: Tuning, sms: int) -> list[tuple[str, LaunchConfig, str]]:
    """The launches at this shape, which are not made, with their code where it depends on the shape."""
    rung, values, dtype = subject.rung, subject.values, subject.dtype
    if isinstance(rung, CudaRung):
        return [(*launch, "") for launch in rung.launches(values, dtype, tuning, emulated=False)]
    assert isinstance(rung, PythonRung)
    from rung.cuda import pretended  # it imports torch, as Triton's kernels do
    from rung.profile import inspect_triton

    found: list[triton_driver.Kernel] = []
    with emulated_multiprocessors(sms), pretended.gpu(found.append, multiprocessors=sms, device="meta"):
        inspect_triton.compile_call(rung, values, dtype, tuning)
    return [(k.name, k.config, cubins.loaded(k.cubin, k.file).program(k.name).text) for k in found]


def work(subject: Subject, values: Values) -> float:
    cost = subject.rung.operation.cost(values, subject.dtype.size)
    return cost.flops + cost.bytes / subject.dtype.size


def _name(sizes: Mapping[str, int]) -> str:
    return ",".join(f"{d}={n}" for d, n in sizes.items())


def _with(subject: Subject, values: Values, sizes: Mapping[str, int]) -> Values:
    """The values with other dimensions, and those that depend on them."""
    operation = subject.rung.operation
    given: dict[str, Any] = {d: values[d] for d in operation.dims}
    given |= sizes
    inner = {name: values[name] for name in operation.derived}
    for name, expression in operation.inverse.items():
        if any(d in expression for d in sizes):
            given[name] = evaluate(expression, {**given, **inner})
    given |= {s: values[s] for s in operation.scalars if not isinstance(operation.scalars[s], str)}
    return operation.complete(given)


def _parts(subject: Subject, tuning: Tuning) -> dict[str, int]:
    """By which numbers dimensions are divided so that the rung runs quickly: as small ones as suffice."""
    parts: dict[str, int] = {}
    values: Values = dict(subject.values)
    for dim, unit in subject.rung.operation.shrinks.items():
        size = whole = values.get(dim)
        while isinstance(size, int) and isinstance(whole, int) and work(subject, values) > PART_WORK:
            factor = next((p for p in (2, 3, 5, 7) if size % (p * unit) == 0), 0)
            if not factor:
                break
            try:
                fewer = _with(subject, values, {dim: size // factor})
                works = [work(subject, _with(subject, values, {dim: size // factor * n})) for n in (1, 2, 3)]
            except RungError:
                break
            # In some it is not affine, such as attention in T.
            if abs(works[0] - 2 * works[1] + works[2]) > 1e-6 * works[2]:
                break
            if subject.rung.refused_by_needs(fewer, subject.dtype, tuning) is not None:
                break
            values, size = fewer, size // factor
            # A size of one may be a constant in the code, as Triton compiles it.
            parts[dim] = whole // size if size > 1 or whole % 2 or isinstance(subject.rung, CudaRung) else whole // 2
    return {dim: count for dim, count in parts.items() if count > 1}


def _on_line(base: Counted, steps: list[Counted], units: tuple[int, ...]) -> list[Launched]:
    """The counts at so many units of each dimension, from those at one of each and at two of one."""
    if any([k.kernel for k in step.kernels] != [k.kernel for k in base.kernels] for step in steps):
        raise RungError(f"{base.rung} launches other kernels at other sizes; count it at a smaller --shape.")
    found = []
    for number, kernel in enumerate(base.kernels):
        made = replace(kernel, accesses=defaultdict(Counts))
        made.executed, made.lanes = defaultdict(Counter), defaultdict(Counter)
        others = [step.kernels[number] for step in steps]
        for access in sorted({*kernel.accesses, *itertools.chain(*(o.accesses for o in others))}):
            further = [o.accesses.get(access, Counts()) for o in others]
            made.accesses[access] = _line(kernel.accesses.get(access, Counts()), further, units)
        for of in ("executed", "lanes"):
            first_of, *further_of = (getattr(k, of) for k in (kernel, *others))
            for place in {*first_of, *itertools.chain(*further_of)}:
                one, *more = (counted.get(place, Counter()) for counted in (first_of, *further_of))
                for name in {*one, *itertools.chain(*more)}:
                    getattr(made, of)[place][name] = _extrapolate(one[name], [m[name] for m in more], units)
        found.append(made)
    return found


def _line(first: Counts, further: Iterable[Counts], units: tuple[int, ...]) -> Counts:
    others = list(further)
    return Counts(
        **{
            f.name: _extrapolate(getattr(first, f.name), [getattr(o, f.name) for o in others], units)
            for f in fields(Counts)
        }
    )


def _extrapolate(one: int, others: Iterable[int], units: tuple[int, ...]) -> int:
    slopes = [other - one for other in others]
    if one:
        return round(one * math.prod(1 + s / one * (n - 1) for s, n in zip(slopes, units, strict=True)))
    return round(sum(s * (n - 1) for s, n in zip(slopes, units, strict=True)))
