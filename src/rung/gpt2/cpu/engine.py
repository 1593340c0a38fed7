"""decode.cpp behind a Python object."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from rung.gpt2.cache import Cache
from rung.gpt2.config import Config
from rung.gpt2.cpu import build
from rung.gpt2.weights import Linear, Norm, Weights

KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
ACTIVATIONS = {"gelu_tanh": 0, "gelu_erf": 1, "relu": 2}


class Shape(ctypes.Structure):
    """As in decode.cpp."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kind", "activation", "threads", "L", "C", "NH", "F", "V", "window")),
        ("eps", ctypes.c_float),
    )


@dataclass(frozen=True)
class Column:
    """One token of one sequence."""

    token: int
    row: int
    position: int
    output: int  # the row of logits it is to give, or -1


def available() -> ctypes.CDLL | None:
    """The compiled code, waiting for the compiler if it is at work; None where there is none."""
    compilation = build.begin()
    library = compilation.wait() if compilation else None
    return _bind(library) if library else None


@cache
def _bind(path: Path) -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(str(path))
    except OSError:
        return None
    library.rung_new.restype = ctypes.c_void_p
    library.rung_new.argtypes = [ctypes.POINTER(Shape), ctypes.POINTER(ctypes.c_void_p)]
    library.rung_free.argtypes = [ctypes.c_void_p]
    library.rung_step.argtypes = [ctypes.c_void_p, ctypes.c_int32, *[ctypes.c_void_p] * 4,
                                  ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]  # fmt: skip
    return library


class Engine:
    """A model ready for steps. Keeps the weights alive, and its own threads between steps."""

    cache: Cache | None = None  # it takes whatever cache it is given

    def __init__(
        self, library: ctypes.CDLL, config: Config, weights: Weights, threads: int, window: int | None = None
    ) -> None:
        self._library = library
        self._config = config
        self._weights = weights
        self.columns_at_once: int = library.rung_max_columns()
        scales = torch.tensor([config.attention_scale(i) for i in range(config.layers)])
        tensors: list[torch.Tensor | None] = []

        def norm(norm: Norm) -> None:
            tensors.extend((norm.weight.float(), norm.bias.float()))

        def linear(linear: Linear) -> None:
            tensors.extend(
                (linear.weight, linear.bias.float() if linear.bias is not None else None, linear.scale)
            )

        for layer in weights.layers:
            norm(layer.ln_1)
            linear(layer.qkv)
            linear(layer.attn_proj)
            norm(layer.ln_2)
            linear(layer.fc)
            linear(layer.mlp_proj)
        norm(weights.ln_f)
        linear(weights.head)
        tensors.append(scales)
        assert all(t is None or t.is_contiguous() for t in tensors)
        self._tensors = tensors
        shape = Shape(
            KINDS[weights.head.weight.dtype], ACTIVATIONS[config.activation], threads,
            config.layers, config.C, config.NH, config.F, config.vocabulary,
            min(window or config.context, config.context), config.eps,
        )  # fmt: skip
        self._shape = shape
        self._begin()

    def _begin(self) -> None:
        pointers = (ctypes.c_void_p * len(self._tensors))(
            *(None if t is None else t.data_ptr() for t in self._tensors)
        )
        self._handle: int | None = self._library.rung_new(ctypes.byref(self._shape), pointers)
        self._pid = os.getpid()

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:  # `os` is gone when Python ends
        if getattr(self, "_handle", None) and self._pid == getpid():
            self._library.rung_free(self._handle)

    def step(self, columns: Sequence[Column], cache: Cache, outputs: int) -> torch.Tensor:
        """Logits (outputs, V) of the columns that ask for them; keys and values go to the cache."""
        if os.getpid() != self._pid:
            self._begin()  # behind a fork, where the threads of the one before are not
        n = len(columns)
        logits = torch.empty(outputs, self._config.vocabulary)
        place = (ctypes.c_int64 * (3 * n))(*(x for c in columns for x in (c.row, c.position, c.output)))
        x = self._embed(columns)
        self._library.rung_step(
            self._handle, n, ctypes.addressof(place), x.data_ptr(), cache.k.data_ptr(), cache.v.data_ptr(),
            cache.allocated, cache.capacity, logits.data_ptr(),
        )  # fmt: skip
        return logits

    def _embed(self, columns: Sequence[Column]) -> torch.Tensor:
        wte = self._weights.wte
        tokens = torch.tensor([c.token for c in columns])
        x = wte.weight[tokens].float()
        if wte.scale is not None:
            x *= wte.scale[tokens, None]
        return x.add_(self._weights.wpe[[c.position for c in columns]])
