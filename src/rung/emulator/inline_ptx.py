"""Turns inline PTX into calls of the emulator's interpreter.

g++ would read an asm statement as x86. So a source is preprocessed first, on its own, with empty files in place of the
emulator's headers, so that what they define (threadIdx, __shared__, ...) is left for the compiler. Then every

    asm volatile("..." : "=r"(a), "+f"(b) : "l"(c) : "memory");

becomes a call with the same text and operands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r'(?P<text>"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/)'
    r"|(?P<asm>\b(?:asm|__asm__|__asm)\b)",
    re.DOTALL,
)
_OPENING = re.compile(r"\s*(?:(?:volatile|__volatile__|__volatile)\s*)?\(")
_SKIPPED = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.DOTALL)
_OPERAND = re.compile(r'\s*(?:\[\s*(\w+)\s*\]\s*)?"([^"]*)"\s*\((.*)\)\s*$', re.DOTALL)


class NotUnderstood(Exception):
    """An asm statement of another form."""


@dataclass(frozen=True)
class _Operand:
    name: str | None
    constraint: str
    expression: str


def without_asm(source: str) -> str:
    """The source with each asm statement replaced; the number of lines stays the same."""
    out: list[str] = []
    at = 0
    while True:
        found = _TOKEN.search(source, at)
        if found is None:
            return "".join([*out, source[at:]])
        if found.group("asm") is None:
            out.append(source[at : found.end()])
            at = found.end()
            continue
        opening = _OPENING.match(source, found.end())
        if opening is None:
            out.append(source[at : found.end()])
            at = found.end()
            continue
        end = closing(source, opening.end())
        out.append(source[at : found.start()])
        out.append(_call(source[opening.end() : end]))
        out.append("\n" * source.count("\n", found.start(), end + 1))
        at = end + 1


def closing(source: str, at: int) -> int:
    """The position that closes the parenthesis opened before `at`."""
    depth = 1
    while at < len(source):
        skipped = _SKIPPED.match(source, at)
        if skipped:
            at = skipped.end()
            continue
        depth += (source[at] in "([{") - (source[at] in ")]}")
        if depth == 0:
            return at
        at += 1
    raise NotUnderstood("a parenthesis is not closed")


def split(text: str, mark: str) -> Iterator[str]:
    """Pieces between marks outside of parentheses and strings; `::` is two colons, or part of a name."""
    depth, start, at = 0, 0, 0
    while at < len(text):
        skipped = _SKIPPED.match(text, at)
        if skipped:
            at = skipped.end()
            continue
        depth += (text[at] in "([{") - (text[at] in ")]}")
        if text[at] == mark and depth == 0:
            yield text[start:at]
            start = at + 1
        at += 1
    yield text[start:]


def _operands(text: str) -> list[_Operand]:
    found = []
    for piece in split(text, ","):
        if not piece.strip():
            continue
        match = _OPERAND.match(piece)
        if match is None:
            raise NotUnderstood(f"an operand of an asm statement is not understood: {piece.strip()[:80]}")
        found.append(_Operand(match.group(1), match.group(2), match.group(3)))
    return found


def _call(inside: str) -> str:
    sections = list(split(inside, ":"))
    template = sections[0].strip()
    if not re.sub(r'""|\s', "", template):
        return "((void)0)"  # a compiler barrier, which is not needed here
    outputs = _operands(sections[1]) if len(sections) > 1 else []
    inputs = _operands(sections[2]) if len(sections) > 2 else []
    every = [*outputs, *inputs]
    for index, operand in enumerate(every):
        if operand.name:
            template = re.sub(rf"%\[{operand.name}\]", f"%{index}", template)
    made = [f'rung_emulator::ptx_out("{o.constraint}", ({o.expression}))' for o in outputs]
    for operand in inputs:
        tied = re.fullmatch(r"\d+", operand.constraint)
        if tied:
            raise NotUnderstood('an operand tied to another by its number is not modelled: write "+r"')
        made.append(f'rung_emulator::ptx_in("{operand.constraint}", ({operand.expression}))')
    array = f"rung_emulator::PtxOperand rung_o[] = {{{', '.join(_flat(m) for m in made)}}}; " if made else ""
    given = f"{'rung_o' if made else 'nullptr'}, {len(made)}, rung_emulator::here()"
    return f"do {{ static void* rung_p; {array}rung_ptx(&rung_p, {_flat(template)}, {given}); }} while (0)"


def _flat(text: str) -> str:
    return re.sub(r"\s*\n\s*", " ", text)
