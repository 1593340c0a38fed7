"""Which block's condition decides whether an access of the emulated code is executed.

nvcc makes a short branch a predicate: each warp that evaluates the condition then executes the access, also a warp of
which no lane takes part. Blocks are those that the code reports with __sanitizer_cov_trace_pc.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

_LINE = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)\s*(?:([0-9a-f]+) <([^>]*)>)?")
_MARK = "__sanitizer_cov_trace_pc"


@dataclass
class _Node:
    """Instructions that are always executed together, and what may follow them."""

    mark: int = 0  # the return address of the call that reports a block
    last: int = 0  # the address of its last instruction
    calls: list[int] = field(default_factory=list)  # return addresses of all calls
    next: list[int] = field(default_factory=list)


class Condition(NamedTuple):
    """The block that ends with it, and the address of its jump."""

    block: int
    jump: int


class Blocks(NamedTuple):
    """The block of each call, by return addresses; and for each block the last condition that leads to it or not."""

    of: dict[int, int]
    above: dict[int, Condition]


def conditions(listing: str) -> Blocks:
    """Of a disassembled library."""
    found = Blocks({}, {})
    for function in listing.split("\n\n"):
        if _MARK not in function:
            continue
        nodes, entry = _nodes(function)
        above, after = _dominators({at: node.next for at, node in nodes.items()}, entry), _followers(nodes)
        for start in above:
            block = _marked(nodes, above, start)
            found.of.update(dict.fromkeys(nodes[start].calls, nodes[block].mark))
            at = block
            while at != entry and _follows(block, at, after):
                at = above[at]
            if at != block:
                over = nodes[_marked(nodes, above, at)].mark
                found.above[nodes[block].mark] = Condition(over, nodes[at].last)
    return found


def evaluations(
    blocks: Blocks, executed: Mapping[int, int], lines: Mapping[int, tuple[str, int]], call: int
) -> float:
    """How often the condition was evaluated that decides over a call, for each execution of that: the nearest one, and
    those before it on its line (`if (a && b)`); `lines` are those of jumps."""
    at = blocks.of.get(call, 0)
    own = most = executed.get(at, 0)
    line = None
    while (above := blocks.above.get(at)) and line in (None, lines.get(above.jump)):
        at, line = above.block, lines.get(above.jump)
        most = max(most, executed.get(at, 0))
    return most / own if own else 1.0


def _followers(nodes: dict[int, _Node]) -> dict[int, int]:
    """For each node the nearest other one that every way from it leads through, to the function's end (-1)."""
    before: dict[int, list[int]] = {-1: [], **{at: [] for at in nodes}}
    for at, node in nodes.items():
        for following in node.next or [-1]:
            before[following].append(at)
    return _dominators(before, -1)


def _follows(block: int, at: int, after: dict[int, int]) -> bool:
    """Whether every way from `at` leads through the block."""
    while at != block and after.get(at, -1) != at:
        at = after.get(at, -1)
    return at == block


def _marked(nodes: dict[int, _Node], above: dict[int, int], at: int) -> int:
    """The node, or the nearest before it, that begins with a block's report."""
    while not nodes[at].mark and above[at] != at:
        at = above[at]
    return at


def _nodes(function: str) -> tuple[dict[int, _Node], int]:
    lines = [(int(m[1], 16), m[2], m[3], m[4] or "") for m in map(_LINE.match, function.splitlines()) if m]
    starts = {lines[0][0]} if lines else set()
    for (_, name, to, where), (after, *_) in itertools.pairwise(lines):
        if name.startswith("j") or (name == "call" and _MARK in where):
            starts |= {after} | ({int(to, 16)} if to and name.startswith("j") else set())
    nodes: dict[int, _Node] = {}
    node = _Node()
    for number, (address, name, to, where) in enumerate(lines):
        after = lines[number + 1][0] if number + 1 < len(lines) else 0
        if address in starts:
            node = nodes.setdefault(address, _Node())
        node.last = address
        if name == "call":
            node.calls.append(after)
        ends = name.startswith(("j", "ret", "ud2"))
        if name.startswith("j") and to:
            node.next.append(int(to, 16))
        if after in starts and (not ends or (name.startswith("j") and not name.startswith("jmp"))):
            node.next.append(after)
        if name == "call" and _MARK in where and after:
            nodes.setdefault(after, _Node()).mark = after
    for node in nodes.values():
        node.next = [n for n in node.next if n in nodes]
    return nodes, lines[0][0]


def _dominators(nodes: Mapping[int, list[int]], entry: int) -> dict[int, int]:
    """For each node that can be reached, the nearest other one that every way to it leads through; the entry for that.

    That is the algorithm of Cooper, Harvey and Kennedy.
    """
    order: list[int] = []  # each node after those that can follow it
    seen = {entry}
    stack = [(entry, iter(nodes[entry]))]
    while stack:
        at, rest = stack[-1]
        following = next((n for n in rest if n not in seen), None)
        if following is None:
            order.append(at)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(nodes[following])))
    rank = {at: n for n, at in enumerate(order)}
    before: dict[int, list[int]] = {at: [] for at in order}
    for at in order:
        for following in nodes[at]:
            before[following].append(at)
    above = {entry: entry}
    changed = True
    while changed:
        changed = False
        for at in reversed(order[:-1]):
            known = [b for b in before[at] if b in above]
            new = known[0]
            for other in known[1:]:
                while new != other:
                    while rank[new] < rank[other]:
                        new = above[new]
                    while rank[other] < rank[new]:
                        other = above[other]
            if above.get(at) != new:
                above[at], changed = new, True
    return above
