"""A small, safe evaluator for the expressions in a rung's header.

Headers may come from untrusted files, so nothing is passed to Python's own `eval`: the expression is parsed, and only
arithmetic, comparisons and a few named functions are evaluated.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from gpuless.base.errors import UserError
from gpuless.base.files import shown

Number = int | float | bool
LONGEST = 2000  # characters of an expression
BITS = 128  # of an intermediate whole number


def product(sizes: list[str]) -> str:
    """The expression of a product."""
    return " * ".join(f"({size})" if re.search(r"[+-]", size) else size for size in sizes)


class Names(dict[str, Number]):
    """Values by name, and named expressions ([let]), each evaluated when first used."""

    def __init__(self, values: Mapping[str, Number], let: Mapping[str, str | int]) -> None:
        super().__init__(values)
        self.let = let
        self._known: dict[str, Number | None] = {}  # None while it is being evaluated

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self.let

    def __missing__(self, name: str) -> Number:
        if name not in self._known:
            self._known[name] = None
            self._known[name] = evaluate_int(self.let[name], self, f"let.{name}")
        value = self._known[name]
        if value is None:
            raise UserError(f"let.{name} refers to itself; write it over dimensions and tunables.")
        return value

    def also(self, **values: Number) -> "Names":
        return Names({**self, **values}, self.let)


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "int": int,
    "float": float,
    "sqrt": math.sqrt,
    "log2": math.log2,
    "ceil_div": _ceil_div,
    "round_up": lambda a, b: _ceil_div(a, b) * b,
    "next_pow2": lambda a: 1 << max(0, int(a) - 1).bit_length(),
}

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


@lru_cache(maxsize=4096)
def _parse(text: str) -> ast.expr:
    if len(text) > LONGEST:
        raise UserError(f"an expression of {len(text):,} characters is too long; write at most {LONGEST:,}.")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UserError(f"the expression {shown(text)} cannot be read; write Python arithmetic over names.") from None


def names_in(text: str) -> set[str]:
    """The names that the expression reads (functions not counted)."""
    return {n.id for n in ast.walk(_parse(text)) if isinstance(n, ast.Name)} - set(FUNCTIONS)


def evaluate(text: str | int | float, names: Mapping[str, Number]) -> Number:
    """The value of the expression, with `names` for its variables; a number stands for itself."""
    if isinstance(text, bool | int | float):
        return text
    try:
        value: Number = _value(_parse(text), names, text)
        return value
    except (ZeroDivisionError, OverflowError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"the expression {shown(text)} has no value here: {error}.") from None


def evaluate_int(text: str | int, names: Mapping[str, Number], what: str) -> int:
    """The expression's value as a whole number; `what` names it in errors."""
    value = evaluate(text, names)
    if isinstance(value, float) and not value.is_integer():
        raise UserError(f"{what} = {shown(text)} gives {value}, not a whole number; use // or ceil_div.")
    return int(value)


def _bounded(value: Any, text: str) -> Any:
    """The value; refuses integers too large for any size, since their products would be larger still."""
    if isinstance(value, int) and value.bit_length() > BITS:
        raise UserError(f"the expression {shown(text)} exceeds 2^{BITS}; no size is that large.")
    return value


def _value(node: ast.expr, names: Mapping[str, Number], text: str) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() as constant):
            return _bounded(constant, text)
        case ast.Name(id=name):
            if name in names:
                return names[name]
            known = ", ".join(sorted({*names, *getattr(names, "let", ())})[:60])
            raise UserError(f"the expression {shown(text)} names {name!r}, which is not known; it may use {known}.")
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            a, b = _value(left, names, text), _value(right, names, text)
            if isinstance(op, ast.LShift) and not 0 <= b <= 64:
                raise UserError(f"the expression {shown(text)} shifts by {b}; shift by 0 to 64.")
            return _bounded(_BINARY[type(op)](a, b), text)
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as power)) if 0 <= power <= 8:
            return _bounded(_value(left, names, text) ** power, text)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand, names, text))
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_value(v, names, text) for v in values)
        case ast.BoolOp(op=ast.Or(), values=values):
            return any(_value(v, names, text) for v in values)
        case ast.Compare(left=left, ops=ops, comparators=rights) if all(type(o) in _COMPARE for o in ops):
            terms = [_value(t, names, text) for t in (left, *rights)]
            return all(_COMPARE[type(o)](a, b) for o, a, b in zip(ops, terms, terms[1:], strict=False))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _value(body if _value(test, names, text) else orelse, names, text)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
            return _bounded(FUNCTIONS[name](*(_value(a, names, text) for a in args)), text)
    raise UserError(
        f"the expression {shown(text)} uses {ast.unparse(node)!r}, which is not allowed; "
        f"use arithmetic, comparisons and {', '.join(FUNCTIONS)}."
    )
