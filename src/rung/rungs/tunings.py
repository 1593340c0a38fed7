"""The best configuration known for a rung on a GPU, by class of shape and dtype, for bench and the model.

Stored as append-only JSON lines, next to the results. The last line for the same shape is used, and for a shape that
was not tuned the line of the nearest shape of its class; among equally near ones, one of the rung's present text. A
tuning of an earlier text is used as long as its values are still valid; the list marks it. For GPUs without the user's
own measurements the tunings shipped with rung are used (tunings_measured.jsonl, from the GPUs that it was developed
on), and for a GPU that is not among them, those of one with the same capability and number of multiprocessors: those of
an H200 for an H100. That is a guess; nothing was measured there.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuless.base.expressions import Number
from gpuless.facts import limits
from rung import lines
from rung.errors import RungError
from rung.lazy import torch
from rung.rungs import identity
from rung.rungs.base import Device, Rung, arch

FORMAT = "rung-tuning-1"
MEASURED = Path(__file__).with_name("tunings_measured.jsonl")
_read: dict[Path, tuple[tuple[int, int], dict[tuple[str, ...], dict[str, Any]]]] = {}


def default_path() -> Path:
    """The user's file of tunings."""
    if "RUNG_TUNINGS" in os.environ:
        return Path(os.environ["RUNG_TUNINGS"])
    return lines.default_path().with_name("tunings.jsonl")


def shape_class(rung: Rung, values: Mapping[str, Number]) -> str:
    """Shapes that are tuned alike: each dimension rounded up to a power of two."""
    return " ".join(f"{d}{1 << max(0, int(values[d]) - 1).bit_length()}" for d in rung.operation.dims)


def record(
    rung: Rung,
    *,
    dtype: str,
    values: Mapping[str, Number],
    tuning: Mapping[str, int],
    cold_us: float | None,
    default_us: float | None,
    machine: Mapping[str, Any],
    shape: str = "",
    path: Path | None = None,
) -> None:
    """Store the best configuration of a sweep, without a time if a whole prompt's time decided."""
    entry = {
        "format": FORMAT,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "rung": rung.full_name,
        "own_text": identity.own_text(rung),
        "text": identity.text(rung),
        "dtype": dtype,
        "class": shape_class(rung, values),
        "shape": shape,
        "values": dict(values),
        "tuning": dict(tuning),
        "cold_us": cold_us,
        "default_us": default_us,
        "machine": dict(machine),
    }
    lines.append(path or default_path(), entry)


def listed(path: Path | None = None) -> list[dict[str, Any]]:
    """All tunings: `stale` where the rung has changed or is gone, `headers_changed` where only those have."""
    from rung.rungs import catalogue

    found = []
    for row in _by_question(path or default_path()).values():
        try:
            rung = catalogue.find(row["rung"])
            own, whole = identity.own_text(rung), identity.text(rung)
        except RungError:
            own = whole = "gone"
        stale = own != row["own_text"]
        found.append({**row, "stale": stale, "headers_changed": not stale and whole != row["text"]})
    return found


def best(
    rung: Rung,
    values: Mapping[str, Number],
    dtype: str,
    gpu: str | None = None,
    *,
    path: Path | None = None,
    device: Device = "cuda",
) -> dict[str, int] | None:
    """The tuning to use for this call, or None if only the defaults are known."""
    if not rung.tune:
        return None
    chip = None
    if gpu is None:
        if not torch.cuda.is_available():
            return None
        gpu, chip = torch.cuda.get_device_name(), _chip()
    question = (rung.full_name, shape_class(rung, values), dtype)
    own = identity.own_text(rung)
    ours, measured = (_by_question(p) for p in (path or default_path(), MEASURED))
    sources = [(ours, "gpu", gpu)] if path else [(ours, "gpu", gpu), (measured, "gpu", gpu), (measured, "chip", chip)]
    for table, what, name in sources:
        matching = [r for key, r in table.items() if key[1:4] == question and _named(r["machine"], what) == name]
        rows = [r for r in matching if all(value in rung.tune.get(n, ()) for n, value in r["tuning"].items())]
        if rows:
            break
    else:
        return None

    def nearness(row: Mapping[str, Any]) -> tuple[int, bool]:
        return sum(row["values"].get(d) == values[d] for d in rung.operation.dims), row["own_text"] == own

    row = max(reversed(rows), key=nearness)  # of equally near ones, the newest
    tuning = {n: int(v) for n, v in row["tuning"].items()}
    from rung.dtypes import dtype as named

    return tuning if _legal(rung, dict(values), named(dtype), tuning, device) else None


def _named(machine: Mapping[str, Any], what: str) -> object:
    return machine.get("gpu") if what == "gpu" else (machine.get("capability"), machine.get("sms"))


def _chip() -> tuple[str, int]:
    """The key shared by GPUs that differ only in memory: capability and number of multiprocessors."""
    here = torch.cuda.get_device_properties(torch.cuda.current_device())
    return f"{here.major}.{here.minor}", here.multi_processor_count


def _legal(rung: Rung, values: Any, dtype: Any, tuning: dict[str, int], device: Device) -> bool:
    # The class contains more than the tuned shape; another shape may violate a rule.
    from rung.rungs.cuda import CudaRung

    try:
        if rung.refusal(values, dtype, tuning, device=device) is not None:
            return False
        if isinstance(rung, CudaRung):
            at = limits.limits(arch(device))
            launches = rung.launches(values, dtype, tuning, device)
            return all(limits.refusal(at, config) is None for _, config in launches)
    except RungError:
        return False
    return True


def _by_question(path: Path) -> dict[tuple[str, ...], dict[str, Any]]:
    """(gpu, rung, class, dtype, shape) -> the newest row, in their order; read again only when the file has grown."""
    try:
        status = path.stat()
    except OSError:
        return {}
    stamp = (status.st_mtime_ns, status.st_size)
    if path not in _read or _read[path][0] != stamp:
        table: dict[tuple[str, ...], dict[str, Any]] = {}
        for row in lines.read(path, FORMAT, "tunings", "rung sweep"):
            question = (row["machine"].get("gpu", ""), row["rung"], row["class"], row["dtype"])
            key = (*question, json.dumps(row["values"], sort_keys=True))
            table.pop(key, None)  # the newest is last
            table[key] = row
        _read[path] = (stamp, table)
    return _read[path][1]
