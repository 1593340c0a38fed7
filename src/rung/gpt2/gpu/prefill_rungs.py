"""Which rungs serve a prompt's operations: a table as those of plan.py, by device, dtype and number of tokens."""

from __future__ import annotations

from collections.abc import Mapping

from rung.gpt2.plan import Rungs
from rung.rungs.base import Device

FEW_TOKENS = 256  # up to so many, float32's attention is faster on its CUDA rung
MANY_TOKENS = 768  # from so many, and for few, float32's products are fastest on tensor cores, three for one

# The first that takes the shape serves; `matmul_residual` and `layernorm_matmul` are left out where the sum is
# rather made together with the layernorm behind it, and fused where a table has them.
_ON_A_GPU: Rungs = {
    "embedding": ("3", "2"),
    "layernorm": ("9", "8", "6"),
    "residual_layernorm": ("11",),
    "matmul": ("cublaslt", "torch"),
    "matmul_gelu": ("cublaslt", "torch"),
    "gelu": ("4", "2"),
    "relu": ("2",),
    "residual": ("3", "2"),
}
_ATTENTION = {
    "f32": ("29", "24", "sdpa_efficient"),
    "f16": ("27", "29", "sdpa_flash"),
    "bf16": ("27", "29", "sdpa_flash"),
}
THREE_PRODUCTS: Rungs = {"matmul": ("18", "cublaslt"), "matmul_gelu": ("5", "cublaslt")}
# Emulated, a prompt would take minutes: torch's calls stand in, through the same ladders.
_WITHOUT_ONE: Rungs = {
    **dict.fromkeys(("embedding", "layernorm", "matmul", "matmul_gelu", "gelu", "relu", "residual"), ("torch",)),
    "attention": ("sdpa_math",),
}


def prefill_rungs(device: Device, dtype: str, tokens: int) -> Rungs:
    """Operation -> rungs for prompts of so many tokens in all, padding included."""
    if device != "cuda":
        return _WITHOUT_ONE
    table = {**_ON_A_GPU, "attention": _ATTENTION[dtype]}
    if dtype == "f32":
        if tokens <= FEW_TOKENS:
            table["attention"] = ("24", "29", "sdpa_efficient")
        if FEW_TOKENS < tokens < MANY_TOKENS:
            table["matmul_residual"] = ("cublas_accumulate",)
        else:
            table |= THREE_PRODUCTS
    return table


# Tiles of Triton's products, rows x columns, and warps for each; the first that gives every multiprocessor one.
TILES = ((128, 128, 8), (64, 128, 8), (64, 64, 4), (32, 64, 4))
LEAST_DEPTH = 192  # of a part, where parts share a tile's depth


def tiles(tune: Mapping[str, tuple[int, ...]], rows: int, columns: int, depth: int, sms: int) -> dict[str, int]:
    """Launch parameters of a product in Triton for which no sweep has left any."""

    def blocks_of(BM: int, BN: int) -> int:
        return -(-rows // BM) * -(-columns // BN)

    BM, BN, warps = next((t for t in TILES if blocks_of(*t[:2]) >= sms), TILES[-1])
    blocks, asked = blocks_of(BM, BN), {"BM": BM, "BN": BN, "num_warps": warps}
    parts = [n for n in tune.get("SPLIT", (1,)) if n == 1 or (blocks * n <= 2 * sms and depth >= n * LEAST_DEPTH)]
    asked["SPLIT"] = max(parts) if blocks < sms else 1
    return {name: value for name, value in asked.items() if value in tune.get(name, ())}
