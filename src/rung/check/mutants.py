"""Small changes to a correct kernel, each of which the checker should detect."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True)
class Mutant:
    """One change at one place of a source."""

    kind: str
    line: int
    column: int
    before: str
    after: str
    start: int  # in the source

    def of(self, source: str) -> str:
        """The source with this change."""
        return source[: self.start] + self.after + source[self.start + len(self.before) :]

    @property
    def change(self) -> str:
        return f"{self.before.strip() or 'nothing'} -> {self.after.strip() or 'nothing'}"


_HEADER = re.compile(r"/\*---.*?---\*/", re.DOTALL)
_HIDDEN = re.compile(
    r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|^[ \t]*#[^\n]*(?:\\\n[^\n]*)*", re.DOTALL | re.MULTILINE
)
_NUMBER = r"(?<![\w.])"


def _replace(kind: str, pattern: str, *by: str) -> tuple[str, re.Pattern[str], tuple[str, ...]]:
    return kind, re.compile(pattern), by


DROPPED = ("barrier", "fence", "wait")
# Whole statements are dropped; single operators, names and numbers are replaced.
RULES = (
    _replace("barrier", r"\b\w*(?:sync|barrier)\w*\([^;{}()]*\)(?=;)", ""),
    _replace("fence", r"\b\w*fence\w*(?:<[^<>;]*>)?\([^;{}]*\)(?=;)", ""),
    _replace("wait", r"\b\w*(?:wait|commit|arrive)\w*(?:<[^<>;]*>)?\([^;{}]*\)(?=;)", ""),
    _replace("comparison", r"(?<![<>=!\-])<(?![<=])(?= )", "<="),
    _replace("comparison", r"(?<= )<=(?= )", "<"),
    _replace("comparison", r"(?<![<>\-])>(?![>=])(?= )", ">="),
    _replace("comparison", r"(?<= )>=(?= )", ">"),
    _replace("comparison", r"(?<= )==(?= )", "!="),
    _replace("bound", r"(?<=< )(\w+)(?=;|\))", r"\1 - 1"),
    _replace("index", r"(?<=\[)([^\[\]]{1,60})(?=\])", r"(\1) + 1"),
    _replace("index", r"\bthreadIdx\.x\b", "(threadIdx.x & ~1)"),
    _replace("index", r"\bblockIdx\.x\b", "(blockIdx.x / 2)"),
    _replace("term", r"(?<= )\+(?= )", "-"),
    _replace("term", r"(?<= )-(?= )", "+"),
    _replace("term", r"(?<= )\*(?= )", "+"),
    _replace("term", r"(?<= )\+=(?= )", "="),
    _replace("scale", r"(?<=\* )scale\b|\bscale(?= \*)", "1.0f"),
    _replace("eps", r"\beps\b(?=\))", "1e-5f"),
    _replace("eps", r"\+ eps\b", ""),
    _replace("clamp", r"\bf?max[f]?\(([^(),]+), ([^(),]+)\)", r"(\1)"),
    _replace("clamp", r"\bf?min[f]?\(([^(),]+), ([^(),]+)\)", r"(\2)"),
    _replace("mask", r"-INFINITY\b", "0.0f"),
    _replace("mask", r"(?<= )&&(?= )", "||"),
    _replace("mask", r"\bif \(([^(){};]+)\)", "if (true)"),
    _replace("constant", _NUMBER + r"(\d+\.\d*f)\b", r"(\1 + 0.02f)"),
    _replace("constant", _NUMBER + r"([1-9]\d?)\b(?![.\w])(?=[;)\]]| [*/+])", r"(\1 + 1)"),
    _replace("cast", r"\bto_float\(", "(float)(int)to_float("),
    _replace("cast", r"\b(from_float<\w+>)\(", r"\1((int)"),
)


def mutants(source: str) -> Iterator[Mutant]:
    """Every mutant of a source, in the order of its lines; comments, strings and the header are left alone."""
    code = _HIDDEN.sub(_blank, _HEADER.sub(_blank, source))
    found = []
    for kind, pattern, choices in RULES:
        for match in pattern.finditer(code):
            if "\0" in match.group() or (kind in DROPPED and _declares(code, match.start())):
                continue
            start = match.start()
            line, column = code.count("\n", 0, start) + 1, start - code.rfind("\n", 0, start)
            found += [Mutant(kind, line, column, match.group(), match.expand(by), start) for by in choices]
    yield from sorted(found, key=lambda m: (m.start, m.kind))


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", "\0", match.group())


def _declares(code: str, start: int) -> bool:
    """Whether a name follows a type: a declaration, which cannot be dropped."""
    before = code[code.rfind("\n", 0, start) + 1 : start].strip()
    return bool(re.search(r"(?:void|int|bool|float|auto)\s*$", before))


def sample(groups: Sequence[Sequence[Item]], count: int, seed: int) -> list[Item]:
    """At most `count` items, the same number from each group as far as possible."""
    generator = random.Random(seed)
    left = [generator.sample(group, len(group)) for group in groups]
    generator.shuffle(left)
    chosen: list[Item] = []
    while any(left) and len(chosen) < count:
        chosen += [group.pop() for group in left if group][: count - len(chosen)]
    return chosen
