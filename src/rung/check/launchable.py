"""Can an H200 launch what ran on the emulator? Compiles the kernels and compares the launches with its limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from rung.cuda import limits
from rung.cuda.launch import Build
from rung.dtypes import Dtype
from rung.errors import RungError
from rung.operation import Values
from rung.rungs.base import emulated_multiprocessors
from rung.rungs.cuda import CudaRung

ARCH, MULTIPROCESSORS = "sm_90", 132  # of an H200
MOST_BUILDS = 6  # that are compiled


class Compiler(Protocol):
    def unfit(
        self, rung: CudaRung, some: Sequence[Values], dtype: Dtype, tuning: dict[str, int] | None
    ) -> str | None:
        """Why the compiled kernels cannot be launched with some of these values; None if they can."""
        ...


def unlaunchable(rung: CudaRung, dtype: Dtype, tuning: dict[str, int] | None, compiler: Compiler) -> str | None:
    """Why some launch that the rung's `needs` admits cannot be made on an H200; None if all can."""
    with emulated_multiprocessors(MULTIPROCESSORS):
        admitted = dict(_admitted(rung, dtype, tuning))
        for name, values in admitted.items():
            for kernel, config in rung.launches(values, dtype, tuning, emulated=False):
                if reason := limits.refusal(limits.limits(ARCH), config):
                    return f"at {name} an H200 cannot launch {kernel}: {reason}; `needs` should refuse that"
        reason = compiler.unfit(rung, _builds(rung, dtype, tuning, admitted), dtype, tuning)
        return f"an H200 cannot launch it: {reason}" if reason else None


def _admitted(rung: CudaRung, dtype: Dtype, tuning: dict[str, int] | None) -> Iterator[tuple[str, Values]]:
    """Cases and shapes of the model that the rung's own rules admit. Cases that need too much shared memory are left
    out, as they are on a GPU, and the verdict lists them; at a shape of the model this is an error."""
    for case in rung.operation.cases:
        values = rung.operation.complete(case.values)
        if dtype.name in case.dtypes and rung.refused_by_needs(values, dtype, tuning) is None:
            launches = rung.launches(values, dtype, tuning, emulated=False)
            if all(config.shared <= limits.limits(ARCH).shared_block for _, config in launches):
                yield f"case {case.name!r}", values
    for name, given in rung.operation.shapes.items():
        values = rung.operation.complete(given)
        if rung.refused_by_needs(values, dtype, tuning) is None:
            yield name, values


def _builds(
    rung: CudaRung, dtype: Dtype, tuning: dict[str, int] | None, admitted: Mapping[str, Values]
) -> list[Values]:
    """Of each build the values with the largest blocks."""
    found: dict[Build, tuple[int, Values]] = {}
    for values in admitted.values():
        build = rung.build(values, dtype, tuning)
        launches = rung.launches(values, dtype, tuning, emulated=False)
        size = max((config.threads * 1000 + config.shared for _, config in launches), default=0)
        if build not in found or size > found[build][0]:
            found[build] = size, values
    return [values for _, values in list(found.values())[:MOST_BUILDS]]


class Nvrtc:
    """Compiles in this process."""

    def unfit(
        self, rung: CudaRung, some: Sequence[Values], dtype: Dtype, tuning: dict[str, int] | None
    ) -> str | None:
        try:
            return next((reason for values in some if (reason := rung.unfit(values, dtype, tuning, ARCH))), None)
        except RungError as error:
            return str(error)
