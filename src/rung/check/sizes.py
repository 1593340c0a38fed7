"""The numbers in a rung's source that may be sizes at which it behaves differently."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
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
SHORT = 60  # characters of a string that may hold a condition
_PYTHON: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.FloorDiv: floordiv, ast.Mod: mod, ast.LShift: lshift,
    ast.RShift: rshift, ast.Pow: pow,
}  # fmt: skip
_UNBOUNDED = {ast.FloorDiv, ast.Mod, ast.LShift, ast.RShift, ast.Pow}
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


def sizes_in_python(source: str) -> list[int]:
    """The same for a rung of Python: its numbers, those in its short strings, what it calculates from them, and the
    defaults of its tunables."""
    tree = ast.parse(source)
    named: dict[str, int] = {}
    found: set[int] = set()
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "TUNE" for t in targets):
            choices = node.value.values if isinstance(node.value, ast.Dict) else []
            lists = [one.elts for one in choices if isinstance(one, ast.List | ast.Tuple)]
            found |= {n for one in lists for n in [_value(e, named) for e in one[:1]] if n is not None}
            node.value = ast.Constant(None)
        for target in targets:
            if isinstance(target, ast.Name) and isinstance(node, ast.Assign):
                value = _value(node.value, named)
                named |= {} if value is None else {target.id: value}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) <= SHORT:
            found |= {int(number) for number in re.findall(r"\d{1,5}", node.value)}
        elif isinstance(node, ast.expr) and (value := _value(node, named)) is not None:
            found.add(value)
    return sorted((n for n in found if 4 < n < MOST), reverse=True)


def _value(node: ast.AST, named: dict[str, int]) -> int | None:
    """What an expression of whole numbers and names for them is; None if it is something else, or out of bounds."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        whole = isinstance(node.value, int | float) and abs(node.value) < 1 << 32 and node.value == int(node.value)
        return int(node.value) if whole and isinstance(node.value, int | float) else None
    if isinstance(node, ast.Name):
        return named.get(node.id)
    if not isinstance(node, ast.BinOp) or type(node.op) not in _PYTHON:
        return None
    left, right = _value(node.left, named), _value(node.right, named)
    if left is None or right is None or (type(node.op) in _UNBOUNDED and not 0 < right < 32):
        return None
    value = _PYTHON[type(node.op)](left, right)
    return int(value) if abs(value) < 1 << 32 else None


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
