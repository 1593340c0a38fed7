"""Small changes to a right kernel, each of which a checker should notice."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Mutant:
    """One change at one place of a source."""

    kind: str
    line: int
    before: str
    after: str
    source: str
    file: str = ""  # the rung's own, or a header beside it

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


# What is dropped altogether is a statement; what is replaced is one operator, name or number.
RULES = (
    _replace("barrier", r"\b\w*(?:sync|barrier)\w*\([^;{}()]*\)(?=;)", ""),
    _replace("fence or wait", r"\b\w*(?:fence|wait|commit|arrive)\w*(?:<[^<>;]*>)?\([^;{}]*\)(?=;)", ""),
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
    _replace("scale", r"(?<=\* )scale\b", "1.0f"),
    _replace("eps", r"\beps\b(?=\))", "1e-5f"),
    _replace("eps", r"\+ eps\b", ""),
    _replace("clamp", r"\bf?max[f]?\(([^(),]+), ([^(),]+)\)", r"(\1)"),
    _replace("clamp", r"\bf?min[f]?\(([^(),]+), ([^(),]+)\)", r"(\2)"),
    _replace("mask", r"-INFINITY\b", "0.0f"),
    _replace("mask", r"(?<= )&&(?= )", "||"),
    _replace("mask", r"\bif \(([^(){};]+)\)", "if (true)"),
    _replace("constant", _NUMBER + r"(\d+\.\d*f)\b", r"(\1 + 0.02f)"),
    _replace("constant", _NUMBER + r"([1-9]\d?)\b(?![.\w])(?=[;)\]]| [*/+])", r"(\1 + 1)"),
    _replace("cast", r"\bto_real\(([^()]*)\)", r"to_real((float)(int)(\1))"),
    _replace("cast", r"\(float\)", "(float)(int)"),
)


def mutants(source: str) -> Iterator[Mutant]:
    """Every mutant of a source, in the order of its lines; comments, strings and the header are left alone."""
    code = _HIDDEN.sub(lambda m: re.sub(r"[^\n]", "\0", m.group()), _HEADER.sub(_blank, source))
    found = []
    for kind, pattern, choices in RULES:
        for match in pattern.finditer(code):
            if "\0" in match.group():
                continue
            if kind in ("barrier", "fence or wait") and _declares(code, match.start()):
                continue
            for choice in choices:
                after = match.expand(choice)
                line = code.count("\n", 0, match.start()) + 1
                changed = source[: match.start()] + after + source[match.end() :]
                found.append(Mutant(kind, line, match.group(), after, changed))
    yield from sorted(found, key=lambda m: (m.line, m.kind, m.before))


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", "\0", match.group())


def _declares(code: str, start: int) -> bool:
    """Whether a name stands behind a type: a declaration, which cannot be dropped."""
    before = code[code.rfind("\n", 0, start) + 1 : start].strip()
    return bool(re.search(r"(?:void|int|bool|float|auto)\s*$", before))


def chosen(sources: Mapping[str, str], limit: int | None, seed: int) -> list[Mutant]:
    """At most `limit` mutants of these files, every kind as often as the others where there are enough of it."""
    every = [replace(mutant, file=file) for file, source in sources.items() for mutant in mutants(source)]
    if limit is None or len(every) <= limit:
        return every
    generator = random.Random(seed)
    kinds: dict[str, list[Mutant]] = {}
    for mutant in every:
        kinds.setdefault(mutant.kind, []).append(mutant)
    for of_kind in kinds.values():
        generator.shuffle(of_kind)
    taken: list[Mutant] = []
    while len(taken) < limit:
        taken += [of_kind.pop() for of_kind in kinds.values() if of_kind][: limit - len(taken)]
    return sorted(taken, key=lambda m: (m.file, m.line, m.kind))
