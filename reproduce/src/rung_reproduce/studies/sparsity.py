"""A dense and a sparse product under the roofline: how much arithmetic each does for a byte, and at what rates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from rung_reproduce.show import charts
from rung_reproduce.show.charts import Found
from rung_reproduce.studies.common import Runner, need_gpu

N, DENSITIES = 8192, (0.01, 0.001)
WARM, CALLS = 3, 20
WORD, INDEX = 4, 4  # bytes of a float and of a column's number


def run(runner: Runner) -> Found:
    """N x N by N x N in float32, dense by cuBLAS and sparse (CSR) by cuSPARSE through torch; and a copy of N x N."""
    need_gpu(runner, "sparsity")
    n = 2048 if runner.quick else N
    rows = []
    for name, flop, moved, seconds in _measured(n):
        figures = (flop / moved, 1e6 * seconds, flop / seconds / 1e12, moved / seconds / 1e9)
        rows.append((name, *(f"{figure:.4g}" for figure in figures)))
    points = [(float(intensity), float(rate)) for _, intensity, _, rate, _ in rows if float(intensity)]
    return Found(
        f"{n} x {n} by {n} x {n} in float32: a dense and two sparse products under the roofline",
        ("product", "FLOP/byte", "us", "TFLOP/s", "GB/s"),
        rows,
        "Bytes are those of the operands and the result, each once.",
        [charts.Series("products", points, charts.SERIES[0])],
        "FLOP for each byte",
        "TFLOP/s",
    )


def _measured(n: int) -> Iterator[tuple[str, float, float, float]]:
    """Name, operations, least bytes and seconds of a call."""
    dense = [torch.randn(n, n, device="cuda") for _ in range(2)]
    out = torch.empty_like(dense[0])
    whole = n * n * WORD
    yield "dense", 2.0 * n**3, 3.0 * whole, _seconds(partial(torch.mm, *dense, out=out))
    for density in DENSITIES:
        kept = dense[0] * (torch.rand(n, n, device="cuda") < density)
        matrix = kept.to_sparse_csr()
        count = matrix.values().numel()
        moved = float(count * (WORD + INDEX) + (n + 1) * INDEX + 2 * whole)
        yield f"{100 * density:g} % kept", 2.0 * count * n, moved, _seconds(partial(torch.mm, matrix, dense[1]))
    yield "a copy", 0.0, 2.0 * whole, _seconds(partial(out.copy_, dense[0]))


def _seconds(call: Callable[[], object]) -> float:
    """The least of several calls, by events."""
    for _ in range(WARM):
        call()
    times: list[float] = []
    for _ in range(CALLS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(1e-3 * begin.elapsed_time(end))
    return min(times)
