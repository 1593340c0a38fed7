"""What the emulator cannot show: whether a GPU takes the compiled kernels and their launches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from gpuless.facts import gpus, limits
from gpuless.launch import Build, LaunchConfig
from rung.dtypes import Dtype
from rung.errors import RungError
from rung.operation import Values
from rung.rungs import catalogue
from rung.rungs.base import emulated_multiprocessors
from rung.rungs.cuda import CudaRung

ARCH = "sm_90"
BATCHES, LARGEST = 8, 64 << 30  # times the batch of the model's shapes; bytes of operands
_CLOCKS = re.compile(
    r"\bclock(?:64)?\s*\(|%(?:clock|n?warpid|gridid|pm\d|current_graph|n?smid)|globaltimer|nanotime|SM_ID"
)
MOST_BUILDS = 6  # that are compiled
Planned = tuple[Build, list[tuple[str, LaunchConfig]]]


def unlaunchable(rung: CudaRung, dtype: Dtype, tuning: dict[str, int] | None) -> tuple[str, list[Planned]]:
    """Why some launch that the rung's `needs` admits cannot be made on a GPU of sm_90, known before compiling; and what
    is to be compiled, each build with its largest launches."""
    with emulated_multiprocessors(gpus.usual().multiprocessors):
        admitted = dict(_admitted(rung, dtype, tuning))
        larger = {} if catalogue.shipped(rung) else dict(_larger(rung, dtype, tuning))
        for name, values in (admitted | larger).items():
            for kernel, config in rung.launches(values, dtype, tuning, emulated=False):
                if reason := limits.refusal(limits.limits(ARCH), config):
                    return f"at {name} {kernel} cannot be launched on {ARCH}: {reason}; `needs` should refuse that", []
        return "", _builds(rung, dtype, tuning, admitted)


def unfit(rung: CudaRung, planned: Sequence[Planned]) -> str:
    """Why the compiled kernels cannot be launched; empty if they can. This may run beside the emulator."""
    from gpuless.compile import nvrtc

    try:
        for build, launches in planned:
            cubin = nvrtc.compile_cubin(build if catalogue.shipped(rung) else build.with_lines, ARCH)
            for kernel, config in launches:
                needs, most = cubin.resources[kernel], cubin.most_threads(kernel)
                if reason := limits.refusal(limits.limits(ARCH), config, needs.registers, needs.static_shared, most):
                    return f"{rung.full_name} does not fit {ARCH} ({kernel}: {reason})"
    except RungError as error:
        return f"compiled for {ARCH}: {error}"
    return ""


def _admitted(rung: CudaRung, dtype: Dtype, tuning: dict[str, int] | None) -> Iterator[tuple[str, Values]]:
    """Cases and shapes of the model that the rung's own rules admit. Cases that need too much shared memory are left
    out, as they are on a GPU, and the verdict lists them; at a shape of the model this is an error."""
    for case, values in rung.cases(dtype, tuning):
        launches = rung.launches(values, dtype, tuning, emulated=False)
        if all(config.shared <= limits.limits(ARCH).shared_block for _, config in launches):
            yield f"case {case.name!r}", values
    for name, given in rung.operation.shapes.items():
        values = rung.operation.complete(given)
        if rung.refused_by_needs(values, dtype, tuning) is None:
            yield name, values


def _larger(rung: CudaRung, dtype: Dtype, tuning: dict[str, int] | None) -> Iterator[tuple[str, Values]]:
    """Shapes of the model with a larger batch, for which operands still fit a GPU: a grid may not."""
    batch, of = rung.operation.dims[0], rung.operation
    for name, given in of.shapes.items():
        with suppress(RungError):
            values = of.complete({**given, batch: int(given[batch]) * BATCHES})
            moved = sum(of.size_of(of.operand(n), values, dtype) for n in rung.operand_names)
            if moved < LARGEST and rung.refused_by_needs(values, dtype, tuning) is None:
                yield f"{name} with {batch}={values[batch]}", values


def clock_read(rung: CudaRung, planned: Sequence[Planned]) -> tuple[str, dict[str, Any]]:
    """Which clock or processor's number decides what a kernel stores, as a sentence with its place."""
    from gpuless.compile import nvrtc, sass
    from rung.check import decided

    if not _CLOCKS.search(rung.source) or sass.disassembler() is None:
        return "", {}
    for build, _ in planned[:1]:
        for kernel, code in sass.instructions_of(nvrtc.compile_cubin(build.with_lines, ARCH)).items():
            for one, what in decided.clocks(code):
                file, line = one.lines[0] if one.lines else (str(rung.path), 0)
                text = f"what kernel '{kernel}' stores or where it branches depends on {what}: no run shows its results"
                return text, {"file": file, "kernel": kernel, **({"line": line} if line else {})}
    return "", {}


def _builds(
    rung: CudaRung, dtype: Dtype, tuning: dict[str, int] | None, admitted: Mapping[str, Values]
) -> list[Planned]:
    """Of each build the launches with the largest blocks."""
    found: dict[Build, tuple[int, list[tuple[str, LaunchConfig]]]] = {}
    for values in admitted.values():
        build = rung.build(values, dtype, tuning)
        launches = rung.launches(values, dtype, tuning, emulated=False)
        size = max((config.threads * 1000 + config.shared for _, config in launches), default=0)
        if build not in found or size > found[build][0]:
            found[build] = size, launches
    return [(build, launches) for build, (_, launches) in list(found.items())[:MOST_BUILDS]]
