"""What the host's code of a `.cu` file says of its launches: kernel, grid, block, arguments, and what the names in them
mean; C++ expressions as a header's."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from gpuless.base.errors import UserError
from gpuless.base.expressions import evaluate, names_in
from gpuless.compile.host_code import host_part, launching_macros
from gpuless.compile.source import code_only, kernel_parameters, split, until, without_comments

DEEP = 8  # names that stand for other names
BLOCK = 256  # threads, if the file does not say
_CEIL = re.compile(r"ceil|cdiv|div_?up|up_?div|divide_?up|div_?round_?up", re.IGNORECASE)
_LAUNCH = re.compile(r"([A-Za-z_][\w:]*)\s*(<(?!<)[^;{}]*?>)?\s*<<<", re.DOTALL)
_DECLARED = re.compile(
    r"\b((?:(?:const|constexpr|static|unsigned)\s+)*)(dim3|bool|int|auto|unsigned|size_t|long|uint|u?int\d+_t|(?:torch|at)::Tensor)"
    r"\s+(?=\w+\s*[=({])"
)
_COMMENT = re.compile(r"//([^\n]*)|/\*(.*?)\*/", re.DOTALL)
_ASSIGNED = re.compile(r"(?:^|[;{}])\s*(\w+)\s*=(?!=)\s*([^;{}=]+);", re.MULTILINE)
_SPELLED = {  # what C++ writes otherwise than a header
    r"(?<!sizeof)\(\s*(?:int|unsigned|size_t|float|double|long|unsigned int)\s*\)": "",
    r"\bsizeof\s*\(\s*(?:float|int)\s*\)": "4",
    r"\bsizeof\s*\(\s*(?:half|__half|__nv_bfloat16)\s*\)": "2",
    r"\bsizeof\s*\(\s*\w+\s*\)": "sizeof_real",
    r"\bstd::": "",
    r"\b(\d+)(?:[uU]|[lL])+\b": r"\1",
}
TENSORS_SIZE = re.compile(r"\b(\w+)\.(?:(size|stride)\(\s*(\d+)\s*\)|numel\(\s*\))")
_BLOCK = re.compile(r"(\)|\belse|\bdo|[;{}])\s*\{[^{}]*\}")
_ASSERTED = re.compile(r"\bassert\s*\(\s*([\w\s*()]+%\s*\w+)\s*==\s*0\s*\)")
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(\(?[\w+*/ \t()-]+\)?)[ \t]*$", re.MULTILINE)


@dataclass
class Written:
    """A launch as the host's code writes it; `scope` has what its names mean."""

    kernel: str
    template: str = ""
    grid: str = ""
    block: str = ""
    shared: str = ""
    arguments: list[str] = field(default_factory=list)
    passed: dict[str, str] = field(default_factory=dict)  # by the kernel's parameters
    scope: dict[str, str] = field(default_factory=dict)
    result: str = ""  # the variable that the host's function returns
    asserted: list[str] = field(default_factory=list)  # what the host's code asserts to be a multiple
    given: bool = False  # by the user


def in_a_row(source: str, launches: list[Written]) -> bool:
    """Whether kernels of a host function hand each other arrays; alternatives have the same ones."""
    given: list[tuple[str, set[str], set[str]]] = []  # what it reads only, and all
    for w in launches:
        with suppress(UserError):
            pairs = zip(kernel_parameters(source, w.kernel, ""), map(variable, w.arguments), strict=False)
            arrays = {name: p.const for p, name in pairs if p.pointer}
            given.append((w.kernel, {name for name, const in arrays.items() if const}, {*arrays}))
    for (kernel, read, one), (then, taken, other) in itertools.permutations(given, 2):
        if one & other and one != other and (kernel != then or (one - read) & taken):
            return True
    return False


def variable(argument: str) -> str:
    """The variable that an argument is made of, without casts."""
    plain = re.sub(r"\b\w+_cast\s*<[^>]*>|^\s*\(\s*(?:\w+\s+)*\w+\s*\*\s*\)|[&(\s]", "", argument)
    return re.match(r"\w*", plain)[0]  # type: ignore[index]


def constants_of(source: str) -> dict[str, str]:
    found = dict(_MACRO.findall(without_comments(source)))
    found |= dict(_declared(code_only(source), "const"))
    solved = {}
    for name, value in found.items():
        number = over(value, found, set())
        if number is not None and number.isdigit():
            solved[name] = number
    return solved


def _declared(text: str, having: str = "") -> Iterator[tuple[str, str]]:
    """The variables that a text declares with a value, as `int n = 4`, `dim3 grid(n, 2), block{32}`."""
    for found in _DECLARED.finditer(text):
        for one in split(until(text, found.end(), ";")[0]) if having in found[1] else ():
            if made := re.fullmatch(r"(\w+)\s*(?:=\s*(.+)|[({](.*)[)}])", one, re.DOTALL):
                yield made[1], made[2] or (f"dim3({made[3]})" if found[2] in ("dim3", "auto") else made[3])


def _without_closed_blocks(text: str) -> str:
    """The text without statements in braces that are closed: what they declare is not known behind them."""
    while (left := _BLOCK.sub(r"\1;", text)) != text:
        text = left
    return text


def launches_by_function(source: str, constants: dict[str, str]) -> list[list[Written]]:
    """The launches, by the host's function that makes them."""
    texts = [*host_part(source).split("\0"), *launching_macros(source)]
    if not any("<<<" in text for text in texts):  # a comment may show the launch
        texts = ["\n".join(line or block for line, block in _COMMENT.findall(source))]
    return [found for text in texts if (found := launches_in(text, constants))]


def launches_in(text: str, constants: dict[str, str]) -> list[Written]:
    """The launches of a host function's text."""
    if "<<<" not in text:
        return []
    asked = {re.sub(r"\W+", "_", found[0]): found[0] for found in TENSORS_SIZE.finditer(text)}  # where they stand alone
    text = TENSORS_SIZE.sub(lambda found: re.sub(r"\W+", "_", found[0]), text)
    scope = constants | asked
    scope |= dict(_declared(text))
    scope |= {name: value for name, value in _ASSIGNED.findall(text) if name not in scope}
    asserted = _ASSERTED.findall(text)
    returned = re.search(r"\breturn\s+(\w+)\s*;", text)
    here = []
    for match in _LAUNCH.finditer(text):
        inside, end = until(text, match.end(), ">>>")
        opening = text.find("(", end)
        if opening < 0:
            continue
        arguments, _ = until(text, opening + 1, ")")
        parts = split(inside)
        if len(parts) >= 2:
            shared = parts[2] if len(parts) > 2 else ""
            kernel = match[1].rpartition("::")[2]
            there = scope | dict(_declared(_without_closed_blocks(text[: match.start()])))
            there = {name: asked.get(value.strip(), value) for name, value in there.items()}
            launch = Written(kernel, match[2] or "", parts[0], parts[1], shared, split(arguments), scope=there)
            here.append(replace(launch, result=returned[1] if returned else "", asserted=asserted))
    return here


def three(text: str, scope: dict[str, str], known: set[str]) -> list[str] | None:
    text = scope.get(text.strip(), text).strip()
    inner = re.fullmatch(r"dim3\s*[({](.*)[)}]", text, re.DOTALL)
    parts = split(inner[1]) if inner else [text]
    guess = {"": str(BLOCK if len(parts) < 2 or "1" in parts[1:] else 16)}  # of what only the caller knows
    sizes = [over(part, {**scope, **guess}, known) for part in parts]
    return [s for s in sizes if s is not None] if None not in sizes and sizes else None


def over(text: str, scope: Mapping[str, str], known: set[str], depth: int = 0) -> str | None:
    """A C++ expression as an expression of a header over the operation's sizes; None if it is none."""
    for pattern, meant in _SPELLED.items():
        text = re.sub(pattern, meant, text)
    try:
        tree = _Sizes(scope, known, depth).visit(ast.parse(" ".join(text.split()), mode="eval"))
        text = ast.unparse(tree)
        return text if names_in(text) - {"min", "max", "ceil_div"} else str(evaluate(text, {}))
    except (SyntaxError, ValueError, UserError):
        return None


def over_own(text: str, scope: Mapping[str, str]) -> str | None:
    """A C++ expression over the names that the host's function is given; None if no header can have it."""
    names = {name for part in (text, *scope.values()) for name in re.findall(r"[A-Za-z_]\w*", part)}
    return over(text, scope, names - {*scope})


class _Sizes(ast.NodeTransformer):
    """Puts what `scope` says in the place of names, and a header's operators in the place of C++'s."""

    def __init__(self, scope: Mapping[str, str], known: set[str], depth: int) -> None:
        self.scope, self.known, self.depth = scope, known, depth

    def visit_Name(self, node: ast.Name) -> ast.expr:
        name, value = node.id, self.scope.get(node.id, node.id).strip()
        bound = value.startswith("(") and parses(value) and names_in(value) <= self.known  # by a header's [bind]
        if (name in self.known and not value.startswith("(")) or name == "sizeof_real":
            return node
        if value == name:
            if not re.search(r"block|thread", name, re.IGNORECASE):
                raise ValueError(name)
            return ast.Constant(int(self.scope.get("", BLOCK)))  # left to the caller
        others = {n: v for n, v in self.scope.items() if n != name and not bound}
        inner = over(value, others, self.known, self.depth + 1) if self.depth < DEEP else None
        return ast.parse(inner or "?", mode="eval").body

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """The side of a dim3, such as block.x."""
        made = re.fullmatch(r"dim3\s*[({](.*)[)}]", self.scope.get(ast.unparse(node.value), "").strip(), re.DOTALL)
        if not made or node.attr not in ("x", "y", "z"):
            raise ValueError(node.attr)
        side = [*split(made[1]), "1", "1"]["xyz".index(node.attr)]
        visited: ast.expr = self.visit(ast.parse(side.strip(), mode="eval").body)
        return visited

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name, given = getattr(node.func, "id", ""), node.args
        if name in ("ceil", "ceilf") and isinstance(one := given[0], ast.BinOp) and isinstance(one.op, ast.Div):
            given = [one.left, one.right]
        function = "ceil_div" if _CEIL.search(name) and len(given) == 2 else name
        if function not in ("min", "max", "ceil_div", "int", "sqrt"):
            raise ValueError(name)
        return ast.Call(ast.Name(function), [self.visit(one) for one in given], [])

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        left, right = self.visit(node.left), node.right
        if isinstance(node.op, ast.BitAnd) and isinstance(right, ast.UnaryOp) and isinstance(right.op, ast.Invert):
            step = ast.Constant(int(ast.literal_eval(right.operand)) + 1)  # rounded down to a power of two
            return ast.BinOp(ast.BinOp(left, ast.FloorDiv(), step), ast.Mult(), step)
        if isinstance(node.op, ast.LShift):
            return ast.BinOp(left, ast.Mult(), ast.Constant(1 << int(ast.literal_eval(right))))
        if isinstance(node.op, ast.RShift):
            return ast.BinOp(left, ast.FloorDiv(), ast.Constant(1 << int(ast.literal_eval(right))))
        if not isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div | ast.FloorDiv | ast.Mod):
            raise ValueError("no header has it")
        return ast.BinOp(left, ast.FloorDiv() if isinstance(node.op, ast.Div) else node.op, self.visit(right))


def parses(expression: str) -> bool:
    try:
        names_in(expression)
    except UserError:
        return False
    return True


