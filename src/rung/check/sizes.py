"""The numbers in a rung's source that may be sizes at which it behaves differently."""

from __future__ import annotations

import re
from operator import add, floordiv, lshift, mod, mul, rshift, sub

from rung.cuda.source import without_comments

MOST = 70_000  # GPT-2's sizes are smaller
ROUNDS = 12  # how often calculations in a source are replaced by their results
_BLANKS, _BREAKS = re.compile(r"[^\S\n]+"), re.compile(r"(?: ?\n ?)+")
_NUMBER = re.compile(r"(?<![\w.])(0[xX][0-9a-fA-F]+|[1-9]\d*)[uUlL]*(?![\w.])")
_NAMED = re.compile(
    r"(?:\b(?:constexpr|const|enum)\b[\w :{]{0,80}?|#define)[\s{]([A-Za-z_]\w*) ?[={ ] ?(\d{1,10})(?= ?[;,}\n])"
)
_CALCULATED = re.compile(
    r"(?<![\w)\s])\s?\(\s?(\d{1,10})\s?\)|(?<![\w.])(\d{1,10})\s?(<<|>>|[*/%+-])\s?(\d{1,10})(?![\w.])"
)
_NEVER = re.compile(r"(?!)")
_OPERATORS = {"*": mul, "/": floordiv, "%": mod, "+": add, "-": sub, "<<": lshift, ">>": rshift}


def sizes_in(source: str) -> list[int]:
    """The numbers in a source that a dimension may have, the largest first, including what the source calculates from
    numbers and from its names for them. Operators are evaluated without precedence: a few superfluous numbers do no
    harm."""
    body = _BREAKS.sub("\n", _BLANKS.sub(" ", without_comments(source)))
    body = _NUMBER.sub(lambda number: str(int(number[1], 0)), body)
    found = {int(number) for number in _NUMBER.findall(body)}
    for _ in range(ROUNDS):
        folded = _CALCULATED.sub(_calculated, _with_names_replaced(body))
        if folded == body:
            break
        body = folded
        found |= {int(number) for number in _NUMBER.findall(body)}
    return sorted((n for n in found if 4 < n < MOST), reverse=True)


def _with_names_replaced(body: str) -> str:
    named: dict[str, str] = dict(_NAMED.findall(body))
    names = re.compile(rf"\b({'|'.join(map(re.escape, named))})\b(?! ?=[^=])") if named else _NEVER
    return names.sub(lambda name: named[name[0]], body)


def _calculated(match: re.Match[str]) -> str:
    """C's result for two numbers and an operator, or for one in parentheses; the text itself if that is irrelevant."""
    alone, left, operator, right = match.groups()
    if alone is not None:
        return str(alone)
    a, b = int(left), int(right)
    if (operator in ("/", "%") and b == 0) or (operator in ("<<", ">>") and b > 31):
        return match[0]
    value = _OPERATORS[operator](a, b)
    return str(value) if 0 <= value < 1 << 32 else match[0]
