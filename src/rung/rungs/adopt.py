"""Proposes the header of a `.cu` file that has none: kernels, bindings, grid and block from the launch that the file's
host code writes, or from the signature and the way the kernel numbers its threads. What the text leaves open is tried
on a small case on the emulator, in a process of its own: the first proposal whose result is right is taken.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import itertools
import json
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpuless.base import disk_cache
from gpuless.base.expressions import evaluate, names_in, product
from gpuless.base.files import read_text
from gpuless.base.processors import cpu_seconds
from gpuless.compile.host_code import host_part, launching_macros
from gpuless.compile.source import (
    Parameter,
    aliases,
    body_of,
    classes_in,
    code_only,
    kernel_parameters,
    kernels_in,
    kernels_left,
    template_of,
    until,
    without_comments,
)
from gpuless.facts.limits import GRID, THREADS_BLOCK
from rung import progress
from rung.apart import Apart
from rung.dtypes import dtype
from rung.errors import CompileError, RungError, Unjudged
from rung.operation import Operand, Operation
from rung.rungs.arguments import POINTEES, SCALAR_KINDS
from rung.rungs.cuda import CudaRung, whole_text
from rung.rungs.header import has_header, inline
from rung.rungs.operations import operation
from rung.rungs.words import SCALARS, names_of, plain_name

MOST = 48  # proposals that are tried
CANDIDATES = 3  # that are shown, where none is right
SECONDS, IDLE = 20.0, 4  # of CPU time; times that, for processes that wait
TICK = 0.5  # seconds between two looks at the clock
WHOLE = 4  # letters: a shorter word is found as a part of a name only
FOLDERS = 3  # above a file, whose names may say what it is
OPERATIONS = 3  # of those that names speak of, whose headers are tried
_end = math.inf  # of the present budget
OTHER_SHAPE = 4  # proposals with other bindings go before another grid than the one that the file writes
LONGEST_ROW = 8192  # that a file's constant may fix
UNSAID = 3  # template parameters without a value in the file, for which usual ones are tried
DEEP = 8  # names that stand for other names
BLOCK = 256  # threads, if the file does not say
# Names of sizes, as kernels write them.
_ROWS = {"n", "m", "rows", "num_rows", "n_rows", "nrows", "bt", "batch", "batch_size", "height", "r", "nr"}
_COLUMNS = {"c", "d", "cols", "ncols", "num_cols", "n_cols", "columns", "hidden", "hidden_size", "dim", "width", "k"}
_COLUMNS |= {"n", "s"}
_TOTAL = {"n", "size", "numel", "total", "len", "length", "count", "num_elements", "n_elements", "elements", "num"}
_SCALARS = {"nh", "hs", "num_heads", "head_size", "eps", "epsilon", "alpha", "beta"}
# Sizes of a product.
_GEMM = {"m": "rows", "n": "OC", "k": "C", "rows": "rows", "wa": "C", "wb": "OC", "ha": "rows", "hb": "C"}
_GEMM |= {"numarows": "rows", "numacolumns": "C", "numbrows": "C", "numbcolumns": "OC"}
_GEMM |= {"numcrows": "rows", "numccolumns": "OC", "lda": "C", "ldb": "OC", "ldc": "OC"}
_GEMM |= {f"in{name}": "C" for name in ("put_size", "put_dim", "_features", "_dim", "_size", "_channels")}
_GEMM |= {f"out{name}": "OC" for name in ("put_size", "put_dim", "_features", "_dim", "_size", "_channels")}
_DIMS = {
    "B": ("batch", "batch_size", "bs", "bsz"),
    "T": ("seq_len", "seq", "seqlen", "seq_length", "sequence_length"),
    "NH": ("nh", "heads", "num_heads", "n_heads", "n_head", "h"),
    "HS": ("hs", "head_size", "head_dim", "d", "dk", "d_k"),
}
_NEUTRAL = {"alpha": 1.0, "beta": 0.0}
_BLOCKS = re.compile(r"block_?size|block_?dim|block$|threads")
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
_NUMBER = re.compile(r"\s*,\s*(-?)(?:(INFINITY|[\w:<>]*infinity\(\))|([\d.]+(?:e[+-]?\d+)?))")
_INDEX = re.compile(r"\b(\w+)\s*=\s*((?:blockIdx|threadIdx|blockDim)\.[xyz])\s*;")
_ASSERTED = re.compile(r"\bassert\s*\(\s*([\w\s*()]+%\s*\w+)\s*==\s*0\s*\)")
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(\(?[\w+*/ \t()-]+\)?)[ \t]*$", re.MULTILINE)


@dataclass(frozen=True)
class Proposal:
    """A header's table, and how it came about."""

    table: dict[str, Any]
    doubts: tuple[str, ...] = ()  # why it is only a guess, and the likeliest headers; empty if text or trial confirm it
    right: list[dict[str, Any]] | None = None  # the shapes at which trials confirm it; None if the text does


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


def spoken_of(source: str, path: Path, known: list[str]) -> list[str]:
    """The operations that a file's name, its kernels' names or its folder's name speak of, the likeliest first."""
    functions = re.findall(r"^def (\w+)", source, re.M) if path.suffix == ".py" else kernels_in(source)
    found: dict[str, None] = {}
    for text in (path.stem, *functions, *(folder.name for folder in path.absolute().parents[:FOLDERS])):
        parts = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", text).lower())
        at = {
            (len(word) < WHOLE, text.lower().find(word), -len(word)): name
            for name in known
            for word in (name, *operation(name).words)
            if (word in parts if len(word) < WHOLE else word in text.lower())
        }
        found |= {at[key]: None for key in sorted(at)}
    if not found:
        raise RungError(
            f"neither {path.name} nor its kernels' names say which operation it is; name it, as in "
            f"`rung check softmax {path}` (`rung list` has the operations)."
        )
    return [*found]


def taken_for(path: Path, known: list[str]) -> str:
    """The first of these operations that has a header for the file, if none is written there."""
    source = read_text(path)
    names = spoken_of(source, path, known)
    if path.suffix == ".py" or has_header(source):
        return names[0]
    doubted: list[str] = []
    with budget():
        for n, name in enumerate(names[:OPERATIONS]):
            progress.stage(f"{path} may be {' or '.join(names[n:OPERATIONS])}; {name} is tried")
            with suppress(RungError):
                found = adopted(operation(name), path)
                if found is None or not found.doubts:
                    return name
                doubted.append(name)
    return (doubted or names)[0]


def adopted(of: Operation, path: Path) -> Proposal | None:
    """The header that suits a file without one best; the same text gets the same one from the cache."""
    if has_header(read_text(path)) or not (source := whole_text(path)).strip():
        return None
    return kept_proposal(of, source, lambda: _chosen(of, source, path))


def kept_proposal(of: Operation, source: str, find: Callable[[], Proposal]) -> Proposal:
    """What `find` proposes; the same text gets the same from the cache."""
    here = Path(__file__).parent
    code = [p.read_text(encoding="utf-8") for p in sorted([*here.glob("*.py"), *here.parent.glob("cuda/*.py")])]
    text = json.dumps([of.name, source, *code])
    key = hashlib.sha256(text.encode()).hexdigest()[:32]

    def make(work: Path) -> tuple[Path, Any]:
        (work / "header.txt").write_text(of.name)
        found = find()
        return work / "header.txt", [found.table, found.doubts, found.right]

    table, doubts, right = disk_cache.kept("header", key, make).note
    return Proposal(table, tuple(doubts), right)


def _chosen(of: Operation, source: str, path: Path) -> Proposal:
    every = list(itertools.islice(_proposals(of, source, path), MOST))
    found = [one for one in every if _compiles(of, path, one[0], only_bound=True)] or every
    sure = found[0][1]
    proposals = [table for table, _ in (found[:1] if sure else found)]
    instances = {table["launch"][0]["kernel"]: table for table in reversed(proposals)}
    for instance, table in reversed(instances.items()):
        progress.doing(f"{instance} is compiled")
        if _compiles(of, path, table):
            break
        proposals = [one for one in proposals if one["launch"][0]["kernel"] != instance]
    if not proposals:
        kernel, _, values = found[0][0]["launch"][0]["kernel"].partition("<")
        kernel = kernel.rpartition("::")[2]
        if not values or _says_values(source, kernel):
            return Proposal(found[0][0], right=[])
        names = ", ".join(name for name, *_ in template_of(source, kernel) or ())
        why = f"the file says no values for {kernel}'s template parameters {names}, and the usual ones do not compile"
        return Proposal(found[0][0], doubts=(why, *_lines([table for table, _ in found])))
    right, why, fault = try_proposals(of, path, proposals)
    if right is not None:
        rule = unsure(right, "needs")
        doubts = (rule, *_lines([right["table"]])) if rule else ()
        return Proposal(right["table"], doubts, None if sure else right["right"])
    if sure:
        return Proposal(proposals[0])
    launched = any(w.grid for some in _written(source, _constants(source)) for w in some)
    if fault and launched:  # with another launch it may not happen
        why += f"; the likeliest ends with: {fault}"
    return Proposal(proposals[0], doubts=(why, *_lines(proposals)))


def _says_values(source: str, kernel: str) -> bool:
    """Whether the file instantiates the kernel's template with values, and with types of numbers."""
    parameters, types = template_of(source, kernel) or (), aliases(source)
    written = re.findall(rf"\b{kernel}\s*<([^;{{}}]*?)>\s*(?:<<<|\()", code_only(source))
    given = [[types.get(a.strip(), a.strip()) for a in _split(text)] for text in written]
    return any(all(not t or a in POINTEES for a, (_, _, t) in zip(one, parameters, strict=False)) for one in given)


def unsure(right: dict[str, Any], key: str) -> str:
    """Why a proposal that trials found right is only a guess; empty if it is none."""
    rules, needs = " and ".join(right["needs"]), dict.fromkeys([*right["table"].get("needs", []), *right["needs"]])
    why = f"the trials are only right where {rules}: if the kernel is for such sizes, it needs the line {key} = "
    return why + json.dumps([*needs]) if rules else ""


def _lines(proposals: list[dict[str, Any]]) -> list[str]:
    """The likeliest headers, a line each: what differs between them."""
    told = []
    for table in proposals:
        parts = {**table["launch"][0], **({"bind": table["bind"]} if "bind" in table else {})}
        told.append(", ".join(f"{name} = {inline(value)}" for name, value in parts.items()))
    return list(dict.fromkeys(told))[:CANDIDATES]


def _compiles(of: Operation, path: Path, table: dict[str, Any], *, only_bound: bool = False) -> bool:
    """Whether compilers take the file; what they refuse is told by whoever compiles it next. torch is not imported. Or
    only whether names and types of the parameters can be bound."""
    try:
        rung = CudaRung(of, path, table)
        given = of.complete(of.cases[0].values), dtype(rung.dtypes[0])
        rung.require_bindable(*given) if only_bound else rung.require_compiled(*given, ("sm_90",))
    except RungError as error:
        return not only_bound and not isinstance(error, CompileError)  # else the proposal does not suit the file
    return True


@contextmanager
def budget(seconds: float = SECONDS) -> Iterator[Callable[[], float]]:
    """What is left of so many CPU seconds, which all trials within share: what they find does not depend on load."""
    global _end
    outer, _end = _end, min(_end, sum(os.times()[:4]) + seconds)
    try:
        yield lambda: _end - sum(os.times()[:4])
    finally:
        _end = outer


def try_proposals(of: Operation, path: Path, proposals: list[dict[str, Any]]) -> tuple[dict[str, Any] | None, str, str]:
    """The first right proposal, with what its trial adds; else why there is none, and a fault of the likeliest. A wrong
    one may end its process, and the next goes on."""
    kind, fault = "calls" if path.suffix == ".py" else "headers", ""
    progress.doing(f"{len(proposals)} {kind} are tried")
    from rung.rungs.adopt_trial import PASSES, tried  # it imports torch: a copy of this process has it

    first = begun = 0
    began = time.monotonic()
    held: dict[str, Any] | None = None  # right at some shapes: another may be right everywhere
    method = "fork" if threading.active_count() == 1 else "spawn"
    with budget() as left:
        while first < PASSES * len(proposals):
            own, begun = 0.0, first - 1
            with suppress(EOFError), Apart(tried, of.name, str(path), proposals, first, method=method) as trial:
                while left() > own and time.monotonic() < began + IDLE * SECONDS:
                    with suppress(OSError):
                        own = cpu_seconds(trial.process.pid)
                    if not trial.pipe.poll(TICK):
                        continue
                    answer = json.loads(trial.pipe.recv_bytes())
                    if isinstance(answer, int):
                        begun = answer
                        progress.doing(f"{kind[:-1]} {begun % len(proposals) + 1} of {len(proposals)} is tried")
                        if held is not None and begun >= len(proposals):
                            return held, "", ""
                    elif answer is not None and "fault" in answer:
                        fault = answer["fault"]
                    elif answer is not None and answer["wrong"]:
                        held = max(answer, held or answer, key=lambda one: len(one["right"]))
                    else:
                        begun = PASSES * len(proposals)
                        return answer or held, _none_of(kind, proposals, begun), fault
                break
            if begun < first:
                break
            first = begun + 1  # the proposal has ended its process
    return held, _none_of(kind, proposals, begun), fault


def _none_of(kind: str, proposals: list[dict[str, Any]], begun: int) -> str:
    """Why trials found no header or call."""
    if begun < len(proposals):
        return f"the time for trials ended at number {max(begun, 0) + 1} of {len(proposals)} {kind}; none was right"
    return f"none of the {len(proposals)} {kind} tried gave the right result on a small case"


# ---- proposals, the most plausible first ----------------------------------------------------------------------------


_Found = tuple[dict[str, Any], bool]  # a header's table, and whether the text leaves no other


def _proposals(of: Operation, source: str, path: Path) -> Iterator[_Found]:
    constants = _constants(source)
    written = _written(source, constants)
    defined = kernels_in(source)
    if not defined:
        raise RungError(f"{path} has no header, and no __global__ function that one could be proposed for.")
    if not kernels_left(source):
        raise RungError(f"{path}: its own macros (#define, #if) leave no __global__ function to compile.")
    for some in written:  # of a function that is given the kernel, each that takes as much
        for w in [w for w in some if w.kernel not in defined]:
            names = [n for n in defined if len(kernel_parameters(source, n, str(path))) == len(w.arguments)]
            some[:] = [*(one for one in some if one is not w), *(replace(w, kernel=name) for name in names)]
    every = {(w.kernel, w.template, w.grid, w.block): w for w in itertools.chain.from_iterable(written)}
    launches = [*every.values()] or [Written(name) for name in defined]
    parts = {w.kernel for some in written if in_a_row(source, some) for w in some}  # of what a host function computes
    failures: list[RungError] = []
    alternatives: list[Iterator[_Found]] = []
    for launch in launches:  # each may be the operation by itself
        try:
            made = _for_launch(of, source, path, launch, constants)
            alternatives.append(itertools.chain([next(made)], made))
        except StopIteration:
            continue
        except RungError as failure:
            failures.append(failure)
    if not alternatives:
        if several := next((some for some in written if len({w.kernel for w in some}) > 1), None):
            row = ", ".join(dict.fromkeys(w.kernel for w in several))
            raise Unjudged(
                f"{failures[0]} If {row} do it in a row, the header has a [[launch]] for each (docs/header.md)."
            )
        raise failures[0] if failures else Unjudged(f"{path}: no kernel has the operands of {of.name}.")
    for turn in itertools.zip_longest(*alternatives):  # so that each kernel has its best proposal tried early
        for table, sure in filter(None, turn):
            kernel = table["launch"][0]["kernel"].partition("<")[0].rpartition("::")[2]
            yield table, sure and len(turn) == 1 and kernel not in parts


def in_a_row(source: str, launches: list[Written]) -> bool:
    """Whether kernels of a host function hand each other arrays; alternatives have the same ones."""
    given: dict[str, set[str]] = {}
    for w in launches:
        with suppress(RungError):
            pairs = zip(kernel_parameters(source, w.kernel, ""), w.arguments, strict=False)
            given[w.kernel] = {_variable(argument) for p, argument in pairs if p.pointer}
    return any(one & other and one != other for one, other in itertools.combinations(given.values(), 2))


def _for_launch(
    of: Operation, source: str, path: Path, written: Written, constants: dict[str, str]
) -> Iterator[_Found]:
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
        ranked: list[tuple[int, tuple[dict[str, str | float], Written, dict[str, Any], list[str], Any, bool]]] = []
        # The last says whether the text leaves nothing open but the parameters' names.
        for nth, (bind, meant) in enumerate(binds(of, parameters, launch, path, instance, body=body)):
            sized = {name: _buffer(entry, meant.scope, of) for name, entry in scratch.items()}
            if unknown := [name for name, entry in sized.items() if entry is None]:
                made, name = scratch[unknown[0]], unknown[0]
                raise Unjudged(f"{path}: what is {made}? Write a header with [buffers.{name}] shape = [...].")
            shapes = list(_shapes(of, source, body, instance, meant, bind, every, constants))
            step = OTHER_SHAPE if any(said for _, said in shapes) else 1
            rules = fixed(of, source, bind)
            for (i, needs), (j, (shape, said)) in itertools.product(enumerate(rules), enumerate(shapes)):
                # A launch that the file writes is hardly wrong: what the parameters are varies before it does.
                rank = nth + 2 * i + step * j
                for k, lengths in enumerate(_row_fixed(of, body, constants, [*bind.values(), *shape.values()])):
                    every_need = [*needs, *lengths]
                    ranked.append((rank + k, (bind, meant, sized, every_need, shape, said and not rules[1:])))
        for _, (bind, meant, sized, needs, shape, said) in sorted(ranked, key=lambda one: one[0]):
            whole = [*_multiples(of, parameters, bind, meant), *_demanded(of, parameters, bind, body)]
            limits = [*_within_limits(of, shape), *_whole_warps(source, shape)]
            needs = [*needs, *alone(of, bind, shape.values()), *whole, *limits]
            changed = {name: target for name, target in bind.items() if name != target}
            table: dict[str, Any] = {"idea": f"{launch.kernel} of {path.name}.", "dtypes": dtypes(parameters)}
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
            yield table, sure


def told(of: Operation, parameters: Iterable[Parameter], launch: Written, bind: Mapping[str, str | float]) -> bool:
    """Whether names and the host's launch say what every parameter is."""
    known = {*of.dims, *of.derived, *of.scalars}
    for p in parameters:
        target = str(bind[p.name])
        named = p.name.lower() == target or any(o.name == target and p.name.lower() in names_of(o) for o in of.operands)
        given = None if p.pointer else _over(launch.passed.get(p.name, ""), launch.scope, known)
        if not (named or p.name == target or (given is not None and given == target and not given.isdigit())):
            return False
    return True


def _multiples(
    of: Operation, parameters: tuple[Parameter, ...], bind: dict[str, str | float], launch: Written
) -> list[str]:
    """Conditions that the file itself states: vectors as the elements of an operand's rows, and the host's asserts."""
    found = []
    for p in parameters:
        lanes = re.search(r"[a-z]([248])$", p.ctype) if p.pointer else None
        if lanes and (shape := of.operand(str(bind[p.name])).shape):
            found.append(f"{product([str(shape[-1])])} % {lanes[1]} == 0")
    grid = _three(launch.grid, launch.scope | _sizes_of(parameters, bind), {*of.dims, *of.derived}) or []
    for node in itertools.chain.from_iterable(ast.walk(ast.parse(size, mode="eval")) for size in grid):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv) and isinstance(node.right, ast.Constant):
            left, by = ast.unparse(node.left), ast.unparse(node.right)  # divided without rounding up
            row = not any(left.endswith(need.partition(" % ")[0]) and f" % {by} " in need for need in found)
            if row and not re.search(r"[+-]|\bceil_div\b|//", left) and names_in(left):
                found.append(f"{left} % {by} == 0")
    for text in launch.asserted:
        if (rule := _over(text, launch.scope, {*of.dims, *of.derived})) and not rule.isdigit():
            found.append(f"{rule} == 0")
    return list(dict.fromkeys(found))


def _demanded(
    of: Operation, parameters: tuple[Parameter, ...], bind: dict[str, str | float], body: str
) -> list[str]:
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
        given = [*map(str.strip, _split(text))]
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
            number = _over(a, {**constants, **launch.scope}, set()) if a else constants.get(name)
            plain = bool(a) and (n >= len(given) or a in ("true", "false") or "::" in a)
            # Else one of the call's sizes, in brackets, or what only the caller knows.
            choices.append([number] if number else [a] if plain else [f"({a})", *usual[:1]] if a else usual)
        for picked in itertools.product(*choices):
            yield f"{named}<{', '.join(picked)}>"


def _of_sizes(
    of: Operation, instance: str, launch: Written, parameters: tuple[Parameter, ...], bind: dict[str, str | float]
) -> dict[str, str] | None:
    """Macros for the arguments of an instance of which one is in brackets, given by the call's sizes; None if not."""
    given = _split(instance.partition("<")[2].removesuffix(">"))
    means = _sizes_of(parameters, bind).items()
    scope = launch.scope | {passed.strip("()"): meant for n, meant in means if (passed := launch.passed.get(n))}
    sized = [_over(g, scope, {*of.dims, *of.derived}) if g.startswith("(") else g for g in given]
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


def dtypes(parameters: tuple[Parameter, ...]) -> list[str]:
    """The formats that a kernel or function is for: a narrow one, if any pointer has it."""
    if any(p.pointer and p.ctype == "Real" for p in parameters):
        return ["f32", "f16", "bf16"]
    named = [kind for p in parameters if p.pointer and (kind := POINTEES.get(p.ctype)) in ("f32", "f16", "bf16")]
    return [next((kind for kind in named if kind != "f32"), "f32")]


def _scratch(launch: Written, parameters: tuple[Parameter, ...]) -> dict[str, str]:
    """Pointers to tensors that the host's function makes for the kernel alone: what makes them."""
    found = {}
    for p in parameters:
        variable = _variable(launch.passed.get(p.name, ""))
        made = launch.scope.get(variable, "")
        if p.pointer and variable != launch.result and re.match(r"(?:torch|at)::(?:zeros|full|empty)\s*\(\s*\{", made):
            found[p.name] = made
    return found if launch.result else {}


def _variable(argument: str) -> str:
    """The variable that an argument is made of, without casts."""
    plain = re.sub(r"\b\w+_cast\s*<[^>]*>|^\s*\(\s*(?:\w+\s+)*\w+\s*\*\s*\)|[&(\s]", "", argument)
    return re.match(r"\w*", plain)[0]  # type: ignore[index]


def _buffer(made: str, scope: dict[str, str], of: Operation) -> dict[str, Any] | None:
    """A header's entry for a tensor that the host makes, such as torch::full({B, N}, -INFINITY)."""
    kind, inner = made.split("(", 1)
    sizes = [_over(size, scope, {*of.dims, *of.derived}) for size in _split(until(inner.partition("{")[2], 0, "}")[0])]
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


def _sized(of: Operation, launch: Written, bind: dict[str, str]) -> Written:
    """The launch, where sizes and strides of tensors (`q.size(1)`) are the operation's."""
    scope = dict(launch.scope)
    operands = {_variable(launch.passed.get(name, "")): of.operand(target) for name, target in bind.items()}
    sizes_of = re.compile(r"\s*(\w+)\.(size|stride)\(\s*(\d+)\s*\)\s*")
    asked = {name: found for name, value in launch.scope.items() if (found := sizes_of.fullmatch(value))}
    for name, found in asked.items():
        if not (operand := operands.get(found[1])):
            continue
        most, n = max(int(one[3]) for one in asked.values() if one[1] == found[1]), int(found[3])
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
    for targets in list(_operands(of, asked, launch.passed, path, function)):
        sized = _sized(of, launch, targets)
        scalars = [p for p in asked if p.name not in targets]
        choices = [_values(of, p, sized, scalars) for p in scalars]
        if None in choices or [] in choices:
            p = next(p for p, options in zip(scalars, choices, strict=True) if not options)
            raise Unjudged(
                f"{path}: what is {p.ctype} {p.name} of {function}({_signature(parameters)})? {of.name} has the sizes "
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


def _signature(parameters: Iterable[Parameter]) -> str:
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
    of: Operation, parameters: list[Parameter], passed: dict[str, str], path: Path, function: str
) -> Iterator[dict[str, str]]:
    """Operands for the pointers: by name, by another usual name, then by position among those of the same kind. A
    number may stand for an operand that no pointer is for."""
    pointers = [p for p in parameters if p.pointer]
    given = (parameters, passed, path, function)
    copies = [o for o in of.operands if o.copy_of]
    if copies and len(pointers) > len([o for o in copies if not o.written]):  # each in its own memory, and without gaps
        with suppress(RungError):
            yield from _fitted(of, [*copies, *(o for o in of.operands if o.optional and not o.copy_of)], *given)
    named = {p.name.lower() for p in pointers}
    views = [o for o in of.operands if o.view_of and o.name in named]
    plain = [o for o in of.operands if o.view_of is o.copy_of is None and o.name not in {v.view_of for v in views}]
    yield from _fitted(of, [*views, *plain], *given)


def _fitted(
    of: Operation, operands: list[Operand], parameters: list[Parameter], passed: dict[str, str], path: Path, kernel: str
) -> Iterator[dict[str, str]]:
    pointers = [p for p in parameters if p.pointer]
    numbers = [p for p in parameters if _real(p) and not _scalars(of, p)]
    consts = any(p.const for p in pointers)

    def suits(p: Parameter, o: Operand) -> bool:
        whole = o.dtype in ("i32", "i64")
        if not p.pointer:
            return o.constant and not o.optional and not whole
        return not (p.const and o.role == "out") and whole == (POINTEES.get(p.ctype) in ("i32", "i64"))

    def names(p: Parameter) -> list[str]:
        argument = re.sub(r"^d_|_d$|^dev_|_ptr$", "", _variable(passed.get(p.name, "").lower()))
        own = p.name.lower()
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
        fitting = [o for o in fitting if not o.optional] or fitting
        if not fitting:
            near = difflib.get_close_matches(p.name, [o.name for o in free if suits(p, o)], n=2, cutoff=0.0)
            mend = f"write a header with [bind] {p.name} = {' or '.join(json.dumps(name) for name in near)}."
            raise Unjudged(
                f"{path}: {p.name} of {kernel}({_signature(pointers)}, ...) is none of {of.name}'s operands "
                f"({', '.join(o.name for o in operands)}); {mend if near else 'none is left for it.'}"
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
                f"{of.name}'s {o.name}; `rung new` writes a file to start from."
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
    return not p.pointer and (p.ctype == "Real" or SCALAR_KINDS.get(p.ctype) in ("f32", "f64", "f16", "bf16"))


def _scalars(of: Operation, p: Parameter) -> list[str | float]:
    """The operation's scalars that have a number's name."""
    return [s for s in of.scalars if p.name.lower() in (s, *SCALARS.get(s, ()))]


def unknown(of: Operation, p: Parameter) -> bool:
    """Whether the name of a number says nothing: what it is is no more than a guess."""
    every = {*of.dims, *of.derived, *of.scalars}
    usual = _ROWS | _COLUMNS | _TOTAL | _SCALARS
    return not (p.pointer or p.name in every or p.name.lower() in usual or _BLOCKS.search(p.name.lower()))


def _values(of: Operation, p: Parameter, launch: Written, scalars: list[Parameter]) -> list[str | float]:
    """What a number may be, best first."""
    name, lower, argument = p.name, p.name.lower(), launch.passed.get(p.name, "")
    known = {*of.dims, *of.derived, *of.scalars}
    if _real(p):
        return _scalars(of, p)[:1] or ([_NEUTRAL[lower]] if lower in _NEUTRAL else [*of.scalars])
    options: list[str | float] = []
    given = _over(argument, launch.scope, known) if argument else None
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
    attends = {"NH", "T", "HS"} <= known
    if attends and name in ("NH", "T", "HS"):  # a name of its own
        return options
    rows, inner, total = of.sizes
    kinds = [q for q in scalars if SCALAR_KINDS.get(q.ctype, "").startswith(("i", "u"))]
    whole = [q for q in kinds if not _BLOCKS.search(q.name.lower())]
    others = {q.name.lower() for q in whole} - {"n"}
    pair = () if len(whole) != 2 or p not in whole or attends or "OC" in of.dims else _pair(rows, inner, p, whole)
    if "OC" in of.dims and (lower in _GEMM or len(whole) >= 3):
        options += [_GEMM[lower].replace("rows", rows)] if lower in _GEMM else []
        options += [rows, "OC", "C"]
    elif len(whole) == 1 and "OC" in of.dims:
        options += ["C"]
    elif attends:
        options += [*(d for d in known if d.lower() == lower), "T", "HS", "B * NH", "NH"]
    elif len(whole) == 1:
        options += [total, inner, rows] if lower in _TOTAL else [inner, total, rows]
    elif pair:
        options += [*pair, total]
    elif (lower in _ROWS and lower != "n") or (lower == "n" and others & (_COLUMNS - {"n", "k"})):
        options += [rows, inner, total]
    elif lower in _COLUMNS:
        options += [inner, rows, total]
    else:
        nearest = [d for d in known if d.lower() == lower or d.lower() == lower.replace("num_", "")]
        options += [*nearest, *of.dims, rows, total]
    usual = {dim: words for dim, words in _DIMS.items() if dim in known and lower in words}
    if attends or any(q.name.lower() in _DIMS["T"] for q in whole):
        heads = attends and not any(q.name.lower() in _DIMS["NH"] for q in whole)
        first = [*options[: given is not None], *pair[:1], *(["B * NH"] if heads and "B" in usual else [])]
        options = [*first, *usual, *options]
    return list(dict.fromkeys(options))[:4]


def _pair(rows: str, inner: str, p: Parameter, both: list[Parameter]) -> tuple[str, str]:
    """Rows and their length, in the order in which this one of two numbers is likely them: by names, else by place."""
    sides = [(q.name.lower() in _COLUMNS) - (q.name.lower() in _ROWS) for q in both]
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
    """What holds for rows that neither the parameters nor the launch count: there is one. A product that is given one
    size is square."""

    results = [of.operand(str(target)) for target in bind.values() if target in {o.name for o in of.operands}]
    rows = _named(of, [of.sizes[0], *(size for o in results if o.role == "out" for size in o.shape[:-1])])
    if "OC" in of.dims and _named(of, bind.values()) & {*of.dims} == {"C"}:
        return [f"{dim} == {'1' if dim == 'B' else 'C'}" for dim in of.dims if dim != "C"]
    counted = _named(of, [*bind.values(), *shape])
    return [f"{dim} == 1" for dim in of.dims if dim in rows - counted] if not rows >= {*of.dims} else []


def _row_fixed(of: Operation, body: str, constants: dict[str, str], told: Iterable[object]) -> list[list[str]]:
    """Conditions for a row's length that neither the parameters nor the launch say: the constants that the kernel
    names, the likeliest first."""
    heads = "HS" in of.derived
    inner = "HS" if heads else of.sizes[1]
    if inner not in (*of.dims, "HS") or {inner, *names_in(of.derived.get(inner, inner))} - {"NH"} & _named(of, told):
        return [[]]
    used = [n for n in constants if 2 <= int(constants[n]) <= LONGEST_ROW and re.search(rf"\b{n}\b", body)]
    used.sort(key=lambda name: not re.search(r"dim|head|hidden|col|^[cd]$|^hs$", name.lower()))
    values = list(dict.fromkeys(constants[n] for n in used))[:CANDIDATES]
    return [[f"C == {value} * NH" if heads else f"{inner} == {value}"] for value in values] or [[]]


def _scalars_fixed(of: Operation, source: str, bound: set[str]) -> list[list[str]]:
    fixed = [s for s in of.scalars if not any(s in names_in(b) for b in bound if _parses(b))]
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


def _parses(expression: str) -> bool:
    try:
        names_in(expression)
    except RungError:
        return False
    return True


# ---- the grid -------------------------------------------------------------------------------------------------------


def _shapes(
    of: Operation,
    source: str,
    body: str,
    kernel: str,
    launch: Written,
    bind: dict[str, str | float],
    parameters: tuple[Parameter, ...],
    constants: dict[str, str],
) -> Iterator[tuple[dict[str, Any], bool]]:
    """Grids and blocks, the likeliest first, and whether the host's code says them by the call's sizes."""
    known = {*of.dims, *of.derived, *of.scalars}
    names = [name for name, *_ in template_of(source, launch.kernel)]
    constants = constants | dict(zip(names, _split(kernel.partition("<")[2].rstrip(">")), strict=False))
    for name, index in _INDEX.findall(body):
        body = re.sub(rf"\b{name}\b(?!\s*=)", index, body)
    means = _sizes_of(parameters, bind)
    scope = {**launch.scope}
    for name, argument in launch.passed.items():
        if name in means and re.fullmatch(r"\(?\w+\)?", argument):
            scope[argument.strip("()")] = means[name]
    # A number of main's is one call's size.
    scope |= {name: value for name, value in means.items() if scope.get(name, "0").isdigit()}
    if launch.grid:
        grid, block = _three(launch.grid, scope, known), _three(launch.block, scope, known)
        shared = _over(launch.shared, scope, known) if launch.shared else None
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
                said = one is grid and threads is block and not all(map(str.isdigit, one))
                yield {"grid": _plain(one), "block": _plain(threads), **dynamic}, said
    yield from ((shape, False) for shape in _by_style(of, body, constants, means))


def _sizes_of(parameters: tuple[Parameter, ...], bind: dict[str, str | float]) -> dict[str, str]:
    return {p.name: f"({bind[p.name]})" for p in parameters if not p.pointer and p.name in bind}


def _by_style(
    of: Operation, body: str, constants: dict[str, str], means: dict[str, str]
) -> Iterator[dict[str, Any]]:
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
        yield from (per_element, row_threads, per_row, {**per_row, "block": columns})
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
        limit = _over(compared[1], {**constants, **means}, known) if compared else None
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


def _constants(source: str) -> dict[str, str]:
    found = dict(_MACRO.findall(without_comments(source)))
    found |= dict(_declared(code_only(source), "const"))
    solved = {}
    for name, value in found.items():
        number = _over(value, found, set())
        if number is not None and number.isdigit():
            solved[name] = number
    return solved


def _declared(text: str, having: str = "") -> Iterator[tuple[str, str]]:
    """The variables that a text declares with a value, as `int n = 4`, `dim3 grid(n, 2), block{32}`."""
    for found in _DECLARED.finditer(text):
        for one in _split(until(text, found.end(), ";")[0]) if having in found[1] else ():
            if made := re.fullmatch(r"(\w+)\s*(?:=\s*(.+)|[({](.*)[)}])", one, re.DOTALL):
                yield made[1], made[2] or (f"dim3({made[3]})" if found[2] in ("dim3", "auto") else made[3])


def _written(source: str, constants: dict[str, str]) -> list[list[Written]]:
    """The launches, by the host's function that makes them."""
    texts = [*host_part(source).split("\0"), *launching_macros(source)]
    if not any("<<<" in text for text in texts):  # a comment may show the launch
        texts = ["\n".join(line or block for line, block in _COMMENT.findall(source))]
    return [found for text in texts if (found := launches_in(text, constants))]


def launches_in(text: str, constants: dict[str, str]) -> list[Written]:
    """The launches of a host function's text."""
    if "<<<" not in text:
        return []
    scope = dict(constants)
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
        parts = _split(inside)
        if len(parts) >= 2:
            shared = parts[2] if len(parts) > 2 else ""
            kernel = match[1].rpartition("::")[2]
            launch = Written(kernel, match[2] or "", parts[0], parts[1], shared, _split(arguments), scope=scope)
            here.append(replace(launch, result=returned[1] if returned else "", asserted=asserted))
    return here


def _split(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for i, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    return [*parts, text[start:].strip()] if text.strip() else []


def _three(text: str, scope: dict[str, str], known: set[str]) -> list[str] | None:
    text = scope.get(text.strip(), text).strip()
    inner = re.fullmatch(r"dim3\s*[({](.*)[)}]", text, re.DOTALL)
    parts = _split(inner[1]) if inner else [text]
    guess = {"": str(BLOCK if len(parts) < 2 or "1" in parts[1:] else 16)}  # of what only the caller knows
    sizes = [_over(part, {**scope, **guess}, known) for part in parts]
    return [s for s in sizes if s is not None] if None not in sizes and sizes else None


def _over(text: str, scope: Mapping[str, str], known: set[str], depth: int = 0) -> str | None:
    """A C++ expression as an expression of a header over the operation's sizes; None if it is none."""
    for pattern, meant in _SPELLED.items():
        text = re.sub(pattern, meant, text)
    try:
        tree = _Sizes(scope, known, depth).visit(ast.parse(" ".join(text.split()), mode="eval"))
        text = ast.unparse(tree)
        return text if names_in(text) - {"min", "max", "ceil_div"} else str(evaluate(text, {}))
    except (SyntaxError, ValueError, RungError):
        return None


class _Sizes(ast.NodeTransformer):
    """Puts what `scope` says in the place of names, and a header's operators in the place of C++'s."""

    def __init__(self, scope: Mapping[str, str], known: set[str], depth: int) -> None:
        self.scope, self.known, self.depth = scope, known, depth

    def visit_Name(self, node: ast.Name) -> ast.expr:
        name, value = node.id, self.scope.get(node.id, node.id).strip()
        bound = value.startswith("(") and _parses(value) and names_in(value) <= self.known  # by a header's [bind]
        if (name in self.known and not value.startswith("(")) or name == "sizeof_real":
            return node
        if value == name:
            if not re.search(r"block|thread", name, re.IGNORECASE):
                raise ValueError(name)
            return ast.Constant(int(self.scope.get("", BLOCK)))  # left to the caller
        others = {n: v for n, v in self.scope.items() if n != name and not bound}
        inner = _over(value, others, self.known, self.depth + 1) if self.depth < DEEP else None
        return ast.parse(inner or "?", mode="eval").body

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name, given = getattr(node.func, "id", ""), node.args
        if name in ("ceil", "ceilf") and isinstance(one := given[0], ast.BinOp) and isinstance(one.op, ast.Div):
            given = [one.left, one.right]
        function = "ceil_div" if _CEIL.search(name) and len(given) == 2 else name
        if function not in ("min", "max", "ceil_div"):
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
