"""What numpy and torch have in common, so that one text computes with the arrays of either.

torch takes numpy's names (`axis`, `keepdims`, `amax`, `swapaxes`) beside its own; the functions here are for the rest.
torch is never imported here: its arrays bring it.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

Array = Any  # numpy.ndarray or torch.Tensor
NEGATIVE_INFINITY = float("-inf")


def namespace(array: Array) -> Any:
    """The module whose functions take this array."""
    return sys.modules[type(array).__module__.partition(".")[0]]


def to_float64(array: Array) -> Array:
    xp = namespace(array)
    if xp is np:
        with np.errstate(invalid="ignore"):  # signalling NaNs
            return np.asarray(array, dtype=np.float64)
    return xp.asarray(array, dtype=xp.float64)


def to_host(array: Array) -> Any:
    """As a numpy array; what numpy has no format for as float64."""
    if namespace(array) is np:
        return array
    array = array.detach().cpu()
    return (array.double() if str(array.dtype).endswith("bfloat16") else array).numpy()


def arange(count: int, like: Array) -> Array:
    """0 to count - 1, where the other array is."""
    xp = namespace(like)
    return xp.arange(count, device=like.device)


def transpose(x: Array) -> Array:
    """With the last two axes exchanged."""
    return namespace(x).swapaxes(x, -1, -2)


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
    powers = xp.exp(x - xp.amax(x, axis=-1, keepdims=True))
    return powers / xp.sum(powers, axis=-1, keepdims=True)


def variance(x: Array) -> Array:
    """The mean squared distance from the mean, along the last axis."""
    xp = namespace(x)
    return xp.mean(xp.square(x - xp.mean(x, axis=-1, keepdims=True)), axis=-1)


def sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + namespace(x).exp(-x))


def gelu(x: Array) -> Array:
    """GPT-2's, by tanh."""
    return 0.5 * x * (1.0 + namespace(x).tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def rms_factor(x: Array, eps: float) -> Array:
    """1 over the root of the mean square of the last axis."""
    return (namespace(x).mean(x * x, axis=-1, keepdims=True) + eps) ** -0.5
