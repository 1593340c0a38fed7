"""Runs a piece of CUDA C++ by its machine code, and judges it: the signature of emulation.run."""

from __future__ import annotations

from typing import Any

import torch

from emulation import INCLUDE, KINDS
from rung.cuda.launch import Build, LaunchConfig
from rung.cuda.source import kernel_parameters, kernels_in
from rung.emulator import guard, machine
from rung.emulator.judged import Judging, Region
from rung.emulator.module import _bytes_of

ORDERS = ("forward", "reverse", "shuffled")


def regions_of(names: list[str], args: tuple[Any, ...]) -> list[Region]:
    found: dict[int, Region] = {}
    for name, value in zip(names, args, strict=True):
        if not isinstance(value, torch.Tensor) or not value.numel():
            continue
        start, end = (
            value.data_ptr(),
            value.data_ptr() + value.untyped_storage().nbytes() - value.storage_offset() * value.element_size(),
        )
        outer, writable = (0, 0), True
        if mapping := guard.mapping_of(start):
            outer = (mapping.mapped, mapping.mapped + mapping.length)
        if known := guard.operand_at(start):
            start, end, writable = known
        found[start] = Region(start, end, f"parameter '{name}'", value.element_size(), writable, outer=outer)
    return [*found.values()]


def run(
    source: str,
    *args: Any,
    grid: int | tuple[int, ...] = 1,
    block: int | tuple[int, ...] = 32,
    order: str = "forward",
    seed: int = 0,
    kernel: str = "",
    **launch: Any,
) -> None:
    name = kernel or kernels_in(source)[0]
    settings = launch.pop("settings", {})
    build = Build(source, "test.cu", (name,), tuple(launch.pop("defines", ())), include=(INCLUDE,))
    parameters = kernel_parameters(source, name, "test.cu")
    kinds = ["pointer" if p.pointer else KINDS[p.ctype] for p in parameters]
    values = [machine.aligned(_bytes_of(kind, value), 64) for kind, value in zip(kinds, args, strict=True)]
    config = LaunchConfig(_three(grid), _three(block), **launch)
    judging = Judging(
        ORDERS.index(order),
        seed,
        settings.get("poison", 1),
        settings.get("check_races", False),
        settings.get("unwritten", False),
    )
    machine.run(
        machine.program(build, name), config, machine.Variables(build), values, room=0, seconds=settings.get("seconds", 6.0),
        regions=regions_of([p.name for p in parameters], args), judging=judging,
    )  # fmt: skip


def _three(shape: int | tuple[int, ...]) -> tuple[int, int, int]:
    given = (shape,) if isinstance(shape, int) else shape
    x, y, z = (*given, 1, 1)[:3]
    return (x, y, z)
