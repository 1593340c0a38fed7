"""Ring attention over the GPUs of a host: torch.distributed moves the blocks (NCCL; gloo between CPUs).

    torchrun --standalone --nproc-per-node 4 -m rung_reproduce.parallel.nccl 8192 131072 --heads 16 --causal

The local blocks use torch's fused attention, which also returns the logsumexp that merging needs. Rows are placed
zig-zag, so that with a causal mask every step of the ring is one dense product of half a block, for every GPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rung.dtypes import dtype as dtype_named
from rung.errors import RungError
from rung_reproduce.parallel import ring
from rung_reproduce.parallel.group import Group, joined
from rung_reproduce.parallel.ring import travel

Attended = tuple[torch.Tensor, torch.Tensor]  # out (H, rows, D) and its logsumexp (H, rows), both float32


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> Attended:
    """torch's fused attention of (H, rows, D) to (H, keys, D); `causal` is for equal numbers of both."""
    scale = q.shape[-1] ** -0.5
    q, k, v = (t[None] for t in (q, k, v))
    if q.device.type == "cpu":
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)[:2]
    elif q.dtype == torch.float32:
        operation = torch.ops.aten._scaled_dot_product_efficient_attention
        out, lse = operation(q, k, v, None, True, 0.0, causal, scale=scale)[:2]
    else:
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)[:2]
    return out[0].float(), lse[0, :, : q.shape[2]].float()  # some kernels pad the rows of lse


def merge(into: Attended, more: Attended) -> None:
    """Merges two softmaxes over different keys in place, each weighted by its share of the sum of weights."""
    out, lse = into
    total = torch.logaddexp(lse, more[1])
    # A row without keys so far has a lse of -inf and an out of zeros.
    out.mul_((lse - total).exp_()[..., None]).add_(more[0] * (more[1] - total).exp_()[..., None])
    lse.copy_(total)


@dataclass(frozen=True)
class Neighbours:
    """A place in the ring; `ring.Link` for tensors."""

    rank: int
    size: int

    def pass_on(self, block: torch.Tensor, into: torch.Tensor, work: Callable[[], None]) -> None:
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        both = [dist.P2POp(dist.isend, block, after), dist.P2POp(dist.irecv, into, before)]
        requests = dist.batch_isend_irecv(both)  # on NCCL's own stream
        work()
        for request in requests:
            request.wait()  # the current stream waits; with gloo, this thread


def ring_attention(group: Group, qkv: torch.Tensor, rows: Sequence[Any], *, causal: bool) -> Attended:
    """This process's rows, (3, H, rows, D), to the keys of all; `rows` is the zig-zag placement."""
    _, heads, count, size = qkv.shape
    longest = max(map(len, rows))
    block = qkv.new_zeros(2, heads, longest, size)
    block[:, :, :count] = qkv[1:]
    q = qkv[0]
    fronts = front_halves(sum(map(len, rows)), len(rows))
    found = (
        torch.zeros(q.shape, dtype=torch.float32, device=q.device),
        torch.full((heads, count), -torch.inf, device=q.device),
    )

    def work(owner: int, kv: torch.Tensor) -> None:
        k, v = kv[:, :, : len(rows[owner])]
        result = found
        queries, masked = q, False
        if causal and owner == group.rank:
            masked = True  # both halves ascend: the mask of the whole is the mask of the block
        elif causal and owner < group.rank:
            k, v = k[:, : fronts[owner]], v[:, : fronts[owner]]  # its back half is after all of our rows
        elif causal:
            front = fronts[group.rank]  # only our back half is after any of its rows
            queries, result = q[:, front:], (found[0][:, front:], found[1][:, front:])
        if queries.shape[1] and k.shape[1]:
            merge(result, attend(queries, k, v, causal=masked))

    travel(Neighbours(group.rank, group.size), block, torch.zeros_like(block), work)
    return found


def front_halves(n: int, ranks: int) -> list[int]:
    """How many of each rank's zig-zag rows are of the sequence's front half."""
    return [b - a for a, b in pairwise(ring.cuts(n, 2 * ranks))][:ranks]


# --- Measuring


def _inputs(n: int, heads: int, d: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The same numbers in every process."""
    generator = torch.Generator(device).manual_seed(n)
    return torch.randn((3, heads, n, d), generator=generator, device=device, dtype=torch.float32).to(dtype)


def _error(found: torch.Tensor, qkv: torch.Tensor, rows: torch.Tensor, chosen: torch.Tensor, causal: bool) -> float:
    """Of some of this process's rows, against float64; the norm of the difference, of the reference's."""
    q, k, v = (t.double() for t in qkv)
    at = rows[chosen]
    scores = q[:, at] @ k.transpose(1, 2) * q.shape[-1] ** -0.5
    if causal:
        scores.masked_fill_(torch.arange(k.shape[1], device=at.device) > at[:, None], -torch.inf)
    right = scores.softmax(2) @ v
    return float((found[:, chosen].double() - right).norm() / right.norm())


def measure(group: Group, n: int, heads: int, d: int, dtype: str, causal: bool, repeats: int) -> dict[str, Any]:
    """The ring's time and error, and the times of computing and of passing blocks alone, which bound it."""
    if n < group.size:
        raise RungError(f"{group.size} processes are more than the {n} rows of the sequence; use fewer.")
    kind = dtype_named(dtype)
    rows = ring.zigzag(n, group.size)
    own = torch.from_numpy(rows[group.rank]).to(group.device)
    qkv = _inputs(n, heads, d, kind.torch, group.device)
    local = qkv[:, :, own].contiguous()
    out, _ = ring_attention(group, local, rows, causal=causal)
    some = torch.linspace(0, len(own) - 1, min(len(own), 128), device=group.device).long()
    error = group.slowest(_error(out.to(kind.torch), qkv, own, some, causal))
    if not error <= kind.norm_cap:
        raise RungError(f"the ring at N = {n} is off by {error:.1e} of the norm; {kind.norm_cap:.0e} is allowed.")
    del qkv, out
    block = local[1:].new_zeros(2, heads, max(map(len, rows)), d)
    spare = torch.zeros_like(block)

    def pass_only() -> None:
        travel(Neighbours(group.rank, group.size), block, spare, lambda owner, kv: None)

    taken = group.timed(lambda: ring_attention(group, local, rows, causal=causal), repeats)
    passing = group.timed(pass_only, repeats) if group.size > 1 else 0.0
    scores = n * (n + 1) / 2 if causal else n**2
    one = _alone(group, n, heads, d, kind.torch, causal, repeats)
    return {
        "n": n,
        "heads": heads,
        "d": d,
        "dtype": dtype,
        "causal": causal,
        "processes": group.size,
        "seconds": taken,
        "passing_seconds": passing,
        "one_seconds": one,
        "speed_up": one / taken,
        "efficiency": one / taken / group.size,
        "error": error,
        "tflops": 4 * heads * d * scores / taken / 1e12,
        "bytes_a_step": block.numel() * block.element_size(),
        "device": torch.cuda.get_device_name() if group.device.type == "cuda" else "cpu",
        "backend": dist.get_backend(),
    }


def _alone(group: Group, n: int, heads: int, d: int, dtype: torch.dtype, causal: bool, repeats: int) -> float:
    """torch's fused attention of everything in one call. Every process runs it, so that clock rates are equal."""
    q, k, v = _inputs(n, heads, d, dtype, group.device)
    return group.timed(lambda: attend(q, k, v, causal=causal), repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description="Ring attention over the processes of a torchrun job.")
    # torchrun parses these too, and mistakes a short option for its own.
    parser.add_argument("n", type=int, nargs="+", help="rows of the sequence")
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--head-size", type=int, default=64)
    parser.add_argument("--dtype", choices=("f32", "f16", "bf16"), default="bf16")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument("--patience", type=float, default=120.0, help="seconds that a wait may last")
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    with joined(chosen.device, chosen.patience) as group, torch.inference_mode():
        rows = [
            measure(group, n, chosen.heads, chosen.head_size, chosen.dtype, chosen.causal, chosen.repeats)
            for n in chosen.n
        ]
        group.report(rows, chosen.output)


if __name__ == "__main__":
    main()
