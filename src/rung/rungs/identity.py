"""What a rung is built from beside its own text: of the headers that it includes, the definitions that it reaches.

A digest of these tells whether a figure is that of the present code. Whole headers would tell too much: every rung
includes rung.cuh, and one more helper there changes none of them. What cannot be told apart is taken to be reached.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from rung.rungs import source_file
from rung.rungs.base import without_prose

if TYPE_CHECKING:
    from rung.rungs.base import Rung

INCLUDE = Path(__file__).parents[1] / "ladders" / "include"
_COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*")|/\*.*?\*/|//[^\n]*', re.DOTALL)
_INCLUDED = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)
_NAMED = re.compile(r"""["']([\w./]+\.cuh?|\w+/\w+)["']""")  # by a Python rung: a file, or another rung
_DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(\w+)[ \t]*(\w*)")
_WORD = re.compile(r"[A-Za-z_]\w*")
_NESTED = (re.compile(r"\([^()]*\)"), re.compile(r"<[^<>]*>"), re.compile(r"\[[^\[\]]*\]"))
_NAMESPACE = re.compile(r"(?:inline\s+)?namespace\b[^;={]*$")


@dataclass(frozen=True)
class Piece:
    """A definition at the top level of a header; without a name it is always reached."""

    name: str
    code: str
    text: str  # the code in one line, behind the conditions under which it is compiled
    words: frozenset[str]


def digest(rung: Rung) -> str:
    """Of what the rung reaches beyond its own text; empty when that is all."""
    code = "\n".join(piece.text for piece in reached(rung))
    return hashlib.sha256(code.encode()).hexdigest()[:16] if code else ""


def reached(rung: Rung) -> list[Piece]:
    """The definitions that a rung's own text names, and those that these name."""
    if rung.path is None:
        return []
    pieces: list[Piece] = []
    for path, text in files(rung):
        named = path.suffix == ".cuh" and rung.path.suffix != ".py"
        pieces += pieces_of(text) if named else [_whole(text)]  # a Python rung may put names of kernels together
    words = set(_WORD.findall(without_prose(rung.source)))
    taken: set[int] = set()
    found = -1
    while found < len(taken):
        found = len(taken)
        for i, piece in enumerate(pieces):
            if i not in taken and (not piece.name or piece.name in words):
                taken.add(i)
                words |= piece.words
    return [piece for i, piece in enumerate(pieces) if i in taken]


def files(rung: Rung) -> Iterator[tuple[Path, str]]:
    """The files that a rung includes or names, at any depth, without comments; CUDA's own are not among them."""
    assert rung.path is not None
    source, path = rung.source, rung.path
    queue, seen = [(source, path)], {path.resolve()}
    while queue:
        text, origin = queue.pop(0)
        names = _NAMED.findall(source) if origin == path and path.suffix == ".py" else []
        for name in (*_INCLUDED.findall(text), *names):
            places = (origin.parent / name, INCLUDE / name, path.parent.parent / f"{name}.cu")
            found = next((p.resolve() for p in places if p.suffix in (".cu", ".cuh") and p.is_file()), None)
            if found is not None and found not in seen:
                seen.add(found)
                inner = _bare(source_file.read(found))
                queue.append((inner, found))
                yield found, inner


@lru_cache(maxsize=256)
def pieces_of(text: str) -> tuple[Piece, ...]:
    """The definitions of a header, from its text without comments."""
    found: list[Piece] = []
    conditions: list[str] = []
    held, depth = "", 0

    def keep(name: str) -> None:
        nonlocal held
        whole = _even("\n".join([*conditions, held]))
        if held.strip():
            found.append(Piece(name, held, whole, frozenset(_WORD.findall(whole))))
        held = ""

    for line in re.sub(r"\\\n", " ", text).splitlines(keepends=True):
        directive = _DIRECTIVE.match(line)
        if directive and depth == 0 and not held.strip():
            kind, name = directive.groups()
            held = ""
            if kind in ("if", "ifdef", "ifndef"):
                conditions.append(_even(line))
            elif kind in ("else", "elif"):
                conditions[-1:] = [f"{''.join(conditions[-1:])} {_even(line)}"]
            elif kind == "endif":
                conditions[-1:] = []
            elif kind == "define":
                held = line
                keep(name)
            elif kind == "undef":
                held = line
                keep("")
            continue
        for sign in line:
            if sign == "{" and depth == 0 and _NAMESPACE.search(held.strip()):
                held = ""
                continue
            if sign == "}" and depth == 0 and not held.strip():
                continue  # of a namespace
            held += sign
            depth += (sign == "{") - (sign == "}")
            if depth == 0 and (sign == ";" or (sign == "}" and not _declares_further(held))):
                keep(_name(held))
    return tuple(found) if depth == 0 and not held.strip() else (_whole(text),)


def _whole(text: str) -> Piece:
    return Piece("", text, _even(text), frozenset(_WORD.findall(text)))


def _declares_further(text: str) -> bool:
    """Whether a semicolon is to follow the closing brace: of a type, or of a value's braces."""
    head = _flat(text)
    return bool(re.search(r"\b(?:struct|class|union|enum)\b|=\s*$", head)) and not head.rstrip().endswith(")")


def _flat(text: str) -> str:
    """What stands before a definition's body or value, without what stands in brackets."""
    head = re.split(r"\{", text, maxsplit=1)[0]
    for pattern in _NESTED:
        while pattern.search(head):
            head = pattern.sub(" ", head)
    return head


def _name(text: str) -> str:
    """The name that is defined; empty where that is not certain."""
    flat = _flat(text)
    words = _WORD.findall(re.split(r"=|(?<!:):(?!:)|;", flat, maxsplit=1)[0])
    if len(words) < 2 or re.search(r",|->|\boperator\b|\b(?:extern|using|friend|static_assert)\b", flat):
        return ""
    return str(words[-1])


def _bare(text: str) -> str:
    return _COMMENT.sub(lambda match: str(match.group(1) or " "), text)


def _even(text: str) -> str:
    return " ".join(text.split())
