"""What the parameters of a kernel or of a host function may be: operands, sizes and numbers of an operation, the
likeliest first."""

from __future__ import annotations

import difflib
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuless.base.expressions import evaluate, names_in, product
from gpuless.compile.source import Parameter
from rung.adopt.host_launches import BLOCK, TENSORS_SIZE, Written, over, over_own, parses, variable
from rung.errors import RungError, Unjudged
from rung.operation import Operand, Operation
from rung.rungs.arguments import POINTEES, SCALAR_KINDS
from rung.rungs.words import COLUMNS, DIMS, GEMM, NUMBERS, ROWS, SCALARS, TOTAL, WIDTHS, names_of, plain_name

CANDIDATES = 3  # rows' lengths that are proposed
LONGEST_ROW = 8192  # that a file's constant may fix
_AGAINST = "`rung check --against REFERENCE.py {}` judges it by a reference of your own."
_NEUTRAL = {"alpha": 1.0, "beta": 0.0}
_SIDE = "int(sqrt({}))"  # of a square
MOST_NAMES = 2  # of the host's, of which an argument is calculated
_OF_ONE_CALL = re.compile(r"\* (?:3[2-9]|[4-9]\d|\d{3,})\b|\b(?:3[2-9]|[4-9]\d|\d{3,}) \*")  # a number of main's
_BLOCKS = re.compile(r"block_?size|block_?dim|block$|threads")


def told(of: Operation, parameters: Iterable[Parameter], launch: Written, bind: Mapping[str, str | float]) -> bool:
    """Whether names and the host's launch say what every parameter is."""
    known = {*of.dims, *of.derived, *of.scalars}
    written = [o.name for o in of.operands if o.written and not o.optional]
    layouts = {name for o in of.operands if o.instead for name in (o.name, o.instead)}
    for p in parameters:
        target = str(bind[p.name])
        if p.pointer and not p.const and [target] == written:  # there is no other result
            continue
        usual = any(o.name == target and p.name.lower() in names_of(o) for o in of.operands)
        named = p.name.lower() == target or (usual and target not in layouts)
        given = None if p.pointer else over(launch.passed.get(p.name, ""), launch.scope, known)
        if not p.pointer and [target] == [*of.dims]:  # there is no other size
            continue
        stated = given is not None and given == target and not given.isdigit() and _is_size(of, given)
        if not (named or p.name == target or stated):
            return False
    return True


def _is_size(of: Operation, expression: str) -> bool:
    """Whether in each of the operation's cases some operand has at least so many elements."""
    every = [of.complete(case.values) for case in of.cases]
    return all(evaluate(expression, v) <= max(math.prod(o.size(v)) for o in of.operands) for v in every)


def _sized(of: Operation, launch: Written, bind: dict[str, str]) -> Written:
    """The launch, where sizes and strides of tensors (`q.size(1)`, `q.numel()`) are the operation's."""
    scope = dict(launch.scope)
    operands = {variable(launch.passed.get(name, "")): of.operand(target) for name, target in bind.items()}
    asked = {name: found for name, value in launch.scope.items() if (found := TENSORS_SIZE.fullmatch(value.strip()))}
    for name, found in asked.items():
        if not (operand := operands.get(found[1])):
            continue
        if not found[3]:
            scope[name] = f"({product(list(map(str, operand.shape))) or 1})"
            continue
        same = {name for name, one in operands.items() if one.shape == operand.shape}
        most, n = max(int(one[3] or 0) for one in asked.values() if one[1] in same), int(found[3])
        shape = [str(size) for size in operand.shape]
        if len(shape) > most + 1 and (most or operand.dtype != "real"):  # fewer dimensions: the outer ones are one
            inner = shape[len(shape) - most :]
            shape = [product(shape[: len(shape) - most]), *inner]
        if n < len(shape):
            sizes = shape[n : n + 1] if found[2] == "size" else shape[n + 1 :]
            scope[name] = f"({product(sizes) or 1})"
    return replace(launch, scope=scope)


def binds(
    of: Operation,
    parameters: tuple[Parameter, ...],
    launch: Written,
    path: Path,
    function: str,
    *,
    body: str = "",
    given: Mapping[str, str] | None = None,
) -> Iterator[tuple[dict[str, str | float], Written]]:
    """What the parameters of a kernel or of a function may be, the likeliest first, each with the launch as it reads
    then; `given` says it of some."""
    asked = [p for p in parameters if p.name not in (given or {})]
    for targets in list(_operands(of, asked, launch.passed, path, function, _written(asked, body))):
        sized = _sized(of, launch, targets)
        scalars = [p for p in asked if p.name not in targets]
        choices = [_values(of, p, sized, scalars) for p in scalars]
        for p, options in zip(scalars, choices, strict=True):  # a number of elements multiplies nothing
            if not re.search(rf"\*\s*{p.name}\b|\b{p.name}\s*\*", body):
                options[:] = [one for one in options if "sqrt(" not in str(one)]
        if None in choices or [] in choices:
            p = next(p for p, options in zip(scalars, choices, strict=True) if not options)
            raise Unjudged(
                f"{path}: what is {p.ctype} {p.name} of {function}({signature(parameters)})? {of.name} has the sizes "
                f'{", ".join([*of.dims, *of.scalars])}; write a header with [bind] {p.name} = "...".'
            )
        every_pick = itertools.product(*(list(enumerate(options)) for options in choices))
        ranked = [(sum(i for i, _ in picks), [value for _, value in picks]) for picks in every_pick]
        # Two numbers are seldom the same size, unless their names say so.
        ranked.sort(key=lambda one: (one[0] and len(one[1]) - len({*one[1]}), one[0]))
        for _, picked in ranked[:12]:
            values = dict(zip([p.name for p in scalars], picked, strict=True))
            for bind in _in_both_layouts(of, {**targets, **values, **(given or {})}, body):
                yield bind, sized


def _written(parameters: Iterable[Parameter], body: str) -> set[str]:
    """The pointers that a kernel's text stores to: they are no inputs."""
    index = r"\[(?:[^][;]|\[[^][;]*\])*\]"
    return {p.name for p in parameters if p.pointer and re.search(rf"\b{p.name}\s*{index}\s*[-+*/]?=(?!=)", body)}


def of_square(table: Mapping[str, Any]) -> bool:
    """Whether a call is given the side of a square in the place of its number of elements."""
    return any(str(target).startswith(_SIDE[:9]) for target in table.get("bind", {}).values())


def signature(parameters: Iterable[Parameter]) -> str:
    return ", ".join(f"{'const ' * p.const}{p.ctype}{'*' * p.pointer} {p.name}" for p in parameters)


def _in_both_layouts(of: Operation, bind: dict[str, str | float], body: str) -> Iterator[dict[str, str | float]]:
    """The bindings, and those with an operand's other layout: first the one whose row length the indices name."""
    same = [(o.instead, o) for o in of.operands if o.instead and o.dtype == "real"]
    other = {whole: o.name for whole, o in same if set(o.shape) == set(of.operand(whole).shape)}
    swapped = {name: other.get(str(target), target) for name, target in bind.items()}
    if swapped == bind:
        yield bind
        return
    name = next(n for n in bind if swapped[n] != bind[n])
    length = {str(target): n for n, target in bind.items()}
    rows, columns = (length.get(str(size), "") for size in of.operand(str(bind[name])).shape)
    indices = " ".join(re.findall(rf"\b{name}\s*(?:\[|\+)([^;=]*)", body))
    first = rows and re.search(rf"\b{rows}\b", indices) and not re.search(rf"\b{columns}\b", indices)
    yield from (swapped, bind) if first else (bind, swapped)


def _operands(
    of: Operation, parameters: list[Parameter], passed: dict[str, str], path: Path, function: str, written: set[str]
) -> Iterator[dict[str, str]]:
    """Operands for the pointers: by name, by another usual name, then by position among those of the same kind. A
    number may stand for an operand that no pointer is for."""
    pointers = [p for p in parameters if p.pointer]
    given = (parameters, passed, path, function, written)
    copies = [o for o in of.operands if o.copy_of]  # each in its own memory, and without gaps
    named = {p.name.lower() for p in pointers}
    views = [o for o in of.operands if o.view_of and o.name in named]
    plain = [o for o in of.operands if o.view_of is o.copy_of is None and o.name not in {v.view_of for v in views}]
    ways = [[*views, *plain]]
    for of_heads in (False, True) if len(pointers) > 3 and copies else ():
        some = [o for o in copies if o.name.endswith("_heads") == of_heads]
        results = [o for o in of.operands if o.written and not o.copy_of and (o.optional or not of_heads)]
        ways.insert(0, [*some, *results])
    if any(p.name.lower() in words for p in parameters for words in WIDTHS.values()):  # rows of all heads
        ways[:2] = ways[1::-1]
    for operands in ways[:-1]:
        with suppress(RungError):
            yield from _fitted(of, operands, *given)
    yield from _fitted(of, ways[-1], *given)


def _fitted(
    of: Operation, operands: list[Operand], parameters: list[Parameter], passed: dict[str, str], path: Path,
    kernel: str, written: set[str],
) -> Iterator[dict[str, str]]:  # fmt: skip
    pointers = [p for p in parameters if p.pointer]
    numbers = [p for p in parameters if _real(p) and not _scalars(of, p)]
    consts = any(p.const for p in pointers)
    results = {word for o in operands if o.role == "out" for word in (o.name, *names_of(o))}

    def suits(p: Parameter, o: Operand) -> bool:
        whole = o.dtype in ("i32", "i64")
        if not p.pointer:
            return o.constant and not o.optional and not whole
        astray = (p.const and o.role == "out") or (p.name in written and o.role == "in")
        return not astray and whole == (POINTEES.get(p.ctype) in ("i32", "i64"))

    def names(p: Parameter) -> list[str]:
        argument = re.sub(r"^d_|_d$|^dev_|_ptr$", "", variable(passed.get(p.name, "").lower()))
        own = p.name.lower()
        if written and p.pointer and p.name not in written and argument in results:  # of another kernel's launch
            argument = ""
        return [n for n in (own, re.sub(r"^d_|_d$|^dev_|_ptr$|^g_", "", own), argument) if n]

    chosen: dict[str, str] = {}
    free = list(operands)
    for exact, p in itertools.product((True, False), [*pointers, *numbers]):
        for name in names(p) if p.name not in chosen else ():
            known = [o for o in free if suits(p, o) and name in ((plain_name(o),) if exact else names_of(o))]
            usual = [o for o in known if exact or o.role != "in" or p.const or not (consts and p.pointer)]
            if usual:
                others = {o.name: names_of(o) or (name,) for o in usual}
                best = min(usual, key=lambda o: (o.optional, 0 if exact else others[o.name].index(name)))
                chosen[p.name] = best.name
                free.remove(best)
                break
    for p in pointers:
        if p.name in chosen:
            continue
        role = ("in",) if p.const else ("out", "inout") if consts else ("in", "out", "inout")
        fitting = [o for o in free if o.role in role and suits(p, o)] or [o for o in free if suits(p, o)]
        fitting = [o for o in fitting if not o.optional] or ([] if p.name in written else fitting)
        if not fitting:
            near = difflib.get_close_matches(p.name, [o.name for o in free if suits(p, o)], n=2, cutoff=0.0)
            lacking = [o for o in free if o.role in role and not o.optional]
            unsaid = [q for q in pointers if q.name not in (p.name, *chosen) and any(suits(q, o) for o in lacking)]
            mend = f"none is left for it; {_AGAINST.format(path)}"
            if POINTEES.get(p.ctype) in ("i32", "i64") and lacking and not unsaid:
                mend = f"it points to {p.ctype}, and {of.name} computes with float, half or bfloat16."
            elif p.name in written:
                mend = f"what it writes besides goes to memory that a header's [buffers.{p.name}] shape = [...] makes."
            elif near:
                mend = f"write a header with [bind] {p.name} = {' or '.join(json.dumps(name) for name in near)}."
            raise Unjudged(
                f"{path}: {p.name} of {kernel}({signature(pointers)}, ...) is none of {of.name}'s operands "
                f"({', '.join(o.name for o in operands)}); {mend}"
            )
        chosen[p.name] = fitting[0].name
        free.remove(fitting[0])
    done = {*chosen.values(), *of.replaced(chosen.values())}
    of_others = {o.name: str(o.view_of or o.copy_of) for o in of.operands if o.view_of or o.copy_of}
    while more := {other for name, other in of_others.items() if name in done} - done:
        done |= more
    lacking = [o for o in of.operands if not (o.optional or o.copy_of or o.view_of or o.name in done)]
    for o in lacking:
        number = next((p.name for p in numbers if p.name not in {*chosen, *_NEUTRAL} and suits(p, o)), None)
        if number is None and o.neutral is not None:
            continue
        if number is None:
            raise Unjudged(
                f"{path} has no header, and none can be proposed: {kernel} takes neither a pointer nor a number for "
                f"{of.name}'s {o.name}; {_AGAINST.format(path)}"
            )
        chosen[number] = o.name
    yield chosen
    bound = {p.name: of.operand(chosen[p.name]) for p in pointers}
    inputs = [n for n, o in bound.items() if o.role == "in" and not o.optional and n.lower() != plain_name(o)]
    if 1 < len(inputs) <= 3:
        for order in itertools.permutations(inputs):
            swapped = dict(chosen) | {name: chosen[other] for name, other in zip(inputs, order, strict=True)}
            if swapped != chosen:
                yield swapped


def _real(p: Parameter) -> bool:
    """Whether it is a number that is no size: some files count in float."""
    real = p.ctype == "Real" or SCALAR_KINDS.get(p.ctype) in ("f32", "f64", "f16", "bf16")
    return not p.pointer and real and p.name.lower() not in TOTAL | {"rows", "cols"}


def _scalars(of: Operation, p: Parameter) -> list[str | float]:
    """The operation's scalars that have a number's name."""
    return [s for s in of.scalars if p.name.lower() in (s, *SCALARS.get(s, ()))]


def unknown(of: Operation, p: Parameter) -> bool:
    """Whether the name of a number says nothing: what it is is no more than a guess."""
    every = {*of.dims, *of.derived, *of.scalars}
    usual = ROWS | COLUMNS | TOTAL | NUMBERS
    return not (p.pointer or p.name in every or p.name.lower() in usual or _BLOCKS.search(p.name.lower()))


def _values(of: Operation, p: Parameter, launch: Written, scalars: list[Parameter]) -> list[str | float]:
    """What a number may be, best first."""
    name, lower, argument = p.name, p.name.lower(), launch.passed.get(p.name, "")
    known = {*of.dims, *of.derived, *of.scalars}
    if _real(p):
        return _scalars(of, p)[:1] or ([_NEUTRAL[lower]] if lower in _NEUTRAL else [*of.scalars])
    options: list[str | float] = []
    given = over(argument, launch.scope, known) if argument else None
    if given and _OF_ONE_CALL.search(given) and not re.search(r"//|\bceil_div\b", given):  # not rounded up
        given = None
    elif given is None and (calculated := _calculated(of, p, launch, scalars)):
        return calculated
    elif given and (vectors := re.fullmatch(r"\w+\s*/\s*([248])", argument)):  # of main's own size, in vectors
        return [f"{of.sizes[1]} // {vectors[1]}", f"{of.sizes[2]} // {vectors[1]}"]
    if given is None and name not in known and _BLOCKS.search(lower):
        return [BLOCK]
    if given is None and "stride" in lower:  # no size is as likely as another
        return []
    if given is not None and given.isdigit() and re.search(r"block|tile|stride|^(?!bt$)[bt][a-z]$", lower):
        return [int(given)]
    if given is not None and not given.isdigit():
        options.append(given)
        if not given.isidentifier():  # calculated from sizes that are known
            return options
    if name in known:
        options.append(name)
    attends, products = {"NH", "T", "HS"} <= known, {"C", "OC"} <= {*of.dims}
    if attends and name in ("NH", "T", "HS"):  # a name of its own
        return options
    rows, inner, total = of.sizes
    whole = [q for q in scalars if not (_real(q) or q.ctype == "bool" or _BLOCKS.search(q.name.lower()))]
    others = {q.name.lower() for q in whole} - {"n"}
    pair = () if len(whole) != 2 or p not in whole or attends or products else _pair(rows, inner, p, whole)
    if products and lower in DIMS["B"] and any(GEMM.get(q.name.lower()) == "rows" for q in whole):
        options += ["1"]  # each has matrices of its own
    elif products and (lower in GEMM or len(whole) >= 3):
        options += [GEMM[lower].replace("rows", rows)] if lower in GEMM else []
        options += ["OC", "C", rows] if GEMM.get(lower, "rows") != "rows" else [rows, "OC", "C"]  # x may be M x N
    elif len(whole) == 1 and products:
        options += ["C"]
    elif attends:
        options += [*(d for d in known if d.lower() == lower), "T", "HS", "B * NH", "NH"]
    elif len(of.dims) == len(whole) == 1:
        options += [inner, _SIDE.format(inner)]
    elif len(whole) == 1:
        options += [total, inner, rows] if lower in TOTAL else [inner, total, rows]
    elif pair:
        options += [*pair, total]
    elif (lower in ROWS and lower != "n") or (lower == "n" and others & (COLUMNS - {"n", "k"})):
        options += [rows, inner, total]
    elif lower in COLUMNS:
        options += [inner, rows, total]
    else:
        nearest = [d for d in known if d.lower() == lower or d.lower() == lower.replace("num_", "")]
        options += [*nearest, *of.dims, rows, total]
    usual = {dim: words for dim, words in DIMS.items() if dim in known and lower in words}
    if attends or any(q.name.lower() in DIMS["T"] for q in whole):
        heads = attends and not any(q.name.lower() in DIMS["NH"] for q in whole)
        first = [*options[: given is not None], *pair[:1], *(["B * NH"] if heads and "B" in usual else [])]
        options = [*first, *usual, *options]
    if not products:
        options = [*(dim for dim, words in WIDTHS.items() if dim in of.dims and lower in words), *options]
    return list(dict.fromkeys(options))[:4]


def _calculated(of: Operation, p: Parameter, launch: Written, scalars: list[Parameter]) -> list[str | float]:
    """What a number may be that the host calculates from its own parameters, as N / 4."""
    found = over_own(launch.passed.get(p.name, ""), launch.scope)
    if found is None or parses(found) is False or not (names := names_in(found) - {"min", "max", "ceil_div"}):
        return []
    if found.isidentifier() or names & {*of.dims, *of.derived} or len(names) > MOST_NAMES:
        return []
    own = [Parameter("int", name, False, False) for name in sorted(names)]
    every = [*own, *(q for q in scalars if q is not p and q.name not in names)]
    choices = [_values(of, one, replace(launch, passed={}), every) for one in own]
    scopes = ({one.name: f"({value})" for one, value in zip(own, p, strict=True)} for p in itertools.product(*choices))
    return [meant for scope in itertools.islice(scopes, 4) if (meant := over(found, scope, {*of.dims, *of.derived}))]


def _pair(rows: str, inner: str, p: Parameter, both: list[Parameter]) -> tuple[str, str]:
    """Rows and their length, in the order in which this one of two numbers is likely them: by names, else by place."""
    sides = [(q.name.lower() in COLUMNS) - (q.name.lower() in ROWS) for q in both]
    place = both.index(p)
    side = sides[place] or -sides[1 - place] or (1 if place else -1)
    return (rows, inner) if side < 0 else (inner, rows)


def fixed(of: Operation, source: str, bind: Mapping[str, str | float]) -> list[list[str]]:
    """Conditions for scalars and operands that the kernel does not take: the usual value, or the neutral one."""
    taken = {str(target) for target in bind.values()}
    without = [f"{o.name} == {o.neutral:g}" for o in of.operands if o.neutral is not None and o.name not in taken]
    return [[*without, *needs] for needs in _scalars_fixed(of, source, taken)]


def _named(of: Operation, texts: Iterable[object]) -> set[str]:
    """The sizes that expressions name, but for divisors, which alone say nothing."""
    found = set(re.findall(r"[A-Za-z_]\w*", re.sub(r"//\s*\w+", "", " ".join(map(str, texts)))))
    return found.union(*(_named(of, [of.derived[name]]) for name in found & {*of.derived}))


def alone(of: Operation, bind: Mapping[str, str | float], shape: Iterable[object] = ()) -> list[str]:
    """What holds for rows that neither the parameters nor the launch count: there is one. A product or a transpose that
    is given one size is square."""

    if square := next((dim for dim in of.dims if _SIDE.format(dim) in map(str, bind.values())), ""):
        return [f"{square} == {_SIDE.format(square)} * {_SIDE.format(square)}"]
    results = [of.operand(str(target)) for target in bind.values() if target in {o.name for o in of.operands}]
    rows = _named(of, [of.sizes[0], *(size for o in results if o.role == "out" for size in o.shape[:-1])])
    if "OC" in of.dims and _named(of, bind.values()) & {*of.dims} == {"C"}:
        return [f"{dim} == {'1' if dim == 'B' else 'C'}" for dim in of.dims if dim != "C"]
    counted = _named(of, [*bind.values(), *shape]) & {*of.dims}
    if rows >= {*of.dims}:  # each size counts rows of an operand, as in a transpose
        return [f"{dim} == {side}" for side in counted for dim in of.dims if {side} == counted != {dim}]
    return [f"{dim} == 1" for dim in of.dims if dim in rows - counted]


def row_fixed(of: Operation, body: str, constants: dict[str, str], told: Iterable[object]) -> list[list[str]]:
    """Conditions for a row's length that neither the parameters nor the launch say: the constants that the kernel
    names, the likeliest first."""
    heads = "HS" in of.derived
    inner = "HS" if heads else of.sizes[1]
    if inner not in (*of.dims, "HS") or {inner, *names_in(of.derived.get(inner, inner))} - {"NH"} & _named(of, told):
        return [[]]
    rows = [n for n in constants if 2 <= int(constants[n]) <= LONGEST_ROW and "tile" not in n.lower()]
    used = [n for n in rows if re.search(rf"\b{n}\b", body)]
    used.sort(key=lambda name: not re.search(r"dim|head|hidden|col|^[cd]$|^hs$", name.lower()))
    values = list(dict.fromkeys(constants[n] for n in used))[:CANDIDATES]
    return [[f"C == {value} * NH" if heads else f"{inner} == {value}"] for value in values] or [[]]


def _scalars_fixed(of: Operation, source: str, bound: set[str]) -> list[list[str]]:
    fixed = [s for s in of.scalars if not any(s in names_in(b) for b in bound if parses(b))]
    if not fixed:
        return [[]]
    flags = [s for s in fixed if {of.complete(case.values)[s] for case in of.cases} == {0, 1}]
    other = {"scale": 1, **{s: int(not of.scalars[s]) for s in flags}}
    usual = [f"{s} == {of.scalars[s]}" for s in fixed]
    plain = [f"{s} == {other.get(s, of.scalars[s])}" for s in fixed]
    mixed = [f"{s} == {(other if s in flags else of.scalars)[s]}" for s in fixed]
    found = [plain, usual, mixed] if of.name == "softmax" else [usual, mixed, plain]
    if "eps" in fixed and (given := re.search(r"\b1e-0?([4-8])f?\b", source)):
        found = [[f"eps == 1e-{given[1]}" if n.startswith("eps") else n for n in needs] for needs in found]
    return [list(needs) for needs in dict.fromkeys(map(tuple, found))]
