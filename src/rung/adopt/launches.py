"""Proposes headers for the kernels of a `.cu` file that has none: instance, bindings, grid and block from the launch
that the file's host code writes, or from the signature and the way the kernel numbers its threads."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuless.base.expressions import evaluate, names_in, product
from gpuless.compile.source import (
    Parameter,
    aliases,
    body_of,
    classes_in,
    code_only,
    kernel_parameters,
    kernels_in,
    kernels_left,
    split,
    template_of,
    until,
)
from gpuless.facts.limits import GRID, THREADS_BLOCK
from rung.adopt.host_launches import (
    BLOCK,
    Written,
    constants_of,
    in_a_row,
    launches_by_function,
    over,
    three,
    variable,
)
from rung.adopt.operands import alone, binds, fixed, row_fixed, told
from rung.errors import RungError, Unjudged
from rung.operation import Operation
from rung.rungs.arguments import POINTEES, SCALAR_KINDS, formats_of

OTHER_SHAPE = 4  # proposals with other bindings go before another grid than the one that the file writes
UNSAID = 3  # template parameters without a value in the file, for which usual ones are tried
_NUMBER = re.compile(r"\s*,\s*(-?)(?:(INFINITY|[\w:<>]*infinity\(\))|([\d.]+(?:e[+-]?\d+)?))")
_INDEX = re.compile(r"\b(\w+)\s*=\s*((?:blockIdx|threadIdx|blockDim)\.[xyz])\s*;")


@dataclass(frozen=True)
class Proposal:
    """A header's table; whether its grid and block are those of the file's own launch, and by the call's sizes; and
    whether the text leaves no other table."""

    table: dict[str, Any]
    own: bool = False
    by_sizes: bool = False
    sure: bool = False


@dataclass(frozen=True)
class OfKernels:
    """The proposals for each kernel of a file, the most plausible first, and why a kernel has none."""

    proposals: dict[str, Iterator[Proposal]]
    failures: dict[str, RungError]
    launched: set[str]  # by the file's own code
    in_a_row: list[list[str]]  # kernels that a host function launches one after the other, as one computation


def propose(of: Operation, source: str, path: Path, given: Written | None = None) -> OfKernels:
    """What the text says of the kernels' calls; a `given` launch of one kernel takes the place of the file's own."""
    constants = constants_of(source)
    by_function = launches_by_function(source, constants)
    defined = kernels_in(source)
    if not defined:
        raise RungError(f"{path} has no header, and no __global__ function that one could be proposed for.")
    if not kernels_left(source):
        raise RungError(f"{path}: its own macros (#define, #if) leave no __global__ function to compile.")
    for some in by_function:  # of a function that is given the kernel, each that takes as much
        for w in [w for w in some if w.kernel not in defined]:
            names = [n for n in defined if len(kernel_parameters(source, n, str(path))) == len(w.arguments)]
            some[:] = [*(one for one in some if one is not w), *(replace(w, kernel=name) for name in names)]
    every = {
        (w.kernel, w.template, *(w.scope.get(text, text) for text in (w.grid, w.block))): w
        for w in itertools.chain.from_iterable(by_function)
    }
    launches = [given] if given else [*every.values()]
    launched = {w.kernel for w in launches}
    launches += [Written(name) for name in defined if name not in launched and not given]
    rows = [list(dict.fromkeys(w.kernel for w in some)) for some in by_function if in_a_row(source, some)]
    parts = {kernel for row in rows for kernel in row}
    made: dict[str, list[Iterator[Proposal]]] = {}
    failures: dict[str, RungError] = {}
    for launch in launches:
        try:
            tables = _for_launch(of, source, path, launch, constants)
            likeliest = next(tables)
            made.setdefault(launch.kernel, []).append(itertools.chain([likeliest], tables))
        except StopIteration:
            continue
        except RungError as failure:
            failures.setdefault(launch.kernel, failure)

    def in_turn(kernel: str, some: list[Iterator[Proposal]]) -> Iterator[Proposal]:
        for turn in itertools.zip_longest(*some):  # so that each launch has its best proposal tried early
            for one in filter(None, turn):
                yield replace(one, sure=one.sure and len(some) == 1 and kernel not in parts)

    return OfKernels({kernel: in_turn(kernel, some) for kernel, some in made.items()}, failures, launched, rows)


def _for_launch(
    of: Operation, source: str, path: Path, written: Written, constants: dict[str, str]
) -> Iterator[Proposal]:
    body = body_of(source, written.kernel)
    for instance in _instances(source, written, constants):
        every = kernel_parameters(source, instance, str(path))
        if odd := next((p for p in every if not (p.pointer or p.ctype in (*SCALAR_KINDS, "Real", "TensorMap"))), None):
            what = "a class" if odd.ctype in classes_in(source) else "defined by no file that was found"
            raise Unjudged(
                f"{path}: the type of {odd.ctype} {odd.name} of {written.kernel} is {what}; a header binds pointers "
                "and numbers only: have the kernel take these."
            )
        passed = list(zip(every, written.arguments, strict=False))
        astray = any(p.pointer and written.scope.get(argument, "").isdigit() for p, argument in passed)
        launch = replace(written, passed={} if astray else {p.name: argument for p, argument in passed})
        scratch = _scratch(launch, every)
        parameters = tuple(p for p in every if p.name not in scratch)
        ranked: list[
            tuple[int, tuple[dict[str, str | float], Written, dict[str, Any], list[str], Any, bool, bool]]
        ] = []
        # The last says whether the text leaves nothing open but the parameters' names.
        for nth, (bind, meant) in enumerate(binds(of, parameters, launch, path, instance, body=body)):
            sized = {name: _buffer(entry, meant.scope, of) for name, entry in scratch.items()}
            if unknown := [name for name, entry in sized.items() if entry is None]:
                made, name = scratch[unknown[0]], unknown[0]
                raise Unjudged(f"{path}: what is {made}? Write a header with [buffers.{name}] shape = [...].")
            shapes = list(_shapes(of, source, body, instance, meant, bind, every, constants))
            step = OTHER_SHAPE if any(said for _, said, _ in shapes) else 1
            rules = fixed(of, source, bind)
            for (i, needs), (j, (shape, said, own)) in itertools.product(enumerate(rules), enumerate(shapes)):
                # A launch that the file writes is hardly wrong: what the parameters are varies before it does.
                rank = nth + 2 * i + step * j
                for k, lengths in enumerate(row_fixed(of, body, constants, [*bind.values(), *shape.values()])):
                    every_need = [*needs, *lengths]
                    ranked.append((rank + k, (bind, meant, sized, every_need, shape, said and not rules[1:], own)))
        for _, (bind, meant, sized, needs, shape, said, own) in sorted(ranked, key=lambda one: one[0]):
            whole = [*_multiples(of, parameters, bind, meant), *_demanded(of, parameters, bind, body)]
            limits = [*_within_limits(of, shape), *_whole_warps(source, shape)]
            # Threads in a row that the file does not count by rows are the parameters': no other rows are in reach.
            guessed = not own and str(shape["grid"]).startswith("ceil_div(")
            needs = [*needs, *alone(of, bind, () if guessed else shape.values()), *whole, *limits]
            changed = {name: target for name, target in bind.items() if name != target}
            table: dict[str, Any] = {"idea": f"{launch.kernel} of {path.name}.", "dtypes": formats_of(parameters)}
            standard = ["--std=c++20"] if re.search(r"\bconcept\s+\w+\s*=", source) else []
            more = {"needs": needs, "bind": changed, "buffers": sized, "options": standard}
            table |= {key: entry for key, entry in more.items() if entry}
            named = instance
            if "<(" in instance or ", (" in instance:
                if (values := _of_sizes(of, instance, meant, parameters, bind)) is None:
                    continue
                table["define"] = {name: value for name, value in values.items() if not value.isidentifier()}
                table["define"] |= {name: value for name, value in values.items() if value in (*of.dims, *of.derived)}
                arguments = (name if name in table["define"] else value for name, value in values.items())
                named = f"{instance.partition('<')[0]}<{', '.join(arguments)}>"
            table["launch"] = [{"kernel": named, **shape}]
            fixes = any(re.match(r"(?!eps|start)\w+ ==", need) for need in needs)
            sure = said and not (sized or fixes) and told(of, parameters, meant, bind)
            grid = shape["grid"] if isinstance(shape["grid"], list) else [shape["grid"]]
            yield Proposal(table, own, own and not all(isinstance(size, int) for size in grid), sure)


def says_values(source: str, kernel: str) -> bool:
    """Whether the file instantiates the kernel's template with values, and with types of numbers, if it is one."""
    parameters, types = template_of(source, kernel) or (), aliases(source)
    written = re.findall(rf"\b{kernel}\s*<([^;{{}}]*?)>\s*(?:<<<|\()", code_only(source))
    given = [[types.get(a.strip(), a.strip()) for a in split(text)] for text in written]
    said = any(all(not t or a in POINTEES for a, (_, _, t) in zip(one, parameters, strict=False)) for one in given)
    return said or not parameters


def values_unsaid(source: str, kernel: str) -> str:
    names = ", ".join(name for name, *_ in template_of(source, kernel) or ())
    return f"the file says no values for {kernel}'s template parameters {names}" if names else ""


def _multiples(
    of: Operation, parameters: tuple[Parameter, ...], bind: dict[str, str | float], launch: Written
) -> list[str]:
    """Conditions that the file itself states: vectors as the elements of an operand's rows, and the host's asserts."""
    found = []
    for p in parameters:
        lanes = re.search(r"[a-z]([248])$", p.ctype) if p.pointer else None
        if lanes and (shape := of.operand(str(bind[p.name])).shape):
            found.append(f"{product([str(shape[-1])])} % {lanes[1]} == 0")
    scope, known = launch.scope | sizes_of(parameters, bind), {*of.dims, *of.derived}
    sides = [size for text in (launch.grid, launch.block) for size in three(text, scope, known) or []]
    for node in itertools.chain.from_iterable(ast.walk(ast.parse(size, mode="eval")) for size in sides):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv) and isinstance(node.right, ast.Constant):
            left, by = ast.unparse(node.left), ast.unparse(node.right)  # divided without rounding up
            row = not any(left.endswith(need.partition(" % ")[0]) and f" % {by} " in need for need in found)
            if row and not re.search(r"[+-]|\bceil_div\b|//", left) and names_in(left):
                found.append(f"{left} % {by} == 0")
    for text in launch.asserted:
        if (rule := over(text, launch.scope, {*of.dims, *of.derived})) and not rule.isdigit():
            found.append(f"{rule} == 0")
    return list(dict.fromkeys(found))


def _demanded(of: Operation, parameters: tuple[Parameter, ...], bind: dict[str, str | float], body: str) -> list[str]:
    """Operands that a call may leave out, but that the kernel reads without comparing their pointer."""
    tested = r"(?:[!(]\s*{0}\s*(?:[)&|?]|[!=]=)|\b{0}\s*(?:\?|[!=]=|&&|\|\|))"
    nullable = [p for p in parameters if p.pointer and of.operand(str(bind[p.name])).nullable]
    return [str(bind[p.name]) for p in nullable if not re.search(tested.format(p.name), body)]


def _instances(source: str, launch: Written, constants: dict[str, str]) -> Iterator[str]:
    """The kernel's name, with template arguments where it has parameters: those of the launch, of an explicit
    instantiation, or usual ones."""
    parameters = template_of(source, launch.kernel)
    named = _qualified(source, launch.kernel)
    if not parameters:
        yield named
        return
    types = aliases(source)
    written = [launch.template.strip()[1:-1]] if launch.template else []
    written += re.findall(rf"\btemplate\s+__global__\s+[^;<]*\b{launch.kernel}\s*<([^;]*?)>\s*\(", code_only(source))
    for text in dict.fromkeys(written or [""]):
        given = [*map(str.strip, split(text))]
        unsaid = [n for n, default, is_type in parameters[len(given) :] if not (default or is_type or n in constants)]
        if len(unsaid) > UNSAID:
            raise Unjudged(
                f"the file says no values for {launch.kernel}'s template parameters {', '.join(unsaid)}: write a "
                f'header with kernel = "{named}<...>".'
            )
        choices: list[list[str]] = []
        for n, (name, default, is_type) in enumerate(parameters):
            a = given[n] if n < len(given) else default
            if is_type:
                meant = types.get(a, launch.scope.get(a, a))
                default_type = n >= len(given) and bool(default)
                choices.append([meant if default_type or meant in POINTEES else "float"])  # of the host's template
                continue
            tile = re.search("tile|size|width", name.lower())
            switch = re.search(rf"\btemplate\s*<[^>]*\bbool\s+{name}\b", source)
            usual = ["true", "false"] if switch else ["16", "32"] if tile else [str(BLOCK), "32"]
            number = over(a, {**constants, **launch.scope}, set()) if a else constants.get(name)
            plain = bool(a) and (n >= len(given) or a in ("true", "false") or "::" in a)
            # Else one of the call's sizes, in brackets, or what only the caller knows.
            choices.append([number] if number else [a] if plain else [f"({a})", *usual[:1]] if a else usual)
        for picked in itertools.product(*choices):
            yield f"{named}<{', '.join(picked)}>"


def _of_sizes(
    of: Operation, instance: str, launch: Written, parameters: tuple[Parameter, ...], bind: dict[str, str | float]
) -> dict[str, str] | None:
    """Macros for the arguments of an instance of which one is in brackets, given by the call's sizes; None if not."""
    given = split(instance.partition("<")[2].removesuffix(">"))
    means = sizes_of(parameters, bind).items()
    scope = launch.scope | {passed.strip("()"): meant for n, meant in means if (passed := launch.passed.get(n))}
    sized = [over(g, scope, {*of.dims, *of.derived}) if g.startswith("(") else g for g in given]
    return None if None in sized else {f"VALUE_{n}": str(value) for n, value in enumerate(sized)}


def _qualified(source: str, kernel: str) -> str:
    """The kernel's name with its namespaces."""
    code = code_only(source)
    found = re.search(rf"\b{kernel}\s*\([^;{{}}]*{{", code)
    scopes: list[str] = []
    for mark in re.finditer(r"namespace\s+([\w:]+)\s*{|[{}]", code[: found.start()] if found else ""):
        if mark[0] == "}":
            del scopes[-1:]
        else:
            scopes.append(mark[1] or "")
    return "::".join([*filter(None, scopes), kernel])


def _scratch(launch: Written, parameters: tuple[Parameter, ...]) -> dict[str, str]:
    """Pointers to tensors that the host's function makes for the kernel alone: what makes them."""
    found = {}
    for p in parameters:
        given = variable(launch.passed.get(p.name, ""))
        made = launch.scope.get(given, "")
        if p.pointer and given != launch.result and re.match(r"(?:torch|at)::(?:zeros|full|empty)\s*\(\s*\{", made):
            found[p.name] = made
    return found if launch.result else {}


def _buffer(made: str, scope: dict[str, str], of: Operation) -> dict[str, Any] | None:
    """A header's entry for a tensor that the host makes, such as torch::full({B, N}, -INFINITY)."""
    kind, inner = made.split("(", 1)
    sizes = [over(size, scope, {*of.dims, *of.derived}) for size in split(until(inner.partition("{")[2], 0, "}")[0])]
    if None in sizes:
        return None
    entry: dict[str, Any] = {"shape": sizes, "dtype": "i32" if "kInt" in made else "f32"}
    if "zeros" in kind:
        entry["zero"] = True
    elif "full" in kind:
        number = _NUMBER.match(inner.partition("}")[2])
        if not number:
            return None
        entry["fill"] = float(f"{number[1]}{'inf' if number[2] else number[3]}")
    return entry


def _shapes(
    of: Operation,
    source: str,
    body: str,
    kernel: str,
    launch: Written,
    bind: dict[str, str | float],
    parameters: tuple[Parameter, ...],
    constants: dict[str, str],
) -> Iterator[tuple[dict[str, Any], bool, bool]]:
    """Grids and blocks, the likeliest first; whether the host's code says them by the call's sizes, and at all."""
    known = {*of.dims, *of.derived, *of.scalars}
    names = [name for name, *_ in template_of(source, launch.kernel)]
    constants = constants | dict(zip(names, split(kernel.partition("<")[2].rstrip(">")), strict=False))
    for name, index in _INDEX.findall(body):
        body = re.sub(rf"\b{name}\b(?!\s*=)", index, body)
    means = sizes_of(parameters, bind)
    scope = {**launch.scope}
    for name, argument in launch.passed.items():
        if name in means and re.fullmatch(r"\(?\w+\)?", argument):
            scope[argument.strip("()")] = means[name]
    # A number of main's is one call's size.
    scope |= {name: value for name, value in means.items() if scope.get(name, "0").isdigit()}
    if launch.grid:
        grid, block = three(launch.grid, scope, known), three(launch.block, scope, known)
        shared = over(launch.shared, scope, known) if launch.shared else None
        small = not block or not all(map(str.isdigit, block)) or math.prod(map(int, block)) <= THREADS_BLOCK
        alone = re.fullmatch(r"[A-Za-z_]\w*", launch.grid)  # a size that only the host has
        grids = [grid] if grid else [[of.sizes[0]], [of.sizes[2]]] if alone else []
        if grid and any(size.isdigit() and size != "1" for size in grid[1:]):  # one call's number of heads or rows
            several = "B * NH" if {"B", "NH"} <= known else of.sizes[0]
            grids.insert(0, [grid[0], *(several if size.isdigit() and size != "1" else size for size in grid[1:])])
        blocks = [block] if block else [[of.sizes[1]], [str(BLOCK)]] if launch.block else []
        if small and (shared or not launch.shared):
            dynamic = {"shared": shared} if shared not in (None, "0") else {}
            for one, threads in itertools.product(grids, blocks):
                own = one is grid and threads is block
                said = own and (launch.given or not all(map(str.isdigit, one)))
                yield {"grid": _plain(one), "block": _plain(threads), **dynamic}, said, own
    if not launch.given:
        yield from ((shape, False, False) for shape in _by_style(of, body, constants, means))


def sizes_of(parameters: tuple[Parameter, ...], bind: dict[str, str | float]) -> dict[str, str]:
    return {p.name: f"({bind[p.name]})" for p in parameters if not p.pointer and p.name in bind}


def _by_style(of: Operation, body: str, constants: dict[str, str], means: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Grids as the kernel's text suggests them: by its indices, 2D tiles, a warp or block per row, a thread per element
    or row."""
    rows, columns, total = of.sizes
    columns = "OC" if "OC" in of.dims else columns
    bound = re.search(r"__launch_bounds__\s*\(\s*(\w+)", body)
    names = [n for n in constants if re.search(r"block|threads|tpb", n, re.IGNORECASE) and constants[n].isdigit()]
    threads = next((constants.get(n, n) for n in ([bound[1]] if bound else []) + names), str(BLOCK))
    block = int(threads) if threads.isdigit() and 32 <= int(threads) <= 1024 else BLOCK
    shared = {}
    if re.search(r"extern\s+__shared__", body):
        shared = {"shared": f"{block} * 4"}
    if "threadIdx.y" in body:
        numbers = [(n, int(v)) for n, v in constants.items() if v.isdigit()]
        tiles = [v for n, v in numbers if 0 < v <= 32 and re.search(r"tile|bs|block|ts", n, re.IGNORECASE)]
        heights = [v for n, v in numbers if "rows" in n.lower()]
        for side in dict.fromkeys([*tiles, 16, 32]):
            across, down = f"ceil_div({columns}, {side})", f"ceil_div({rows}, {side})"
            for height in [*(h for h in heights if h < side), side]:  # a thread may have several rows of the tile
                yield {"grid": [across, down], "block": [side, height], **shared}
                yield {"grid": [down, across], "block": [side, height], **shared}
        return
    if "blockIdx.y" in body:
        for grid in _by_indices(of, body, constants, means, block):
            yield {"grid": grid, "block": block, **shared}
        return
    together = re.search(r"__syncthreads|__shfl|cg::|cooperative_groups|__shared__|cub::", body)
    lanes = r"meta_group_size|(?:blockDim|threadIdx)\.x\s*(?:/\s*(?:32|WARP\w*|warpSize)|>>\s*5)"
    warps = re.search(lanes, body)
    per_row = {"grid": rows, "block": block, **shared}
    per_warp = {"grid": f"ceil_div({rows}, {block // 32})", "block": block, **shared}
    per_element = {"grid": f"ceil_div({total}, {block})", "block": block, **shared}
    row_threads = {"grid": f"ceil_div({rows}, {block})", "block": block, **shared}
    if not together:
        yield from (per_element, row_threads, per_row)
        if not re.search(r"\bif\s*\([^;{]*[<>]", body):  # else there may be more threads than elements
            yield {**per_row, "block": columns}
    elif warps and re.search(r"blockIdx\.x\s*\*", body):
        yield from (per_warp, per_row, {**per_row, "block": 32})
    else:
        yield from (per_row, {**per_row, "block": 32}, per_warp, per_element)


def _by_indices(
    of: Operation, body: str, constants: dict[str, str], means: dict[str, str], block: int
) -> Iterator[list[str]]:
    """Grids of several axes by what the kernel makes of blockIdx: an axis that is multiplied covers the bound with
    which the index is compared, another stands for a size alone."""
    rows, columns, total = of.sizes
    known = {*of.dims, *of.derived, *of.scalars}
    covered = {}
    for axis in "xyz":
        times = re.findall(rf"blockIdx\.{axis}\s*\*\s*(\w+)|(\w+)\s*\*\s*blockIdx\.{axis}", body)
        steps = [constants.get(a or b, a or b) for a, b in times if (a or b) not in means]  # no row of that length
        if not steps:
            continue
        step = steps[0]
        made = re.search(rf"\b(\w+)\s*=[^;]*\bblockIdx\.{axis}\b[^;]*;", body)
        compared = re.search(rf"\b{made[1]}\s*(?:<|>=)\s*([^;&|?){{}}]+)", body) if made else None
        limit = over(compared[1], {**constants, **means}, known) if compared else None
        each = step if step.isdigit() else str(block)
        covered[axis] = [f"ceil_div({size}, {each})" for size in ([limit] if limit else [columns, rows, total])]
    named = " ".join(itertools.chain.from_iterable(covered.values()))
    heads = ["B * NH"] if {"B", "NH"} <= known else []
    alone = dict.fromkeys([*heads, *(d for d in of.dims if not re.search(rf"\b{d}\b", named)), rows, *of.dims])
    axes = [axis for axis in "xyz" if f"blockIdx.{axis}" in body]
    for picked in itertools.product(*(covered.get(axis, list(alone)) for axis in axes)):
        yield list(picked)


def _within_limits(of: Operation, shape: dict[str, Any]) -> list[str]:
    """Conditions for axes y and z and for the block, where the operation has shapes beyond what a GPU allows."""
    grid, block = (one if isinstance(one, list) else [one] for one in (shape["grid"], shape["block"]))
    limited = [*zip(grid[1:], GRID[1:], strict=False), (product([str(size) for size in block]), THREADS_BLOCK)]
    shapes = [of.complete(values) for values in (*of.shapes.values(), *(case.values for case in of.cases))]
    return [
        f"{size} <= {most}"
        for size, most in limited
        if not isinstance(size, int) and any(evaluate(size, values) > most for values in shapes)
    ]


def _whole_warps(source: str, shape: dict[str, Any]) -> list[str]:
    """A condition for blocks of a size of the call: what a shuffle reads from a lane that is not there is undefined."""
    sizes = shape["block"] if isinstance(shape["block"], list) else [shape["block"]]
    sized = any(isinstance(size, str) and not size.isdigit() for size in sizes)
    return [f"{product([str(size) for size in sizes])} % 32 == 0"] if sized and "__shfl" in source else []


def _plain(sizes: list[str]) -> Any:
    numbers = [int(size) if size.isdigit() else size for size in sizes]
    while len(numbers) > 1 and numbers[-1] == 1:
        numbers.pop()
    return numbers[0] if len(numbers) == 1 else numbers


# ---- C++ expressions of the host's code ------------------------------------------------------------------------------
