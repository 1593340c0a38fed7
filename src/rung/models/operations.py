"""The operations that models are made of, and the rungs that serve them: tables for plans, for prompts and scores on
a GPU, and for sampling. A family names the rungs of whole steps (gpt2/rungs.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from rung.errors import RungError
from rung.expressions import Number

if TYPE_CHECKING:
    from rung.rungs.base import Device, Rung

# Torch computes these where a table has no rung of them.
BY_TORCH = ("rmsnorm", "rope", "swiglu", "grouped_attention", "grouped_cached_attention")
# Each has a ladder, except residual_layernorm.
OPERATIONS = (
    "embedding", "layernorm", "matmul", "attention", "local_attention", "cached_attention", "softmax", "gelu", "relu",
    "residual", "layernorm_matmul", "matmul_gelu", "matmul_residual", "residual_layernorm", *BY_TORCH,
    "rmsnorm_residual", "matmul_swiglu",
)  # fmt: skip
# Rungs of layernorm that add the residual to their input and also return the sum.
LADDERS = {"residual_layernorm": "layernorm"}
# The operations that a fused operation replaces.
FUSED = {
    "layernorm_matmul": ("layernorm", "matmul"),
    "matmul_gelu": ("matmul", "gelu"),
    "matmul_residual": ("matmul", "residual"),
    "residual_layernorm": ("residual", "layernorm"),
    "rmsnorm_residual": ("residual", "rmsnorm"),
    "matmul_swiglu": ("matmul", "swiglu"),
    "rmsnorm_matmul": ("rmsnorm", "matmul"),
}
# Operation -> rungs, as `rung list` names them: the first that has the dtype is used. If it does not support the shape,
# one of those after it is used, or else the highest of the ladder that does, with a note. Other operations run through
# torch.
Rungs = Mapping[str, tuple[str, ...]]
# Rungs of sample, the fastest on an H200 first. The last ones keep a row in memory, for GPUs and vocabularies with
# which it does not fit on chip.
SAMPLE_RUNGS = ("cluster", "candidates", "bisection", "in_memory", "groups")
ALIGNMENT = 32  # bytes; WMMA needs the most

# The first version of every operation. (For tf32, which only tensor cores have: the first rungs that support it.)
_NAIVE: Rungs = {
    "embedding": ("1",),
    "layernorm": ("1",),
    "matmul": ("1", "9"),
    "attention": ("2", "10"),
    "local_attention": ("1", "5"),
    "cached_attention": ("1",),
    "gelu": ("1",),
    "relu": ("1",),
    "residual": ("1",),
    **dict.fromkeys(("rmsnorm", "rope", "swiglu"), ("1",)),
}
# Sums and maxima by many threads together, with coalesced reads.
_REDUCTION: Rungs = {
    "embedding": ("2",),
    "layernorm": ("6",),
    "matmul": ("2", "9"),
    "attention": ("6", "10"),
    "local_attention": ("2", "5"),
    "cached_attention": ("2",),
    "gelu": ("2",),
    "relu": ("2",),
    "residual": ("2",),
}
# Products from tiles in shared memory and registers.
_TILED: Rungs = {
    **_REDUCTION,
    "embedding": ("3",),
    "layernorm": ("7",),
    "matmul": ("4", "9"),
    "attention": ("9", "10"),
    "local_attention": ("3", "2", "5"),
    "cached_attention": ("3",),
}
# Products on tensor cores where the dtype has them, else with double-buffered tiles. No rung that writes attention's
# scores to memory has 16 bits on tensor cores, so the flash rung is used there.
_TENSORCORE: Rungs = {
    **_TILED,
    "embedding": ("4",),
    "layernorm": ("8",),
    "matmul": ("14", "8"),
    "attention": ("10", "27", "9"),
    "local_attention": ("4", "3", "5"),
    "gelu": ("4",),
    "residual": ("3",),
}
# Attention whose scores never reach memory.
_FLASH: Rungs = {**_TENSORCORE, "attention": ("27", "24", "29"), "cached_attention": ("4",)}
# Operations before and after a product are fused into its prologue or epilogue.
_FUSED: Rungs = {
    **_FLASH,
    "layernorm_matmul": ("3", "2"),
    "matmul_gelu": ("3", "2"),
    "matmul_residual": ("3", "2"),
    "residual_layernorm": ("11",),
}
# torch's and its libraries' calls, through the same ladders.
_LIBRARY: Rungs = {
    **dict.fromkeys(("embedding", "layernorm", "matmul", "gelu", "relu", "residual"), ("torch",)),
    "attention": ("sdpa_flash", "sdpa_efficient", "torch", "sdpa_math"),
    "local_attention": ("sdpa_efficient", "torch", "sdpa_math"),
    "cached_attention": ("sdpa",),
}
PLANS: dict[str, Rungs] = {
    "torch": {},
    "best": {},  # whole steps of the decode ladder
    "library": _LIBRARY,
    "naive": _NAIVE,
    "reduction": _REDUCTION,
    "tiled": _TILED,
    "tensorcore": _TENSORCORE,
    "flash": _FLASH,
    "fused": _FUSED,
}
# Instead of a table's local_attention with global tokens.
FIRST_KEYS: Mapping[str, tuple[str, ...]] = {"naive": ("7",), "reduction": ("7",)}
FIRST_KEYS_TILED = ("9", "8", "7")
WINDOWED = "fused"  # the plan on a GPU when a window is requested and no plan is named


def ladder_of(operation: str) -> str:
    """The ladder with an operation's rungs."""
    return LADDERS.get(operation, operation)


@cache
def find(operation: str, name: str) -> Rung:
    """The rung that serves an operation of the model, by its name in the ladder or as a file."""
    from rung.rungs import catalogue  # not needed on a CPU, which runs no rungs

    ladder = ladder_of(operation)
    if name.endswith((".cu", ".py")):
        rung = catalogue.rung_from_file(catalogue.operation(ladder), Path(name))
    else:
        rung = catalogue.find(f"{ladder}/{name}")
    if ladder == "layernorm" and ("residual" in rung.binds) != (operation == "residual_layernorm"):
        other = "residual_layernorm" if operation == "layernorm" else "layernorm"
        does = "adds a residual on the way in" if operation == "layernorm" else "adds no residual"
        raise RungError(f"{rung.full_name} {does}; it serves as {other}={name}.")
    return rung


# ---- prompts on a GPU, by dtype and number of tokens ----------------------------------------------------------------

FEW_TOKENS = 256  # up to this many, float32 products are fastest as three products on tensor cores
FULL_GRID = 2048  # from this many, attention's tiles fill a GPU without dividing the keys among a block's warpgroups
OVERLAPPED = 256  # rows up to which dependent launch is faster, tuned or not; beyond, only if it is tuned
LONGEST_OVERLAPPED = 1024  # tokens up to which 16-bit kernels use dependent launch
FEW_ROWS = 8  # of a step, up to which CUDA cores keep up with the weights' bytes
COLUMNS = 16  # of a step, up to which rows are the columns of products whose rows are the weights', in bf16
MANY_TEXTS = 32  # of a step, from which attention is limited by instructions, and tensor cores take them over
MANY_ROWS = 4096  # from this many, our own product with GELU is faster than the library's
MANY_TOKENS = 768  # and again from this many

# The first that supports the shape is used. Without `matmul_residual` and `layernorm_matmul` in a table, the sum is
# fused with the layernorm after it.
_ON_A_GPU: Rungs = {
    "embedding": ("3", "2"),
    "layernorm": ("9", "8", "6"),
    "residual_layernorm": ("11",),
    "rmsnorm": ("4", "3", "1"),
    "rmsnorm_residual": ("3", "2", "1"),
    "matmul": ("cublaslt", "torch"),
    "matmul_gelu": ("cublaslt", "torch"),
    "gelu": ("4", "2"),
    "relu": ("2",),
    "residual": ("3", "2"),
}
_FEW_TILES = ("34", "31", "27", "29", "sdpa_flash")
_MANY_TILES = ("30", "33", "27", "29", "sdpa_flash")
THREE_PRODUCTS: Rungs = {"matmul": ("18", "cublaslt"), "matmul_gelu": ("5", "torch")}
# One layer's launches with dependent launch, followed by those for shapes that they do not support.
BEGUN_EARLY: Rungs = {
    "residual_layernorm": ("14", "11"),
    "matmul": ("30", "cublaslt", "torch"),
    "matmul_gelu": ("7", "cublaslt", "torch"),
    "attention": ("40", *_FEW_TILES),
}
# On the emulator a prompt would take minutes: torch's calls replace the kernels, through the same ladders.
_WITHOUT_ONE: Rungs = {
    **dict.fromkeys(("embedding", "layernorm", "matmul", "matmul_gelu", "gelu", "relu", "residual"), ("torch",)),
    "attention": ("sdpa_math",),
}


def prefill_rungs(device: Device, dtype: str, tokens: int) -> Rungs:
    """Operation -> rungs for prompts of this many tokens in total, padding included."""
    if device != "cuda":
        return _WITHOUT_ONE
    table = {**_ON_A_GPU, "attention": _FEW_TILES if tokens < FULL_GRID else _MANY_TILES}
    if dtype != "f32":
        table["grouped_attention"] = ("2",)
    if dtype != "f32" and tokens <= LONGEST_OVERLAPPED:
        table |= BEGUN_EARLY
    if dtype != "f32" and tokens >= FULL_GRID:
        table["residual_layernorm"] = ("15", *table["residual_layernorm"])
    if dtype != "f32" and tokens >= MANY_ROWS:
        table |= {"matmul_gelu": ("6", *table["matmul_gelu"]), "matmul_swiglu": ("3", "2")}
    if dtype == "f32":
        table["attention"] = ("35", *(("24", "29") if tokens <= FEW_TOKENS else ("29", "24")), "sdpa_efficient")
        if FEW_TOKENS < tokens < MANY_TOKENS:
            table["matmul_residual"] = ("cublas_accumulate",)
        else:
            table |= THREE_PRODUCTS
    return table


def step_rungs(device: Device, dtype: str, rows: int) -> Rungs:
    """Operation -> rungs for a step of this many rows that is made of the operations."""
    table = dict(prefill_rungs(device, dtype, rows))
    columns, few = dtype == "bf16" and 1 < rows <= COLUMNS, rows <= FEW_ROWS
    if columns or few:
        table["rmsnorm_matmul"] = ("3",) * columns + ("2", "1") * few
        table["matmul_residual"] = ("7",) * columns + ("6",) * few + table.get("matmul_residual", ())
    if columns:
        table["layernorm_matmul"] = ("5",)
    if rows >= MANY_TEXTS:
        table["rope_cached_attention"] = ("3", "2", "1")
    return {**table, "cached_attention": ("4", "3", "sdpa")} if device == "cuda" else table


def score_rungs(device: Device) -> tuple[str, ...]:
    """Rungs of token_logprob, the fastest first."""
    return ("6", "5", "4", "3", "2") if device == "cuda" else ("4", "3", "2")


def last_resort(operation: str) -> tuple[str, ...]:
    """Rungs that support every shape, for when none of a table's rungs does."""
    if operation == "cached_attention":
        return ("sdpa", "1")
    return ("torch", "sdpa_math", "1") if operation == "attention" else ("torch", "1")


def dims_of(x: torch.Tensor) -> dict[str, Number]:
    """(B, T, C) by name."""
    B, T, C = x.shape
    return {"B": B, "T": T, "C": C}


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy if it is misaligned for the kernels, which read 16 bytes at a time. A tensor in a mapped
    file, or a layer of odd width, may start at any address.
    """
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()
