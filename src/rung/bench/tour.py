"""What `rung bench all` times: every ladder at GPT-2's shapes, so that all of it is done in six minutes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rung.rungs import catalogue

LARGE = ("f32", "tf32", "f16", "bf16")
BOTH = ("f32", "bf16")
# op -> [(shape, number formats, seconds that a single call may take)]
TOUR: dict[str, list[tuple[str, tuple[str, ...], float]]] = {
    "layernorm": [("b4t64", BOTH, 1), ("b8t1024", ("f32", "f16", "bf16"), 1), ("b64t1024", ("f32",), 1)],
    "gelu": [("b4t64", BOTH, 1), ("b8t1024", ("f32", "f16", "bf16"), 1), ("b8t1024c768", ("f32",), 1)],
    "residual": [("b4t64", BOTH, 1), ("b8t1024", BOTH, 1)],
    "bias": [("b4t64", ("f32",), 1), ("b8t1024", ("f32",), 1)],
    "embedding": [("b4t64", BOTH, 1), ("b8t1024", BOTH, 1)],
    "softmax": [("b4t64", BOTH, 1), ("b8t1024", BOTH, 1), ("vocabulary", ("f32",), 1)],
    "matmul": [
        ("b4t64", LARGE, 1),
        ("b8t1024", LARGE, 1),
        ("4096x768x3072", ("bf16",), 1),
        ("decode", BOTH, 1),
        ("lm head", ("bf16",), 1),
    ],
    "attention": [
        ("b4t64", LARGE, 0.2),
        ("b8t1024", LARGE, 0.2),
        *((f"n{n}", ("f32",), 0.2) for n in (256, 512, 1024, 2048, 4096, 8192)),
        ("b1h16n8192", ("bf16",), 0.2),
    ],
    "local_attention": [("b4t64", BOTH, 1), ("b8t1024", BOTH, 1)],
    "matmul_gelu": [("b4t64", BOTH, 1), ("b8t1024", BOTH, 1)],
    "matmul_residual": [("b4t64", BOTH, 1), ("b8t1024", BOTH, 1)],
    "layernorm_matmul": [("b4t64", BOTH, 1), ("b8t1024", BOTH, 1)],
    "decode": [("gpt2", BOTH, 0.2), ("gpt2 b64", ("bf16",), 0.2)],
    "sample": [("gpt2", ("f32",), 1), ("gpt2 b64", ("f32",), 1)],
    "copy": [("n64m", BOTH, 1)],
    "transpose": [("c8192x8192", BOTH, 1)],
    "divergence": [("n16m", ("f32",), 1)],
    "pointwise": [("n64m", ("f32",), 1)],
    "relu": [("n64m", ("f32", "f16"), 1)],
    "recompute": [("n64m", ("f32",), 1)],
    "reduce": [("b65536n1024", ("f32",), 1), ("b16n1m", ("f32",), 1)],
}


@dataclass(frozen=True)
class Stop:
    """One race of the tour."""

    operation: str
    shape: str
    dtype: str
    patience: float


def stops() -> Iterator[Stop]:
    """All races; a ladder that the table lacks is there with all its shapes."""
    for name in (*TOUR, *(n for n in catalogue.operations() if n not in TOUR)):
        every = catalogue.operation(name).shapes
        for shape, dtypes, patience in TOUR.get(name, [(s, LARGE, 1.0) for s in every]):
            for dtype in dtypes:
                yield Stop(name, shape, dtype, patience)
