"""Sentences about a run, made from what the machine saw and from the numbers, never from the text of an answer."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gpuless.counts.counters import Launched
from gpuless.counts.counters_explained import hottest, per_request, reason
from rung.check.compare import Deviation
from rung.check.diagnosis import Diagnosis, index_names, shown
from rung.errors import EmulatorFault, RungError
from rung.operation import Operand, Values
from rung.profile.counted import Tensor
from rung.show import layouts

When = Literal["wrong", "slow", "solved"]
WARP = 32


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
    """With as many indices as the block has dimensions; of Triton's code the program."""
    thread = place.get("thread")
    if not block:
        return f"program {place['block'][0]}" if "block" in place else "a program"
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
        two = block and fault.place["block"] != other["block"]
        whose = [f" of block {p['block'][0]}" if two else "" for p in (fault.place, other)]
        if memory == "global":
            unit = "thread" if block else "program"
            mend = f"Make exactly one {unit} write each element, or use an atomic operation"
        elif _warp(fault.place, block) == _warp(other, block):
            mend = (
                "Put `__syncthreads()` between them; `__syncwarp()` is enough only if no other warp uses these elements"
            )
        else:
            mend = "They are in different warps: `__syncthreads()` orders them, `__syncwarp()` does not"
        both = (f"{who}{whose[0]}", f"{_thread(other, block)}{whose[1]}")
        if fault.place.get("line") == other.get("line"):
            where = f"{both[0]} and {both[1]}, both in {here}"
            if memory != "global":
                mend = f"One statement both reads and writes it: read into a variable, wait, then write. {mend}"
        else:
            where = f"{both[0]} in {here}, {both[1]} in {_quote_line(other, source)}"
            if memory != "global" and _has_barrier(source, fault.place.get("line", 0), other.get("line", 0)):
                mend = (
                    "The barrier between these lines does not order the next time that this code runs (a later "
                    f"iteration, or a second call). {mend}"
                )
        apart = "At least one of them writes, and no barrier or atomic separates them"
        says = f"a race on {operand}: {where}. {apart}. {mend}"
    elif fault.kind == "race" and fault.related:
        there = _quote_line(fault.related[0], source)
        says = f"a race: {who} in {here} {what} in {there}, and does not wait for it: {operand}"
    elif fault.kind == "race":
        says = f"a race: {who} in {here} {what}, {lacks}: {operand}"
    elif "mask" in what or "shuffle" in what:
        says = (
            f"{who} in {here}: {what.removeprefix('an assertion fails: ')}. What it gets is undefined. Name all lanes "
            "that take part (0xffffffff for a whole warp), or stay within groups by the last argument, as in "
            "`__shfl_down_sync(mask, x, offset, 8)`"
        )
    elif fault.kind == "barrier":
        says = f"not all threads of the block reach the barrier in {here}, or they wait at different barriers"
    elif fault.kind == "deadlock":
        says = f"the threads wait forever in {here}: what they wait for never completes"
    elif fault.kind == "unwritten":
        says = f"{who} in {here} reads {operand} before anything has written to it"
    elif fault.place.get("line"):
        of = f" of block {tuple(fault.place.get('block', ()))}" if block else ""
        says = f"{who}{of} in {here}: {': '.join(t for t in (what, operand) if t)}"
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


def of_error(error: RungError, values: Values) -> Symptom:
    """What keeps the kernel from running: the compiler's first error, or a name or a size that does not fit."""
    text = str(error)
    kind = "compile" if error.kind == "compile" else "launch"
    lines = tuple(
        int(n) for n in re.findall(r"\((\d+)\): (?:catastrophic )?error|line (\d+)", text)[0:1] for n in n if n
    )
    known = re.search(r'identifier "(\w+)" is undefined', text)
    renamed = _RENAMED.get(known[1], "") if known else ""
    more = f" Since Volta it is called {renamed}: the mask names the lanes that take part." if renamed else ""
    if " is 0." in text and values:
        more += f" That is so at {', '.join(f'{n} = {v:.4g}' for n, v in values.items() if n.isupper())}."
    return Symptom(kind, "wrong", text + more, lines, {"instead": renamed})


def axes_of(operand: Operand, ndim: int) -> tuple[str, ...]:
    return index_names(operand.shape, ndim)


def of_diagnosis(found: Diagnosis) -> Symptom:
    """The sentence about wrong numbers; the facts have the elements, the map and the reason."""
    first, total = found.elements[0], math.prod(found.shape)
    place = f"{found.output}[{', '.join(map(str, first['index']))}]" if found.shape else found.output
    many = f"all {total:,}" if found.wrong == total else f"{found.wrong:,} of {total:,}"
    many = f"{many} elements of {found.output} are wrong" if total > 1 else f"{found.output} is wrong"
    if first["got"] is None:
        pair = f"{place} was never written (expected {shown(first['expected'])})"
    else:
        pair = f"{place} should be {shown(first['expected'])} and is {shown(first['got'])}"
    says = " ".join([f"{many}: {pair}.", *found.sentences])
    facts = {"expected": first["expected"], "got": first["got"], "index": first["index"], **found.as_json()}
    return Symptom(found.kind, "wrong", says, (), facts)


def of_deviation(found: Deviation) -> Symptom:
    """All elements are near, but as a whole they are less exact than the format allows."""
    if found.kind == "truncated":
        says = f"the elements of {found.name} are too small on average: they are cut off, not rounded."
    else:
        says = (
            f"the elements of {found.name} are near, but their relative error is {found.norm:.2g} in all "
            f"(allowed: {found.norm_cap:.2g}): something is kept in too few bits."
        )
    return Symptom("inexact", "wrong", says, (), {"output": found.name, "error": found.norm})


def of_repeated_stores(
    launched: Sequence[Launched], memory: Sequence[Tensor], source: str, most: float
) -> Symptom | None:
    """Whether elements are stored by several threads of a launch: with the same value, or a race would be reported."""
    for kernel in launched:
        writers: dict[tuple[str, int], dict[tuple[int, int, int], None]] = {}
        lines: Counter[int] = Counter()
        for request in kernel.trace:
            access = request.access
            if access.memory != "global" or access.direction != "write" or access.way not in ("plain", "generic"):
                continue
            lines[access.line] += 1
            for tensor, element, lane in layouts.elements(request, memory):
                writers.setdefault((tensor.name, element), {})[request.block, request.warp, lane] = None
        stores = sum(map(len, writers.values()))
        if stores <= (1 + most) * len(writers):
            continue
        (name, element), who = max(writers.items(), key=lambda item: (len(item[1]), -item[0][1]))
        some = [f"thread {32 * warp + lane} of block {block}" for block, warp, lane in list(who)[:2]]
        line = lines.most_common(1)[0][0]
        says = (
            f"the numbers are right, but the work is repeated: element {element} of {name} is written by {len(who)} "
            f"threads ({some[0]}, {some[1]}{', ...' if len(who) > 2 else ''}), with the same value, in "
            f"{_quote_line({'line': line}, source)}. On average each element is written {stores / len(writers):.3g} "
            "times; one thread should do it."
        )
        facts = {"output": name, "element": element, "threads": len(who), "times": stores / len(writers)}
        return Symptom("repeated", "slow", _upper(says), (line,), facts)
    return None


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
    says = f"{line} {verb} {access.memory} memory: on average a warp's request takes {each}"
    says += f", since {why}" if why else ""
    says += f"; {least:.3g} would be enough." if least < cost else "."
    kind = "banks" if access.memory == "shared" else "sectors"
    return Symptom(
        kind, when, says, (access.line,), {"per_request": round(cost, 3), "least": round(least, 3), "unit": unit}
    )
