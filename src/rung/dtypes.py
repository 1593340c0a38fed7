"""The number formats a rung can be built for, and how exact each is expected to be."""

from dataclasses import dataclass

import torch

from rung.errors import RungError


@dataclass(frozen=True)
class Dtype:
    """A number format: how it is stored, named in C++, and how far a result may be off."""

    name: str
    torch: torch.dtype
    ctype: str
    macro: str
    rtol: float
    atol: float  # the least absolute tolerance, in units of the data's size: four steps of the format
    norm_cap: float

    @property
    def size(self) -> int:
        return self.torch.itemsize


DTYPES = {
    d.name: d
    for d in (
        Dtype("f32", torch.float32, "float", "RUNG_F32", 1.3e-6, 1e-4, 1e-5),
        Dtype("tf32", torch.float32, "float", "RUNG_TF32", 1e-3, 4e-3, 1e-3),
        Dtype("f16", torch.float16, "__half", "RUNG_F16", 1e-3, 2e-3, 1e-3),
        Dtype("bf16", torch.bfloat16, "__nv_bfloat16", "RUNG_BF16", 1.6e-2, 1.6e-2, 1e-2),
    )
}

# What an operand, a buffer or a parameter of a kernel may hold, beside "real".
ELEMENTS: dict[str, torch.dtype] = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f64": torch.float64,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i32": torch.int32,
    "i64": torch.int64,
}


def dtype(name: str) -> Dtype:
    """The number format called `name`."""
    try:
        return DTYPES[name]
    except KeyError:
        raise RungError(f"dtype {name!r} is not known; use one of {', '.join(DTYPES)}.") from None


def element(kind: str, real: Dtype) -> torch.dtype:
    """The torch dtype of an operand or buffer declared as `kind` ("real" follows the rung's dtype)."""
    if kind == "real":
        return real.torch
    try:
        return ELEMENTS[kind]
    except KeyError:
        known = ", ".join(["real", *ELEMENTS])
        raise RungError(f"element type {kind!r} is not known; use one of {known}.") from None
