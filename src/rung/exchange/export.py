"""Exports a rung in other projects' formats: a torch package, a kernel of the hub, a benchmark's solution."""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import uuid
from collections.abc import Callable
from pathlib import Path

from gpuless.base.expressions import evaluate_int, names_in
from rung import plugins
from rung.dtypes import ELEMENTS
from rung.dtypes import dtype as named
from rung.errors import RungError
from rung.exchange.standalone import Signature, dims_code, inlined, library_code, plain_launches, signature, standalone
from rung.operation import Operand, Values
from rung.rungs import catalogue
from rung.rungs.base import Rung
from rung.rungs.cuda import CudaRung

VERSION = 1


def export(rung: Rung, to: str, folder: Path) -> list[Path]:
    """Write the rung into the folder; returns the files."""
    others = plugins.entries(plugins.EXPORTS)
    if to not in TARGETS and to not in others:
        raise RungError(f"--to {to} is not known; use one of {', '.join([*TARGETS, *others])}.")
    if folder.exists() and any(folder.iterdir()):
        raise RungError(f"{folder} is not empty; name another folder.")
    texts = TARGETS[to](rung) if to in TARGETS else others[to].load()(rung)
    made = []
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        made.append(path)
    return made


def _doc(rung: Rung, what: str) -> str:
    return f'"""{what}: {rung.full_name} of rung. {rung.idea}"""\n\n'.replace("\\", "/")


# ---- torch.library ---------------------------------------------------------------------------------------------------


def _torch(rung: Rung) -> dict[str, str]:
    """A package whose import registers `torch.ops.rung_export.NAME`, with its fake implementation."""
    called = signature(rung)
    typed = [f"{o.name}: torch.Tensor" for o in called.inputs]
    typed += [f"{o.name}: torch.Tensor | None = None" for o in called.optional]
    typed += [f"{n}: int" if v is None else f"{n}: {type(v).__name__} = {v!r}" for n, v in called.numbers.items()]
    given = ", ".join(f"{n}={n}" for n in _arguments(called))
    result = "torch.Tensor"
    if len(called.outputs) > 1:
        result = f"tuple[{', '.join([result] * len(called.outputs))}]"
    real = next(o.name for o in (*called.inputs, *called.outputs) if o.dtype == "real")
    dims = "\n    ".join(dims_code(rung.operation, called.inputs))
    fakes = ", ".join(
        f"{real}.new_empty(({''.join(f'{s}, ' for s in o.shape)}), dtype={_kind(o, real)})" for o in called.outputs
    )
    name = called.name
    text = f"""{_doc(rung, "An operator of torch")}import torch

from . import kernel


@torch.library.custom_op("rung_export::{name}", mutates_args=())
def {name}({", ".join(typed)}) -> {result}:
    return kernel.{name}({given})


@{name}.register_fake
def _({", ".join(typed)}) -> {result}:
    {dims}
    return {fakes}
"""
    package = f"rung_{name}"
    project = (
        f'[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n\n[project]\n'
        f'name = "{package}"\nversion = "{VERSION}"\ndependencies = ["torch"]\n'
    )
    return {f"{package}/__init__.py": text, f"{package}/kernel.py": standalone(rung), "pyproject.toml": project}


def _arguments(called: Signature) -> list[str]:
    return [*(o.name for o in called.inputs), *(o.name for o in called.optional), *called.numbers]


def _kind(operand: Operand, real: str) -> str:
    return f"{real}.dtype" if operand.dtype == "real" else f"torch.{ELEMENTS[operand.dtype]}"


# ---- the hub's kernels -----------------------------------------------------------------------------------------------


def _hf_kernel(rung: Rung) -> dict[str, str]:
    """A kernel in pure Python, as `kernels.get_local_kernel` loads it."""
    name = signature(rung).name
    texts = {
        "__init__.py": f'{_doc(rung, "A kernel")}from .kernel import {name}\n\n__all__ = ["{name}"]\n',
        "kernel.py": standalone(rung),
    }
    digest = hashlib.sha256("".join(texts.values()).encode()).hexdigest()[:12]
    sums = {n: base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() for n, t in texts.items()}
    metadata = {
        "name": f"rung-{name.replace('_', '-')}",
        "id": f"_rung_{name}_{digest}",
        "version": VERSION,
        "license": "MIT",
        "python-depends": [],
        "backend": {"type": "cuda"},
        "digest": {"algorithm": "sha256", "files": sums},
    }
    texts["metadata.json"] = json.dumps(metadata, indent=2) + "\n"
    return {f"build/torch-cuda/{n}": text for n, text in texts.items()}


# ---- benchmarks ------------------------------------------------------------------------------------------------------


def _same_as_library(rung: Rung) -> Signature:
    """The signature of a rung that computes the same as the library call."""
    called = signature(rung)
    extra = [o.name for o in (*called.inputs, *called.outputs) if o.optional]
    if extra or len(called.outputs) != 1:
        difference = ", ".join(extra) or "several outputs"
        raise RungError(f"{rung.full_name} takes or returns {difference}; the library call does not.")
    return called


def _sizes(rung: Rung) -> Values:
    """A shape of the model that the rung takes."""
    of = rung.operation
    real = next(d for d in ("f32", *rung.dtypes) if d in rung.dtypes)
    for values in reversed([of.complete(v) for v in of.shapes.values()]):
        if rung.refusal(values, named(real)) is None:
            return values
    raise RungError(f"{rung.full_name} takes none of the operation's shapes in {real}.")


def _operand(rung: Rung, operand: Operand, shape: str, more: str, below: str) -> str:
    if operand.below is not None:
        return f"torch.randint(0, {below}, {shape}, {more}, dtype=torch.{ELEMENTS[operand.dtype]})"
    kind = "float32" if operand.dtype == "real" else ELEMENTS[operand.dtype]
    if not kind.startswith(("float", "bfloat")):
        raise RungError(f"{rung.full_name}: an export cannot draw {operand.name}, whose numbers the operation makes.")
    return f"torch.randn({shape}, {more}, dtype=torch.{kind})"


def _shape_code(operand: Operand) -> str:
    return "(" + "".join(f"{size}, " for size in operand.shape) + ")"


def _kernelbench(rung: Rung) -> dict[str, str]:
    """problem.py with Model, and solution.py with ModelNew."""
    called = _same_as_library(rung)
    code, call = library_code(rung.operation)
    values = _sizes(rung)
    numbers = {n: values.get(n, v) for n, v in called.numbers.items()}
    takes = ", ".join(f"{n}={v!r}" for n, v in numbers.items())
    keeps = "\n        ".join(["super().__init__()", *(f"self.{n} = {n}" for n in numbers)])
    tensors = ", ".join(o.name for o in called.inputs)
    unpack = [f"{n} = self.{n}" for n in numbers]
    nothing = [f"{o.name} = None" for o in called.optional]
    body = "\n        ".join([*dims_code(rung.operation, called.inputs), *unpack, *nothing, f"return {call}"])
    given = ", ".join([*(o.name for o in called.inputs), *(f"{n}=self.{n}" for n in numbers)])
    init = f"    def __init__(self{', ' + takes if takes else ''}):\n        {keeps}\n"
    dims = "\n".join(f"{d} = {values[d]}" for d in rung.operation.dims)
    made = ", ".join(_operand(rung, o, _shape_code(o), "", str(o.below)).replace(", , ", ", ") for o in called.inputs)
    problem = (
        f"{_doc(rung, 'A problem of KernelBench')}{code}\n{dims}\n\n\nclass Model(torch.nn.Module):\n{init}\n"
        f"    def forward(self, {tensors}):\n        {body}\n\n\ndef get_inputs():\n    return [{made}]\n\n\n"
        "def get_init_inputs():\n    return []\n"
    )
    solution = (
        f"{standalone(rung)}\n\nclass ModelNew(torch.nn.Module):\n{init}\n    def forward(self, {tensors}):\n"
        f"        return {called.name}({given})\n"
    )
    return {"problem.py": problem, "solution.py": solution}


def _popcorn(rung: Rung) -> dict[str, str]:
    """task.yml, reference.py and submission.py of a problem in GPU MODE's format."""
    called = _same_as_library(rung)
    code, call = library_code(rung.operation)
    of = rung.operation
    dims = [d for d in of.dims if d not in of.derived]
    given = ", ".join([*(o.name for o in called.inputs), *(f"{n}={n}" for n in called.numbers)])
    handed = ", ".join([*(o.name for o in called.inputs), *called.numbers])
    fields = ", ".join(f"{d}: int" for d in dims)
    made = ",\n        ".join(
        _operand(rung, o, _shape_code(o), 'generator=gen, device="cuda"', str(o.below)) for o in called.inputs
    )
    derived = "\n    ".join(f"{n} = {c}" for n, c in {**of.derived, **of.scalars}.items()) or "pass"
    nothing = [f"{o.name} = None" for o in called.optional]
    body = "\n    ".join([f"{handed}, = data", *dims_code(of, called.inputs), *nothing, f"return {call}"])
    reference = (
        f"{_doc(rung, 'A problem')}{code}\n\ndef generate_input({fields}, seed: int):\n    {derived}\n"
        f'    gen = torch.Generator(device="cuda")\n    gen.manual_seed(seed)\n    return (\n        {made},\n'
        f"        {''.join(f'{n}, ' for n in called.numbers)}\n    )\n\n\ndef ref_kernel(data):\n    {body}\n\n\n"
        "def check_implementation(data, output):\n    expected = ref_kernel(data)\n"
        "    if output.shape != expected.shape or output.dtype != expected.dtype:\n"
        '        return False, f"got {tuple(output.shape)} of {output.dtype}"\n'
        "    bound = 1e-4 * expected.double().square().mean().sqrt().item() + 1e-5\n"
        "    good = torch.allclose(output, expected, rtol=1e-4, atol=bound)\n"
        '    return good, "" if good else "mismatch found"\n'
    )
    submission = (
        f"#!POPCORN leaderboard {called.name}\n{standalone(rung)}\n\ndef custom_kernel(data):\n"
        f"    {handed}, = data\n    return {called.name}({given})\n"
    )
    small = [c for c in of.cases if c.where == "any" and "f32" in c.dtypes and not c.change][:6]
    tests = [{d: c.values[d] for d in dims} | {"seed": 4242 + i} for i, c in enumerate(small)]
    timed = [{d: v[d] for d in dims} | {"seed": 5001 + i} for i, v in enumerate(of.shapes.values())]
    task = {
        "files": [{"name": n, "source": s} for n, s in (("submission.py", "@SUBMISSION@"),
                  ("reference.py", "reference.py"), ("eval.py", "../eval.py"))],
        "lang": "py", "description": of.summary, "config": {"main": "eval.py"}, "tests": tests, "benchmarks": timed,
    }  # fmt: skip
    listed = "\n".join(f"{key}: {json.dumps(value)}" for key, value in task.items())
    return {"reference.py": reference, "submission.py": submission, "task.yml": listed + "\n"}


def _flashinfer(rung: Rung) -> dict[str, str]:
    """A definition, a workload for each shape, and the rung as a solution, for flashinfer-bench."""
    called = _same_as_library(rung)
    code, call = library_code(rung.operation)
    of = rung.operation
    wide = {n for o in (*called.inputs, *called.outputs) for s in o.shape for n in [str(s)] if not n.isidentifier()}
    if wide or called.optional or called.numbers.keys() & set(of.dims):
        raise RungError(f"{rung.full_name} has shapes or operands that flashinfer-bench cannot express.")

    def spec(o: Operand) -> dict[str, object]:
        return {"shape": [str(s) for s in o.shape], "dtype": "float32" if o.dtype == "real" else ELEMENTS[o.dtype]}

    name = f"rung_{of.name}"
    tensors = ", ".join(o.name for o in called.inputs)
    defaults = "\n    ".join(f"{n} = {v!r}" for n, v in called.numbers.items())
    body = "\n    ".join([*dims_code(of, called.inputs), *([defaults] if defaults else []), f"return {call}"])
    definition = {
        "name": name, "op_type": of.name, "description": of.summary, "axes": {d: {"type": "var"} for d in of.dims},
        "inputs": {o.name: spec(o) for o in called.inputs}, "outputs": {o.name: spec(o) for o in called.outputs},
        "reference": f"{code}\n\ndef run({tensors}):\n    {body}\n",
    }  # fmt: skip
    main = f"{standalone(rung)}\n\ndef entry({tensors}):\n    return {of.name}({tensors})\n"
    solution = {
        "name": f"{name}_{rung.name}", "definition": name, "author": "rung", "description": rung.idea,
        "spec": {"language": "triton" if rung.kind == "triton" else "python", "target_hardware": ["cuda"],
                 "entry_point": "main.py::entry", "dependencies": [], "destination_passing_style": False},
        "sources": [{"path": "main.py", "content": main}],
    }  # fmt: skip
    lines = []
    for values in of.shapes.values():
        axes = {d: values[d] for d in of.dims}
        same = uuid.uuid5(uuid.NAMESPACE_OID, f"{name} {axes}")
        workload = {"axes": axes, "inputs": {o.name: {"type": "random"} for o in called.inputs}, "uuid": str(same)}
        lines.append(json.dumps({"definition": name, "workload": workload}))
    return {
        f"definitions/{of.name}/{name}.json": json.dumps(definition, indent=2) + "\n",
        f"solutions/rung/{of.name}/{name}/{name}_{rung.name}.json": json.dumps(solution, indent=2) + "\n",
        f"workloads/{of.name}/{name}.jsonl": "\n".join(lines) + "\n",
    }


# ---- LeetGPU ---------------------------------------------------------------------------------------------------------

_HOST = """
typedef long long whole;
static whole ceil_div(whole a, whole b) { return (a + b - 1) / b; }
static whole round_up(whole a, whole b) { return ceil_div(a, b) * b; }
static whole next_pow2(whole a) { whole n = 1; while (n < a) n *= 2; return n; }
static whole lesser(whole a, whole b) { return a < b ? a : b; }
static whole greater(whole a, whole b) { return a > b ? a : b; }
"""


def _any_shape(rung: CudaRung) -> bool:
    """Whether its code is the same for every shape."""
    h = rung.header
    return not h.dims and all(names_in(str(c)) <= {*rung.tuned(None), "sizeof_real"} for c in h.define.values())


def _leetgpu(rung: Rung) -> dict[str, str]:
    """solve.cu: the kernels in float32 and `extern "C" void solve(...)` over pointers of the device."""
    if not isinstance(rung, CudaRung):
        raise RungError(f"{rung.full_name} is not CUDA C++, which LeetGPU's solve needs.")
    called, h, of = signature(rung), rung.header, rung.operation
    if "f32" not in rung.dtypes:
        raise RungError(f"{rung.full_name} has no f32 version, which LeetGPU's challenges need.")
    tuning = rung.tuned(None)
    if not _any_shape(rung):
        ladder = catalogue.rungs(of.name, libraries=False)
        others = ", ".join(r.name for r in ladder if isinstance(r, CudaRung) and "f32" in r.dtypes and _any_shape(r))
        raise RungError(f"{rung.full_name} is compiled for one shape at a time; of {of.name} take {others or 'none'}.")
    constants = {**tuning, "sizeof_real": 4}
    macros = {"RUNG_F32": 1, **tuning, **{n: evaluate_int(c, constants, n) for n, c in h.define.items()}}
    of_all = {o.name: o for o in of.operands}

    def pointer(o: Operand) -> str:
        ctype = {"real": "float", "f32": "float", "i32": "int", "i64": "int64_t"}.get(o.dtype)
        if ctype is None:
            raise RungError(f"{rung.full_name} takes {o.name} of {o.dtype}, which LeetGPU's solve does not support.")
        return f"{'const ' if o.role == 'in' else ''}{ctype}* {o.name}"

    numbers = [f"int {d}" for d in of.dims if d not in of.derived]
    parameters = ", ".join([*(pointer(o) for o in (*called.inputs, *called.outputs)), *numbers])
    scalars = {n: v for n, v in called.numbers.items() if n in of.scalars}
    lines = [f"const {'double' if isinstance(v, float) else 'whole'} {n} = {v!r};" for n, v in scalars.items()]
    for name, code in {**of.derived, **{n: v for n, v in of.scalars.items() if isinstance(v, str)}}.items():
        lines.append(f"const whole {name} = {_cpp(code)};")
    lines += ["const whole sizeof_real = 4, emulated = 0, max_grid_y = 65535;"]
    lines += ["int sm_major = 0, sm_minor = 0, sm_count = 0;"]
    for name, attribute in (("sm_major", "ComputeCapabilityMajor"), ("sm_minor", "ComputeCapabilityMinor"),
                            ("sm_count", "MultiProcessorCount")):  # fmt: skip
        lines.append(f"cudaDeviceGetAttribute(&{name}, cudaDevAttr{attribute}, 0);")
    lines += ["const whole sm = sm_major * 10 + sm_minor, sms = sm_count;"]
    lines += [f"const whole {n} = {_cpp(str(code))};" for n, code in rung.let.items()]
    for name, buffer in h.buffers.items():
        if buffer.fill:
            raise RungError(f"{rung.full_name} fills the buffer {name} with {buffer.fill}; a host of LeetGPU cannot.")
        size = " * ".join(f"({_cpp(str(s))})" for s in buffer.shape)
        lines += [f"void* {name} = nullptr;", f"cudaMalloc(&{name}, ({size}) * {8 if '64' in buffer.dtype else 4});"]
        if buffer.zero or buffer.zero_once:
            lines.append(f"cudaMemset({name}, 0, ({size}) * {8 if '64' in buffer.dtype else 4});")
    for o in called.outputs:
        if o.name in h.zeroed:
            size = " * ".join(f"({_cpp(str(s))})" for s in o.shape)
            lines.append(f"cudaMemset({o.name}, 0, ({size}) * {8 if '64' in o.dtype else 4});")
    for entry in plain_launches(rung):
        arguments = []
        for parameter in rung.parameters[entry.kernel]:
            target = str(entry.bind.get(parameter.name, h.bind.get(parameter.name, parameter.name)))
            if parameter.pointer:
                absent = target == "null" or (target in of_all and of_all[target].nullable)
                const = "const " if parameter.const else ""
                arguments.append("nullptr" if absent else f"({const}{parameter.ctype}*){target}")
            else:
                arguments.append(f"({parameter.ctype})({_cpp(target)})")
        if any("_stride_" in n for c in (*entry.grid, *entry.block, entry.shared) for n in names_in(str(c))):
            raise RungError(f"{rung.full_name} needs strides, which LeetGPU's solve does not support.")
        grid, block = (", ".join(f"(unsigned)({_cpp(str(c))})" for c in sizes) for sizes in (entry.grid, entry.block))
        shared = _cpp(str(entry.shared))
        launch = [
            f"cudaFuncSetAttribute((const void*){entry.kernel}, cudaFuncAttributeMaxDynamicSharedMemorySize, "
            f"(int)({shared}));",
            f"{entry.kernel}<<<dim3({grid}), dim3({block}), {shared}>>>({', '.join(arguments)});",
        ]
        lines += [f"if ({_cpp(str(entry.when))}) {{", *launch, "}"] if entry.when is not None else launch
    lines += ["cudaDeviceSynchronize();", *(f"cudaFree({name});" for name in h.buffers)]
    defines = "\n".join(f"#define {n} {v}" for n, v in macros.items())
    rules = "".join(f"// It needs {rule}.\n" for rule in rung.needs)
    body = "\n    ".join(lines)
    # Tunables and dims are macros and variables of one name: the kernels come first, then names are variables again.
    undone = "\n".join(f"#undef {n}" for n in macros)
    again = "\n    ".join(f"const whole {n} = {v};" for n, v in tuning.items())
    text = (
        f"// {rung.full_name} of rung: {rung.idea}\n{rules}#include <cuda_runtime.h>\n{defines}\n"
        f"{inlined(rung)}\n{undone}\n"
        f'{_HOST}\nextern "C" void solve({parameters})\n{{\n    {again}\n    {body}\n}}\n'
    )
    return {"solve.cu": text}


def _cpp(code: str) -> str:
    """An expression of a header as C++ over `long long`."""

    def text(node: ast.AST) -> str:
        match node:
            case ast.Constant(value=value):
                return str(value).lower() if isinstance(value, bool) else str(value)
            case ast.Name(id=name):
                return name
            case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as power)):
                return "(" + " * ".join([text(left)] * power or ["1"]) + ")"
            case ast.BinOp(left=left, op=op, right=right):
                sign = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "/", ast.Mod: "%", ast.LShift: "<<",
                        ast.RShift: ">>", ast.BitAnd: "&", ast.BitOr: "|"}.get(type(op))  # fmt: skip
                if sign is None:
                    raise RungError(f"{code!r} divides into fractions, which an export to C++ cannot express.")
                return f"({text(left)} {sign} {text(right)})"
            case ast.UnaryOp(op=op, operand=operand):
                return f"({'!' if isinstance(op, ast.Not) else '-'}{text(operand)})"
            case ast.BoolOp(op=op, values=values):
                return "(" + (" && " if isinstance(op, ast.And) else " || ").join(map(text, values)) + ")"
            case ast.Compare(left=left, ops=ops, comparators=rights):
                terms = [left, *rights]
                signs = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
                parts = [f"{text(a)} {signs[type(o)]} {text(b)}" for o, a, b in zip(ops, terms, rights, strict=False)]
                return "(" + " && ".join(parts) + ")"
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return f"({text(test)} ? {text(body)} : {text(orelse)})"
            case ast.Call(func=ast.Name(id=name), args=args) if name in _CPP:
                return f"{_CPP[name]}({', '.join(map(text, args))})"
        raise RungError(f"{code!r} cannot be expressed in C++; take another rung.")

    return text(ast.parse(code.strip(), mode="eval").body)


_CPP = {"min": "lesser", "max": "greater", "int": "whole", "float": "double", "ceil_div": "ceil_div",
        "round_up": "round_up", "next_pow2": "next_pow2"}  # fmt: skip

TARGETS: dict[str, Callable[[Rung], dict[str, str]]] = {
    "hf-kernel": _hf_kernel,
    "torch": _torch,
    "kernelbench": _kernelbench,
    "leetgpu": _leetgpu,
    "popcorn": _popcorn,
    "flashinfer": _flashinfer,
}
