"""Sentences about a run, made from what the machine saw and from the numbers, never from the text of an answer."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gpuless.compile.source import code_only, until
from gpuless.counts.counters import TRACED, Launched
from gpuless.counts.counters_explained import OF_LANES, hottest, per_request, reason
from gpuless.facts.limits import limits
from gpuless.machine import ARCH
from rung.check.compare import Deviation
from rung.errors import EmulatorFault, RungError
from rung.explain.diagnosis import Diagnosis, shown
from rung.operation import Values
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


def figure(number: float) -> str:
    """A whole number with all its digits."""
    return str(int(number)) if number == int(number) else f"{number:.4g}"


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _thread(place: Mapping[str, Any], block: Sequence[int], source: str) -> str:
    """With as many indices as the block has dimensions; of Triton's code the program."""
    thread = place.get("thread")
    if not block:
        return _program(place["block"], source) if "block" in place else "a program"
    if thread is None:
        return "a thread"
    used = 3 if block[2] > 1 else 2 if block[1] > 1 else 1
    return f"thread {thread[0] if used == 1 else tuple(thread[:used])}"


def _program(index: Sequence[int], source: str) -> str:
    """With as many indices as the kernel asks for."""
    used = 1 + max(map(int, re.findall(r"\bprogram_id\(\s*(?:axis\s*=\s*)?(\d)", source)), default=0)
    return f"program {tuple(index[:used]) if used > 1 else index[0]}"


def _of_block(place: Mapping[str, Any], other: Mapping[str, Any] | None = None) -> str:
    """With as many indices as one of the two blocks needs."""
    blocks = [p.get("block", (0, 0, 0)) for p in (place, other or place)]
    used = max((axis + 1 for b in blocks for axis in range(3) if b[axis]), default=1)
    return f" of block {tuple(blocks[0][:used]) if used > 1 else blocks[0][0]}"


def _warp(place: Mapping[str, Any], block: Sequence[int]) -> int:
    x, y, z = place["thread"]
    return int((z * block[1] + y) * block[0] + x) // WARP


def within_warp(fault: EmulatorFault, block: Sequence[int]) -> bool:
    """Whether it is a race of two lanes of one warp, in shared memory."""
    places = (fault.place, *fault.related)
    if fault.kind != "race" or len(places) < 2 or not block or not all("thread" in p for p in places):
        return False
    return fault.record.get("memory") != "global" and _warp(places[0], block) == _warp(places[1], block)


def _quote_line(place: Mapping[str, Any], source: str) -> str:
    """The line of a place, with its text."""
    number, lines = place.get("line", 0), source.splitlines()
    text = lines[number - 1].strip().removesuffix("// here").strip() if 0 < number <= len(lines) else ""
    return f"line {number} `{text}`" if text else "an unknown line"


_NEXT = "begins while other threads are still in this one: put `__syncthreads()`"
REPAIRS = {  # of a race, in the order in which they are tried: barriers before the second line, behind it, ...
    "b": "Put `__syncthreads()` between them",
    "a": f"The next round of the loop {_NEXT} at the end of the round, after line {{}}",
    "f": f"The next call, or the next round of the loop, {_NEXT} before line {{}}",
    "ba": "Put `__syncthreads()` between them, and another one after line {}, where the round ends",
}


_LOOP, _LEAVES = re.compile(r"\s*(?:for|while)\b"), re.compile(r"\b(?:break|continue|return)\b")
_LAMBDA = re.compile(r"\[[&=\w, ]*\]\s*(?:\([^)]*\))?\s*(?:mutable\s*)?(?:->\s*[\w:]+\s*)?\{")


def _without_lambdas(code: str) -> str:
    """What their bodies do ends or leaves them only; no line moves."""
    for found in reversed([*_LAMBDA.finditer(code)]):
        body, _ = until(code, found.end(), "}")
        code = code[: found.end()] + re.sub(r"[^\n]", " ", body) + code[found.end() + len(body) :]
    return code


def _leaving(line: int, source: str) -> str:
    """What to do about threads that leave the loop around a line, or the kernel before it; empty if none do."""
    code = code_only(source)
    lines = code.splitlines()
    deep = [len(text) - len(text.lstrip()) for text in lines]
    begins = (n for n in range(line - 2, -1, -1) if lines[n] and deep[n] < deep[line - 1] and _LOOP.match(lines[n]))
    first = next(begins, line)
    inside = itertools.takewhile(lambda n: not lines[n].strip() or deep[n] > deep[first], range(first + 1, len(lines)))
    lines = _without_lambdas(code).splitlines()
    function = max((n for n in range(line - 1) if lines[n].strip() and not deep[n]), default=0)
    earlier = [n for n in range(function, line - 1) if re.search(r"\breturn;", lines[n])]
    at = next((n + 1 for n in [*inside, *reversed(earlier)] if _LEAVES.search(lines[n])), 0)
    left = f"Threads leave in {_quote_line({'line': at}, source)}, and a barrier waits for all threads of the block"
    return f"{left}: let every thread come to each barrier, and put only the work under an `if`" if at else ""


def with_barriers(source: str, repair: Repair, first: int, second: int) -> str:
    """The source with one of REPAIRS; no line moves."""
    lines, barrier, place = source.splitlines(), f"{repair.barrier};", repair.place
    if "a" in place:
        code, slashes, said = lines[second - 1].partition("//")
        lines[second - 1] = f"{code} {barrier} {slashes}{said}"
    for at in {"b": [second], "f": [first]}.get(place[0], []):
        lines[at - 1] = f"{barrier} {lines[at - 1]}"
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Repair:
    """What ended a race when it was tried: a place of REPAIRS, the barrier, and whether the numbers were right."""

    place: str = ""
    barrier: str = "__syncthreads()"
    right: bool = True


NO_REPAIR = Repair()


def _mend(fault: EmulatorFault, block: Sequence[int], hows: list[str], repair: Repair, sums: bool, source: str) -> str:
    """What repairs a race of two threads."""
    here, there, place = fault.place, fault.related[0], repair.place
    shared, first, second = fault.record.get("memory") != "global", *lines_of(fault)
    unit, add = ("thread", "atomicAdd") if block else ("program", "tl.atomic_add")
    if not place and hows == ["writes", "writes"]:
        same = block and here["block"] != there["block"] and here.get("thread") == there.get("thread")
        apart = [axis for axis, one, other in zip("xyz", here["block"], there["block"], strict=True) if one != other]
        why = "an index, a stride or a bound is wrong"
        if same and len(apart) == 1:
            depends = _depends(here.get("line", 0), f"blockIdx.{apart[0]}", source)
            why = f"the index does not depend on `blockIdx.{apart[0]}`, or {why}"
            why = "two blocks reach this one, so a start, the step of a loop or a bound is wrong" if depends else why
        more = f". Where the {unit}s' numbers are to be added, use `{add}`" if sums and not shared else ""
        return f"Exactly one {unit} should write each element: {why}{more}"
    if not place and first == second and not shared:
        return f"`{add}` reads, adds and writes in a single step: several {unit}s may add to one element"
    if not place and (not block or here["block"] != there["block"]):
        several = "Blocks" if block else "Programs"
        return f"{several} cannot wait for each other within a kernel: let another kernel read it, or use an atomic"
    if place and first == second:
        mend = "One round of the loop reads what another thread wrote in the previous round: put `__syncthreads()`"
        mend += f" at the {'end' if place == 'a' else 'start'} of each round"
    elif first == second:
        mend = "One statement both reads and writes it: read into a variable, `__syncthreads()`, then write; and "
        mend += "`__syncthreads()` again before the next round"
    else:
        mend = REPAIRS[place or "b"].format(first if place == "f" else second)
    if buffer := _buffer(fault.record.get("operand", ""), first, second, source):
        mend = f"Is `{buffer}` the buffer that this round fills? {'If it is, p' + mend[1:] if repair.right else mend}"
    if not repair.right:
        mend += ". That ends the race, but the numbers stay wrong"
    elif leaving := _leaving(here.get("line", 0), source):
        mend += f". {leaving}"
    return mend.replace("__syncthreads()", "__syncwarp()" if math.prod(block) <= WARP else repair.barrier)


def _depends(line: int, on: str, source: str) -> bool:
    """Whether the first index in a line is computed from something, by what is assigned to the names in it."""
    lines = code_only(source).splitlines()
    text = lines[line - 1].partition("[")[2] if 0 < line <= len(lines) else ""
    every, known = [until(text, 0, "]")[0]], set[str]()
    for part in every:  # which grows
        for name in {*re.findall(r"[a-zA-Z_]\w*", part)} - known:
            known.add(name)
            every += re.findall(rf"\b{name}\s*[-+*/]?=(?!=)([^;]+)", "\n".join(lines))
    return any(on in part for part in every)


def lines_of(fault: EmulatorFault) -> tuple[int, int]:
    lines = [p.get("line", 0) for p in (fault.place, *fault.related)]
    return min(lines), max(lines)


_SHARED = re.compile(r"\w+ '(\w+)', element (\d+)")


def _sizes(name: str, source: str) -> list[int]:
    """An array's dimensions, where they are numbers in its declaration."""
    found = re.search(rf"__shared__[^;]*\b{name}((?:\s*\[[^\]]*\])+)", code_only(source))
    named = dict(re.findall(r"\bconstexpr\s+\w+\s+(\w+)\s*=\s*(\d+)\s*;", source))
    sizes = [named.get(n.strip(), n.strip()) for n in re.findall(r"\[([^\]]*)\]", found[1])] if found else []
    return [int(n) for n in sizes] if all(n.isdecimal() for n in sizes) else []


def _buffer(operand: str, first: int, second: int, source: str) -> str:
    """Of an array of a few buffers the one that the second line, or the first, takes."""
    name = found[1] if (found := _SHARED.search(operand)) else ""
    if len(sizes := _sizes(name, source)) < 2 or sizes[0] > 4:
        return ""
    lines = source.splitlines()
    taken = (re.search(rf"\b{name}\[(?!threadIdx)[^\]]*[a-z][^\]]*\]", lines[n - 1]) for n in (second, first) if n)
    return next((one[0] for one in taken if one), "")


def _element(operand: str, source: str) -> str:
    """With an index for each of the array's dimensions."""
    found = _SHARED.fullmatch(operand.removeprefix("shared "))
    if not found or len(sizes := _sizes(found[1], source)) < 2:
        return operand
    if (at := int(found[2])) >= math.prod(sizes):
        return operand
    steps = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    index = "".join(f"[{at // step % size}]" for step, size in zip(steps, sizes, strict=True))
    return f"shared variable `{found[1]}{index}`"


_PHASE = re.compile(
    r"mbarrier in shared variable '(\w+)', element (\d+), phase (\d+) \(parity (\d)\): (-?\d+) of (\d+) arrivals "
    r"and (-?\d+) bytes are missing"
)


def _phases(what: str, source: str) -> Iterator[str]:
    """What the byte barriers lack, by their names."""
    for name, at, phase, parity, *counts in _PHASE.findall(what):
        pending, expected, size = map(int, counts)
        lacks = f"{pending} of {expected} arrivals and {size:,} bytes are missing"
        if pending == expected and not size:
            lacks = "nothing has arrived or is under way"
        elif size < 0:
            lacks = f"{-size:,} bytes more than expected arrived"
        elif not pending or not size:
            lacks = f"{size:,} bytes are missing" if size else f"{pending} of {expected} arrivals are missing"
        which = f"{name}[{at}]" if _sizes(name, source) else name
        yield f"a wait for parity {parity} of `{which}` is for its round {phase}, counted from 0, and there {lacks}"


def of_fault(
    fault: EmulatorFault, block: Sequence[int], source: str, repair: Repair = NO_REPAIR, terms: Any = 1
) -> Symptom:
    """The sentence about a fault of the machine. Of a race: what ended it when it was tried, and how many terms the
    operation adds to one."""
    lines = tuple(p["line"] for p in (fault.place, *fault.related) if "line" in p)
    memory, operand, what, lacks = (fault.record.get(n, "") for n in ("memory", "operand", "what", "lacks"))
    operand, named = _element(operand, source), operand
    here, who = _quote_line(fault.place, source), _thread(fault.place, block, source)
    if fault.kind == "race" and fault.related and all("thread" in p for p in (fault.place, *fault.related)):
        other = fault.related[0]
        two = block and fault.place["block"] != other["block"]
        whose = [_of_block(fault.place, other) if two else "", _of_block(other, fault.place) if two else ""]
        hows = [fault.record["how"], fault.record["other_how"]]
        both = (f"{who}{whose[0]} {hows[0]} it", f"{_thread(other, block, source)}{whose[1]} {hows[1]} it")
        if fault.place.get("line") == other.get("line"):
            where = f"{both[0]} and {both[1]}, both in {here}"
        else:
            where = f"{both[0]} in {here}, {both[1]} in {_quote_line(other, source)}"
        mend = _mend(fault, block, hows, repair, str(terms) != "1", source)
        says = f"a race on {operand}: {where}. No barrier or atomic separates them. {mend}"
    elif fault.kind == "race" and fault.related:
        there = _quote_line(fault.related[0], source)
        says = f"a race: {who} in {here} {what} in {there}, and does not wait for it: {operand}"
    elif fault.kind == "race":
        says = f"a race: {who} in {here} {what}, {lacks}: {operand}"
    elif "mask" in what or "shuffle" in what:
        says = (
            f"{who} in {here}: {what.removeprefix('an assertion fails: ')}. What it gets is undefined. Name all lanes "
            "that take part (0xffffffff for a whole warp), or limit it to groups by the last argument, as in "
            "`__shfl_down_sync(mask, x, offset, 8)`"
        )
    elif fault.kind == "barrier":
        way = "A barrier belongs outside of an `if` or a loop that only some of the threads enter"
        way = _leaving(fault.place.get("line", 0), source) or way
        says = f"not all threads of the block reach the barrier in {here}, or they wait at different barriers. {way}"
    elif fault.kind == "deadlock":
        says = f"the threads wait forever in {here}: what they wait for never completes"
        says += "".join(f"; {text}" for text in _phases(what, source))
    elif fault.kind == "unwritten":
        says = f"{who} in {here} reads {operand} before anything has written to it"
    elif fault.kind == "bounds" and memory == "shared" and operand:
        says = f"{who}{_of_block(fault.place)} in {here} leaves the array: it asks for {operand}"
    elif fault.place.get("line"):
        what = what.removeprefix("an assertion fails: ") if "parity" in what else what
        of = _of_block(fault.place) if block else ""
        says = f"{who}{of} in {here}: {': '.join(t for t in (what, operand) if t)}"
    else:
        says = str(fault).rstrip(".")
    return Symptom(fault.kind, "wrong", f"{_upper(says)}.", lines, {"memory": memory, "operand": named})


_OLD = ("shfl_xor", "shfl_down", "shfl_up", "shfl", "any", "all", "ballot")  # without a mask, in older books
_RENAMED = {f"__{name}": f"__{name}_sync(0xffffffff, ...)" for name in _OLD}


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
    if "integral or unscoped enum type" in text and re.search(r"\b\w+ = \w+ [-+*/] \w+;", text):
        more += "\nA pointer stands for a whole array; each thread computes single elements, such as `out[i]`."
    if " is 0." in text and values:
        more += f" That is so at {', '.join(f'{n} = {figure(v)}' for n, v in values.items() if n.isupper())}."
    return Symptom(kind, "wrong", text + more, lines, {"instead": renamed})


def of_diagnosis(found: Diagnosis) -> Symptom:
    """The sentence about wrong numbers; the facts have the elements, the map and the reason."""
    first, total = found.elements[0], math.prod(found.shape)
    place = f"{found.output}[{', '.join(map(str, first['index']))}]" if found.shape else found.output
    many = f"all {total:,}" if found.wrong == total else f"{found.wrong:,} of {total:,}"
    many = f"{many} elements of {found.output}" if total > 1 else found.output
    many += " is wrong" if found.wrong == 1 else " are wrong"
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
            f"(allowed: {found.norm_cap:.2g}): too few bits are kept, or two nearly equal numbers are subtracted."
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
        some, unit = [f"thread {WARP * warp + lane} of block {block}" for block, warp, lane in list(who)[:2]], "thread"
        if "program_id" in source:
            some, unit = [f"program {block}" for block in dict.fromkeys(block for block, _, _ in who)][:2], "program"
        line = lines.most_common(1)[0][0]
        says = (
            f"the result is right, but the work is repeated: element {element} of {name} is written by {len(who)} "
            f"threads ({', '.join(some)}{', ...' if len(who) > 2 else ''}), with the same value, in "
            f"{_quote_line({'line': line}, source)}. On average each element is written {stores / len(writers):.3g} "
            f"times; one {unit} should do it."
        )
        facts = {"output": name, "element": element, "threads": len(who), "times": stores / len(writers)}
        return Symptom("repeated", "slow", _upper(says), (line,), facts)
    return None


def of_idle(launched: Sequence[Launched], source: str) -> list[Symptom]:
    """Whether blocks of a launch store nothing, or warps of the first block ask for nothing: there are too many."""
    for kernel in launched:
        blocks, some = math.prod(kernel.config.grid), [a for a in kernel.accesses if a.memory == "global"]
        stores = {r.block for r in kernel.trace if r.access.memory == "global" and r.access.direction == "write"}
        traced = len(kernel.trace) < TRACED and not any(a.way == "atomic" for a in some)
        if traced and stores and (idle := blocks - len(stores)):
            unit, ceil = ("program", "triton.cdiv") if "program_id" in source else ("block", "ceil_div")
            says = f"Your launch has {idle} {unit}{'s' if idle > 1 else ''} too many: {len(stores)} of {blocks} store "
            says += f"something. Rounding up (`{ceil}`) starts exactly as many {unit}s as are needed."
            return [Symptom("idle", "solved", says, (), {"blocks": blocks, "idle": idle})]
        threads, busy = kernel.config.threads, WARP * len({r.warp for r in kernel.trace if not r.block})
        if traced and busy < threads:
            says = f"Only {busy} of a block's {threads} threads load or store anything."
            return [Symptom("idle", "solved", says, (), {"threads": threads, "idle": threads - busy})]
    return []


TERMS = {  # what a figure that is predicted counts
    "sectors_per_request": "count the 32-byte sectors that hold the 32 lanes' addresses; a sector is loaded whole",
    "ways_load": "count, for the bank that most lanes use, how many different words they want from it",
    "global_loads": "multiply the warps by the loads that each of them makes; 32 threads of a warp load together",
    "shared_loads": "multiply the warps by the iterations, and by the loads in each of them",
    "resident": "divide what a multiprocessor has by what a block needs, of threads and of shared memory",
    "global_read_bytes": "multiply the elements by the arrays that are read, and by the bytes of a number",
    "fadd": "count the additions of floats, one element after the other; those of indices do not count",
}
MIXED_UP = {  # by which factor an answer is off, and what it has counted
    32: "threads, where the question is about warps (32 threads)",
    1 / 32: "warps, where the question is about threads (32 in a warp)",
    4: "bytes, where the question is about floats (4 bytes)",
    1 / 4: "floats, where the question is about bytes (4 in a float)",
}


def of_prediction(name: str, said: float, truth: float, figure: str, several: bool) -> Symptom:
    """By how much an answer is off, roughly, and what is to be counted; not the count itself."""
    off = said / truth if said > 0 else 0.0
    far = "a little " if 1 / 1.4 < off < 1.4 else "" if 1 / 3 < off < 3 else "far "
    says = f"Your answer {said:,.10g}{f' for {name}' * several} is {far}too {'low' if said < truth else 'high'}"
    mixed = next((what for factor, what in MIXED_UP.items() if abs(off / factor - 1) < 0.02), "")
    if mixed and figure in ("global_loads", "shared_loads", "global_read_bytes"):
        says += f": it may count {mixed}"
    says += f". To find the number, {TERMS[figure]}." if figure in TERMS else "."
    return Symptom("prediction", "wrong", says, (), {"name": name, "predicted": said, "counted": truth, "factor": off})


def of_counts(kernel: Launched, figure: str, source: str) -> Symptom:
    """What a figure that was predicted is made of, by line."""
    parts: dict[int, str] = {}
    shared = figure in ("shared_loads", "ways_load")
    for (_, line), lanes in kernel.lanes.items():
        if count := lanes[OF_LANES.get(figure, "")]:
            parts[line] = f"executes {count:,} of them, one for each thread"
    for access, counts in kernel.accesses.items():
        asked = (access.memory, access.direction, access.way) == ("shared" if shared else "global", "read", "plain")
        if asked and figure not in ("resident", *OF_LANES):
            why = f"; {reason(access, kernel.worst[access])}" if access in kernel.worst else ""
            more = f" ({per_request(access, counts)[0]:.3g} {'passes' if shared else 'sectors'} each{why})"
            parts[access.line] = f"makes {counts.requests:,} loads, of {counts.bytes:,} bytes in all"
            parts[access.line] += "" if figure.endswith("_loads") else more
    says = "; ".join(f"{_quote_line({'line': line}, source)} {said}" for line, said in sorted(parts.items()))
    if figure == "resident":
        threads, of, size = kernel.config.threads, limits(ARCH), kernel.shared_size + limits(ARCH).shared_reserved
        says = f"{of.threads_sm:,} threads / {threads} = {of.threads_sm // threads} blocks, and "
        says += f"{of.shared_sm:,} bytes of shared memory / {size:,} = {of.shared_sm // size} blocks"
    return Symptom("counted", "wrong", f"Counted: {says}.", tuple(sorted(parts)), {"figure": figure})


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
