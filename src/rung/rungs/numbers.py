"""The sizes that the text of a rung names: a rung may behave otherwise there."""

from __future__ import annotations

import itertools
import re
from operator import add, floordiv, lshift, mod, mul, rshift, sub

from gpuless.compile.source import without_comments
from rung.rungs.base import Rung
from rung.rungs.cuda import CudaRung
from rung.rungs.header import DESCRIPTIVE

MOST_NAMED = 70_000  # GPT-2's sizes are smaller
_WORD = re.compile(r"\.?\d(?:[eE][+-]|[\w.])*|\w+|<<|>>|\n|\S")
_REMAINDER = re.compile(r"%\s*(\d+)\s*[=!]=\s*(\d+)")
_NUMBER = re.compile(r"(0[xX][0-9a-fA-F]+|[1-9]\d*)[uUlL]*")
_PROSE = re.compile(r"(\"{3}|'{3}).*?\1|#[^\n]*|\"[^\"\n]{61,}\"|'[^'\n]{61,}'", re.S)  # and no condition
_TUNED = re.compile(r"^TUNE\b.*?\}", re.M | re.S)
_OPERATORS = {"*": mul, "/": floordiv, "%": mod, "+": add, "-": sub, "<<": lshift, ">>": rshift}


def sizes_of(rung: Rung, most: int = MOST_NAMED) -> list[int]:
    """The sizes that the text of a rung names: its source, and of CUDA C++ the expressions of its header and the
    defaults of its tunables."""
    if not isinstance(rung, CudaRung):
        return sizes_in_python(rung.source, most)
    constants = "".join(f"constexpr int {name} = {choices[0]};\n" for name, choices in rung.tune.items())
    return sizes_in(f"{constants}{_expressions(rung.table)}\n{rung.source}", most)


def _expressions(table: object) -> str:
    """The numbers and expressions of a header, without its prose and the choices of tunables."""
    if isinstance(table, dict):
        return "\n".join(_expressions(v) for k, v in table.items() if k not in (*DESCRIPTIVE, "tune"))
    if isinstance(table, list):
        return "\n".join(map(_expressions, table))
    return f"({table})" if isinstance(table, int | str) and not isinstance(table, bool) else ""


def sizes_in(source: str, most: int = MOST_NAMED) -> list[int]:
    """The numbers in a source that a dimension may have, the largest first, including what the source calculates from
    numbers and from its names for them. It is read twice, since names may follow their uses, and evaluated from left to
    right: a few superfluous numbers do no harm."""
    text = without_comments(source)
    words, named = [*_WORD.findall(text), "\n"], dict[str, int]()
    found = {int(divisor) + int(rest) for divisor, rest in _REMAINDER.findall(text)}
    before, constant = list[int | str](), ""
    for word, after in itertools.pairwise(words * 2):
        value: int | str = word
        if number := _NUMBER.fullmatch(word):
            value = int(number[1], 0)
        elif after != "=":
            value = named.get(word, word)
        if word in ("const", "constexpr", "enum", "define"):
            constant = word
        elif word in (";", ",", "}", "\n") and before and isinstance(before[-1], int):
            *_, first, second, _ = ["", "", *before[-3:]]
            name = first if constant and second in ("=", "{") else second if first == "define" else ""
            named[str(name)] = before[-1]
        elif word == ")" and before[-2:-1] == ["("] and isinstance(before[-1], int):
            called = before[-3:-2]
            if not called or not re.fullmatch(r"\w+|\)", str(called[0])) or before[-4:-3] == ["define"]:
                value = before.pop()
                before.pop()
        while isinstance(value, int):
            found.add(value)
            if len(before) < 2 or before[-1] not in _OPERATORS or not isinstance(before[-2], int):
                break
            left, operator, right = before[-2], str(before[-1]), value
            impossible = right > 31 if operator in ("<<", ">>") else not right
            result = -1 if impossible else _OPERATORS[operator](left, right)
            if not 0 <= result < 1 << 32:
                break
            del before[-2:]
            value = result
        if word != "\n":
            before.append(value)
        if word == ";" or (word == "\n" and constant == "define"):
            before, constant = [], ""
    return sorted((n for n in found if 4 < n < most), reverse=True)


def sizes_in_python(source: str, most: int = MOST_NAMED) -> list[int]:
    """The same for a text in Python, including numbers in short strings and the defaults of tunables."""
    body = _PROSE.sub("", source).replace("//", "/")
    body = _TUNED.sub(lambda table: re.sub(r"(\[[^\],]*),[^\]]*", r"\1", table[0]), body)
    body = re.sub(r"^(\w+) *= *(.*)$", r"const \1 = \2;", re.sub(r"\b(\d+)\.0\b", r"\1", body), flags=re.M)
    return sizes_in(body, most)
