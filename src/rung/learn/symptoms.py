"""Sentences about a run, made from what the machine saw and from the numbers, never from the text of an answer."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpuless.counts.counters import Launched
from gpuless.counts.counters_explained import hottest, per_request, reason
from rung.dtypes import DTYPES, Dtype
from rung.errors import EmulatorFault, RungError
from rung.operation import Operation, Values

When = Literal["wrong", "slow", "solved"]
FEW_EXTREMES = 1e5  # check/compare.py explains the bound
WARP = 32
Array = NDArray[Any]


@dataclass(frozen=True)
class Symptom:
    """One thing that was seen: its kind, the sentence, when it holds, and the lines that it is about."""

    kind: str
    when: When
    says: str
    lines: tuple[int, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _thread(place: Mapping[str, Any], block: Sequence[int]) -> str:
    """With as many indices as the block has dimensions."""
    thread = place.get("thread")
    if thread is None:
        return "a thread"
    used = 3 if block[2] > 1 else 2 if block[1] > 1 else 1
    return f"thread {thread[0] if used == 1 else tuple(thread[:used])}"


def _warp(place: Mapping[str, Any], block: Sequence[int]) -> int:
    x, y, z = place["thread"]
    return int((z * block[1] + y) * block[0] + x) // WARP


def _quote_line(place: Mapping[str, Any], source: str) -> str:
    """The line of a place, with its text."""
    number, lines = place.get("line", 0), source.splitlines()
    return f"line {number} `{lines[number - 1].strip()}`" if 0 < number <= len(lines) else "a line that is not known"


def of_fault(fault: EmulatorFault, block: Sequence[int], source: str) -> Symptom:
    """The sentence about a fault of the machine."""
    lines = tuple(p["line"] for p in (fault.place, *fault.related) if "line" in p)
    memory, operand, what, lacks = (fault.record.get(n, "") for n in ("memory", "operand", "what", "lacks"))
    here, who = _quote_line(fault.place, source), _thread(fault.place, block)
    if fault.kind == "race" and fault.related and all("thread" in p for p in (fault.place, *fault.related)):
        other = fault.related[0]
        whose = [
            f" of block {p['block'][0]}" if fault.place["block"] != other["block"] else "" for p in (fault.place, other)
        ]
        if memory == "global":
            mend = "Let one thread alone write to each place, or add with one indivisible (atomic) operation"
        elif _warp(fault.place, block) == _warp(other, block):
            mend = (
                "`__syncthreads()` between the two orders them; `__syncwarp()` suffices only if each warp uses "
                "places of its own"
            )
        else:
            mend = "The two are in different warps: `__syncthreads()` orders them, `__syncwarp()` does not"
        both = (f"{who}{whose[0]}", f"{_thread(other, block)}{whose[1]}")
        if fault.place.get("line") == other.get("line"):
            where = f"{both[0]} and {both[1]}, both in {here}"
        else:
            where = f"{both[0]} in {here}, {both[1]} in {_quote_line(other, source)}"
            if memory != "global" and _has_barrier(source, fault.place.get("line", 0), other.get("line", 0)):
                mend = f"The barrier between these lines does not order a later iteration of a loop. {mend}"
        says = f"a race for {operand}: {where}. At least one writes, and nothing orders the two. {mend}"
    elif fault.kind == "race" and fault.related:
        there = _quote_line(fault.related[0], source)
        says = f"a race: {who} in {here} {what} in {there}, and does not wait for that: {operand}"
    elif fault.kind == "race":
        says = f"a race: {who} in {here} {what}, {lacks}: {operand}"
    elif fault.kind == "barrier":
        says = f"not all threads of the block reach the barrier in {here}, or they reach different ones"
    elif fault.kind == "deadlock":
        says = f"the threads wait for ever in {here}: what they wait for is never complete"
    elif fault.kind == "unwritten":
        says = f"{who} in {here} reads {operand} before anything has been written there"
    elif fault.place.get("line"):
        block_of = tuple(fault.place.get("block", ()))
        says = f"{who} of block {block_of} in {here}: {': '.join(t for t in (what, operand) if t)}"
    else:
        says = str(fault).rstrip(".")
    return Symptom(fault.kind, "wrong", f"{_upper(says)}.", lines, {"memory": memory, "operand": operand})


def _has_barrier(source: str, one: int, other: int) -> bool:
    """Between two lines."""
    first, last = sorted((one, other))
    return any("__syncthreads()" in line.partition("//")[0] for line in source.splitlines()[first : last - 1])


_RENAMED = {  # what older books call it
    "__shfl_xor": "__shfl_xor_sync(0xffffffff, ...)",
    "__shfl_down": "__shfl_down_sync(0xffffffff, ...)",
    "__shfl_up": "__shfl_up_sync(0xffffffff, ...)",
    "__shfl": "__shfl_sync(0xffffffff, ...)",
    "__any": "__any_sync(0xffffffff, ...)",
    "__all": "__all_sync(0xffffffff, ...)",
    "__ballot": "__ballot_sync(0xffffffff, ...)",
}


def of_error(error: RungError) -> Symptom:
    """What keeps the kernel from running: the compiler's first error, or a name or a size that does not fit."""
    text = str(error)
    kind = "compile" if error.kind == "compile" else "launch"
    lines = tuple(
        int(n) for n in re.findall(r"\((\d+)\): (?:catastrophic )?error|line (\d+)", text)[0:1] for n in n if n
    )
    known = re.search(r'identifier "(\w+)" is undefined', text)
    renamed = _RENAMED.get(known[1], "") if known else ""
    more = f" Since Volta it is written {renamed}: the mask names the lanes that take part." if renamed else ""
    return Symptom(kind, "wrong", text + more, lines, {"instead": renamed})


def of_values(
    of: Operation,
    values: Values,
    dtype: Dtype,
    name: str,
    got: Array,
    unset: Array,
    expected: Array,
    inputs: Mapping[str, Array],
) -> Symptom | None:
    """What is wrong with an output, and what the wrong numbers have in common; None if it is right."""
    operand = of.operand(name)
    with np.errstate(invalid="ignore"):
        truth, found = np.asarray(expected, np.float64), got.astype(np.float64)
    exact = of.exact or (operand.dtype != "real" and not operand.sums)
    if exact:
        wrong = found != truth.astype(got.dtype).astype(np.float64)
    else:
        precision = DTYPES["f32"] if operand.sums else dtype
        with np.errstate(invalid="ignore"):
            wrong = ~(np.abs(found - truth) <= _bound(of, values, precision, truth))
            size = np.linalg.norm(truth)
            if not wrong.any() and size and np.linalg.norm(found - truth) > precision.norm_cap * size:
                return _inexact(name, found, truth)
    if not wrong.any():
        return None
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    facts = {"output": name, "wrong": int(wrong.sum()), "of": wrong.size, "index": list(at)}
    facts |= {"expected": float(truth[at]), "got": None if unset[at] else float(found[at])}
    place = f"{name}{list(at)}" if truth.ndim else name
    seen = "nothing: it was never written" if unset[at] else f"{found[at]:.6g}"
    pair = f"{place} should be {truth[at]:.6g} and is {seen}"
    many = f"{wrong.sum():,} of {wrong.size:,} numbers are wrong"
    kind, why = _likeness(found, truth, wrong, unset, inputs, [str(size) for size in operand.shape])
    return Symptom(kind, "wrong", f"{many}: {pair}.{' ' if why else ''}{why}", (), facts)


def _inexact(name: str, found: Array, truth: Array) -> Symptom:
    """All are near, but as a whole they are less exact than the format allows."""
    off = float(np.linalg.norm(found - truth) / np.linalg.norm(truth))
    says = f"The numbers of {name} are near, but off by {off:.2g} of their size: something is kept in too few bits."
    return Symptom("inexact", "wrong", says, (), {"output": name, "error": off})


def _bound(of: Operation, values: Values, dtype: Dtype, truth: Array) -> Array:
    """The error that each number may have."""
    atol = of.tolerance(values, dtype) * math.sqrt(max(1.0, math.log(max(truth.size, 2)) / math.log(FEW_EXTREMES)))
    unit = math.sqrt(float(np.square(truth).mean())) or 1.0
    return np.asarray(atol * unit + dtype.rtol * np.abs(truth))


def _likeness(
    found: Array, truth: Array, wrong: Array, unset: Array, inputs: Mapping[str, Array], axes: Sequence[str]
) -> tuple[str, str]:
    """What all wrong numbers have in common: a kind and a sentence."""
    pattern = _pattern(wrong, axes)
    if unset[wrong].all():
        return "unset", f"Every wrong number was never written{pattern}: no thread stores it."
    if unset[wrong].any():
        return "unset", f"{int(unset.sum()):,} numbers were never written{_pattern(unset, axes)}."
    if np.isnan(found[wrong]).all():
        return (
            "nan",
            f"They are not numbers (NaN){pattern}: infinity minus infinity, 0 / 0, or memory that was never set.",
        )
    if not np.isfinite(found[wrong]).any():
        return "infinite", f"They are infinite or NaN{pattern}: something overflows, or is divided by 0."
    if wrong.sum() >= 3 and not found[wrong].any():
        return "zero", f"They are 0{pattern}."
    ratio = _common(found[wrong], truth[wrong])
    if ratio is not None:
        return "times", f"Each is {ratio:.4g} times what it should be{pattern}."
    for name, given in inputs.items():
        if (
            given.size == found.size
            and found.size > 2
            and np.array_equal(found.ravel(), given.astype(np.float64).ravel())
        ):
            return "copied", f"They are the numbers of {name} in their old order: nothing was exchanged."
    if truth.ndim == 2 and truth.shape[0] == truth.shape[1] > 1 and np.allclose(found, truth.T, 1e-3):
        return "transposed", "Rows and columns are exchanged."
    for by in (1, -1):
        here, there = (found[..., by:], truth[..., :-by]) if by > 0 else (found[..., :by], truth[..., -by:])
        if truth.ndim and here.size > 2 and np.isfinite(here).all() and np.allclose(here, there, 1e-3):
            return "shifted", "They are right, but one place away from where they belong."
    return "values", f"They are wrong{pattern}." if pattern else ""


def _common(found: Array, truth: Array) -> float | None:
    """A factor other than 1 by which all numbers are off."""
    some = np.abs(truth) > 1e-3 * np.abs(truth).max(initial=0)
    if not some.any() or not np.isfinite(found).all():
        return None
    ratios = found[some] / truth[some]
    middle = float(np.median(ratios))
    if some.sum() < 3 and abs(middle - round(middle)) > 1e-3 * abs(middle):
        return None  # by chance
    return middle if abs(middle) > 1e-3 and abs(middle - 1) > 1e-2 and np.allclose(ratios, middle, 1e-2) else None


def _pattern(wrong: Array, axes: Sequence[str]) -> str:
    """Where they are, if that is simple: from an index on, or in every n-th row."""
    for axis, name in enumerate(axes):
        some = wrong.any(axis=tuple(a for a in range(wrong.ndim) if a != axis))
        at, right = np.flatnonzero(some), np.flatnonzero(~some)
        size = wrong.shape[axis]
        if not len(right) or size < 3:
            continue
        index = f"index {'' if len(axes) == 1 else 'along ' + name + ' '}"
        if len(at) == size - at[0]:
            return f", from {index}{at[0]} on"
        steps = {int(s) for s in np.diff(right)}
        if len(right) > 2 and len(steps) == 1 and steps != {1}:
            return f"; those at {index}{right[0]}, {right[1]}, {right[2]} and so on are right"
        if len(at) == 1:
            return f", only at {index}{at[0]}"
    return ""


def of_cost(launched: Sequence[Launched], sizes: Mapping[str, int], source: str, when: When) -> Symptom | None:
    """The line whose requests waste most, and why."""
    found = hottest(launched)
    if found is None:
        return None
    kernel, access, counts = found
    cost, unit = per_request(access, counts)
    why = reason(access, kernel.worst[access], sizes) if access in kernel.worst else ""
    verb = {"read": "loads from", "write": "stores to"}[access.direction]
    each = f"{cost:.3g} {'sectors' if access.memory == 'global' else 'passes over the banks'}"
    ideal = counts.ideal_sectors if access.memory == "global" else counts.ideal_wavefronts
    least = ideal / max(counts.requests, 1)
    line = _upper(_quote_line({"line": access.line}, source))
    says = f"{line} {verb} {access.memory} memory: a request of a warp takes {each}"
    says += f", where {least:.3g} would do" if least < cost else ""
    kind = "banks" if access.memory == "shared" else "sectors"
    says += f", since {why}." if why else "."
    return Symptom(
        kind, when, says, (access.line,), {"per_request": round(cost, 3), "least": round(least, 3), "unit": unit}
    )
