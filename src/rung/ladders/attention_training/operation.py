"""Causal self-attention forward and backward: the output, and the gradients of queries, keys and values."""

from __future__ import annotations

from collections.abc import Callable

from rung.arrays import Array, arange, hide, namespace, softmax, transpose
from rung.inputs import BELOW, rows_alike, scores_alike
from rung.lazy import F, torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, Tensors, Values
from rung.precision import float32_products


def heads(x: Array, part: int, NH: int, of: int = 3) -> Array:
    """Queries (0), keys (1) or values (2) of qkv (B, T, 3 C), or the one part of (B, T, C), as (B, NH, T, HS)."""
    B, T, width = x.shape
    return x.reshape(B, T, -1, NH, width // of // NH)[:, :, part].swapaxes(1, 2)


def packed(*parts: Array) -> Array:
    """Several (B, NH, T, HS), side by side as (B, T, parts * C)."""
    xp, (B, _, T, _) = namespace(parts[0]), parts[0].shape
    return xp.stack([part.swapaxes(1, 2) for part in parts], axis=2).reshape(B, T, -1)


def by_formula(t: Tensors, NH: int, scale: float) -> dict[str, Array]:
    """Three products forward and five backward, with P and its gradient in memory."""
    q, k, v = (heads(t["qkv"], i, NH) for i in range(3))
    position = arange(q.shape[2], q)
    p = softmax(hide(q @ transpose(k) * scale, position > position[:, None]))
    do = heads(t["dout"], 0, NH, 1)
    dp = do @ transpose(v)
    ds = p * (dp - (p * dp).sum(3)[..., None]) * scale
    return {"out": packed(p @ v), "dqkv": packed(ds @ k, transpose(ds) @ q, transpose(p) @ do)}


def reference(t: Tensors, v: Values) -> Tensors:
    return by_formula(t, int(v["NH"]), float(v["scale"]))


def cost(v: Values, size: int) -> Cost:
    # Seven products of T x T x HS: two forward, and five backward with the scores computed again.
    scores = v["T"] * (v["T"] + 1) / 2
    return Cost(flops=14 * v["B"] * v["C"] * scores, bytes=8 * v["B"] * v["T"] * v["C"] * size)


def torch_formula(
    qkv: torch.Tensor, dout: torch.Tensor, *, NH: int, scale: float, dtype: str, **_: object
) -> dict[str, torch.Tensor]:
    with float32_products(dtype):
        return by_formula({"qkv": qkv, "dout": dout}, NH, scale)


def sdpa(backend: str) -> Callable[..., dict[str, torch.Tensor]]:
    """torch's scaled_dot_product_attention and its gradient, with one of its backends."""

    def run(qkv: torch.Tensor, dout: torch.Tensor, *, NH: int, scale: float, **_: object) -> dict[str, torch.Tensor]:
        with torch.inference_mode(False), torch.enable_grad():
            x = qkv.clone().requires_grad_()
            q, k, v = (heads(x, i, NH) for i in range(3))
            with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend)):
                out = packed(F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale))
                (dqkv,) = torch.autograd.grad(out, x, dout.clone())
        return {"out": out.detach(), "dqkv": dqkv}

    return run


OPERATION = Operation(
    name="attention_training",
    summary="out = softmax(q k^T scale) v, causal, and dqkv, the gradient of sum(out · dout)",
    story="Forward and backward, as flash attention's paper times them: P is stored, or computed again tile by tile.",
    dims=("B", "T", "C", "NH"),
    derived={"HS": "C // NH"},
    inverse={"C": "NH * HS"},
    scalars={"scale": "1 / sqrt(C // NH)"},
    rules=("C % NH == 0",),
    operands=(
        Operand("qkv", ("B", "T", "3 * C")),
        Operand("dout", ("B", "T", "C")),
        Operand("out", ("B", "T", "C"), role="out", apart=1),
        Operand("dqkv", ("B", "T", "3 * C"), role="out", apart=1),
    ),
    reference=reference,
    cost=cost,
    reduction="HS * T",
    cases=(
        Case("odd", dict(B=2, T=7, C=32, NH=2)),
        Case("2^5 + 1", dict(B=1, T=33, C=32, NH=2, scale=0.2)),
        Case("prime", dict(B=1, T=67, C=16, NH=1)),
        Case("heads of 80", dict(B=1, T=9, C=80, NH=1, scale=0.17)),
        Case("heads of 25", dict(B=1, T=9, C=50, NH=2)),
        Case("heads of 64", dict(B=1, T=35, C=128, NH=2)),
        Case("large values", dict(B=1, T=18, C=32, NH=1), magnitude=3.0, dtypes=("f32",)),
        Case("one token", dict(B=3, T=1, C=16, NH=2)),
        Case("gpt2", dict(B=2, T=199, C=768, NH=12), where="cuda"),
    ),
    edges={
        "rows of zeros": {"qkv": rows_alike(0.0), "dout": rows_alike(0.0)},
        "scores far below zero": {"qkv": scores_alike(BELOW)},
    },
    shapes={
        "b4t64": dict(B=4, T=64, C=768, NH=12),
        "b8t1024": dict(B=8, T=1024, C=768, NH=12),
        "b64h16t1024": dict(B=64, T=1024, C=1024, NH=16),  # flash attention's table: GPT-2 medium, heads of 64
    },
    libraries=(
        Library("torch", torch_formula, ("f32",), note="The formula: eight products of cuBLAS, P and dS in memory."),
        Library(
            "sdpa_efficient",
            sdpa("EFFICIENT_ATTENTION"),
            ("f32", "f16"),
            "cuda",
            "xFormers' kernels.",
            needs=("HS % 8 == 0",),
        ),
        Library(
            "sdpa_flash", sdpa("FLASH_ATTENTION"), ("f16", "bf16"), "cuda", "FlashAttention 2.", needs=("HS % 8 == 0",)
        ),
    ),
    races=(Race("b8t1024", ("f32", "f16"), patience=0.2),),
)
