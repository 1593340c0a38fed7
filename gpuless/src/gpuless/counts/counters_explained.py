"""What counts mean: figures under Nsight Compute's names, the most expensive line and the reason, and goals."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gpuless.base.errors import UserError
from gpuless.base.expressions import evaluate, names_in
from gpuless.counts.counters import Access, Counts, Launched, Place, Sample
from gpuless.facts import opcodes

_PLAIN = ("plain", "generic")
_READS, _WRITES = (*_PLAIN, "cp.async"), _PLAIN
_COMPARED = (*_READS, "matrix")
# Opcodes that are counted by lane, and those counted by warp: so are Nsight Compute's.
OF_LANES = {"fadd": "FADD", "fmul": "FMUL", "ffma": "FFMA"}
OF_WARPS = {"mufu": ("MUFU",), "hmma": ("HMMA",), "imma": ("IMMA",), "gmma": opcodes.of_width("GROUP")}
INSTRUCTIONS = ("instructions", *OF_LANES, *OF_WARPS)
_BANKS, _SECTOR, _WORD = 32, 32, 4
# What a goal may write in parentheses, and the figure's ending.
_SHORT = re.compile(r"\b([a-z]\w*)\((ld|st)\)")
_OF_LD_ST = {
    "sectors_per_request": ("sectors_per_request", "sectors_per_store"),
    "bytes_per_sector": ("bytes_per_sector_load", "bytes_per_sector_store"),
    "wavefronts": ("wavefronts_load", "wavefronts_store"),
    "conflicts": ("conflicts_load", "conflicts_store"),
    "ways": ("ways_load", "ways_store"),
    "requests": ("global_read_requests", "global_write_requests"),
    "bytes": ("global_read_bytes", "global_write_bytes"),
}


def summed(places: Mapping[Place, Counter[str]]) -> Counter[str]:
    """Over all lines."""
    return sum(places.values(), Counter())


def figures(kernel: Launched) -> dict[str, float]:
    """A launch's counts under this project's short names of Nsight Compute's counters (profile/counters.py)."""
    load, plain = kernel.total("global", "read", *_READS), kernel.total("global", "read", "plain")
    store, s_load = kernel.total("global", "write", *_WRITES), kernel.total("shared", "read", *_PLAIN, "matrix")
    s_store = kernel.total("shared", "write", *_PLAIN, "matrix")
    bulk_in, bulk_out = kernel.total("global", "read", "bulk"), kernel.total("global", "write", "bulk")
    found: dict[str, float] = {
        "global_loads": plain.executed,
        "global_stores": kernel.total("global", "write", "plain").executed,
        "global_read_requests": load.requests,
        "global_write_requests": store.requests,
        "global_read_bytes": 32 * load.sectors,
        "global_write_bytes": 32 * store.sectors,
        "global_read_lines": load.lines,
        "global_write_lines": store.lines,
        "shared_loads": kernel.total("shared", "read", "plain").executed,
        "shared_stores": kernel.total("shared", "write", "plain").executed,
        "wavefronts_load": s_load.wavefronts,
        "wavefronts_store": s_store.wavefronts,
        "conflicts_load": s_load.wavefronts - s_load.ideal_wavefronts,
        "conflicts_store": s_store.wavefronts - s_store.ideal_wavefronts,
        "atomics": sum(kernel.total(m, "write", "atomic").requests for m in ("global", "shared")),
        "global_atomics": kernel.total("global", "write", "atomic").requests,
        "async_copy_bytes": kernel.total("shared", "write", "cp.async").bytes,
        "bulk_read_bytes": bulk_in.bytes,
        "bulk_write_bytes": bulk_out.bytes,
        "ldmatrix": kernel.total("shared", "read", "matrix").requests,
        "stmatrix": kernel.total("shared", "write", "matrix").requests,
        "operand_bytes": kernel.total("shared", "read", "operand").bytes,
        "barriers": kernel.total("shared", "read", "barrier").requests,
        "shared_size": kernel.shared_size,
    }
    if any(event.what == "group" for event in kernel.events):
        found["groups_under_way"] = _under_way(kernel)
    executed, lanes = summed(kernel.executed), summed(kernel.lanes)
    if executed:
        found["instructions"] = executed.total()
        found["threads_not_predicated"] = lanes.total() / executed.total()
        found |= {name: lanes[opcode] for name, opcode in OF_LANES.items()}
        found |= {name: sum(executed[opcode] for opcode in opcodes) for name, opcodes in OF_WARPS.items()}
    ratios = {
        "sectors_per_request": (load.sectors, load.requests),
        "sectors_per_store": (store.sectors, store.requests),
        "bytes_per_sector_load": (plain.unique_bytes, plain.sectors),
        "bytes_per_sector_store": (store.unique_bytes, store.sectors),
        "ways_load": (s_load.wavefronts, s_load.requests),
        "ways_store": (s_store.wavefronts, s_store.requests),
        "lanes_per_request": (
            sum(c.lanes for a, c in kernel.accesses.items() if a.way in _PLAIN),
            sum(c.requests for a, c in kernel.accesses.items() if a.way in _PLAIN),
        ),
    }
    found |= {name: of / by for name, (of, by) in ratios.items() if by}
    used = {"bytes_used_load": "bytes_per_sector_load", "bytes_used_store": "bytes_per_sector_store"}  # of profiles
    return found | {name: found[same] for name, same in used.items() if same in found}


def _under_way(kernel: Launched) -> int:
    """Of the first block's warps: the most groups of copies that were still under way when a wait for groups ended."""
    open_groups: Counter[int] = Counter()
    most = 0
    for event in kernel.events:
        if event.what == "group":
            open_groups[event.warp] += 1
        elif event.what == "wait for group":
            open_groups[event.warp] = min(open_groups[event.warp], event.amount)
            most = max(most, open_groups[event.warp])
    return most


def is_ratio(figure: str) -> bool:
    return "_per_" in figure or figure.startswith(("ways", "threads", "bytes_used"))


def hottest(kernels: Iterable[Launched]) -> tuple[Launched, Access, Counts] | None:
    """The access with the most sectors and wavefronts beyond the ideal, if there is any."""
    every = [(k, a, c) for k in kernels for a, c in k.accesses.items() if a.way in _COMPARED]
    worst = max(every, key=lambda found: found[2].waste, default=None)
    return worst if worst and worst[2].waste > 0 else None


def per_request(access: Access, counts: Counts) -> tuple[float, str]:
    """What a request costs on average: sectors of global memory, or passes over the banks of shared memory."""
    if access.memory == "global":
        return counts.sectors / max(counts.requests, 1), "sectors per request"
    return counts.wavefronts / max(counts.requests, 1), "wavefronts per request"


def reason(access: Access, sample: Sample, sizes: Mapping[str, int] | None = None) -> str:
    """Why the most expensive request of a line costs what it does. `sizes` names dimensions that a stride may equal."""
    lanes = sorted(sample.lanes)
    apart = Counter(sample.lanes[b] - sample.lanes[a] for a, b in itertools.pairwise(lanes) if b == a + 1)
    stride, size = (apart.most_common(1)[0][0] if apart else 0), sample.size
    if len(lanes) == 1:
        return "only 1 of 32 lanes is active"
    partial = f"; only {len(lanes)} of 32 lanes are active" if len(lanes) < 32 else ""
    if len(set(sample.lanes.values())) == 1:
        return f"all lanes have the same address (a broadcast){partial}"
    if access.memory == "shared":
        why = _in_banks(sample, stride)
        return why + partial if why else partial[2:]
    if abs(stride) > size:
        alone = size <= _WORD and stride % size == 0  # wider accesses have several elements
        steps = f"{abs(stride) // size:,} elements" if alone else f"{abs(stride):,} bytes"
        named = next((n for n, v in (sizes or {}).items() if v >= 8 and v * size == abs(stride)), "")
        return f"neighbouring lanes are {f'{named} = ' if named else ''}{steps} apart{partial}"
    why = _in_sectors(sample)
    return why + partial if why else partial[2:]


def _in_sectors(sample: Sample) -> str:
    """Of lanes that mostly lie beside each other: the contiguous pieces that they ask for."""
    at = sorted({sample.phase + d for d in sample.lanes.values()})
    pieces = [[at[0], at[0] + sample.size]]
    for address in at[1:]:
        if address > pieces[-1][1]:
            pieces.append([address, address])
        pieces[-1][1] = address + sample.size
    late = pieces[0][0] % _SECTOR
    if len(pieces) == 1:
        if late:
            return f"the access is contiguous but starts {late} bytes into a sector, so that it touches one more"
        return f"the lanes have only {len(at)} different addresses" if len(at) < len(sample.lanes) else ""
    long = {end - begin for begin, end in pieces}
    if long == {sample.size} and len(at) > len(sample.lanes) // 2:
        return "lanes are scattered"
    gaps = {after[0] - before[0] for before, after in itertools.pairwise(pieces)}
    size = f"{'' if len(long) == 1 else 'up to '}{max(long)} bytes"
    far = f", {min(gaps):,} bytes apart" if len(gaps) == 1 else ""
    whole = all(begin % _SECTOR == end % _SECTOR == 0 for begin, end in pieces)
    return f"the lanes ask for {len(pieces)} pieces of {size}{far}" + ("" if whole else "; not all are whole sectors")


def _in_banks(sample: Sample, stride: int) -> str:
    words = abs(stride) // _WORD
    together = min(32, 32 * _WORD // sample.size)  # lanes of one part of a wide access
    parts = itertools.groupby(sorted(sample.lanes), key=lambda lane: lane // together)
    most = 0
    for _, part in parts:
        starts = [sample.phase + sample.lanes[lane] for lane in part]
        asked = {word for at in starts for word in range(at // _WORD, (at + sample.size - 1) // _WORD + 1)}
        most = max(most, *Counter(word % _BANKS for word in asked).values())
    if most == 1:
        wide = f"accesses of {sample.size} bytes pass the banks {together} lanes at a time"
        alone = f"neighbouring lanes are {words} words apart: each meets another bank" if words > 1 else ""
        return wide if sample.size > _WORD else alone
    if abs(stride) > sample.size and words % 2 == 0:
        power = words & -words
        multiple = "a multiple of the 32 banks" if power >= _BANKS else f"a multiple of {power}"
        return f"neighbouring lanes are {words} words apart, {multiple}: {most} lanes meet in one bank"
    return f"{most} different words lie in one bank"


def remark(kernels: Iterable[Launched], sizes: Mapping[str, int] | None = None) -> str:
    """One sentence about the most expensive line, or nothing if no line wastes half of its requests' cost."""
    found = hottest(kernels)
    if found is None:
        return ""
    kernel, access, counts = found
    cost, unit = per_request(access, counts)
    if counts.waste * 2 < counts.sectors + counts.wavefronts:
        return ""
    why = reason(access, kernel.worst[access], sizes) if access in kernel.worst else ""
    return f"line {access.line}: {cost:.3g} {unit}" + (f"; {why}" if why else "")


class Goal(NamedTuple):
    """Such as `sectors_per_request(ld) <= 1.1`: whether all kernels meet it, and what was counted."""

    text: str
    met: bool
    figures: str

    def __str__(self) -> str:
        return f"{'met' if self.met else 'missed'}: {self.text} ({self.figures})"


def judge_goals(goals: Sequence[str], kernels: Sequence[Launched]) -> list[Goal]:
    return [Goal(goal, *_met(goal, kernels)) for goal in goals]


def _met(goal: str, kernels: Sequence[Launched]) -> tuple[bool, str]:

    def named(match: re.Match[str]) -> str:
        if match[1] not in _OF_LD_ST:
            raise UserError(f"the goal names {match[1]!r}; with ld or st there are {', '.join(_OF_LD_ST)}.")
        return _OF_LD_ST[match[1]][match[2] == "st"]

    text = _SHORT.sub(named, goal)
    names = names_in(text)
    ok, counted = True, []
    for kernel in kernels:
        found = figures(kernel)
        if unknown := sorted(names - {*found, *(n for pair in _OF_LD_ST.values() for n in pair)}):
            raise UserError(f"the goal names {unknown[0]!r}, which is not counted; there are {', '.join(found)}.")
        values = {name: found.get(name, 0.0) for name in names}
        ok &= bool(evaluate(text, values))
        said = (f"{n} = {v:,.0f}" if v == int(v) else f"{n} = {v:,.4g}" for n, v in values.items())
        counted.append(f"{kernel.kernel}: {', '.join(said)}")
    return ok, "; ".join(counted)
