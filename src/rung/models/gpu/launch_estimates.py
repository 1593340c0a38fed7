"""Launch parameters of products for which no sweep has found a tuning, by estimates that headers of rungs name."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product

# Tiles of Triton's products, rows x columns, and their warps; the first that gives every multiprocessor a tile is used.
TILES = ((128, 128, 8), (64, 128, 8), (64, 64, 4), (32, 64, 4))
LEAST_DEPTH = 192  # minimum depth of a part, if parts share a tile's depth
# Fitted to the times of a hundred values at 16 shapes on an H200: bytes from the L2 and FLOPs per multiprocessor and
# nanosecond; nanoseconds per step, per part of the depth that is added up, and for sharing x.
L2_BYTES, FLOPS, LATENCY, PART, MEETING = 60, 2500, 30, 200, 800
SHARED_BYTES = 230400
Tunables = tuple[tuple[str, tuple[int, ...]], ...]


def tiles(tunables: Tunables, rows: int, columns: int, depth: int, sms: int) -> dict[str, int]:
    """Values for the tunables, so that every multiprocessor has a tile."""
    tune = dict(tunables)

    def blocks_of(BM: int, BN: int) -> int:
        return -(-rows // BM) * -(-columns // BN)

    BM, BN, warps = next((t for t in TILES if blocks_of(*t[:2]) >= sms), TILES[-1])
    blocks, tuning = blocks_of(BM, BN), {"BM": BM, "BN": BN, "num_warps": warps}
    parts = [n for n in tune.get("SPLIT", (1,)) if n == 1 or (blocks * n <= 2 * sms and depth >= n * LEAST_DEPTH)]
    tuning["SPLIT"] = max(parts) if blocks < sms else 1
    return {name: value for name, value in tuning.items() if value in tune.get(name, ())}


@cache
def for_few_rows(tune: Tunables, rows: int, columns: int, depth: int, sms: int) -> dict[str, int]:
    """Values for a product in 16 bits whose depth and rows of x are shared by a cluster's blocks: the lowest
    estimate."""
    depth_steps = -(-depth // 64)

    def nanoseconds(values: dict[str, int]) -> float:
        BN, GROUPS, SPLIT, STAGES, SHARE = (values[name] for name in ("BN", "GROUPS", "SPLIT", "STAGES", "SHARE"))
        steps, stage = -(-depth_steps // SPLIT), (64 * GROUPS + BN) * 128
        in_shared = 256 * GROUPS * (BN + 8) <= STAGES * stage <= SHARED_BYTES
        fits = range(steps if SHARE > 1 else 3, max(3, steps) + 1)
        if not in_shared or SPLIT * SHARE > 8 or STAGES not in fits:
            return float("inf")
        blocks = -(-rows // (64 * GROUPS)) * -(-columns // (BN * SHARE)) * SPLIT * SHARE
        step = max((64 * GROUPS / SHARE + BN) * 128 / L2_BYTES, 64 * GROUPS * BN * 128 / FLOPS) + LATENCY
        return -(-blocks // sms) * steps * step + PART * SPLIT + MEETING * (SHARE > 1) - STAGES

    names = [name for name, _ in tune]
    return min((dict(zip(names, v, strict=True)) for v in product(*(v for _, v in tune))), key=nanoseconds)


ESTIMATES: dict[str, Callable[[Tunables, int, int, int, int], dict[str, int]]] = {
    "tiles": tiles,
    "few_rows": for_few_rows,
}  # by the names in headers
