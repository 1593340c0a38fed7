"""What numpy and torch have in common, so that one text computes with the arrays of either.

torch takes numpy's names (`axis`, `keepdims`, `amax`, `swapaxes`) beside its own; the functions here are for the rest.
torch is imported only where it is asked for by name: its arrays bring it. numpy has bfloat16 and float8 from ml_dtypes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

Array = Any  # numpy.ndarray or torch.Tensor
Generator = Any  # of random numbers: numpy's or torch's
NEGATIVE_INFINITY = float("-inf")


def namespace(array: Array) -> Any:
    """The module whose functions take this array."""
    return sys.modules[type(array).__module__.partition(".")[0]]


def quiet() -> Any:
    """Inside, numpy is silent about infinities and NaN, as torch always is: they are expected."""
    return np.errstate(all="ignore")


def kind_of(array: Array) -> str:
    """numpy's and torch's name of its elements' format."""
    return str(array.dtype).removeprefix("torch.")


def is_real(array: Array) -> bool:
    """Whether its elements are floating-point numbers."""
    return "float" in kind_of(array)


def dtype_of(kind: str, xp: Any) -> Any:
    """The format of this name, as numpy or torch has it."""
    return np.dtype(kind) if xp is np else getattr(xp, kind)


def largest(kind: str) -> float:
    """The largest number of a floating-point format."""
    return float(ml_dtypes.finfo(kind).max)  # type: ignore[no-untyped-call]


def library(device: str) -> Any:
    """numpy for the CPU, and torch for a GPU."""
    if device == "cpu":
        return np
    import torch

    return torch


def empty(shape: Sequence[int], kind: str, device: str = "cpu") -> Array:
    """Memory on a device, whose numbers are not set."""
    xp = library(device)
    return xp.empty(shape, dtype=dtype_of(kind, xp), device=device)


def empty_like(array: Array, shape: Sequence[int], kind: str) -> Array:
    """The same where another array is."""
    xp = namespace(array)
    return xp.empty(shape, dtype=dtype_of(kind, xp), device=array.device)


def to_kind(array: Array, kind: str) -> Array:
    """In the format of this name."""
    xp = namespace(array)
    with quiet():
        return xp.asarray(array, dtype=dtype_of(kind, xp))


def to_float64(array: Array) -> Array:
    return to_kind(array, "float64")


def bits_of(array: Array, kind: str) -> Array:
    """The same memory, read as another format of the same size, or as bytes."""
    return array.view(dtype_of(kind, namespace(array)))


def copy_of(array: Array) -> Array:
    return namespace(array).asarray(array, copy=True)


def moved(array: Array, like: Array) -> Array:
    """In the library and on the device of another array."""
    if namespace(like) is not np:
        return to_torch(array).to(like.device)
    return array if namespace(array) is np else to_numpy(array.cpu())


def put(to: Array, array: Array) -> None:
    """Copies the numbers, also from another library or device."""
    to[...] = moved(array, to)


def is_equal(one: Array, other: Array) -> Array:
    """Whether all elements are equal, where the arrays are."""
    return (one == other).all()


def from_numbers(numbers: Sequence[Any], like: Array) -> Array:
    """An array of the other's format, where it is."""
    return namespace(like).asarray(numbers, dtype=like.dtype, device=like.device)


def strides_of(array: Array) -> tuple[int, ...]:
    """In elements."""
    if namespace(array) is not np:
        return tuple(array.stride())
    return tuple(stride // array.itemsize for stride in array.strides)


def address_of(array: Array) -> int:
    return int(array.ctypes.data if namespace(array) is np else array.data_ptr())


def is_contiguous(array: Array) -> bool:
    return bool(array.flags.c_contiguous if namespace(array) is np else array.is_contiguous())


def to_torch(array: Array) -> Any:
    """The same memory as torch's tensor."""
    import torch

    if namespace(array) is not np:
        return array
    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(f"u{array.itemsize}")).view(getattr(torch, array.dtype.name))


def to_numpy(tensor: Array) -> Any:
    """The same memory as numpy's array; of torch's tensors those on a CPU."""
    if namespace(tensor) is np:
        return tensor
    if (kind := kind_of(tensor)) not in vars(ml_dtypes):
        return tensor.detach().numpy()
    return bits_of(tensor, f"uint{8 * tensor.itemsize}").numpy().view(kind)


def to_host(array: Array) -> Any:
    """As a numpy array; what numpy has no format for as float64."""
    if namespace(array) is np:
        return array
    array = array.detach().cpu()
    return (array.double() if str(array.dtype).endswith("bfloat16") else array).numpy()


# ---- random numbers -------------------------------------------------------------------------------------------------


def normal(generator: Generator, *shape: int) -> Array:
    xp = namespace(generator)
    if xp is np:
        return generator.standard_normal(shape, dtype=np.float32)
    return xp.randn(shape, generator=generator, device=generator.device, dtype=xp.float32)


def uniform(generator: Generator, *shape: int) -> Array:
    """From 0 to 1."""
    xp = namespace(generator)
    if xp is np:
        return generator.random(shape, dtype=np.float32)
    return xp.rand(shape, generator=generator, device=generator.device, dtype=xp.float32)


def integers(generator: Generator, low: int, high: int, *shape: int, kind: str = "int64") -> Array:
    """From `low` to `high` - 1."""
    xp = namespace(generator)
    if xp is np:
        return generator.integers(low, high, shape, dtype=kind)
    return xp.randint(low, high, shape, generator=generator, device=generator.device, dtype=dtype_of(kind, xp))


def seed_of(generator: Generator) -> int:
    """With which it was made."""
    if namespace(generator) is np:
        return int(generator.bit_generator.seed_seq.entropy)
    return int(generator.initial_seed())


def seeded(seed: int, like: Generator) -> Generator:
    """Another generator where this one is."""
    xp = namespace(like)
    return np.random.default_rng(seed) if xp is np else xp.Generator(device=like.device).manual_seed(seed)


# ---- what operations compute with -----------------------------------------------------------------------------------


def arange(count: int, like: Array) -> Array:
    """0 to count - 1, where the other array is."""
    xp = namespace(like)
    return xp.arange(count, device=like.device)


def transpose(x: Array) -> Array:
    """With the last two axes exchanged."""
    return namespace(x).swapaxes(x, -1, -2)


def repeated(x: Array, times: int, axis: int) -> Array:
    """Each element along the axis so many times in a row."""
    xp = namespace(x)
    return np.repeat(x, times, axis) if xp is np else xp.repeat_interleave(x, times, axis)


def erf(x: Array) -> Array:
    xp = namespace(x)
    return np.vectorize(math.erf, otypes=[x.dtype])(x) if xp is np else xp.erf(x)


def hide(scores: Array, hidden: Array) -> Array:
    """The scores, minus infinity where `hidden`."""
    return namespace(scores).where(hidden, NEGATIVE_INFINITY, scores)


def logsumexp(x: Array) -> Array:
    """Along the last axis."""
    xp = namespace(x)
    largest = xp.amax(x, axis=-1, keepdims=True)
    base = xp.where(xp.isfinite(largest), largest, xp.zeros_like(largest))
    return xp.log(xp.sum(xp.exp(x - base), axis=-1)) + base[..., 0]


def softmax(x: Array) -> Array:
    """Along the last axis; NaN in a row without a finite number, as torch has it."""
    xp = namespace(x)
    if xp is not np:
        return xp.softmax(x, -1)
    powers = np.exp(x - np.amax(x, axis=-1, keepdims=True))
    return powers / np.sum(powers, axis=-1, keepdims=True)


def variance(x: Array) -> Array:
    """The mean squared distance from the mean, along the last axis."""
    xp = namespace(x)
    return xp.mean(xp.square(x - xp.mean(x, axis=-1, keepdims=True)), axis=-1)


def normalised(x: Array, eps: float) -> Array:
    """With mean 0 and variance 1 along the last axis."""
    return (x - namespace(x).mean(x, axis=-1, keepdims=True)) * (variance(x)[..., None] + eps) ** -0.5


def sigmoid(x: Array) -> Array:
    xp = namespace(x)
    return 1.0 / (1.0 + np.exp(-x)) if xp is np else xp.sigmoid(x)


def silu(x: Array) -> Array:
    xp = namespace(x)
    return x * sigmoid(x) if xp is np else xp.nn.functional.silu(x)


def turned(x: Array, cosines: Array, sines: Array, interleaved: float) -> Array:
    """x (..., HS) with tables that broadcast to (..., HS / 2); a pair is two halves' channels, or two neighbours."""
    xp, half = namespace(x), x.shape[-1] // 2
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    pair = a * cosines - b * sines, b * cosines + a * sines
    return xp.stack(pair, axis=-1).reshape(x.shape) if interleaved else xp.concatenate(pair, axis=-1)


def split(x: Array, axis: int, *sizes: int) -> list[Array]:
    """Parts of these sizes along the axis."""
    before = (slice(None),) * axis
    ends = np.cumsum(sizes).tolist()
    return [x[(*before, slice(end - size, end))] for end, size in zip(ends, sizes, strict=True)]


def first_largest(x: Array) -> Array:
    """The first index of the largest number along the last axis."""
    xp = namespace(x)
    return xp.argmax(to_kind(x == xp.amax(x, axis=-1, keepdims=True), "int32"), axis=-1)


def gelu(x: Array) -> Array:
    """GPT-2's, by tanh."""
    return 0.5 * x * (1.0 + namespace(x).tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def rms_factor(x: Array, eps: float) -> Array:
    """1 over the root of the mean square of the last axis."""
    return (namespace(x).mean(x * x, axis=-1, keepdims=True) + eps) ** -0.5
