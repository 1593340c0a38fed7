"""Puts counters of branches and loop iterations into a preprocessed source, at every `if`, `for` and `while` that is
not in a constexpr function.

A counter holds how often a condition was true and false, or how often a loop ended after no iteration, one, or several.
Conditions that the compiler finds constant in a build are marked as such, and the other outcome is not required there.
The same holds for a loop that runs in constant steps from a thread's index, or from such a loop's variable, to a
constant: the build determines its iterations.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from rung.emulator.inline_ptx import closing, split

COUNTERS = Path(__file__).parent / "coverage.h"
Statement = Callable[[re.Match[str], str, bool], str]  # token, content of its parentheses, whether a semicolon follows

_MARKER = re.compile(r'^# (\d+) "((?:\\.|[^"\\\n])*)"[^\n]*\n', re.MULTILINE)
_TOKEN = re.compile(
    r'(?P<skipped>"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/|^[ \t]*#[^\n]*)'
    r"|(?P<mark>[{};])"
    r"|\b(?P<word>if|for|while)\b\s*(?P<constexpr>constexpr\b)?\s*\(",
    re.DOTALL | re.MULTILINE,
)
_ASSIGNED = re.compile(r"(\w+)\s*=(?!=)([^,]*)")
_STEP = re.compile(r"\s*(?:\w+\s*(?:\+\+|--|[-+]=([^=,]*))|(?:\+\+|--)\s*\w+)\s*")
_THREAD = re.compile(
    r"\bthreadIdx\s*\.\s*[xyz]\b|(?:\b\w+\s*\.\s*)?\b(?:lane_id|warp_id|thread_rank)\s*\(\s*\)"
)
_DEFINED = r"\b(?:const\s+)?(?:unsigned|int|auto)\s[^;]*?\b{}\s*=(?!=)([^;,]*)[;,]"
_CHANGED = r"\b{0}\s*(?:[-+*/%|&^]|<<|>>)?=(?!=)|\b{0}\s*(?:\+\+|--)|(?:\+\+|--)\s*{0}\b"
_AROUND = r"\bfor\s*\(\s*(?:unsigned|int)\s+{0}\s*=([^;,]*);\s*{0}\s*[<>]=?([^;&|?]*);"
_BOUND = re.compile(r"^\s*\w+\s*(?:<=?|>=?|!=)\s*([^<>=&|?{]+)$")


class Site(NamedTuple):
    """One condition of a source."""

    file: str
    line: int
    nth: int  # of those on the line
    kind: Literal["branch", "loop"]
    text: str


@dataclass
class _Place:
    markers: list[tuple[int, int, str]]  # after it: position, line, file
    source: str

    def at(self, position: int) -> tuple[str, int]:
        index = bisect_right(self.markers, position, key=lambda m: m[0]) - 1
        if index < 0:
            return "", self.source.count("\n", 0, position) + 1
        begin, line, file = self.markers[index]
        return file, line + self.source.count("\n", begin, position)


@dataclass
class _Counted:
    place: _Place
    sites: list[Site] = field(default_factory=list)

    def new(self, position: int, kind: Literal["branch", "loop"], text: str) -> int:
        file, line = self.place.at(position)
        nth = sum((s.file, s.line) == (file, line) for s in self.sites)
        self.sites.append(Site(file, line, nth, kind, " ".join(text.split())))
        return len(self.sites) - 1


def counted(source: str) -> str:
    """The source with counters, and the list of their sites as `rung_sites`."""
    markers = [(m.end(), int(m[1]), json.loads(f'"{m[2]}"')) for m in _MARKER.finditer(source)]
    found = _Counted(_Place(markers, source))
    text = _rewritten(source, partial(_statement, found))
    pieces = re.findall(r"(?s).{1,1000}", json.dumps(found.sites))
    sites = "\n".join(json.dumps(piece) for piece in pieces)
    visible = 'extern "C" __attribute__((visibility("default"))) const char rung_sites[];'
    return (
        f'#line 1 "{COUNTERS.name}"\n{COUNTERS.read_text()}unsigned rung_counts[{max(1, len(found.sites))}][4];\n'
        f"{visible}\nconst char rung_sites[] = {sites};\n{text}"
    )


def _declares(condition: str) -> bool:
    """Whether a condition is more than an expression, or cannot be parsed here."""
    declared = re.search(r"^[\s\w:<>*&]+\s[*&]*\w+\s*=[^=]", condition)
    return len(list(split(condition, ";"))) > 1 or "{" in condition or declared is not None


def _rewritten(source: str, statement: Statement) -> str:
    """The source with other text for its conditions and loops, outside constexpr functions."""
    out: list[str] = []
    at = boundary = 0
    constant = [False]  # for each open brace, whether it is in a constexpr function or a constant
    while token := _TOKEN.search(source, at):
        out.append(source[at : token.start()])
        at = token.end()
        out.append(token.group())
        if mark := token["mark"]:
            if mark == "{":
                before = re.sub(r"\bif\s+constexpr\b", "", source[boundary : token.start()])
                constant.append(constant[-1] or bool(re.search(r"\bconstexpr\b", before)))
            elif mark == "}" and len(constant) > 1:
                constant.pop()
            boundary = at
        elif token["word"] and not token["constexpr"] and not constant[-1]:
            end = closing(source, at)
            out[-1] = statement(token, source[at:end], source[end + 1 :].lstrip()[:1] == ";")
            at = end + 1
    return "".join([*out, source[at:]])


def _statement(found: _Counted, token: re.Match[str], inside: str, ends: bool) -> str:
    """An `if (`, `for (` or `while (` with the content of its parentheses, counted if it can be parsed."""
    word, parts = token["word"], list(split(inside, ";"))
    whole = f"{word} ({inside})"
    if word == "for":
        if len(parts) != 3:
            return whole
        begin, condition, step = parts
        number = found.new(token.start(), "loop", whole)
        known = _constant(begin, condition, step, token)
        turns = f"for (rung_emulator::Turns rung_t({number}, {known}); rung_t.once();) "
        return f"{turns}for ({begin}; rung_t.turn({condition.strip() or 'true'}); {step})"
    if _declares(inside):
        return whole
    if word == "while" and not ends:  # else it is that of a do, or has no body
        number = found.new(token.start(), "loop", whole)
        turns = f"for (rung_emulator::Turns rung_t({number}, false, false); rung_t.once();) "
        return f"{turns}while (rung_t.turn(bool({inside})))"
    number = found.new(token.start(), "branch", whole)
    return f"{word} (rung_emulator::took({number}, bool({inside}), __builtin_constant_p(bool({inside}))))"


def _constant(begin: str, condition: str, step: str, loop: re.Match[str]) -> str:
    """Whether a loop's bounds are constants, as two expressions."""
    first, bound = _ASSIGNED.search(begin), _BOUND.match(condition)
    if first is None or "{" in begin + condition:
        return "false, false"
    names = {name for name, _ in _ASSIGNED.findall(begin)}

    def known(text: str | None) -> str:
        fixed = text and text.count("(") == text.count(")") and not names & set(re.findall(r"\w+", text))
        return f"__builtin_constant_p({text.strip()})" if text and fixed else "false"

    end, steps = known(bound and bound[1]), _STEP.fullmatch(step)
    if steps and bound and (span := re.fullmatch(re.escape(first[2].strip()) + r"\s*\+(.*)", bound[1])):
        turns = f"{known(span[1])} && {known(steps[1] or '1')}"  # a constant distance from its start
        return f"{turns}, {turns}"
    starts, bounds = _first(first[2], loop)
    if starts == first[2] or steps is None:
        return f"{known(first[2])}, {end}"
    return f"{' && '.join(map(known, [starts, steps[1] or '1', *bounds]))} && {end}, {end}"


def _first(text: str, loop: re.Match[str]) -> tuple[str, list[str]]:
    """An expression as it is for thread 0 in the first iteration of the enclosing loops, and where those loops end.

    It is unchanged if it contains anything but a thread's indices and such loops' variables.
    """
    function = loop.string[: loop.start()].rpartition("\n}")[2]
    whole = function + loop.string[loop.start() :].partition("\n}")[0]
    made, indices = _THREAD.subn("0", text)  # also of a group, whose name is not replaced then
    bounds: list[str] = []
    for _ in range(3):  # a row may be computed from a warp's index, and that from a thread's
        for name in set(re.findall(r"(?<![.>])\b[a-z]\w*", made)) - {"threadIdx"}:
            found = [*re.finditer(_DEFINED.format(name), function)]
            if len(re.findall(_CHANGED.format(name), whole)) > 1:
                found = [f for f in found if f[0].startswith("const ")]
            found += re.finditer(_AROUND.format(name), function)
            if found:
                last = max(found, key=re.Match.start)
                bounds += last.groups()[1:]
                made = f"({last[1].strip()})".join(re.split(rf"(?<![.>])\b{name}\b", made))
        made, more = _THREAD.subn("0", made)
        indices += more
    return (made, bounds) if bounds or indices else (text, [])
