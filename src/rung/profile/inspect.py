"""What the compiler makes of a rung, without a GPU: registers, shared memory, spills, occupancy, code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rung.cuda import limits, nvrtc, sass
from rung.cuda.cubin_cache import Cubin
from rung.cuda.launch import LaunchConfig, Resources
from rung.dtypes import DTYPES, Dtype
from rung.errors import RungError
from rung.expressions import evaluate
from rung.operation import Values
from rung.rungs.base import Rung
from rung.rungs.cuda import CudaRung
from rung.rungs.python import PythonRung

DEFAULT_SHAPE = "b8t1024"


@dataclass
class Row:
    """One kernel of a rung for one architecture, or why there is none (`reason`)."""

    rung: str
    arch: str
    dtype: str
    shape: str
    kernel: str = ""
    registers: int | None = None
    static_shared: int | None = None
    dynamic_shared: int | None = None
    spill_stores: int | None = None
    spill_loads: int | None = None
    stack: int | None = None
    block: tuple[int, int, int] | None = None
    blocks_sm: int | None = None
    warps_sm: int | None = None
    occupancy: float | None = None
    limiter: str = ""
    hint: str = ""
    mix: dict[str, int] = field(default_factory=dict)
    state: str = "ok"  # or "skipped": not made for this; "failed": does not compile, or could not launch
    reason: str = ""

    @property
    def spills(self) -> bool:
        return bool(self.spill_stores or self.spill_loads)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def inspect(
    rungs: Sequence[Rung],
    archs: Sequence[str],
    *,
    dtype: str | None = None,
    shape: tuple[str, Values] | None = None,
    tuning: Mapping[str, int] | None = None,
    mix: bool = True,
) -> Iterator[Row]:
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
) -> Iterator[Row]:
    real = DTYPES[dtype or rung.dtypes[0]]
    chosen, values, refused = _shape(rung, arch, real, shape, tuning)
    row = Row(rung.full_name, arch, real.name, chosen)
    if refused:
        row.state, row.reason = "skipped", refused
        yield row
        return
    try:
        if isinstance(rung, CudaRung):
            yield from _cuda_rows(rung, row, values, real, tuning, mix)
        elif isinstance(rung, PythonRung) and rung.kind == "triton":
            from rung.profile import inspect_triton

            yield from inspect_triton.rows(rung, row, values, real, tuning, mix)
        else:
            row.state, row.reason = "skipped", f"a {rung.kind} rung holds no kernel of its own to compile"
            yield row
    except RungError as error:
        newer = re.search(r"requires \.target (sm_\d+)", str(error))
        row.state = "skipped" if newer else "failed"
        row.reason = f"its code needs {newer.group(1)} or later" if newer else str(error)
        yield row


def _shape(
    rung: Rung,
    arch: str,
    dtype: Dtype,
    given: tuple[str, Values] | None,
    tuning: Mapping[str, int] | None,
) -> tuple[str, Values, str | None]:
    """The shape to compile for, complete, and the rung's reason when it takes none at this dtype and GPU."""
    shapes = rung.operation.shapes
    usual = {DEFAULT_SHAPE: shapes[DEFAULT_SHAPE]} if DEFAULT_SHAPE in shapes else {}
    candidates = (
        dict([given]) if given else {**usual, **shapes, **{c.name: c.values for c in rung.operation.cases}}
    )
    first: tuple[str, Values, str | None] | None = None
    for name, dims in candidates.items():
        values = rung.operation.complete(dims)
        reason = _refusal(rung, arch, dtype, values, tuning)
        if reason is None:
            return name, values, None
        first = first or (name, values, reason)
    assert first is not None
    return first


def _refusal(
    rung: Rung, arch: str, dtype: Dtype, values: Values, tuning: Mapping[str, int] | None
) -> str | None:
    if dtype.name not in rung.dtypes:
        return f"has no {dtype.name} version; it has {', '.join(rung.dtypes)}"
    names = rung.names(values, dtype, tuning).also(sm=int(re.sub(r"\D", "", arch)))
    return next((f"needs {rule}" for rule in rung.needs if not evaluate(rule, names)), None)


def _cuda_rows(
    rung: CudaRung, row: Row, values: Values, dtype: Dtype, tuning: Mapping[str, int] | None, mix: bool
) -> Iterator[Row]:
    build = rung.build(values, dtype, tuning)
    planned = rung.launches(values, dtype, tuning, emulated=False)
    launches = {(k, c.block, c.shared): (k, c) for k, c in planned}
    cubin = nvrtc.compile_cubin(build, row.arch)
    mixes = mixes_of(cubin) if mix else {}
    for kernel, config in launches.values():
        made = Row(row.rung, row.arch, row.dtype, row.shape, kernel, mix=mixes.get(kernel, {}))
        yield filled(made, cubin.resources[kernel], config)


def mixes_of(cubin: Cubin) -> dict[str, dict[str, int]]:
    """The instruction mix of each kernel; nothing when no disassembler is at hand or it is too old."""
    try:
        return sass.instruction_mix(cubin)
    except RungError:
        return {}


def filled(row: Row, resources: Resources, config: LaunchConfig) -> Row:
    """The row with what the compiler reported and the occupancy that follows."""
    shared = resources.static_shared + config.shared
    found = limits.occupancy(row.arch, config.threads, resources.registers, shared)
    row.registers, row.stack = resources.registers, resources.stack
    row.static_shared, row.dynamic_shared = resources.static_shared, config.shared
    row.spill_stores, row.spill_loads = resources.spill_stores, resources.spill_loads
    row.block = config.block
    row.blocks_sm, row.warps_sm, row.occupancy = found.blocks, found.warps, found.fraction
    row.limiter = found.limiter
    row.hint = limits.hint(row.arch, config.threads, resources.registers, shared)
    refused = limits.refusal(limits.limits(row.arch), config, resources.registers, resources.static_shared)
    if refused:
        row.state, row.reason = "failed", f"cannot be launched on {row.arch}: {refused}"
    return row
