"""Lambdas of host functions that kernels take (`[=] __device__ (int i) {...}`): each becomes an object of a struct that
both compilers see, and whose name the kernel's instance has. Its members are what the lambda captures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gpuless.compile import host_code
from gpuless.compile.source import code_only

_LINE = re.compile(r'^[ \t]*#[ \t]*(?:line[ \t]+)?(\d+)[ \t]+"([^"\n]*)"[^\n]*$', re.MULTILINE)
_HEAD = re.compile(r"\](?:\s*__(?:host|device)__)*\s*__device__(?:\s*__(?:host|device)__)*\s*(?=[({])")
_OPEN, _CLOSE = "([{", ")]}"


class Place(NamedTuple):
    """A line of a file, and which of its lambdas."""

    file: str
    line: int
    number: int


@dataclass(frozen=True)
class Lambda:
    place: Place
    captures: tuple[str, ...]
    templates: tuple[str, ...]  # parameters of the function's template that it names: "class T"

    @property
    def name(self) -> str:
        stem = re.sub(r"\W", "_", Path(self.place.file).stem)
        return f"rung_lambda_{stem}_{self.place.line}_{self.place.number}"

    def struct(self, parameters: str, following: str, body: str, spaces: str = "") -> str:
        """The struct, and the function that makes an object of it; `spaces` are the keywords of where it runs."""
        members = [f"rung_t{n} {name}" for n, name in enumerate(self.captures)]
        types = [*self.templates, *(f"class rung_t{n}" for n in range(len(members)))]
        head = f"template <{', '.join(types)}> " if types else ""
        given = [re.split(r"\W+", one.replace("...", "").strip())[-1] for one in self.templates]
        of = ", ".join([*given, *(f"rung_t{n}" for n in range(len(members)))])
        whole = f"{self.name}<{of}>" if types else self.name
        const = "" if re.search(r"\bmutable\b", following) else " const"
        result = re.sub(r"\bmutable\b", "", following).strip()
        held = "".join(f"{member}; " for member in members)
        generic = iter(range(parameters.count("auto")))
        parameters, number = re.subn(r"\bauto\b", lambda _: f"rung_p{next(generic)}", parameters)
        of = f"template <{', '.join(f'class rung_p{n}' for n in range(number))}> " if number else ""
        operator = f"{of}{spaces}auto operator()({parameters}){const} {result} {body}"
        made = f"return {{{', '.join(self.captures)}}};"
        return (
            f"{head}struct {self.name} {{ {held}{operator} }}; "
            f"{head}inline {whole} {self.name}_of({', '.join(members)}) {{ {made} }} "
        )

    def made(self, values: Sequence[str]) -> str:
        """The object, in place of the lambda."""
        given = [re.split(r"\W+", one.replace("...", "").strip())[-1] for one in self.templates]
        of = f"<{', '.join(given)}>" if given else ""
        return f"{self.name}_of{of}({', '.join(values)})"


def with_structs(text: str, found: Sequence[Lambda], source: str) -> str:
    """The kernels' text with the structs of these lambdas before the functions that have them."""
    if not found:
        return text
    by_place, code = {one.place: one for one in found}, code_only(text)
    items = [(item.start, item.end) for item in host_code.items_of(code)]
    inserted: list[tuple[int, str]] = []
    for place, head in _places(text, code, source):
        of = by_place.get(place)
        start = next((a for a, b in items if a <= head.start() < b), None)
        if of is None or start is None:
            continue
        at, parameters = head.end(), ""
        if code[at] == "(":
            parameters, at = text[at + 1 : (end := _matching(code, at))], end + 1
        opening = code.index("{", at)
        end = _matching(code, opening)
        struct = of.struct(parameters, text[at:opening], text[opening : end + 1], "__host__ __device__ ")
        (file, line), (after, following) = _at(text, head.start(), source), _at(text, start, source)
        inserted.append((start, f'\n#line {line} "{file}"\n{struct}\n#line {following} "{after}"\n'))
    for start, struct in sorted(inserted, reverse=True):
        text = text[:start] + struct + text[start:]
    return text


def _places(text: str, code: str, source: str) -> Iterator[tuple[Place, re.Match[str]]]:
    """Where lambdas stand whose code runs on the device; each match begins at the bracket behind what is captured."""
    counts: dict[tuple[str, int], int] = {}
    for head in _HEAD.finditer(code):
        opening = _opening(code, head.start())
        file, line = _at(text, opening, source)
        key = (Path(file).name, line)
        counts[key] = counts.get(key, -1) + 1
        yield Place(*key, counts[key]), head


def _at(text: str, at: int, source: str) -> tuple[str, int]:
    """The file and the line of a place in a text with #line directives."""
    last = next(iter([*_LINE.finditer(text, 0, at)][::-1]), None)
    if last is None:
        return source, text.count("\n", 0, at) + 1
    return last[2], int(last[1]) + text.count("\n", last.end() + 1, at)


def _matching(code: str, at: int) -> int:
    depth = 0
    for i in range(at, len(code)):
        depth += (code[i] in _OPEN) - (code[i] in _CLOSE)
        if not depth:
            return i
    return len(code) - 1


def _opening(code: str, at: int) -> int:
    depth = 0
    for i in range(at, -1, -1):
        depth += (code[i] in _CLOSE) - (code[i] in _OPEN)
        if not depth:
            return i
    return 0


# ---- in the host's part ----------------------------------------------------------------------------------------------


def captured(
    inside: Sequence[str], before: Sequence[str], listed: Sequence[Sequence[str]], parameters: Sequence[str],
    elsewhere: set[str],
) -> list[tuple[str, str]] | None:
    """The names that a lambda captures and their values, from its words and those of its function before it; None if it
    captures by reference."""  # fmt: skip
    found: dict[str, str] = {}
    everything = False
    for words in listed:
        text = "".join(words)
        if text == "=":
            everything = True
        elif len(words) > 2 and words[1] == "=":
            found[words[0]] = " ".join(words[2:])
        elif len(words) == 1 and re.fullmatch(r"[A-Za-z_]\w*", text) and text != "this":
            found[text] = text
        else:
            return None
    if everything:
        own = set(parameters) | _declared(inside)
        of_function = _declared(before, loosely=True)
        for i, word in enumerate(inside):
            behind, ahead = inside[i - 1] if i else "", inside[i + 1] if i + 1 < len(inside) else ""
            if behind not in (".", "->", "::") and ahead != "::" and word in of_function - own - elsewhere:
                found.setdefault(word, word)
    return [*found.items()]


_NO_TYPES = {"return", "else", "do", "case", "goto", "new", "delete", "throw", "sizeof", "typename", "and", "or"}
_NAME = re.compile(r"[A-Za-z_]\w*")


def _declared(words: Sequence[str], *, loosely: bool = False) -> set[str]:
    """Names that these words may declare; loosely: also behind a comma, a star, an angle."""
    found = set()
    for i in range(1, len(words) - 1):
        if not _NAME.fullmatch(words[i]) or words[i] in _NO_TYPES:
            continue
        behind = words[i - 1]
        typed = bool(_NAME.fullmatch(behind)) and behind not in _NO_TYPES
        may_be = typed or (loosely and behind in ("*", "&", ">", ",", "["))
        if may_be and words[i + 1] in ("=", ";", ",", ")", "(", "{", "[", ":", "]"):
            found.add(words[i])
    return found
