"""What somebody else's Python file offers for an operation: the function that takes operands and returns results."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpuless.base.expressions import evaluate, names_in
from rung.errors import RungError
from rung.operation import Operand, Operation
from rung.rungs.reached import reached_from
from rung.rungs.words import SCALARS, SHAPES, names_of, plain_name

_MAKES = re.compile(r"\w+\.(?:new_)?(?:empty|zeros|full|ones)(?:_like)?")  # a tensor of a shape


@dataclass(frozen=True)
class Entry:
    """A function, or a torch.autograd function, that is called in place of `run`."""

    name: str
    function: ast.FunctionDef
    meaning: dict[str, str]  # of its parameters: an operand, a size, a scalar
    returns: tuple[str, ...]  # operands
    flat: frozenset[str]  # operands whose shape it takes as rows and columns
    needs: tuple[str, ...]  # what it asserts, and what scalars have to be that it does not take

    @property
    def root(self) -> str:
        """The name at the top of the file."""
        return self.name.partition(".")[0]

    def __str__(self) -> str:
        return called(self.name, self.meaning, self.needs)


def called(name: str, meaning: dict[str, str], needs: Sequence[str]) -> str:
    """A call in one line."""
    given = ", ".join(f"{parameter}={what}" for parameter, what in meaning.items())
    return f"{name}({given})" + (f", where {' and '.join(needs)}" if needs else "")


def entry_of(tree: ast.Module, operation: Operation) -> Entry | None:
    """The function that takes most of the operands, the last of several; if some launch kernels, one of those. None if
    it leaves open what an operand or a scalar is that it does not take."""
    every = [*callables(tree)]
    launching = {name for name, *_ in every if has_kernel(tree, name)}
    found = []
    for name, function, body in every:
        if (name in launching or not launching) and (meaning := _meaning_of(function, operation)):
            alone = [f"{s} == {v}" for s, v in operation.alone.items() if s not in meaning.values()]
            found.append(_entry(name, function, body, meaning, operation, alone))
    words = (operation.name, *operation.words)  # a function of another operation may take the same
    best = max(found, key=lambda e: (any(word in e.name.lower() for word in words), len(e.meaning)), default=None)
    return None if best is None or _leaves_open(best, operation) else best


def proposed(tree: ast.Module, operation: Operation, table: dict[str, Any]) -> Entry:
    """The function that a proposal names, with what its parameters are by that."""
    function, body = next((f, body) for name, f, body in callables(tree) if name == table["entry"])
    return _entry(table["entry"], function, body, table["bind"], operation, table["needs"])


def _entry(
    name: str, function: ast.FunctionDef, body: ast.AST, meaning: dict[str, str], of: Operation, needs: list[str]
) -> Entry:
    sizes = dict(_sizes(body, meaning, {o.name: o for o in of.operands}))
    asserted = [_condition(n.test, sizes) for n in ast.walk(body) if isinstance(n, ast.Assert)]
    shape = {o.name: o.shape for o in of.operands}
    of_rows = {p for p, names in _unpacked(function) if len(names) == 2} | _indexed_as_rows(function)
    rows = {shape.get(meaning[p]) for p in of_rows & meaning.keys()}
    flat = frozenset(o for o in meaning.values() if shape.get(o) in rows - {None})
    every = tuple(dict.fromkeys([*filter(None, asserted), *needs]))
    return Entry(name, function, meaning, _returns(function, meaning, of), flat, every)


def _leaves_open(entry: Entry, of: Operation) -> bool:
    """Whether it does not take a scalar, or an operand that others leave out, whose value nothing tells."""
    taken = entry.meaning.values()
    scalars = any(s not in taken and s not in of.alone for s in of.scalars)
    return scalars or any(o.neutral is not None and o.name not in taken for o in of.operands)


def callables(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef, ast.AST]]:
    """Functions without decorators, `attention = _attention.apply` and classes with a forward, from the last; and all
    code that is theirs."""
    classes = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
    for node in reversed(tree.body):
        if isinstance(node, ast.FunctionDef) and not node.decorator_list:
            yield node.name, node, node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            of = node.value
            if not (isinstance(of, ast.Attribute) and of.attr == "apply" and isinstance(of.value, ast.Name)):
                continue
            if (whole := classes.get(of.value.id)) and (forward := _method(whole, "forward")):
                yield node.targets[0].id, forward, whole
        elif isinstance(node, ast.ClassDef) and (forward := _method(node, "forward")):
            if any("Function" in ast.unparse(base) for base in node.bases):
                yield f"{node.name}.apply", forward, node
            else:  # a module: what it is made of are parameters as well
                made = _method(node, "__init__")
                held = [ast.arg(t.attr) for t in _parameters_of(node)]
                first = [*(made.args.args if made else []), *held]
                if not made or not made.args.defaults:
                    plain = ast.arguments(**{**vars(forward.args), "args": [*first, *forward.args.args]})
                else:  # what has a default keeps it
                    needed = first[: len(made.args.args) - len(made.args.defaults)]
                    plain = ast.arguments(**{**vars(forward.args), "args": [*needed, *held, *forward.args.args]})
                yield node.name, ast.FunctionDef(**{**vars(forward), "args": plain}), node


def _method(of: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    """A method without its first parameter, which is the object or a context."""
    for method in of.body:
        if isinstance(method, ast.FunctionDef) and method.name == name:
            plain = ast.arguments(**{**vars(method.args), "args": method.args.args[1:]})
            return ast.FunctionDef(**{**vars(method), "args": plain})
    return None


def _parameters_of(module: ast.ClassDef) -> Iterator[ast.Attribute]:
    """`self.weight = nn.Parameter(...)`: the targets."""
    for n in ast.walk(module):
        made = ast.unparse(n.value.func) if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call) else ""
        if isinstance(n, ast.Assign) and made.endswith("nn.Parameter") and isinstance(n.targets[0], ast.Attribute):
            yield n.targets[0]


def is_of_triton(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(d) for d in node.decorator_list)


def kernels_of(tree: ast.Module) -> list[str]:
    """The functions that Triton compiles and that no other such one calls."""
    compiled = [n for n in tree.body if isinstance(n, ast.FunctionDef) and is_of_triton(n)]
    called = {ast.unparse(c.func) for n in compiled for c in ast.walk(n) if isinstance(c, ast.Call)}
    return [n.name for n in compiled if n.name not in called]


def has_kernel(tree: ast.Module, name: str) -> bool:
    """Whether what the function reads of the file has kernels of Triton."""
    return any(is_of_triton(n) for n in reached_from(tree, name.partition(".")[0]).body)


def parameters(function: ast.FunctionDef) -> dict[str, bool]:
    """Name -> whether it is required."""
    plain = [*function.args.posonlyargs, *function.args.args]
    required = {a.arg: i < len(plain) - len(function.args.defaults) for i, a in enumerate(plain)}
    keyword = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    return required | {a.arg: default is None for a, default in keyword}


def tensors_of(function: ast.FunctionDef) -> set[str]:
    """The parameters that are tensors by their annotation, or since something is read of them: `x.shape`."""
    given = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    told = {a.arg: ast.unparse(a.annotation) for a in given if a.annotation}
    read = {n.value.id for n in ast.walk(function) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)}
    return {name for name in parameters(function) if name in read or "Tensor" in told.get(name, "")}


def _meaning_of(function: ast.FunctionDef, operation: Operation) -> dict[str, str] | None:
    """What each parameter is; None if a required one is nothing of the operation, or may be operands of two shapes."""
    operands = {o.name: o for o in operation.operands if o.copy_of is None}
    known = {*operands, *operation.dims, *operation.derived, *operation.scalars, *SHAPES}
    others = {name: names_of(o) for name, o in operands.items()}
    others |= {name: names for name, names in SCALARS.items() if name in operation.scalars}
    ways: list[dict[str, str]] = [{}]
    tensors = tensors_of(function)
    for parameter, required in parameters(function).items():
        word = parameter.lower()
        itself = parameter in (operands.keys() if parameter in tensors else known)
        options = [parameter] if itself else [o for o, names in others.items() if word in names]
        options.sort(key=lambda o: others[o].index(word) if not itself else 0)
        if required:
            ways = [{**way, parameter: o} for way in ways for o in options if o not in way.values()]
        elif itself:
            ways = [{**way, parameter: parameter} for way in ways]
    ways = [w for w in ways if not operands.keys().isdisjoint(w.values()) and _agrees(function, w, operands)]
    shape = {o: operand.shape for o, operand in operands.items()}
    if not ways or any(shape.get(other[p]) != shape.get(o) for other in ways[1:] for p, o in ways[0].items()):
        return None
    return _in_one_piece(ways[0], operation)


def _in_one_piece(meaning: dict[str, str], operation: Operation) -> dict[str, str]:
    """A view is given as a copy in one piece, if the operation has one: callers of such functions have such tensors."""
    whole = {(plain_name(o), o.shape): o.name for o in operation.operands if o.copy_of and o.role == "in"}
    shapes = {o.name: o.shape for o in operation.operands}
    return {p: whole.get((o, shapes.get(o, ())), o) for p, o in meaning.items()}


def _returns(function: ast.FunctionDef, meaning: dict[str, str], operation: Operation) -> tuple[str, ...]:
    """What a function returns: the output that has the shape of the operand that the result was made like, or all."""
    outs = [o for o in operation.operands if o.role == "out" and o.name not in meaning.values()]
    shapes = {f"({', '.join(names)})": parameter for parameter, names in _unpacked(function)}
    shapes |= {text: parameter for parameter in meaning for text in (parameter, f"{parameter}.shape")}
    like = {}
    for target, value in assigned(function):
        if isinstance(value, ast.Call) and _MAKES.fullmatch(ast.unparse(value.func)) and value.args:
            like[target] = meaning.get(shapes.get(ast.unparse(value.args[0]), ""), "")
    returns = [n for n in ast.walk(function) if isinstance(n, ast.Return) and n.value is not None]
    last = max(returns, key=lambda n: n.lineno, default=None)
    if last is None or last.value is None:
        return ()
    of = like.get(ast.unparse(last.value))
    shaped = [o.name for o in outs if of and o.shape == operation.operand(of).shape]
    return tuple(shaped[:1]) or tuple(o.name for o in outs if not o.optional)


def _agrees(function: ast.FunctionDef, way: dict[str, str], operands: dict[str, Operand]) -> bool:
    """Whether each name into which shapes are unpacked stands for one size, and each size has one name."""
    size: dict[str, str] = {}
    for parameter, names in _unpacked(function):
        if (operand := operands.get(way.get(parameter, ""))) is None:
            continue
        shape = _shape(operand, len(names))
        if len(names) == 2 and all(len(o.shape) == 1 for o in operands.values()):
            continue  # numbers in a line, as some rows and columns
        if len(names) != len(shape) or any(size.setdefault(n, s) != s for n, s in zip(names, shape, strict=True)):
            return False
    return len(set(size.values())) == len(size)


def _shape(operand: Operand, rank: int) -> list[str]:
    shape = [str(size) for size in operand.shape]
    return [" * ".join(shape[:-1]), shape[-1]] if rank == 2 < len(shape) else shape  # rows and columns


def assigned(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    for n in ast.walk(node):
        if isinstance(n, ast.Assign):
            target, value = n.targets[0], n.value
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
                pairs = [*zip(target.elts, value.elts, strict=True)]
            yield from ((t.id, v) for t, v in pairs if isinstance(t, ast.Name))


def _unpacked(node: ast.AST) -> Iterator[tuple[str, list[str]]]:
    """`n_rows, n_cols = x.shape`: the variable, and the names."""
    for n in ast.walk(node):
        if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Tuple):
            of = n.value
            if isinstance(of, ast.Attribute) and of.attr == "shape" and isinstance(of.value, ast.Name):
                yield of.value.id, [ast.unparse(name) for name in n.targets[0].elts]


def _indexed_as_rows(node: ast.AST) -> set[str]:
    """The variables of which sizes or strides along the first two axes are read, and of no other."""
    read: dict[str, set[int]] = {}
    for n in ast.walk(node):
        of, at = (n.func, n.args[0]) if isinstance(n, ast.Call) and n.args else (None, None)
        if isinstance(n, ast.Subscript):
            of, at = n.value, n.slice
        if isinstance(of, ast.Attribute) and of.attr in ("shape", "size", "stride") and isinstance(of.value, ast.Name):
            axis = at.value if isinstance(at, ast.Constant) and isinstance(at.value, int) else -1
            read.setdefault(of.value.id, set()).add(axis)
    return {name for name, axes in read.items() if axes == {0, 1}}


def _sizes(body: ast.AST, meaning: dict[str, str], operands: dict[str, Operand]) -> Iterator[tuple[str, str]]:
    """Names of the code for sizes of operands, and for numbers: what they are."""
    for parameter, names in _unpacked(body):
        if parameter in meaning and meaning[parameter] in operands:
            shape = _shape(operands[meaning[parameter]], len(names))
            yield from zip(names, shape, strict=True) if len(names) == len(shape) else ()
    for n in ast.walk(body):  # BATCH, HEADS, LENGTH = q.shape[:3]
        if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Tuple) and isinstance(n.value, ast.Subscript):
            of, part = ast.unparse(n.value.value).removesuffix(".shape"), n.value.slice
            if of in meaning and meaning[of] in operands and isinstance(part, ast.Slice) and part.lower is None:
                yield from zip(map(ast.unparse, n.targets[0].elts), operands[meaning[of]].shape, strict=False)
    for name, value in assigned(body):
        if isinstance(value, ast.Constant) and isinstance(value.value, int):
            yield name, str(value.value)
        elif isinstance(value, ast.Subscript) and ast.unparse(value.value).endswith(".shape"):
            operand = operands.get(meaning.get(ast.unparse(value.value).removesuffix(".shape"), ""))
            try:
                at = ast.literal_eval(value.slice)
                yield name, operand.shape[at] if operand else ""
            except (ValueError, IndexError, TypeError):
                continue


def _condition(test: ast.expr, sizes: dict[str, str]) -> str:
    """What is asserted, over the operation's sizes; empty if it is about something else."""

    class Sizes(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return ast.parse(f"({sizes[node.id]})", mode="eval").body

    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.In):
        among = test.comparators[0]
        if isinstance(among, ast.Set | ast.List | ast.Tuple):
            each: list[ast.expr] = [ast.Compare(test.left, [ast.Eq()], [value]) for value in among.elts]
            test = ast.BoolOp(ast.Or(), each)
    sides = [(ast.unparse(n.left), ast.unparse(n.comparators[0])) for n in ast.walk(test) if isinstance(n, ast.Compare)]
    if any(isinstance(n, ast.Name) and not sizes.get(n.id) for n in ast.walk(test)):
        return ""
    if all(sizes.get(left) == sizes.get(right, right) for left, right in sides):
        return ""  # of two operands whose sizes are the same anyway
    text = ast.unparse(Sizes().visit(ast.parse(ast.unparse(test), mode="eval").body))
    try:
        names = dict.fromkeys(names_in(text), 1)
        evaluate(text, names)  # what a header cannot say is none of its conditions
        return text if names else ""
    except RungError:
        return ""
