"""Which rungs serve a prompt's operations: a table as those of plan.py, by device, dtype and number of tokens."""

from __future__ import annotations

from rung.gpt2.plan import Rungs
from rung.kernel import Device

FEW_TOKENS = 256  # up to so many, float32's attention is faster on its CUDA rung

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
# Emulated, a prompt would take minutes: torch's calls stand in, through the same ladders.
_WITHOUT_ONE: Rungs = {
    **dict.fromkeys(("embedding", "layernorm", "matmul", "matmul_gelu", "gelu", "relu", "residual"), ("torch",)),
    "attention": ("sdpa_math",),
}


def prefill_rungs(device: Device, dtype: str, tokens: int) -> Rungs:
    """Operation -> rungs for prompts of so many tokens in all, padding included."""
    if device != "cuda":
        return _WITHOUT_ONE
    attention = _ATTENTION[dtype]
    if dtype == "f32" and tokens <= FEW_TOKENS:
        attention = ("24", "29", "sdpa_efficient")
    return {**_ON_A_GPU, "attention": attention}
