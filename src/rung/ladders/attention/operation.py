"""Causal self-attention of all heads at once, on the packed output of GPT-2's QKV projection."""

from __future__ import annotations

from collections.abc import Callable

from rung.arrays import Array, arange, hide, logsumexp, namespace, softmax, transpose
from rung.inputs import BELOW, large_but_for_scores, rows_alike, scores_alike, scores_beyond_exp, scores_far_apart
from rung.lazy import F, torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, Role, Tensors, Values, sizes
from rung.precision import float32_products

QUERIES_AT_ONCE = 1024  # bounds the reference's memory at T in the thousands


def heads_of(part: int) -> Callable[[Array, Values], Array]:
    """The view (B, NH, T, HS) of the queries (0), keys (1) or values (2) inside qkv (B, T, 3 C)."""

    def view(qkv: Array, v: Values) -> Array:
        B, T, NH, HS = (int(v[n]) for n in ("B", "T", "NH", "HS"))
        return qkv.reshape(B, T, 3, NH, HS)[:, :, part].swapaxes(1, 2)

    return view


def rows_of(part: int) -> Callable[[Array, Values], Array]:
    """The view (B, T, C) of the queries (0), keys (1) or values (2) inside qkv (B, T, 3 C)."""
    return lambda qkv, v: qkv[..., part * int(v["C"]) : (part + 1) * int(v["C"])]


def merged(o: Array) -> Array:
    """(B, NH, T, HS) -> (B, T, C)"""
    return o.swapaxes(1, 2).reshape(o.shape[0], o.shape[2], -1)


def reference(t: Tensors, v: Values) -> Tensors:
    q, k, values = t["q"], t["k"], t["v"]
    T = q.shape[2]
    position = arange(T, q)
    o, lse = [], []
    for start in range(0, T, QUERIES_AT_ONCE):
        rows = slice(start, min(T, start + QUERIES_AT_ONCE))
        scores = q[:, :, rows] @ transpose(k) * v["scale"]
        if v["causal"]:
            scores = hide(scores, position > position[rows, None])
        lse.append(logsumexp(scores))
        o.append(softmax(scores) @ values)
    concatenate = namespace(q).concatenate
    heads = concatenate(o, axis=2)
    return {"out": merged(heads), "lse": concatenate(lse, axis=2), "out_heads": heads}


def cost(v: Values, size: int) -> Cost:
    scores = v["T"] * (v["T"] + 1) / 2 if v["causal"] else v["T"] ** 2
    elements = v["B"] * v["T"] * v["C"]
    return Cost(flops=4 * v["B"] * v["C"] * scores, bytes=4 * elements * size)


def torch_naive(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: int, dtype: str
) -> Array:
    with float32_products(dtype):
        scores = q @ k.transpose(2, 3) * scale
        if causal:
            T = q.shape[2]
            scores.masked_fill_(torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1), -torch.inf)
        return merged(scores.softmax(3) @ v)


def sdpa(backend: str) -> Callable[..., torch.Tensor]:
    """torch's scaled_dot_product_attention with one of its backends."""

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: int) -> Array:
        with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend)):
            return merged(F.scaled_dot_product_attention(q, k, v, is_causal=bool(causal), scale=scale))

    return run


OPERATION = Operation(
    name="attention",
    summary="out = softmax(q k^T scale, over the keys up to the query's own) v, for every head",
    story="From five kernels that write T x T scores to one that never does, and on to the tensor cores.",
    dims=("B", "T", "C", "NH"),
    derived={"HS": "C // NH"},
    inverse={"C": "NH * HS"},
    scalars={"scale": "1 / sqrt(C // NH)", "causal": 1},
    rules=("C % NH == 0",),
    operands=(
        Operand("qkv", ("B", "T", "3 * C")),
        Operand("q", ("B", "NH", "T", "HS"), view_of="qkv", view=heads_of(0)),
        Operand("k", ("B", "NH", "T", "HS"), view_of="qkv", view=heads_of(1)),
        Operand("v", ("B", "NH", "T", "HS"), view_of="qkv", view=heads_of(2)),
        Operand("out", ("B", "T", "C"), role="out", apart=1),  # means of few keys are larger than those of many
        # Heads that do not lie between each other's, and three tensors of rows, as kernels outside of GPT-2 have them.
        *(
            Operand(f"{name}_heads", ("B", "NH", "T", "HS"), optional=True, copy_of="qkv", view=heads_of(part))
            for part, name in enumerate("qkv")
        ),
        Operand("out_heads", ("B", "NH", "T", "HS"), role="out", optional=True, copy_of="out", apart=2),
        *(
            Operand(f"{name}_rows", ("B", "T", "C"), optional=True, copy_of="qkv", view=rows_of(part))
            for part, name in enumerate("qkv")
        ),
        Operand("lse", ("B", "NH", "T"), role="out", dtype="f32", sums=True, optional=True, nullable=True),
    ),
    reference=reference,
    cost=cost,
    reduction="HS * T",  # two nested sums
    cases=(
        Case("odd", dict(B=2, T=7, C=64, NH=2)),
        Case("one token", dict(B=1, T=1, C=32, NH=1), dtypes=("f32", "f16", "bf16")),
        Case("2^5 + 1, heads of 64", dict(B=1, T=33, C=128, NH=2, scale=0.2)),
        Case("prime", dict(B=1, T=67, C=32, NH=1)),
        Case("2^7 + 2", dict(B=1, T=130, C=32, NH=1)),
        Case("every key", dict(B=1, T=17, C=32, NH=1, causal=0)),
        # Not in tf32: with 10 bits of mantissa, scores of 16 and more give probabilities errors of several per cent.
        Case("large values", dict(B=1, T=18, C=32, NH=1), magnitude=4.0, dtypes=("f32", "f16", "bf16")),
        Case("heads of 80", dict(B=1, T=9, C=80, NH=1, scale=0.17)),
        Case("heads of 128", dict(B=1, T=35, C=128, NH=1, scale=0.05)),
        Case("heads of 96", dict(B=1, T=11, C=192, NH=2)),
        Case("heads of 1", dict(B=1, T=5, C=2, NH=2), dtypes=("f32", "f16", "bf16")),
        Case("a head of 2", dict(B=1, T=4, C=2, NH=1), dtypes=("f32", "f16", "bf16")),
        Case("heads of 4", dict(B=1, T=5, C=8, NH=2)),
        Case("a head of 160", dict(B=1, T=5, C=160, NH=1)),
        Case("heads of 25", dict(B=1, T=9, C=50, NH=2)),
        Case("heads of 20, another scale", dict(B=1, T=19, C=40, NH=2, scale=0.41, causal=0)),
        Case("heads of 48, three batches", dict(B=3, T=31, C=240, NH=5)),
        Case("more blocks of keys than stages", dict(B=1, T=513, C=16, NH=1), dtypes=("bf16",)),
        Case("heads of 16, many keys", dict(B=1, T=259, C=16, NH=1)),
        Case("twelve heads, two batches", dict(B=2, T=3, C=768, NH=12), where="file"),
        Case("two batches of several tiles", dict(B=2, T=140, C=64, NH=1), where="file"),
        Case("heads of 128, several tiles", dict(B=1, T=130, C=128, NH=1), where="file"),
        Case(
            "scores beyond exp",
            dict(B=1, T=37, C=32, NH=2, scale=4.0),
            dtypes=("f32", "f16", "bf16"),
            change={"qkv": scores_beyond_exp(5.3, climbing=False)},
        ),
        Case("scores far apart", dict(B=1, T=37, C=32, NH=2, scale=4.0), change={"qkv": scores_far_apart}),
        Case(
            "climbing and falling scores",
            dict(B=1, T=67, C=64, NH=2, scale=4.0),
            dtypes=("f32", "f16", "bf16"),
            change={"qkv": scores_beyond_exp(5.3, climbing=True)},
        ),
        Case(
            "up to the format's end",
            dict(B=1, T=23, C=64, NH=2, scale=2e-6),
            change={"qkv": large_but_for_scores(300.0)},
        ),
        Case(  # accurate enough in 16 bits, not in float32
            "scores of some hundreds",
            dict(B=1, T=37, C=32, NH=2, scale=4.0),
            dtypes=("f16", "bf16"),
            change={"qkv": scores_beyond_exp(12.3, climbing=False)},
        ),
        Case(
            "at -100000",
            dict(B=1, T=37, C=32, NH=2, scale=1.0),
            where="file",
            dtypes=("f32",),
            change={"qkv": scores_alike(-1e5)},
        ),
        Case(
            "scores that climb over many keys",
            dict(B=1, T=300, C=64, NH=1, scale=4.0),
            where="alone",
            dtypes=("f32", "f16", "bf16"),
            change={"qkv": scores_beyond_exp(5.3, climbing=True)},
        ),
        Case("gpt2-xl's heads, nine batches", dict(B=9, T=3, C=1600, NH=25), where="alone"),
        Case("gpt2's context", dict(B=1, T=1024, C=64, NH=1), where="alone"),
        Case("heads of 128, more keys", dict(B=1, T=130, C=128, NH=1), where="cuda"),
        Case("2^6 - 1, every key", dict(B=2, T=63, C=192, NH=3, causal=0), where="cuda"),
        # The largest of two million sums of |q k| is 35: at this scale, its rounding to tf32 moves a probability
        # by half a per cent at most.
        Case("more than 2^16 rows", dict(B=80, T=70, C=192, NH=12, scale=0.15), where="cuda"),
        Case("gpt2", dict(B=4, T=64, C=768, NH=12), where="cuda"),
        Case("gpt2, prime", dict(B=2, T=199, C=768, NH=12), where="cuda"),
        Case(
            "gpt2, large values",
            dict(B=1, T=257, C=768, NH=12),
            magnitude=4.0,
            where="cuda",
            dtypes=("f32", "f16", "bf16"),
        ),
        Case("gpt2-medium", dict(B=1, T=1000, C=1024, NH=16), where="cuda"),
        Case("gpt2-large, heads of 80", dict(B=1, T=127, C=1280, NH=16), where="cuda"),
        Case("gpt2-xl, full context", dict(B=2, T=1024, C=1600, NH=25), where="cuda"),
        *sizes(dict(B=67, T=3, C=64, NH=2), dict(B=1, T=2, C=1024, NH=16), dict(B=1, T=2, C=1280, NH=20)),
    ),
    edges={
        "rows of zeros": {"qkv": rows_alike(0.0)},
        "scores far below zero": {"qkv": scores_alike(BELOW)},
    },
    shapes={
        "b4t64": dict(B=4, T=64, C=768, NH=12),
        "b8t1024": dict(B=8, T=1024, C=768, NH=12),
        **{f"n{n}": dict(B=1, T=n, C=64, NH=1) for n in (256, 512, 1024, 2048, 4096, 8192)},
        "b1h16n8192": dict(B=1, T=8192, C=1024, NH=16),
    },
    libraries=(
        # In 16 bits its scores are rounded before the softmax, which exceeds the bound.
        Library(
            "torch",
            torch_naive,
            ("f32", "tf32"),
            note="Two products and a softmax in torch.",
            serves={"library": 3, "any": 1},
        ),
        Library(
            "sdpa_math",
            sdpa("MATH"),
            note="torch's reference path for its fused attention.",
            serves={"library": 4, "emulated": 1, "any": 2},
        ),
        Library(
            "sdpa_efficient",
            sdpa("EFFICIENT_ATTENTION"),
            where="cuda",
            note="xFormers' CUTLASS kernel.",
            needs=("HS % 8 == 0",),
            serves={"library": 2, "prompt": "7 if f32 else 0"},
        ),
        Library(
            "sdpa_flash",
            sdpa("FLASH_ATTENTION"),
            ("f16", "bf16"),
            "cuda",
            "FlashAttention 2.",
            serves={"library": 1, "prompt": 7},
        ),
        Library(
            "sdpa_cudnn",
            sdpa("CUDNN_ATTENTION"),
            ("f16", "bf16"),
            "cuda",
            "cuDNN's attention.",
            ("T > 1", "HS % 8 == 0"),
        ),
    ),
    races=(
        Race("b4t64", ("f32", "tf32", "f16", "bf16"), patience=0.2),
        Race("b8t1024", ("f32", "tf32", "f16", "bf16"), patience=0.2),
        *(Race(f"n{n}", ("f32",), patience=0.2) for n in (256, 512, 1024, 2048, 4096, 8192)),
        Race("b1h16n8192", ("bf16",), patience=0.2),
    ),
    roles=(Role("attention"),),
    words=("flash", "attn", "mha"),
)
