"""The attention of one rank's rows to one block of keys: C++ for this processor. Imports nothing large."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuless.base import disk_cache
from rung.errors import RungError

Floats: TypeAlias = NDArray[np.float32]
Places: TypeAlias = NDArray[np.int64]

SOURCE = Path(__file__).with_name("local_block.cpp")
FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-pthread", "-fno-math-errno", "-w")
WIDE = ("-march=native", "-mprefer-vector-width=512")


def attend(
    q: Floats,
    q_at: Places,
    kv: Floats,
    k_at: Places,
    out: Floats,
    lse: Floats,
    *,
    scale: float,
    causal: bool,
    threads: int = 1,
) -> None:
    """Merge the attention of the queries to this block into `out` and `lse`.

    q (H, rows, D) and kv (2, H, >= keys, D) have the ascending positions q_at (rows) and k_at (keys);
    out (H, rows, D) and lse (H, rows) hold attention to the keys seen so far: at first anything and -inf.
    """
    heads, rows, size = q.shape
    for array in (q, kv, out, lse):
        assert array.dtype == np.float32 and array.flags.c_contiguous
    library().attend(
        *(_pointer(array) for array in (q, q_at, kv[0], kv[1], k_at)),
        ctypes.c_int64(kv.shape[2] * size),
        *(heads, rows, len(k_at), size),
        ctypes.c_float(scale),
        int(causal),
        *(_pointer(out), _pointer(lse), threads),
    )


def _pointer(array: Floats | Places) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


@functools.cache
def library() -> ctypes.CDLL:
    """Compiled on first use, kept in rung's cache."""
    identity = (SOURCE.read_bytes(), FLAGS, WIDE, os.environ.get("RUNG_CXX"), _processor())
    key = f"local-block-{hashlib.sha256(repr(identity).encode()).hexdigest()[:24]}"
    return ctypes.CDLL(str(disk_cache.kept("native", key, _make).path))


def _make(work: Path) -> tuple[Path, None]:
    from gpuless.compile import toolchain  # imports torch, which a rank does not need

    compiler, target = toolchain.require(), work / "local_block.so"
    for flags in ((*FLAGS, *WIDE), (*FLAGS, "-march=native"), FLAGS):  # for older processors and compilers
        command = [compiler, *flags, str(SOURCE), "-o", str(target)]
        made = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
        if made.returncode == 0:
            return target, None
    raise RungError(f"{compiler} cannot compile {SOURCE.name}: {made.stderr.strip()[:300]}")


def _processor() -> str:
    """The meaning of -march=native here; different machines may share a home folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
