"""The interface of a plan: an implementation for each operation of the model, on which the forward pass (a family's) is
built."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import torch

from rung.models.cache import Cache
from rung.models.family import Config
from rung.models.score import Rater
from rung.models.weights import Linear, Norm, Weights, read_weights

DTYPES = ("auto", "float32", "tf32", "float16", "bfloat16", "int8")
ALIASES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
DEVICES = ("auto", "cpu", "cuda", "emulator")


class Stepper(Protocol):
    """More tokens for each sequence in one call, in place of the operations one by one."""

    def takes(self, tokens: Sequence[Sequence[int]]) -> bool: ...

    def step(self, tokens: Sequence[Sequence[int]], cache: Cache) -> torch.Tensor:
        """Logits (rows, V). Writes the cache, but leaves advancing it to the caller."""


@dataclass(frozen=True)
class Service:
    """A plan's abilities besides its operations, once weights are loaded."""

    stepper: Stepper | None = None
    engine: Any = None  # of a GPU (gpu/engine.py): texts are written by slots over it
    rater: Rater | None = None


@dataclass(frozen=True)
class Rotation:
    """How queries and keys are turned by their positions, and normalised before that where a model has these norms."""

    NH: int
    NKV: int
    cosines: torch.Tensor  # (MAXT, HS / 2) in float32
    sines: torch.Tensor
    q_norm: Norm | None
    k_norm: Norm | None
    eps: float


@lru_cache(8)
def tables(config: Any, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of a config's angles, in float32."""
    with torch.inference_mode(False):
        angles = config.angles()
        return angles.cos().to(device, torch.float32), angles.sin().to(device, torch.float32)


class Plan(ABC):
    """One method per operation. The plan allocates outputs, for example the same buffers each step."""

    name: str
    on: str  # one of DEVICES
    dtype: str  # one of DTYPES
    device: torch.device
    cache_dtype: torch.dtype
    # Whether sequences go through the operations one by one: their results are then bitwise independent of their
    # neighbours, and no work is wasted on padding.
    prompts_alone: bool = False
    tokens_alone: bool = False

    @abstractmethod
    def matrix(self, weight: torch.Tensor) -> Linear:
        """An (OC, C) matrix in the form that this plan multiplies with."""

    @abstractmethod
    def vector(self, tensor: torch.Tensor) -> torch.Tensor:
        """Biases, norms and positions in the form that this plan reads."""

    @abstractmethod
    def embedding(
        self, tokens: torch.Tensor, past: Sequence[int], wte: Linear, wpe: torch.Tensor | None
    ) -> torch.Tensor:
        """tokens (B, T), the first of row b at position past[b] -> (B, T, C)"""

    @abstractmethod
    def layernorm(self, x: torch.Tensor, norm: Norm, eps: float) -> torch.Tensor:
        """(B, T, C) -> (B, T, C); RMSNorm where the norm has no bias"""

    @abstractmethod
    def rotate(self, qkv: torch.Tensor, rotation: Rotation, past: Sequence[int]) -> torch.Tensor:
        """qkv (B, T, (NH + 2 NKV) HS), the first of row b at position past[b], with turned queries and keys"""

    @abstractmethod
    def matmul(self, x: torch.Tensor, linear: Linear) -> torch.Tensor:
        """(B, T, C) -> (B, T, OC)"""

    @abstractmethod
    def attention(
        self, qkv: torch.Tensor, NH: int, scale: float, layer: int, cache: Cache | None, NKV: int | None = None
    ) -> torch.Tensor:
        """qkv (B, T, (NH + 2 NKV) HS) -> (B, T, NH HS), causal; keys and values go to the cache where there is one. As
        many heads of queries share one of keys as NH is a multiple of NKV (None: NH)."""

    @abstractmethod
    def activation(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """(B, T, F) -> (B, T, F); name is gelu_tanh, gelu_erf or relu. Or swiglu: of (B, T, 2 F), whose neighbours are
        gate and value."""

    @abstractmethod
    def residual(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """a + b, both (B, T, C)"""

    # Fused operations that a plan may have; otherwise the parts, one after the other.

    def layernorm_matmul(self, x: torch.Tensor, norm: Norm, eps: float, linear: Linear) -> torch.Tensor:
        """(B, T, C) -> (B, T, OC)"""
        return self.matmul(self.layernorm(x, norm, eps), linear)

    def matmul_activation(self, x: torch.Tensor, linear: Linear, name: str) -> torch.Tensor:
        """(B, T, C) -> (B, T, OC)"""
        return self.activation(self.matmul(x, linear), name)

    def matmul_residual(self, x: torch.Tensor, linear: Linear, residual: torch.Tensor) -> torch.Tensor:
        """residual (B, T, OC) + the product of x (B, T, C)"""
        return self.residual(residual, self.matmul(x, linear))

    def residual_layernorm(
        self, a: torch.Tensor, b: torch.Tensor, norm: Norm, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """a + b, and that normalised, all (B, T, C)"""
        total = self.residual(a, b)
        return total, self.layernorm(total, norm, eps)

    def matmul_residual_layernorm(
        self, x: torch.Tensor, linear: Linear, residual: torch.Tensor, norm: Norm, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """residual (B, T, OC) + the product of x (B, T, C), and that normalised"""
        return self.residual_layernorm(residual, self.matmul(x, linear), norm, eps)

    def last_tokens(self, y: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """From here on only a sequence's last token may be needed: a plan may return these rows of both alone."""
        return y, x

    # Set-up and tear-down of the forward pass.

    def admit(self, config: Config) -> None:  # noqa: B027 - most plans take every model
        """Called before weights are read: RungError if a requested rung does not support this model."""

    def read(self, folder: Path, config: Config) -> Weights:
        """The model's weights in the plan's form; they may still be loading."""
        most = torch.finfo(torch.float16).max if self.dtype == "float16" else math.inf
        return read_weights(folder, config, self.matrix, self.vector, most)

    def serve(self, config: Config, weights: Weights) -> Service:
        """Called once, when the weights are loaded."""
        return Service()

    @property
    def rungs_in_use(self) -> dict[str, str]:
        """Operation -> full names of the rungs that computed it; operations that are missing ran through torch."""
        return {}

    @property
    def notes(self) -> list[str]:
        """The plan's departures from the request, one sentence each."""
        return []


class WrappedPlan(Plan):
    """Another plan's operations, some of them replaced; its fused operations are split into their parts here."""

    def __init__(self, inner: Plan, name: str) -> None:
        self.inner, self.name, self.on, self.dtype = inner, name, inner.on, inner.dtype
        self.device, self.cache_dtype = inner.device, inner.cache_dtype
        self.prompts_alone, self.tokens_alone = inner.prompts_alone, inner.tokens_alone

    def matrix(self, weight: torch.Tensor) -> Linear:
        return self.inner.matrix(weight)

    def vector(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.inner.vector(tensor)

    def admit(self, config: Config) -> None:
        self.inner.admit(config)

    def rotate(self, qkv: torch.Tensor, rotation: Rotation, past: Sequence[int]) -> torch.Tensor:
        return self.inner.rotate(qkv, rotation, past)

    def embedding(
        self, tokens: torch.Tensor, past: Sequence[int], wte: Linear, wpe: torch.Tensor | None
    ) -> torch.Tensor:
        return self.inner.embedding(tokens, past, wte, wpe)

    def layernorm(self, x: torch.Tensor, norm: Norm, eps: float) -> torch.Tensor:
        return self.inner.layernorm(x, norm, eps)

    def matmul(self, x: torch.Tensor, linear: Linear) -> torch.Tensor:
        return self.inner.matmul(x, linear)

    def attention(
        self, qkv: torch.Tensor, NH: int, scale: float, layer: int, cache: Cache | None, NKV: int | None = None
    ) -> torch.Tensor:
        return self.inner.attention(qkv, NH, scale, layer, cache, NKV)

    def activation(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return self.inner.activation(x, name)

    def residual(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.inner.residual(a, b)
