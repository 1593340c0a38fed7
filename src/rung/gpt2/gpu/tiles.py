"""Launch parameters of a product in Triton for which no sweep has left any."""

from __future__ import annotations

from collections.abc import Mapping

# Tiles of Triton's products, rows x columns, and warps for each; the first that gives every multiprocessor one.
TILES = ((128, 128, 8), (64, 128, 8), (64, 64, 4), (32, 64, 4))
LEAST_DEPTH = 192  # of a part, where parts share a tile's depth


def tiles(tune: Mapping[str, tuple[int, ...]], rows: int, columns: int, depth: int, sms: int) -> dict[str, int]:
    """Values for `tune`, so that every multiprocessor has a tile."""

    def blocks_of(BM: int, BN: int) -> int:
        return -(-rows // BM) * -(-columns // BN)

    BM, BN, warps = next((t for t in TILES if blocks_of(*t[:2]) >= sms), TILES[-1])
    blocks, asked = blocks_of(BM, BN), {"BM": BM, "BN": BN, "num_warps": warps}
    parts = [n for n in tune.get("SPLIT", (1,)) if n == 1 or (blocks * n <= 2 * sms and depth >= n * LEAST_DEPTH)]
    asked["SPLIT"] = max(parts) if blocks < sms else 1
    return {name: value for name, value in asked.items() if value in tune.get(name, ())}
