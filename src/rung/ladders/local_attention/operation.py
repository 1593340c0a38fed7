"""Causal self-attention in which a query sees the last `window` keys, its own among them, and the first `globals`."""

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


def merged(o: Array) -> Array:
    """(B, NH, T, HS) -> (B, T, C)"""
    return o.swapaxes(1, 2).reshape(o.shape[0], o.shape[2], -1)


def seen(T: int, window: int, start: int, end: int, like: Array, first: int = 0) -> Array:
    """The mask of the keys of queries start ... end - 1, the text's `first` ones included: (end - start, T)."""
    key = arange(T, like)
    query = key[start:end, None]
    return (key <= query) & ((key > query - window) | (key < first))


def reference(t: Tensors, v: Values) -> Tensors:
    q, k, values = t["q"], t["k"], t["v"]
    T, window, first = q.shape[2], int(v["window"]), int(v["globals"])
    o, lse = [], []
    for start in range(0, T, QUERIES_AT_ONCE):
        end = min(T, start + QUERIES_AT_ONCE)
        scores = q[:, :, start:end] @ transpose(k) * v["scale"]
        scores = hide(scores, ~seen(T, window, start, end, q, first))
        lse.append(logsumexp(scores))
        o.append(softmax(scores) @ values)
    concatenate = namespace(q).concatenate
    return {"out": merged(concatenate(o, axis=2)), "lse": concatenate(lse, axis=2)}


def cost(v: Values, size: int) -> Cost:
    T, full = v["T"], min(v["T"], v["window"] + v.get("globals", 0))  # rows from before it have none
    scores = full * (full + 1) / 2 + (T - full) * full
    return Cost(flops=4 * v["B"] * v["C"] * scores, bytes=4 * v["B"] * T * v["C"] * size)


def torch_masked(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, window: int, dtype: str
) -> Array:
    T = q.shape[2]
    with float32_products(dtype):
        scores = q @ k.transpose(2, 3) * scale
        scores.masked_fill_(~seen(T, window, 0, T, q), -torch.inf)
        return merged(scores.softmax(3) @ v)


def sdpa(backend: str) -> Callable[..., Array]:
    """torch's scaled_dot_product_attention with a mask and one of its backends."""

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, window: int) -> Array:
        T = q.shape[2]
        with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend)):
            mask = seen(T, window, 0, T, q)
            return merged(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale))

    return run


OPERATION = Operation(
    name="local_attention",
    summary="out = softmax(q k^T scale, over the last `window` keys and the first `globals`) v, for every head",
    story="With a window the cost grows with T instead of T squared, if a kernel skips the hidden keys.",
    dims=("B", "T", "C", "NH"),
    derived={"HS": "C // NH"},
    inverse={"C": "NH * HS"},
    scalars={"scale": "1 / sqrt(C // NH)", "window": 128, "globals": 0},
    rules=("C % NH == 0",),
    operands=(
        Operand("qkv", ("B", "T", "3 * C")),
        Operand("q", ("B", "NH", "T", "HS"), view_of="qkv", view=heads_of(0)),
        Operand("k", ("B", "NH", "T", "HS"), view_of="qkv", view=heads_of(1)),
        Operand("v", ("B", "NH", "T", "HS"), view_of="qkv", view=heads_of(2)),
        Operand("out", ("B", "T", "C"), role="out"),
        Operand("lse", ("B", "NH", "T"), role="out", dtype="f32", sums=True, optional=True, nullable=True),
    ),
    reference=reference,
    cost=cost,
    reduction="HS * T",  # two nested sums
    cases=(
        Case("odd", dict(B=2, T=7, C=64, NH=2, window=3)),
        Case("one token", dict(B=1, T=1, C=32, NH=1), dtypes=("f32", "f16", "bf16")),
        Case("a window of one", dict(B=1, T=9, C=32, NH=1, window=1)),
        Case("the window is the row", dict(B=1, T=33, C=64, NH=1, scale=0.2, window=33)),
        Case("prime", dict(B=1, T=67, C=32, NH=1, window=13)),
        Case("across tiles", dict(B=1, T=150, C=32, NH=1, window=65)),
        # Not in tf32: with 10 bits of mantissa, scores of 16 and more give probabilities errors of several per cent.
        Case("large values", dict(B=1, T=18, C=32, NH=1, window=5), magnitude=4.0, dtypes=("f32", "f16", "bf16")),
        Case("heads of 80", dict(B=1, T=9, C=80, NH=1, scale=0.17, window=4)),
        Case("heads of 128", dict(B=1, T=35, C=128, NH=1, scale=0.05, window=20)),
        Case("heads of 96", dict(B=1, T=11, C=192, NH=2, window=6)),
        Case("heads of 1", dict(B=1, T=5, C=2, NH=2, window=2), dtypes=("f32", "f16", "bf16")),
        Case("heads of 25", dict(B=1, T=9, C=50, NH=2, window=6)),
        Case("heads of 20, another scale", dict(B=1, T=19, C=40, NH=2, scale=0.41, window=7)),
        Case("heads of 48, three batches", dict(B=3, T=31, C=240, NH=5, window=17)),
        Case("heads of 16, many keys", dict(B=1, T=259, C=16, NH=1, window=140)),
        Case(
            "scores beyond exp",
            dict(B=1, T=37, C=32, NH=2, scale=4.0, window=21),
            dtypes=("f32", "f16", "bf16"),
            change={"qkv": scores_beyond_exp(5.3, climbing=False)},
        ),
        Case("scores far apart", dict(B=1, T=37, C=32, NH=2, scale=4.0, window=21), change={"qkv": scores_far_apart}),
        Case(
            "climbing and falling scores",
            dict(B=1, T=67, C=64, NH=2, scale=4.0, window=60),
            dtypes=("f32", "f16", "bf16"),
            change={"qkv": scores_beyond_exp(5.3, climbing=True)},
        ),
        Case(
            "up to the format's end",
            dict(B=1, T=23, C=64, NH=2, scale=2e-6, window=9),
            change={"qkv": large_but_for_scores(300.0)},
        ),
        Case("the first key", dict(B=2, T=41, C=64, NH=2, window=7, globals=1)),
        Case("some first keys", dict(B=1, T=150, C=32, NH=1, window=20, globals=5)),
        Case("first keys beyond a tile", dict(B=1, T=203, C=64, NH=1, window=9, globals=70)),
        Case("first keys, heads of 80", dict(B=1, T=30, C=80, NH=1, window=3, globals=11)),
        Case("more first keys than there are", dict(B=1, T=19, C=32, NH=1, window=2, globals=40)),
        Case(  # accurate enough in 16 bits, not in float32
            "scores of some hundreds",
            dict(B=1, T=37, C=32, NH=2, scale=4.0, window=21),
            dtypes=("f16", "bf16"),
            change={"qkv": scores_beyond_exp(12.3, climbing=False)},
        ),
        Case(
            "at -100000",
            dict(B=1, T=37, C=32, NH=2, scale=1.0, window=21),
            where="file",
            dtypes=("f32",),
            change={"qkv": scores_alike(-1e5)},
        ),
        Case(
            "scores that climb over many keys",
            dict(B=1, T=300, C=64, NH=1, scale=4.0, window=290),
            where="alone",
            dtypes=("f32", "f16", "bf16"),
            change={"qkv": scores_beyond_exp(5.3, climbing=True)},
        ),
        Case("gpt2-xl's heads, nine batches", dict(B=9, T=3, C=1600, NH=25, window=2), where="alone"),
        Case("gpt2's context", dict(B=1, T=1024, C=64, NH=1, window=530), where="alone"),
        Case("twelve heads, two batches", dict(B=2, T=3, C=768, NH=12, window=2), where="file"),
        Case("a window of 128", dict(B=1, T=300, C=32, NH=1, window=128), where="file"),
        Case("many first keys", dict(B=1, T=300, C=64, NH=1, window=9, globals=150), where="alone"),
        Case("heads of 128, more keys", dict(B=1, T=300, C=128, NH=1, window=100), where="cuda"),
        Case("gpt2", dict(B=4, T=64, C=768, NH=12), where="cuda"),
        Case("gpt2, prime", dict(B=2, T=199, C=768, NH=12), where="cuda"),
        Case("gpt2-xl, full context", dict(B=1, T=1024, C=1600, NH=25), where="cuda"),
        *sizes(dict(B=67, T=3, C=64, NH=2, window=2), dict(B=1, T=2, C=1024, NH=16), dict(B=1, T=2, C=1280, NH=20)),
    ),
    edges={
        "rows of zeros": {"qkv": rows_alike(0.0)},
        "scores far below zero": {"qkv": scores_alike(BELOW)},
    },
    shapes={
        "b4t64": dict(B=4, T=64, C=768, NH=12),
        "b8t1024": dict(B=8, T=1024, C=768, NH=12),
        "b1h16n8192": dict(B=1, T=8192, C=1024, NH=16),
        "b8t1024 global": dict(B=8, T=1024, C=768, NH=12, globals=1),
    },
    libraries=(
        # In 16 bits its scores are rounded before the softmax, which exceeds the bound.
        Library(
            "torch",
            torch_masked,
            ("f32", "tf32"),
            note="Two products, a mask and a softmax in torch.",
            needs=("globals == 0",),
            serves={"library": 2},
        ),
        Library(
            "sdpa_math",
            sdpa("MATH"),
            note="torch's reference path, under a mask.",
            needs=("globals == 0",),
            serves={"library": 3},
        ),
        Library(
            "sdpa_efficient",
            sdpa("EFFICIENT_ATTENTION"),
            where="cuda",
            note="xFormers' CUTLASS kernel with a mask, which it reads without skipping masked tiles.",
            needs=("HS % 8 == 0", "globals == 0"),
            serves={"library": 1},
        ),
    ),
    races=(Race("b4t64", ("f32", "bf16")), Race("b8t1024", ("f32", "bf16")), Race("b8t1024 global", ("f32", "bf16"))),
    roles=(Role("local_attention"),),
)
