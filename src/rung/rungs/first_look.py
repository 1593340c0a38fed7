"""What is known of a file before anything runs: whether its kernels' parameters can be bound, by name and type, without
importing torch; then whether both compilers accept it, side by side."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from rung.cuda.source import Parameter
from rung.dtypes import Dtype
from rung.dtypes import dtype as dtype_named
from rung.errors import CompileError, RungError
from rung.expressions import FUNCTIONS, names_in
from rung.rungs.arguments import ANY_POINTEE, POINTEES, SCALAR_KINDS
from rung.rungs.base import Rung
from rung.rungs.cuda import CudaRung
from rung.rungs.header import Launch

_OF_LAUNCHES = {"sizeof_real", "sm", "sms", "emulated", "max_grid_y"}


def require_names(rung: Rung) -> None:
    """A RungError for a parameter or an expression that names nothing, or a pointer of the wrong type."""
    if not isinstance(rung, CudaRung):
        return
    of, keys = rung.operation, rung.header
    sizes = {*of.dims, *of.derived, *of.scalars, *rung.tune, *rung.let}
    for entry in keys.launches:
        known = sizes | ({entry.each[0]} if entry.each else set())
        parameters = rung.parameters[entry.kernel]
        for parameter in parameters:
            _require_target(rung, entry, parameter, parameters, known)
        expressions = [*entry.grid, *entry.block, entry.shared, *(entry.cluster or ()), entry.when or 1]
        _require_known(rung, f"the launch of {entry.kernel}", expressions, known)
    _require_known(rung, "needs", keys.needs, sizes)
    _require_known(rung, "define", keys.define.values(), sizes)
    rung.require_parameters_for_bind()


def _require_known(rung: CudaRung, where: str, expressions: Iterable[str | int], known: set[str]) -> None:
    for expression in expressions:
        for name in sorted(names_in(str(expression)) - known - _OF_LAUNCHES - FUNCTIONS.keys()):
            if "_stride_" not in name:
                raise RungError(f"{rung.path}: {where} uses {name!r}, which is no size{_nearest(name, known)}.")


def _require_target(
    rung: CudaRung, entry: Launch, parameter: Parameter, parameters: tuple[Parameter, ...], known: set[str]
) -> None:
    target, buffers = rung.target(parameter, entry), rung.header.buffers
    operands = {o.name: o.dtype for o in rung.operation.operands} | {n: b.dtype for n, b in buffers.items()}
    signature = ", ".join(f"{'const ' * p.const}{p.ctype}{' *' if p.pointer else ' '}{p.name}" for p in parameters)
    where = f"{rung.path}: parameter {parameter.name!r} of {entry.kernel}({signature})"
    mend = f"write it in [bind], as in {parameter.name} = "
    if parameter.pointer:
        if target == "null":
            return
        if target not in operands:
            free = [n for n in operands if n not in [rung.target(p, entry) for p in parameters if p is not parameter]]
            raise RungError(f"{where} is no operand; {mend}{_two(str(target), free or list(operands))}.")
        for name in rung.dtypes:
            _require_type(where, parameter, operands[str(target)], dtype_named(name))
    elif parameter.ctype == "TensorMap":
        if target not in rung.header.maps:
            raise RungError(f"{where} is no tensor map; write [maps.{parameter.name}].")
    elif (parameter.ctype if parameter.ctype != "Real" else "float") not in SCALAR_KINDS:
        raise RungError(f"{where} has the type {parameter.ctype!r}, which cannot be passed; use a pointer or a number.")
    else:
        for name in sorted(names_in(str(target)) - known - _OF_LAUNCHES - FUNCTIONS.keys()):
            if "_stride_" not in name:
                raise RungError(f"{where} is no size of {rung.operation.name}; {mend}{_two(name, sorted(known))}.")


def _require_type(where: str, parameter: Parameter, held: str, dtype: Dtype) -> None:
    ctype = dtype.ctype if parameter.ctype == "Real" else parameter.ctype
    actual = {"tf32": "f32"}.get(dtype.name, dtype.name) if held == "real" else held
    pointee = POINTEES.get(ctype)
    if ANY_POINTEE.fullmatch(ctype) or pointee == actual:
        return
    if pointee is None:
        raise RungError(f"{where} points to {ctype!r}, which is not known; use Real, float, int, void or a vector.")
    if pointee in ("f32", "f16", "bf16", "i32", "i64", "i8", "u8", "f64") and held in ("real", *POINTEES.values()):
        advice = f'; the header says dtypes = ["{dtype.name}"]' if held == "real" else ""
        raise RungError(f"{where} points to {parameter.ctype}, but the tensor holds {actual}{advice}.")


def _two(name: str, names: list[str]) -> str:
    """The two nearest names."""
    near = difflib.get_close_matches(name, names, n=2, cutoff=0.0)
    return " or ".join(f'"{n}"' for n in near)


def _nearest(name: str, names: set[str]) -> str:
    near = difflib.get_close_matches(name, sorted(names), n=2, cutoff=0.0)
    return f"; there are {' and '.join(near)}, among others" if near else ""


def compile_error(rung: Rung, dtype: str, archs: tuple[str, ...]) -> str:
    """What the emulator's compiler and NVRTC refuse in the code of the first case that the rung admits; empty if
    nothing is refused, or if a compiler is missing."""
    if not isinstance(rung, CudaRung) or rung.emulate:
        return ""
    from rung.cuda import nvrtc
    from rung.emulator import toolchain, translation

    chosen = dtype_named(dtype)
    every = (rung.operation.complete(case.values) for case in rung.operation.cases if dtype in case.dtypes)
    values = next((v for v in every if rung.refused_by_needs(v, chosen) is None), None)
    if values is None:
        return ""
    build = rung.build(values, chosen)

    def emulated() -> str:
        if toolchain.available() is None:
            translation.translate(build)
        return ""

    def told(compile: object) -> str:
        try:
            if callable(compile):
                compile()
        except CompileError as error:
            return str(error)
        except RungError:  # a compiler that is missing, and what is not modelled, is told by the check itself
            return ""
        return ""

    works = [emulated, *(lambda arch=arch: nvrtc.compile_cubin(build, arch) for arch in archs)]
    with ThreadPoolExecutor(len(works)) as pool:
        return "\n".join(filter(None, pool.map(told, works)))
