"""The number formats a rung can be built for, and their error bounds."""

from __future__ import annotations

from dataclasses import dataclass

from rung.errors import RungError
from rung.lazy import torch


@dataclass(frozen=True)
class Dtype:
    """A number format: its storage, its name in C++, and its error bounds."""

    name: str
    stored: str  # bytes of an element in memory
    ctype: str
    macro: str
    rtol: float
    atol: float  # the least absolute tolerance, in units of the data's size: four steps of the format
    norm_cap: float

    @property
    def torch(self) -> torch.dtype:
        return element(self.stored, self)

    @property
    def size(self) -> int:
        return {"f64": 8, "f32": 4, "f16": 2, "bf16": 2}[self.stored]


DTYPES = {
    d.name: d
    for d in (
        Dtype("f32", "f32", "float", "RUNG_F32", 1.3e-6, 1e-4, 1e-5),
        Dtype("tf32", "f32", "float", "RUNG_TF32", 1e-3, 4e-3, 2e-3),  # operands may be truncated
        Dtype("f16", "f16", "__half", "RUNG_F16", 1e-3, 2e-3, 1e-3),
        Dtype("bf16", "bf16", "__nv_bfloat16", "RUNG_BF16", 1.6e-2, 1.6e-2, 1e-2),
    )
}

# Sums of 16-bit numbers that are stored in 32 bits.
SUMS = Dtype("sums of 16 bits", "f32", "float", "", 1e-5, 1e-3, 1e-4)

# Formats of a product that differ from its rung's dtype: eight bits, or the rung's own with two zeros in every four
# weights. Tensor cores have other rates for these.
PRODUCTS = ("i8", "e4m3", "2:4")

# Element types of operands, buffers and kernel parameters besides "real", with their names in torch.
ELEMENTS = {
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f64": "float64",
    "i8": "int8",
    "u8": "uint8",
    "i32": "int32",
    "i64": "int64",
}


def dtype(name: str) -> Dtype:
    """The number format called `name`."""
    try:
        return DTYPES[name]
    except KeyError:
        raise RungError(f"dtype {name!r} is not known; use one of {', '.join(DTYPES)}.") from None


def element_name(kind: str, real: Dtype) -> str:
    """numpy's and torch's name of an element declared as `kind` ("real" follows the rung's dtype)."""
    name = ELEMENTS.get(real.stored if kind == "real" else kind)
    if name is None:
        known = ", ".join(["real", *ELEMENTS])
        raise RungError(f"element type {kind!r} is not known; use one of {known}.")
    return name


def element(kind: str, real: Dtype) -> torch.dtype:
    """The same as torch's dtype."""
    found: torch.dtype = getattr(torch, element_name(kind, real))
    return found


def element_size(kind: str, real: Dtype) -> int:
    """Its bytes, without torch."""
    return int("".join(filter(str.isdigit, element_name(kind, real)))) // 8


def name_of(kind: object) -> str:
    """rung's name of a dtype of numpy or torch; its own name if rung has none."""
    return next((name for name, word in ELEMENTS.items() if str(kind).removeprefix("torch.") == word), str(kind))
