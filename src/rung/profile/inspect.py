"""The compiler's report on a rung, without a GPU: registers, shared memory, spills, occupancy, code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from gpuless.base.expressions import evaluate
from gpuless.compile import nvrtc
from gpuless.facts import limits
from rung.dtypes import DTYPES, Dtype
from rung.errors import RungError
from rung.operation import Values
from rung.profile.resources import Compiled, filled, mixes_of
from rung.rungs.base import Rung
from rung.rungs.cuda import CudaRung
from rung.rungs.python import PythonRung
from rung.rungs.subjects import DEFAULT_SHAPE


def inspect(
    rungs: Sequence[Rung],
    archs: Sequence[str],
    *,
    dtype: str | None = None,
    shape: tuple[str, Values] | None = None,
    tuning: Mapping[str, int] | None = None,
    mix: bool = True,
) -> Iterator[Compiled]:
    """A row for each kernel and architecture; `dtype` and `shape` default to the first that a rung takes."""
    for arch in archs:
        limits.limits(arch)
    for rung in rungs:
        for arch in archs:
            yield from _rows(rung, arch, dtype, shape, tuning, mix)


def _rows(
    rung: Rung,
    arch: str,
    dtype: str | None,
    shape: tuple[str, Values] | None,
    tuning: Mapping[str, int] | None,
    mix: bool,
) -> Iterator[Compiled]:
    real = DTYPES[dtype or rung.dtypes[0]]
    chosen, values, refused = _shape(rung, arch, real, shape, tuning)
    row = Compiled(rung.full_name, arch, real.name, chosen)
    if refused:
        row.state, row.reason = "skipped", refused
        yield row
        return
    try:
        if isinstance(rung, CudaRung):
            yield from _cuda_rows(rung, row, values, real, tuning, mix)
        elif isinstance(rung, PythonRung) and rung.kind == "triton":
            from rung.profile import inspect_triton  # which imports torch

            yield from inspect_triton.rows(rung, row, values, real, tuning, mix)
        else:
            row.state, row.reason = "skipped", f"a {rung.kind} rung has no kernel of its own to compile"
            yield row
    except RungError as error:
        newer = re.search(r"requires \.target (sm_\d+)", str(error))
        row.state = "skipped" if newer else "failed"
        row.reason = f"its code needs {newer.group(1)} or later" if newer else str(error)
        yield row


def _shape(
    rung: Rung, arch: str, dtype: Dtype, given: tuple[str, Values] | None, tuning: Mapping[str, int] | None
) -> tuple[str, Values, str | None]:
    """The complete shape to compile for, or the rung's reason if it takes none at this dtype and GPU."""
    shapes = rung.operation.shapes
    usual = {DEFAULT_SHAPE: shapes[DEFAULT_SHAPE]} if DEFAULT_SHAPE in shapes else {}
    candidates = dict([given]) if given else {**usual, **shapes, **{c.name: c.values for c in rung.operation.cases}}
    first: tuple[str, Values, str | None] | None = None
    for name, dims in candidates.items():
        values = rung.operation.complete(dims)
        reason = refusal(rung, arch, dtype, values, tuning)
        if reason is None:
            return name, values, None
        first = first or (name, values, reason)
    assert first is not None
    return first


def refusal(rung: Rung, arch: str, dtype: Dtype, values: Values, tuning: Mapping[str, int] | None) -> str | None:
    """Why the rung does not take this call on that architecture, by its own rules."""
    if dtype.name not in rung.dtypes:
        return f"has no {dtype.name} version; it has {', '.join(rung.dtypes)}"
    names = rung.names(values, dtype, tuning).also(sm=int(re.sub(r"\D", "", arch)))
    return next((f"needs {rule}" for rule in rung.needs if not evaluate(rule, names)), None)


def _cuda_rows(
    rung: CudaRung, row: Compiled, values: Values, dtype: Dtype, tuning: Mapping[str, int] | None, mix: bool
) -> Iterator[Compiled]:
    build = rung.build(values, dtype, tuning)
    planned = rung.launches(values, dtype, tuning, emulated=False)
    launches = {(k, c.block, c.shared): (k, c) for k, c in planned}
    cubin = nvrtc.compile_cubin(build, row.arch)
    mixes = mixes_of(cubin) if mix else {}
    for kernel, config in launches.values():
        made = Compiled(row.rung, row.arch, row.dtype, row.shape, kernel, mix=mixes.get(kernel, {}))
        yield filled(made, cubin.resources[kernel], config)
