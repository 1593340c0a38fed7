"""One prepared launch: packs arguments by kind into a buffer, calls the driver, reports failures. The driver's bindings
would pass any Python number as 64 bits; here the kind decides.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, ClassVar

import torch

from gpuless import tensor_map
from gpuless.launch import Argument
from gpuless.module import pack_bf16
from rung.errors import RungError, first_line

_FORMATS = {
    "pointer": "Q",
    "i32": "i",
    "u32": "I",
    "i64": "q",
    "u64": "Q",
    "f32": "f",
    "f64": "d",
    "bool": "?",
    "f16": "e",
    "bf16": "2s",
    "tensor_map": f"{tensor_map.SIZE}s",
}
_MISFITS = (struct.error, TypeError, ValueError, OverflowError)
SIZES = {kind: struct.calcsize(layout) for kind, layout in _FORMATS.items()}
# Each argument has a slot of a multiple of eight bytes.
_SLOTS = {kind: f"{layout}{-SIZES[kind] % 8}x" for kind, layout in _FORMATS.items()}


def synchronize() -> None:
    """Waits for the current device; a failed kernel becomes a RungError with its name."""
    try:
        torch.cuda.synchronize()
    except RuntimeError as problem:
        reason = first_line(problem)
        name = f"kernel '{Launcher.last}'" if Launcher.last else "a kernel"
        raise RungError(f"{name} failed on the GPU ({reason}); {_LOST}.") from problem


_LOST = "the CUDA context of this process is lost, compute-sanitizer on a small case shows the faulty access"


class Launcher:
    """A launch whose arguments are packed in a buffer; calling it enqueues the kernel."""

    __slots__ = ("_buffer", "_config", "_function", "_index", "_kernel", "_layout", "_origin",
                 "_parameters", "_pointers", "_start", "_stream", "references")  # fmt: skip
    last: ClassVar[str] = ""  # the kernel that this process launched last

    def __init__(
        self, origin: str, kernel: str, function: Any, config: Any, kinds: tuple[str, ...], device: int
    ) -> None:
        from cuda.bindings import driver

        self._origin = origin
        self._kernel = kernel
        self._function = function
        self._config = config
        self._index = device
        self._layout = struct.Struct("<" + "".join(_SLOTS[kind] for kind in kinds))
        self._buffer = ctypes.create_string_buffer(max(1, self._layout.size))
        first = ctypes.addressof(self._buffer)
        places = accumulate((struct.calcsize("<" + _SLOTS[kind]) for kind in kinds[:-1]), initial=first)
        self._pointers = (ctypes.c_void_p * max(1, len(kinds)))(*places)
        self._parameters = ctypes.addressof(self._pointers)
        self._start = driver.cuLaunchKernelEx
        self._stream = -1
        self.references: tuple[Any, ...] = ()

    def pack(self, args: Sequence[Argument]) -> None:
        try:
            self._layout.pack_into(self._buffer, 0, *[self._encode(i, *argument) for i, argument in enumerate(args)])
        except _MISFITS as problem:
            raise RungError(self._misfit(args, problem)) from problem

    def _encode(self, i: int, kind: str, value: Any) -> Any:
        if kind == "pointer":
            if value is None:
                return 0
            if value.device.index != self._index:
                raise RungError(
                    f"argument {i + 1} of kernel '{self._kernel}' is a tensor on {value.device}, "
                    f"but the kernel runs on cuda:{self._index}."
                )
            return value.data_ptr()
        if kind == "tensor_map":
            return bytes(tensor_map.SIZE) if value is None else value.encode()
        return pack_bf16(value) if kind == "bf16" else value

    def _misfit(self, args: Sequence[Argument], problem: Exception) -> str:
        for i, (kind, value) in enumerate(args):
            try:
                struct.pack("<" + _FORMATS[kind], self._encode(i, kind, value))
            except _MISFITS:
                return f"argument {i + 1} of kernel '{self._kernel}' is {value!r}, which is no {kind}: {problem}."
        return f"the arguments of kernel '{self._kernel}' cannot be packed: {problem}."

    def __call__(self) -> None:
        stream = current_stream(self._index)
        if stream != self._stream:
            self._config.hStream = stream
            self._stream = stream
        error = self._start(self._config, self._function, self._parameters, 0)[0]
        if error:
            raise RungError(self._failure(error))
        Launcher.last = self._kernel

    def _failure(self, error: Any) -> str:
        what = f"kernel '{self._kernel}' of {self._origin} could not be launched ({_reason(error)})"
        if Launcher.last and error.name in _STICKY:
            return f"{what}: kernel '{Launcher.last}', launched before it, had failed; {_LOST}."
        return f"{what}: check its grid, block, shared memory and cluster."


_STICKY = frozenset(
    f"CUDA_ERROR_{name}"
    for name in (
        "ILLEGAL_ADDRESS",
        "MISALIGNED_ADDRESS",
        "ILLEGAL_INSTRUCTION",
        "INVALID_ADDRESS_SPACE",
        "INVALID_PC",
        "HARDWARE_STACK_ERROR",
        "LAUNCH_FAILED",
        "LAUNCH_TIMEOUT",
        "ASSERT",
        "CONTEXT_IS_DESTROYED",
    )
)


def current_stream(index: int) -> int:
    """torch's current stream as a handle, without making a Python stream object."""
    return int(torch._C._cuda_getCurrentRawStream(index))


def check(result: tuple[Any, ...], what: str) -> Any:
    """The value of a driver call, or a RungError with `what` and the driver's reason."""
    error, *values = result
    if error:
        raise RungError(f"{what} ({_reason(error)}).")
    return values[0] if values else None


def _reason(error: Any) -> str:
    from cuda.bindings import driver

    failed, text = driver.cuGetErrorString(error)
    return f"{error.name}: {text.decode()}" if not failed and text else str(error.name)
