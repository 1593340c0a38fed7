"""What a GPU is: a row of gpus.toml, or of a file that $RUNG_GPUS names."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from gpuless.base import files
from gpuless.base.errors import UserError

TABLE = Path(__file__).with_name("gpus.toml")
USUAL = "h200"  # where none is named


@dataclass(frozen=True)
class Gpu:
    """A row; `rates` are the data sheet's bytes/s and FLOP/s, by number format."""

    key: str
    name: str
    arch: str
    multiprocessors: int
    memory_gib: int
    clock_mhz: int
    memory_clock_mhz: int
    bus_bits: int
    l2_mib: int
    rates: Mapping[str, float] = field(hash=False)


COLUMNS = {column.name for column in fields(Gpu)} - {"key", "rates"} | {"tera"}


def architectures() -> Mapping[str, Mapping[str, int]]:
    """The limits of each, as the tables have them."""
    return _tables(os.environ.get("RUNG_GPUS", ""))[0]


def rows() -> Mapping[str, Gpu]:
    return _tables(os.environ.get("RUNG_GPUS", ""))[1]


def find(name: str, arch: str | None = None) -> Gpu:
    """The row with this key or name; with an architecture, the GPU must have that."""
    known = [row for row in rows().values() if arch in (None, row.arch)]
    for row in known:
        if name.lower() in (row.key, row.name.lower()):
            return row
    of = f" of {arch}" if arch else ""
    raise UserError(f"no GPU{of} is called {name!r}: take one of {', '.join(row.key for row in known)}.")


def usual() -> Gpu:
    return rows()[USUAL]


def of_arch(arch: str) -> Gpu:
    """The first row of this architecture, or the usual GPU if there is none."""
    return next((row for row in rows().values() if row.arch == arch), usual())


def rates(name: str) -> Mapping[str, float]:
    """The data sheet of the GPU that the driver calls so; empty if no row has that name."""
    return next((row.rates for row in rows().values() if row.name == name), {})


@cache
def _tables(more: str) -> tuple[dict[str, Any], dict[str, Gpu]]:
    limits: dict[str, Any] = {}
    found: dict[str, Gpu] = {}
    for path in (TABLE, *map(Path, filter(None, more.split(os.pathsep)))):
        try:
            table = tomllib.loads(files.read_text(path))
            limits |= table.get("architectures", {})
            for key, row in table.get("gpus", {}).items():
                if wrong := COLUMNS ^ set(row):
                    columns = ", ".join(sorted(wrong))
                    raise UserError(f"{path}: gpus.{key} lacks or misspells {columns}; {TABLE} shows a row.")
                tera = row.pop("tera")
                found[key] = Gpu(key, **row, rates={kind: rate * 1e12 for kind, rate in tera.items()})
        except (OSError, tomllib.TOMLDecodeError, TypeError, AttributeError) as problem:
            raise UserError(f"{path} is no table of GPUs: {problem}; {TABLE} shows what a row has.") from None
        for row in found.values():
            if row.arch not in limits:
                raise UserError(f"{path}: {row.key} is of {row.arch}, whose limits {TABLE} lacks; add [architectures].")
    return limits, found
