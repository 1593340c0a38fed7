"""Tensor maps for Hopper's copy engine, as plain data, for the driver and for the emulator."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

from gpuless.base.errors import UserError

SIZE = 128  # bytes of an encoded map
SWIZZLES = (0, 32, 64, 128)
PROMOTIONS = (0, 64, 128, 256)
FILLS = ("zeros", "nan")
_PIECE = 16  # addresses, strides and rows of a box are multiples of this many bytes
_MOST_RANK, _MOST_BOX = 5, 256
ELEMENTS = ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f32.ftz", "f64", "bf16", "tf32", "tf32.ftz")
_MAGIC = 0x50414D544E455354
_EMULATED = struct.Struct("<QQ4Q5I5H5B5B40x")

_TYPES = {  # the driver's, and ours
    "float32": ("FLOAT32", "f32"),
    "float16": ("FLOAT16", "f16"),
    "bfloat16": ("BFLOAT16", "bf16"),
    "float64": ("FLOAT64", "f64"),
    "int32": ("INT32", "s32"),
    "int64": ("INT64", "s64"),
    "int8": ("UINT8", "u8"),
    "uint8": ("UINT8", "u8"),
}
_DRIVER_FILLS = {"zeros": "NONE", "nan": "NAN_REQUEST_ZERO_FMA"}
_ENCODE = ctypes.CFUNCTYPE(  # of cuTensorMapEncodeTiled
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, *[ctypes.c_void_p] * 5, *[ctypes.c_int] * 4
)


@dataclass(frozen=True)
class TensorMap:
    """A box of a tensor that is copied at once. Sizes are listed as in shapes: the fastest dimension comes last.

    `strides` are those of all dimensions but the last, and like `offset` in elements. Elements beyond the tensor's edge
    are `fill`ed and never stored; `swizzle` is the swizzle's width in bytes; `promotion` is the least number of bytes
    that L2 fetches; `tf32` rounds floats during the copy.
    """

    name: str
    tensor: Any  # torch's or numpy's
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    offset: int = 0
    swizzle: int = 0
    promotion: int = 128
    fill: Literal["zeros", "nan"] = "zeros"
    tf32: bool = False

    def __post_init__(self) -> None:
        wrong = self._wrong()
        if wrong:
            raise UserError(f"maps.{self.name} cannot be encoded: {wrong}.")

    @property
    def address(self) -> int:
        start = self.tensor.data_ptr() if hasattr(self.tensor, "data_ptr") else self.tensor.ctypes.data
        return int(start) + self.offset * int(self.tensor.itemsize)

    def encode(self) -> bytes:
        """The driver's form, for a GPU."""
        from cuda.bindings import driver

        def constant(kind: str, name: str) -> int:
            return int(getattr(getattr(driver, f"CUtensorMap{kind}"), f"CU_TENSOR_MAP_{name}"))

        size, rank = self.tensor.itemsize, len(self.dims)
        memory, start = _aligned_memory(SIZE)
        error = _driver_function()(
            start,
            constant("DataType", f"DATA_TYPE_{'TFLOAT32' if self._rounds else _TYPES[self._kind][0]}"),
            rank,
            self.address,
            (ctypes.c_uint64 * rank)(*reversed(self.dims)),
            (ctypes.c_uint64 * rank)(*[n * size for n in reversed(self.strides)]),
            (ctypes.c_uint32 * rank)(*reversed(self.box)),
            (ctypes.c_uint32 * rank)(*[1] * rank),
            constant("Interleave", "INTERLEAVE_NONE"),
            constant("Swizzle", f"SWIZZLE_{self.swizzle}B" if self.swizzle else "SWIZZLE_NONE"),
            constant("L2promotion", f"L2_PROMOTION_L2_{self.promotion}B" if self.promotion else "L2_PROMOTION_NONE"),
            constant("FloatOOBfill", f"FLOAT_OOB_FILL_{_DRIVER_FILLS[self.fill]}"),
        )
        if error:
            raise UserError(f"maps.{self.name} cannot be encoded: the driver returns {driver.CUresult(error).name}.")
        return memory.raw[start - ctypes.addressof(memory) :][:SIZE]

    def emulated(self) -> bytes:
        """The emulator's form: `TensorMapFields` in its headers."""
        element = ELEMENTS.index("tf32" if self._rounds else _TYPES[self._kind][1])
        swizzle, fill = SWIZZLES.index(self.swizzle), FILLS.index(self.fill)
        size = self.tensor.itemsize
        return packed(self.address, self.dims, self.strides, self.box, size, swizzle, fill, element)

    @property
    def _rounds(self) -> bool:
        return self.tf32 and self._kind == "float32"

    @property
    def _kind(self) -> str:
        """numpy's and torch's name of its elements."""
        return str(self.tensor.dtype).removeprefix("torch.")

    def _wrong(self) -> str | None:
        """The first thing that the hardware does not support, most important first."""
        size, rank = self.tensor.itemsize, len(self.dims)
        if not 1 <= rank <= _MOST_RANK:
            return f"it has {rank} dimensions, but 1 to {_MOST_RANK} are allowed"
        if len(self.box) != rank or len(self.strides) != rank - 1:
            return f"its {rank} dims need as many sizes in box and {rank - 1} strides"
        if self._kind not in _TYPES:
            return f"the copy engine has no elements of {self.tensor.dtype}"
        if self.swizzle not in SWIZZLES or self.promotion not in PROMOTIONS:
            return f"swizzle is one of {SWIZZLES} and promotion one of {PROMOTIONS} bytes"
        if not all(0 < n < 2**32 for n in self.dims):
            return f"its dims {self.dims} are not all between 1 and 2^32"
        if not all(0 < n <= _MOST_BOX for n in self.box):
            return f"its box {self.box} is not between 1 and {_MOST_BOX} everywhere"
        row = self.box[-1] * size
        if row % _PIECE or (self.swizzle and row > self.swizzle):
            most = f" and at most its swizzle of {self.swizzle}" if self.swizzle else ""
            return f"a row of its box has {row} bytes, but must be a multiple of {_PIECE}{most}"
        if self.address % _PIECE:
            return f"its first element is at no multiple of {_PIECE} bytes"
        if any(n * size % _PIECE for n in self.strides):
            return f"its strides {self.strides} are not all multiples of {_PIECE} bytes"
        if self.fill == "nan" and "float" not in self._kind:
            return f"elements of {self.tensor.dtype} cannot be filled with nan"
        return None


def packed(
    address: int, dims: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...],
    size: int, swizzle: int, fill: int, element: int,
) -> bytes:  # fmt: skip
    """The emulator's form; `strides` in elements of `size` bytes, `swizzle`, `fill` and `element` by their numbers."""
    rank = len(dims)
    more = (1,) * (_MOST_RANK - rank)
    in_bytes = [n * size for n in reversed(strides)] + [0] * (_MOST_RANK - rank)
    return _EMULATED.pack(
        _MAGIC, address, *in_bytes, *reversed(dims), *more, *reversed(box), *more,
        *[1] * _MOST_RANK, rank, size, swizzle, fill, element,
    )  # fmt: skip


def packed_strides(dims: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of all dimensions but the last, whose elements are contiguous."""
    strides = [1]
    for size in reversed(dims[1:]):
        strides.insert(0, strides[0] * size)
    return tuple(strides[:-1])


@functools.cache
def _driver_function() -> Callable[..., int]:
    """cuTensorMapEncodeTiled needs a map aligned to 64 bytes, which cuda.bindings does not provide."""
    try:
        return cast("Callable[..., int]", _ENCODE(("cuTensorMapEncodeTiled", ctypes.CDLL("libcuda.so.1"))))
    except (OSError, AttributeError) as problem:
        raise UserError(f"Tensor maps need a driver of CUDA 12 or later ({problem}).") from problem


def _aligned_memory(size: int) -> tuple[ctypes.Array[ctypes.c_char], int]:
    """Memory, and the first address in it that is a multiple of 64 with `size` bytes after it."""
    memory = ctypes.create_string_buffer(size + 63)
    return memory, -(-ctypes.addressof(memory) // 64) * 64
