"""Implementations of attention in one process, each checked and timed on the same queries, keys and values."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from rung.bench import timing
from rung.dtypes import dtype as dtype_named
from rung.errors import RungError, first_line
from rung.operation import Tensors
from rung.profile import trace
from rung.rungs import catalogue
from rung.rungs.base import Prepared
from rung_reproduce.parallel import local
from rung_reproduce.parallel.pipeline import elapsed

SEQUENTIAL = "sequential C++"
# label -> rung
ON_A_GPU = {
    "CUDA, linear softmax": "attention/07_tiled",
    "CUDA, tree softmax": "attention/08_tree_softmax",
    "CUDA, flash": "attention/24_output_in_registers",
    "torch SDPA on the GPU": "attention/sdpa_efficient",
}
CAP = dtype_named("f32").norm_cap


@dataclass(frozen=True)
class Measured:
    """Seconds of one implementation at one size, or the reason why there is no time."""

    n: int
    name: str
    computing: float | None = None
    total: float | None = None  # with transfers, if there are any
    softmax: float | None = None  # if it is a separate kernel
    error: float | None = None  # norm of the difference to torch in float64, relative to torch's norm
    reason: str = ""


def truth(qkv: NDArray[np.float32], causal: bool) -> torch.Tensor:
    """torch's own attention in float64, (H, N, D); on the GPU if there is one."""
    operation = catalogue.operation("attention")
    where = "cuda" if torch.cuda.is_available() else "cpu"
    q, k, v = (torch.from_numpy(part)[None].to(where, torch.float64) for part in qkv)
    _, heads, n, d = qkv.shape
    values = operation.complete(_values(n, heads, d, causal))
    out: torch.Tensor = operation.reference({"q": q, "k": k, "v": v}, values)["out"]
    return out.view(n, heads, d).transpose(0, 1).cpu()


def _values(n: int, heads: int, d: int, causal: bool) -> dict[str, int | float]:
    return {"B": 1, "T": n, "C": heads * d, "NH": heads, "causal": int(causal)}


def sequential(qkv: NDArray[np.float32], right: torch.Tensor, *, causal: bool, limit: float) -> Measured:
    """The sequential C++ of the ladder's first rung, on one core."""
    n = qkv.shape[2]
    tensors = _operands(qkv, "cpu")
    _, heads, _, d = qkv.shape
    rung = catalogue.find("attention/01_sequential")
    values = rung.operation.complete(_values(n, heads, d, causal))
    call = rung.prepare(tensors, values, dtype_named("f32"), device="cpu")
    return _host_time(n, SEQUENTIAL, call.run, lambda: _heads_first(tensors["out"], heads), right, limit)


def vectorised(qkv: NDArray[np.float32], right: torch.Tensor, *, causal: bool, threads: int, limit: float) -> Measured:
    """The block kernel of the MPI ranks, on its own."""
    _, heads, n, d = qkv.shape
    at, q, kv = np.arange(n), np.ascontiguousarray(qkv[0]), np.ascontiguousarray(qkv[1:])
    out, lse = np.empty_like(q), np.empty((heads, n), np.float32)

    def work() -> None:
        lse.fill(-np.inf)
        local.attend(q, at, kv, at, out, lse, scale=d**-0.5, causal=causal, threads=threads)

    local.library()
    name = f"vectorised C++, {threads} thread{'s' * (threads > 1)}"
    return _host_time(n, name, work, lambda: torch.from_numpy(out), right, limit)


def _host_time(
    n: int, name: str, work: Callable[[], None], result: Callable[[], torch.Tensor], right: torch.Tensor, limit: float
) -> Measured:
    """The fastest of some calls; nothing is transferred, so the total is the same."""
    times: list[float] = []
    while not times or (sum(times) < limit and len(times) < 10):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return _checked(Measured(n, name, min(times), min(times)), result(), right)


def _checked(measured: Measured, out: torch.Tensor, right: torch.Tensor) -> Measured:
    error = float((out.double().cpu() - right).norm() / right.norm())
    if not error <= CAP:
        return Measured(
            measured.n,
            measured.name,
            error=error,
            reason=f"wrong: off by {error:.1e} of the norm, {CAP:.0e} is allowed",
        )
    return Measured(measured.n, measured.name, measured.computing, measured.total, measured.softmax, error)


def _heads_first(out: torch.Tensor, heads: int) -> torch.Tensor:
    """(1, N, C) -> (H, N, D)"""
    return out[0].view(out.shape[1], heads, -1).transpose(0, 1)


def _operands(qkv: NDArray[np.float32], device: str) -> Tensors:
    """The operation's operands, made from (3, H, N, D), packed like the result of a QKV projection."""
    _, heads, n, d = qkv.shape
    packed = torch.from_numpy(qkv).permute(2, 0, 1, 3).reshape(1, n, 3 * heads * d).contiguous()
    return _views(packed.to(device), torch.empty(1, n, heads * d, device=device), heads)


def _views(packed: torch.Tensor, out: torch.Tensor, heads: int) -> Tensors:
    _, n, width = packed.shape
    parts = packed.view(1, n, 3, heads, width // (3 * heads)).permute(2, 0, 3, 1, 4)
    return {"qkv": packed, "q": parts[0], "k": parts[1], "v": parts[2], "out": out}


def on_a_gpu(name: str, qkv: NDArray[np.float32], right: torch.Tensor, *, causal: bool) -> Measured:
    """A rung between copies from and to pinned memory; the median of several runs."""
    _, heads, n, d = qkv.shape
    host = _operands(qkv, "cpu")["qkv"].pin_memory()
    back = torch.empty(1, n, heads * d).pin_memory()
    try:
        rung = catalogue.find(ON_A_GPU[name])
        tensors = _operands(qkv, "cuda")
        values = rung.operation.complete(_values(n, heads, d, causal))
        call = rung.prepare(tensors, values, dtype_named("f32"), device="cuda")

        def whole() -> None:
            tensors["qkv"].copy_(host, non_blocking=True)
            call.run()
            back.copy_(tensors["out"], non_blocking=True)
            torch.cuda.synchronize()

        for _ in range(3):
            whole()
        computing = statistics.median(timing.seconds(call.run) for _ in range(15))
        total = statistics.median(elapsed(whole) for _ in range(15))
        return _checked(Measured(n, name, computing, total, _softmax(call)), _heads_first(back, heads), right)
    except (RungError, torch.cuda.OutOfMemoryError) as error:
        return Measured(n, name, reason=first_line(error, 120))


def _softmax(call: Prepared) -> float | None:
    """Seconds of the kernel of that name, by the profiler; None if the softmax is part of another."""
    if not any(kernel == "softmax" for kernel, _ in call.launches):
        return None

    def work() -> int:
        for _ in range(10):
            call.run()
        torch.cuda.synchronize()
        return 10

    return next((s.seconds for s in trace.record(work, None).shares if "softmax" in s.name), None)
