"""libcuda.so.1: the driver's public interface over the machine (README.md)."""

from __future__ import annotations

import ctypes
import json
import os
import re
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

from gpuless.base.errors import UserError

NAME = "libcuda.so.1"
_SITE = Path(__file__).parent / "site"


def environment() -> dict[str, str]:
    """What a process, and those that it starts, need to find the GPU in software."""
    from gpuless.driver import library

    folder = str(library.folder())
    before = os.environ.get("LD_LIBRARY_PATH", "")
    kept = [part for part in before.split(os.pathsep) if part and part != folder]
    python = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and part != str(_SITE)]
    return {
        "LD_LIBRARY_PATH": os.pathsep.join([folder, *kept]),
        "PYTHONPATH": os.pathsep.join([str(_SITE), *python]),
        "GPULESS_PYTHON": sys.executable,
        "GPULESS_PYTHONPATH": library.paths(),
    }


def use(gpu: str | None = None, *, count: bool = False) -> None:
    """From now on this process, and those that it starts, find a GPU in software: call it before what uses CUDA is
    imported. `gpu` is a row of gpus.toml; with `count`, what launches do to memory is counted (`counted`)."""
    from gpuless.driver import library

    ready = library.folder() / NAME
    if (other := _loaded()) and Path(other).parent != ready.parent:
        raise UserError(
            f"this process has already loaded {other}: call gpuless.use() before what uses CUDA is imported."
        )
    os.environ.update(environment())
    if gpu is not None:
        os.environ["GPULESS_GPU"] = gpu
    for name in ("GPULESS_REPORT", *(["GPULESS_COUNTS"] if count else [])):
        if name not in os.environ:
            handle, path = tempfile.mkstemp(prefix="gpuless-")
            os.close(handle)
            os.environ[name] = path
    ctypes.CDLL(str(ready), mode=ctypes.RTLD_GLOBAL)
    runpy.run_path(str(_SITE / "sitecustomize.py"))


def _loaded() -> str:
    """The driver that this process has, if any; NVIDIA's own carries its version in its name."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return ""
    return next((line.split()[-1] for line in maps.splitlines() if re.search(r"/libcuda\.so[.\d]*$", line)), "")


def records(path: str | os.PathLike[str] | None = None) -> list[dict[str, Any]]:
    """All records of a report, by default that of this process and those that it has started."""
    where = path or os.environ.get("GPULESS_REPORT")
    if not where or not Path(where).exists():
        return []
    return [json.loads(line) for line in Path(where).read_text().splitlines() if line]


def faults(path: str | os.PathLike[str] | None = None) -> list[dict[str, Any]]:
    """The faults so far."""
    return [one for one in records(path) if one["record"] == "fault"]


def counted() -> list[Any]:
    """What the launches of this process have counted so far, one `counters.Launched` for each kernel and grid; for
    this, `use(count=True)`."""
    from gpuless.counts import counting

    if not (path := os.environ.get("GPULESS_COUNTS")):
        raise UserError("nothing is counted: call gpuless.use(count=True).")
    if ready := _loaded():
        ctypes.CDLL(ready).gpuless_write_counts()
    return list(counting.counted(Path(path)))
