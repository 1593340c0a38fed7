"""The interface of a plan: an implementation for each operation of the model, on which the forward pass (a family's) is
built; and the plan that computes every operation through torch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rung.lazy import F, torch
from rung.models.cache import Cache
from rung.models.family import Attention, Config
from rung.models.score import Rater
from rung.models.tensors import integers
from rung.models.weights import Linear, Norm, Weights, read_weights, to_int8

DTYPES = ("auto", "float32", "tf32", "float16", "bfloat16", "int8")
ALIASES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
DEVICES = ("auto", "cpu", "cuda", "emulator")


@dataclass(frozen=True)
class Service:
    """A plan's abilities besides its operations, once weights are loaded."""

    native: Any = None  # a CPU's compiled code (cpu/engine.py)
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


@dataclass(frozen=True)
class Activation:
    """An activation of a product's outputs: what torch computes, and the operations whose rungs compute the same."""

    compute: Callable[[torch.Tensor], torch.Tensor]
    gated: bool = False  # of the gates only; each is followed by the value that it multiplies
    ladder: str = ""
    fused: str = ""  # after a product
    normed: str = ""  # after a norm and a product



def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


# Kernels and compiled code know an activation by its place here: the decode ladder and the CPU have the first ones.
ACTIVATIONS = {
    "gelu_tanh": Activation(_gelu_tanh, ladder="gelu", fused="matmul_gelu", normed="layernorm_matmul"),
    "gelu_erf": Activation(lambda x: F.gelu(x)),
    "relu": Activation(lambda x: F.relu(x), ladder="relu"),
    "swiglu": Activation(lambda x: F.silu(x), True, ladder="swiglu", fused="matmul_swiglu", normed="rmsnorm_matmul"),
    "geglu_tanh": Activation(_gelu_tanh, True),
}


def place_of(activation: str) -> int:
    """The number of an activation."""
    return list(ACTIVATIONS).index(activation)


class Operations(ABC):
    """What a family's forward pass is made of: one method per operation."""

    device: torch.device

    @abstractmethod
    def embedding(
        self, tokens: torch.Tensor, past: Sequence[int], wte: Linear, wpe: torch.Tensor | None, scale: float = 1.0
    ) -> torch.Tensor:
        """tokens (B, T), the first of row b at position past[b] -> (B, T, C); tokens' vectors are multiplied by the
        scale, those of positions are not"""

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
    def attention(self, qkv: torch.Tensor, how: Attention, layer: int, cache: Cache | None) -> torch.Tensor:
        """qkv (B, T, (NH + 2 NKV) HS) -> (B, T, NH HS), causal; keys and values go to the cache where there is one"""

    @abstractmethod
    def activation(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """(B, T, F) -> (B, T, F) by one of ACTIVATIONS; a gated one has (B, T, 2 F), whose neighbours are gate and
        value"""

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


class Plan(Operations):
    """Operations, and the weights in the form that they read. Outputs may be the same buffers in each step."""

    name: str
    on: str  # one of DEVICES
    dtype: str  # one of DTYPES
    cache_dtype: str  # of keys and values
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

    def admit(self, config: Config) -> None:
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


def _of_inner(name: str) -> Callable[..., torch.Tensor]:
    def operation(self: WrappedPlan, *given: Any, **named: Any) -> torch.Tensor:
        computed: torch.Tensor = getattr(self.inner, name)(*given, **named)
        return computed

    return operation


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

    embedding = _of_inner("embedding")
    layernorm = _of_inner("layernorm")
    rotate = _of_inner("rotate")
    matmul = _of_inner("matmul")
    attention = _of_inner("attention")
    activation = _of_inner("activation")
    residual = _of_inner("residual")


FEW_ROWS = 16  # up to this many rows, torch's kernel for int8 weights is faster than unpacking them first


class TorchPlan(Plan):
    """`stored` is the dtype of matrices (also int8), `compute` that of activations."""

    name = "torch"

    def __init__(
        self,
        device: torch.device,
        stored: torch.dtype,
        compute: torch.dtype,
        window: int | None = None,
        global_tokens: int = 0,
    ) -> None:
        self.device, self.stored, self.compute = device, stored, compute
        self.window, self.global_tokens = window, global_tokens
        self.on = device.type
        self.cache_dtype = str(compute).removeprefix("torch.")

    def matrix(self, weight: torch.Tensor) -> Linear:
        if self.stored == torch.int8:
            return to_int8(weight.to(self.device))
        return Linear(weight.to(self.device, self.stored).contiguous())

    def vector(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device, torch.float32).contiguous()

    def embedding(
        self, tokens: torch.Tensor, past: Sequence[int], wte: Linear, wpe: torch.Tensor | None, scale: float = 1.0
    ) -> torch.Tensor:
        x = wte.weight[tokens].float()
        if wte.scale is not None:
            x *= wte.scale[tokens].unsqueeze(-1)
        x *= scale
        if wpe is not None:
            x += of_positions(wpe, past, tokens.shape[1])
        return x.to(self.compute)

    def rotate(self, qkv: torch.Tensor, rotation: Rotation, past: Sequence[int]) -> torch.Tensor:
        r, (B, T, width) = rotation, qkv.shape
        cosines, sines = (of_positions(table, past, T).unsqueeze(-2) for table in (r.cosines, r.sines))
        q, k, v = torch.split(qkv.view(B, T, r.NH + 2 * r.NKV, -1), [r.NH, r.NKV, r.NKV], 2)
        turned = []
        for x, norm in ((q, r.q_norm), (k, r.k_norm)):
            x = x.float() if norm is None else F.rms_norm(x.float(), x.shape[-1:], norm.weight.float(), r.eps)
            a, b = x.chunk(2, -1)
            turned.append(torch.cat((a * cosines - b * sines, b * cosines + a * sines), -1).to(qkv.dtype))
        return torch.cat((*turned, v), 2).view(B, T, width)

    def layernorm(self, x: torch.Tensor, norm: Norm, eps: float) -> torch.Tensor:
        C = norm.weight.shape[0]
        if norm.bias is None:
            return F.rms_norm(x.float(), (C,), norm.weight.float(), eps).to(x.dtype)
        return F.layer_norm(x, (C,), norm.weight.to(x.dtype), norm.bias.to(x.dtype), eps)

    def matmul(self, x: torch.Tensor, linear: Linear) -> torch.Tensor:
        bias = None if linear.bias is None else linear.bias.to(x.dtype)
        if linear.scale is None:
            return F.linear(x, linear.weight.to(x.dtype), bias)
        rows = x.numel() // x.shape[-1]
        scale = linear.scale.to(x.dtype)
        if rows <= FEW_ROWS and x.dtype == torch.bfloat16:
            y = torch._weight_int8pack_mm(x.reshape(rows, -1), linear.weight, scale).view(*x.shape[:-1], -1)
            return y if bias is None else y.add_(bias)
        # The integers are exact in any float type; the scale is applied after the product.
        y = F.linear(x, linear.weight.to(x.dtype))
        return y.mul_(scale) if bias is None else torch.addcmul(bias, y, scale)

    def attention(self, qkv: torch.Tensor, how: Attention, layer: int, cache: Cache | None) -> torch.Tensor:
        T = qkv.shape[1]
        q, k, v = heads_of(qkv, how)
        past = [0]
        if cache is not None:
            cache.write(layer, k, v)
            past = cache.lengths
            if any(past):
                k, v = (t.to(q.dtype) for t in cache.read(layer, T))
        window = shorter(self.window, how.window)
        if T == 1 and window is not None and not self.global_tokens and len(set(past)) == 1:
            k, v = k[:, :, -window:], v[:, :, -window:]
        return attended(q, k, v, how, *self._mask(past, T, window))

    def _mask(self, past: Sequence[int], T: int, window: int | None) -> tuple[torch.Tensor | None, bool]:
        """The keys that T new tokens after `past` others attend to, as a mask or as the word "causal"."""
        S = max(past) + T
        hidden = window is not None and window < S
        if not any(past) and not hidden:
            return None, True
        if T == 1 and len(set(past)) == 1 and not (hidden and self.global_tokens):
            return None, False
        return seen(integers(past, self.device), T, S, window, self.global_tokens), False

    def activation(self, x: torch.Tensor, name: str) -> torch.Tensor:
        how = ACTIVATIONS[name]
        if not how.gated:
            return how.compute(x)
        gate, value = x.view(*x.shape[:-1], -1, 2).unbind(-1)
        return how.compute(gate).mul_(value)

    def residual(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b


def of_positions(table: torch.Tensor, past: Sequence[int], T: int) -> torch.Tensor:
    """The rows of T positions after `past`: (T, ...), or (B, T, ...) where sequences differ."""
    if len(set(past)) == 1:
        return table[past[0] : past[0] + T]
    here = table.device
    return table[integers(past, here)[:, None] + torch.arange(T, dtype=torch.int64, device=here)]


def shorter(*windows: int | None) -> int | None:
    """The shortest of several windows; None is none."""
    return min((window for window in windows if window is not None), default=None)


def heads_of(qkv: torch.Tensor, how: Attention) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q (B, NH, T, HS), k and v (B, NKV, T, HS), strided."""
    (B, T, _), NKV = qkv.shape, how.NKV or how.NH
    q, k, v = torch.split(qkv.view(B, T, how.NH + 2 * NKV, -1).transpose(1, 2), [how.NH, NKV, NKV], 1)
    return q, k, v


def seen(before: torch.Tensor, T: int, S: int, window: int | None, first: int = 0) -> torch.Tensor:
    """Which of S keys T queries see whose sequences have so many tokens `before` (B) them: (B, 1, T, S); the `first`
    keys are in every window."""
    last = before[:, None] + torch.arange(T, dtype=torch.int64, device=before.device)  # that a query sees
    keys = torch.arange(S, dtype=torch.int64, device=before.device)
    visible = keys <= last[..., None]
    if window is not None:
        visible &= (keys > last[..., None] - window) | (keys < first)
    return visible[:, None]


def attended(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, how: Attention, mask: torch.Tensor | None, causal: bool
) -> torch.Tensor:
    """Of heads (B, NH or NKV, T or S, HS) the results (B, T, NH HS)."""
    grouped = q.shape[1] != k.shape[1]
    if how.softcap is None:
        with _no_plans_by_shape(q.device):
            y = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=causal, scale=how.scale, enable_gqa=grouped
            )
        return y.transpose(1, 2).flatten(2)
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = how.softcap * torch.tanh(q.float() @ k.float().transpose(2, 3) * (how.scale / how.softcap))
    if causal:
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return (scores.softmax(-1).to(v.dtype) @ v).transpose(1, 2).flatten(2)


def _no_plans_by_shape(device: torch.device) -> AbstractContextManager[None]:
    """On a GPU cuDNN would make a plan for each new length, which is one per token."""
    if device.type != "cuda":
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    made: AbstractContextManager[None] = sdpa_kernel(
        [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    )
    return made
