"""A rung as one Python file that needs torch (and Triton) alone: the kernel, its launch rule, a function to call."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuless.base.expressions import evaluate, names_in
from rung import precision
from rung.dtypes import DTYPES, ELEMENTS
from rung.errors import RungError
from rung.operation import Operand, Operation
from rung.rungs.arguments import SCALAR_KINDS
from rung.rungs.base import Rung
from rung.rungs.cuda import INCLUDE, CudaRung
from rung.rungs.header import Buffer, Expression, Launch
from rung.rungs.python import PythonRung

_HELPERS = """
from math import log2, sqrt


def ceil_div(a, b):
    return -(-a // b)


def round_up(a, b):
    return ceil_div(a, b) * b


def next_pow2(a):
    return 1 << max(0, int(a) - 1).bit_length()


def _expect(name, tensor, shape, dtype, align):
    if tuple(tensor.shape) != shape or tensor.dtype != dtype or not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous, {shape}, of {dtype}; it is {tuple(tensor.shape)} of {tensor.dtype}")
    if tensor.data_ptr() % align:
        raise ValueError(f"{name} must start at a multiple of {align} bytes; clone it")
"""  # noqa: E501 - it is code of its own


@dataclass(frozen=True)
class Signature:
    """How the exported function is called."""

    name: str
    inputs: tuple[Operand, ...]
    optional: tuple[Operand, ...]  # those that may be None
    outputs: tuple[Operand, ...]
    numbers: dict[str, Any]  # a dim that no shape determines has no default: None

    @property
    def parameters(self) -> str:
        tensors = [o.name for o in self.inputs] + [f"{o.name}=None" for o in self.optional]
        numbers = [n if v is None else f"{n}={v!r}" for n, v in self.numbers.items()]
        return ", ".join([*tensors, "*", *numbers] if numbers else tensors)


def signature(rung: Rung) -> Signature:
    """The inputs, outputs and numbers of a rung that can stand alone."""
    of = rung.operation
    bound = [o for o in of.operands if o.name in rung.binds]
    unsupported = [o.name for o in bound if o.view_of or o.role == "inout"]
    if unsupported:
        raise RungError(f"{rung.full_name} uses {unsupported[0]}, a view or a state, which an export cannot have.")
    inputs = tuple(o for o in bound if o.role == "in" and not o.nullable)
    free = {d: None for d in of.dims if d not in of.derived and d not in known_dims(of, inputs)}
    scalars = {n: v if isinstance(v, int | float) else None for n, v in of.scalars.items() if n not in of.derived}
    scalar_values = {n: v for n, v in scalars.items() if v is not None}
    return Signature(
        of.name,
        inputs,
        tuple(o for o in bound if o.role == "in" and o.nullable),
        tuple(o for o in bound if o.role == "out" and not o.nullable),
        {**free, **scalar_values},
    )


def known_dims(of: Operation, inputs: Iterable[Operand]) -> dict[str, str]:
    """Dims that follow from the inputs' shapes, as code over them."""
    found: dict[str, str] = {}
    for only_names in (True, False):
        for operand in inputs:
            for axis, size in enumerate(operand.shape):
                place = f"{operand.name}.shape[{axis}]"
                if isinstance(size, int):
                    continue
                if size in of.dims:
                    found.setdefault(size, place)
                unknown = names_in(size) - set(found) if size.strip() else set()
                if not only_names and len(unknown) == 1 and (dim := unknown.pop()) in of.dims:
                    first, second = (evaluate(size, {**dict.fromkeys(found, 1), dim: n}) for n in (1, 2))
                    if names_in(size) == {dim} and second != first:
                        found[dim] = f"({place} - {2 * first - second}) // {second - first}"
    return found


def dims_code(of: Operation, inputs: Iterable[Operand]) -> list[str]:
    """Lines that give every dim, derived ones and scalars that follow from dims included."""
    lines = [f"{dim} = {code}" for dim, code in known_dims(of, inputs).items()]
    lines += [f"{name} = {code}" for name, code in of.derived.items()]
    return lines + [f"{n} = {v}" for n, v in of.scalars.items() if isinstance(v, str) and n not in of.derived]


def standalone(rung: Rung) -> str:
    """The file: it defines a function of the operation's name."""
    called = signature(rung)
    if isinstance(rung, CudaRung):
        front, body = _cuda(rung)
    elif isinstance(rung, PythonRung) and not re.search(r"^\s*(from|import) rung", rung.source, re.MULTILINE):
        front, body = re.sub(r"^def run\(", "def launch(", rung.source, flags=re.MULTILINE), _python(rung)
    else:
        raise RungError(f"{rung.full_name} needs rung itself to run; export a rung in CUDA C++ or Triton.")
    of = rung.operation
    real = next(o for o in (*called.inputs, *called.outputs) if o.dtype == "real").name
    lines = [
        *dims_code(of, called.inputs),
        *(f"{name} = TUNING[{name!r}]" for name in rung.tune),
        f"sizeof_real = {real}.element_size()",
        f"_device = {real}.device",
        "_of_gpu = torch.cuda.get_device_properties(_device) if _device.type == 'cuda' else None",
        "sm, sms = (_of_gpu.major * 10 + _of_gpu.minor, _of_gpu.multi_processor_count) if _of_gpu else (90, 4)",
        "emulated, max_grid_y = 0, 65535",
        *(f"{name} = {code}" for name, code in rung.let.items()),
        f"if {real}.dtype not in FORMATS:",
        f'    raise ValueError(f"{of.name} takes {{list(FORMATS)}}, not {{{real}.dtype}}")',
        *(f"if not ({rule}):\n        raise ValueError({f'{rung.full_name} needs {rule}'!r})" for rule in rung.needs),
    ]
    for operand in (*called.inputs, *called.optional):
        name, kind = operand.name, _dtype(operand.dtype, real)
        check = f"_expect({name!r}, {name}, {_shape(operand.shape)}, {kind}, {rung.align})"
        lines.append(f"if {operand.name} is not None:\n        {check}" if operand in called.optional else check)
    lines += [_empty(o.name, o.shape, o.dtype, real) for o in called.outputs]
    lines += [f"{name}.zero_()" for name in rung.header.zeroed]
    given = ", ".join(o.name for o in called.outputs)
    code = "\n    ".join([*lines, *body, f"return {given}"])
    formats = ", ".join(f"torch.{kind}" for kind in _formats(rung))
    docstring = f"{of.summary}\n\n    By {rung.full_name}: {rung.idea}".replace("\\", "/").replace('"""', "'")
    return (
        f"{front.rstrip()}\n\nTUNING = {rung.tuned(None)!r}\nFORMATS = ({formats},)\n{_HELPERS}\n\n"
        f'def {of.name}({called.parameters}):\n    """{docstring}"""\n    {code}\n'
    )


def _formats(rung: Rung) -> dict[str, str]:
    """torch's dtypes that the rung takes, each with its number format; float32 itself goes before TF32."""
    order = sorted(rung.dtypes, key=lambda name: name != "tf32")
    return {ELEMENTS[DTYPES[name].stored]: name for name in order}


def _shape(shape: Iterable[Expression]) -> str:
    return "(" + "".join(f"{size}, " for size in shape) + ")"


def _dtype(kind: str, real: str) -> str:
    return f"{real}.dtype" if kind == "real" else f"torch.{ELEMENTS[kind]}"


def _empty(name: str, shape: Iterable[Expression], kind: str, real: str) -> str:
    return f"{name} = torch.empty({_shape(shape)}, dtype={_dtype(kind, real)}, device=_device)"


def _strides(rung: Rung, names: Iterable[str]) -> list[str]:
    """Lines for the strides that expressions name."""
    lines = []
    for operand in rung.operation.operands:
        for axis, size in enumerate(operand.shape):
            label = size if isinstance(size, str) and size.isidentifier() else str(axis)
            if (name := f"{operand.name}_stride_{label}") in names:
                lines.append(f"{name} = {operand.name}.stride({axis})")
    return lines


def _buffers(buffers: Mapping[str, Buffer], real: str) -> list[str]:
    lines = []
    for name, buffer in buffers.items():
        lines.append(_empty(name, buffer.shape, buffer.dtype, real))
        if buffer.zero or buffer.zero_once:
            lines.append(f"{name}.fill_(float('{buffer.fill}'))" if buffer.fill else f"{name}.zero_()")
    return lines


def _real(rung: Rung) -> str:
    return next(o.name for o in rung.operation.operands if o.name in rung.binds and o.dtype == "real")


def _python(rung: PythonRung) -> list[str]:
    facts, buffers = rung.facts, rung.header.buffers
    known = {o.name for o in rung.operation.operands if o.name in rung.binds}
    given = []
    for name, required in facts.parameters.items():
        if name == "dtype":
            given.append("dtype={'float32': 'f32', 'float16': 'f16', 'bfloat16': 'bf16'}"
                         f"[str({_real(rung)}.dtype).partition('.')[2]]")  # fmt: skip
        elif required or name in known or name in buffers or name in rung.tune:
            nullable = name in known and rung.operation.operand(name).nullable
            outs = nullable and rung.operation.operand(name).role == "out"
            given.append(f"{name}={'None' if outs else name}")
    return [*_strides(rung, facts.parameters), *_buffers(buffers, _real(rung)), f"launch({', '.join(given)})"]


# ---- CUDA C++ --------------------------------------------------------------------------------------------------------


def inlined(rung: CudaRung) -> str:
    """The source with the ladders' own headers inlined, each once, and without the rung's own header."""
    assert rung.path is not None
    places, seen = (rung.path.parent, INCLUDE), set[Path]()

    def text_of(source: str) -> str:
        def put(match: re.Match[str]) -> str:
            path = next((p / match[1] for p in places if (p / match[1]).is_file()), None)
            if path is None or path in seen:
                return "" if path else match[0]
            seen.add(path)
            return text_of(path.read_text(encoding="utf-8").replace("#pragma once\n", ""))

        return re.sub(r'^[ \t]*#include "([^"]+)".*$', put, source, flags=re.MULTILINE)

    return text_of(re.sub(r"\A\s*/\*---.*?---\*/\n", "", rung.source, flags=re.DOTALL))


def plain_launches(rung: CudaRung) -> tuple[Launch, ...]:
    """Its launches, where each is of the usual kind; a RungError otherwise."""
    h = rung.header
    special = {
        "tensor maps": bool(h.maps), "constant memory": bool(h.constants),
        "clusters, cooperative or dependent launches": any(e.cluster or e.cooperative or e.pdl for e in h.launches),
        "launches for each of several": any(e.each for e in h.launches), "code for one architecture": h.arch_specific,
    }  # fmt: skip
    found = next((what for what, used in special.items() if used), None)
    if found is not None:
        raise RungError(f"{rung.full_name} uses {found}, which an export cannot launch; take a rung without.")
    for entry in h.launches:
        if not re.search(rf'extern\s+"C"[^;{{]*\b{re.escape(entry.kernel)}\s*\(', rung.source):
            raise RungError(f'{rung.full_name}: {entry.kernel} is not extern "C", so that an export cannot name it.')
    return h.launches


def _cuda(rung: CudaRung) -> tuple[str, list[str]]:
    launches = plain_launches(rung)
    runtime = (Path(__file__).parent / "runtime.py").read_text(encoding="utf-8")
    table = ", ".join(f"torch.{kind}: {DTYPES[name].macro!r}" for kind, name in _formats(rung).items())
    front = f"{runtime}\nMACROS = {{{table}}}\nSOURCE = {_literal(inlined(rung))}"
    h, real = rung.header, _real(rung)
    defines = {**{n: n for n in rung.tune}, **{f"DIM_{d}": d for d in h.dims}, **h.define}
    cubins = ", ".join(f"{name!r}: int({code})" for name, code in defines.items())
    body = [*_buffers(h.buffers, real), f"_defines = {{MACROS[{real}.dtype]: 1, {cubins}}}"]
    needed: set[str] = set()
    calls = []
    for entry in launches:
        arguments = []
        for parameter in rung.parameters[entry.kernel]:
            target = entry.bind.get(parameter.name, h.bind.get(parameter.name, parameter.name))
            if parameter.pointer:
                operand = next((o for o in rung.operation.operands if o.name == target), None)
                missing = target == "null" or (operand is not None and operand.nullable and operand.role == "out")
                arguments.append(f"('pointer', {None if missing else target})")
                continue
            kind = SCALAR_KINDS.get(parameter.ctype, "")
            if kind in ("", "f16", "bf16"):
                raise RungError(f"{rung.full_name} passes {parameter.name} as {parameter.ctype}, not a plain number.")
            whole = kind not in ("f32", "f64")
            arguments.append(f"({kind!r}, {f'int({target})' if whole else target})")
            needed |= names_in(str(target))
        call = (f"_launch(SOURCE, _defines, {h.options!r}, {entry.kernel!r}, {_three(entry.grid)}, "
                f"{_three(entry.block)}, int({entry.shared}), [{', '.join(arguments)}])")  # fmt: skip
        calls.append(f"if {entry.when}:\n        {call}" if entry.when is not None else call)
        for code in (*entry.grid, *entry.block, entry.shared, entry.when or 0):
            needed |= names_in(str(code))
    return front, [*_strides(rung, needed), *body, *calls]


def _literal(text: str) -> str:
    """The text as a raw string, so that the kernel stays readable."""
    return f"r'''\n{text}'''" if "'''" not in text and not text.endswith("\\") else repr(text)


def _three(sizes: tuple[Expression, ...]) -> str:
    x, y, z = (*sizes, 1, 1)[:3]
    return f"(int({x}), int({y}), int({z}))"


# ---- a user's own call of the operation ------------------------------------------------------------------------------


def library_code(of: Operation) -> tuple[str, str]:
    """Code of the operation's library call that stands alone, and the call over operands and dims."""
    outs = {o.name for o in of.operands if o.role == "out"}
    calls = [x.run for x in of.libraries if x.where == "any" and not x.needs]
    run = next((r for r in calls if inspect.isfunction(r) and not outs & set(inspect.signature(r).parameters)), None)
    if run is None or "<" in run.__qualname__:
        raise RungError(f"{of.name} has no library call that could be the reference of an export; use --to torch.")
    definitions: dict[str, ast.stmt] = {}
    for path in (precision.__file__, inspect.getfile(run)):
        for node in ast.parse(Path(path).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                definitions[node.name] = node
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                definitions[node.targets[0].id] = node
    included: dict[str, str] = {}

    def include(name: str) -> None:
        used = {n.id for n in ast.walk(definitions[name]) if isinstance(n, ast.Name)}
        included[name] = ""  # in place; what it uses may follow it
        for other in sorted(used & set(definitions) - set(included)):
            include(other)
        included[name] = ast.unparse(definitions[name])

    include(run.__name__)
    known = {*(o.name for o in of.operands), *of.dims, *of.derived, *of.scalars}
    names = [p for p in inspect.signature(run).parameters if p in known or p == "dtype"]
    given = ", ".join(f"{n}={n}" if n in known else "dtype='f32'" for n in names)
    front = "import math\nfrom collections.abc import Iterator\nfrom contextlib import contextmanager\n\nimport torch\n"
    code = "\n\n\n".join(sorted(included.values(), key=lambda text: text.startswith(("def ", "@"))))
    return f"{front}import torch.nn.functional as F\n\n\n{code}\n", f"{run.__name__}({given})"
