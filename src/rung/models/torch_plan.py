"""The model's operations through torch, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from rung.models.buffers import integers
from rung.models.cache import Cache
from rung.models.family import Config
from rung.models.plan import Plan, Rotation
from rung.models.weights import Linear, Norm, to_int8

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
        self.cache_dtype = compute

    def matrix(self, weight: torch.Tensor) -> Linear:
        if self.stored == torch.int8:
            return to_int8(weight.to(self.device))
        return Linear(weight.to(self.device, self.stored).contiguous())

    def vector(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device, torch.float32).contiguous()

    def admit(self, config: Config) -> None:
        if config.window is not None:
            self.window = min(self.window or config.window, config.window)

    def embedding(
        self, tokens: torch.Tensor, past: Sequence[int], wte: Linear, wpe: torch.Tensor | None
    ) -> torch.Tensor:
        T = tokens.shape[1]
        x = wte.weight[tokens].float()
        if wte.scale is not None:
            x *= wte.scale[tokens].unsqueeze(-1)
        if wpe is not None:
            x += self._at(wpe, past, T)
        return x.to(self.compute)

    def _at(self, table: torch.Tensor, past: Sequence[int], T: int) -> torch.Tensor:
        """The rows of T positions after `past`: (T, ...), or (B, T, ...) where sequences differ."""
        if len(set(past)) == 1:
            return table[past[0] : past[0] + T]
        return table[integers(past, self.device)[:, None] + torch.arange(T, dtype=torch.int64, device=self.device)]

    def rotate(self, qkv: torch.Tensor, rotation: Rotation, past: Sequence[int]) -> torch.Tensor:
        r, (B, T, width) = rotation, qkv.shape
        cosines, sines = (self._at(table, past, T).unsqueeze(-2) for table in (r.cosines, r.sines))
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

    def attention(
        self, qkv: torch.Tensor, NH: int, scale: float, layer: int, cache: Cache | None, NKV: int | None = None
    ) -> torch.Tensor:
        T = qkv.shape[1]
        q, k, v = self._heads(qkv, NH, NKV)
        past = [0]
        if cache is not None:
            cache.write(layer, k, v)
            past = cache.lengths
            if any(past):
                k, v = (t.to(q.dtype) for t in cache.read(layer, T))
        if T == 1 and self.window is not None and not self.global_tokens and len(set(past)) == 1:
            k, v = k[:, :, -self.window :], v[:, :, -self.window :]
        mask, causal = self._mask(past, T)
        with self._no_plans_by_shape():
            y = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
            )
        return y.transpose(1, 2).flatten(2)

    def _no_plans_by_shape(self) -> AbstractContextManager[None]:
        """On a GPU cuDNN would make a plan for each new length, which is one per token."""
        if self.device.type != "cuda":
            return nullcontext()
        made: AbstractContextManager[None] = sdpa_kernel(
            [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
        )
        return made

    @staticmethod
    def _heads(qkv: torch.Tensor, NH: int, NKV: int | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        (B, T, _), NKV = qkv.shape, NKV or NH
        q, k, v = torch.split(qkv.view(B, T, NH + 2 * NKV, -1).transpose(1, 2), [NH, NKV, NKV], 1)
        return q, k, v  # (B, NH, T, HS) and twice (B, NKV, T, HS), strided

    def _mask(self, past: Sequence[int], T: int) -> tuple[torch.Tensor | None, bool]:
        """The keys that T new tokens after `past` others attend to, as a mask or as the word "causal"."""
        S = max(past) + T
        hidden = self.window is not None and self.window < S
        if not any(past) and not hidden:
            return None, True
        if T == 1 and len(set(past)) == 1 and not (hidden and self.global_tokens):
            return None, False
        before = integers(past, self.device)
        # (rows, T): the last key that a query sees.
        last = before[:, None] + torch.arange(T, dtype=torch.int64, device=self.device)
        keys = torch.arange(S, dtype=torch.int64, device=self.device)
        seen = keys <= last[..., None]
        if self.window is not None:
            seen &= (keys > last[..., None] - self.window) | (keys < self.global_tokens)
        return seen[:, None], False  # (rows, 1, T, S)

    def activation(self, x: torch.Tensor, name: str) -> torch.Tensor:
        if name == "relu":
            return F.relu(x)
        if name == "swiglu":
            gate, up = x.view(*x.shape[:-1], -1, 2).unbind(-1)
            return F.silu(gate).mul_(up)
        return F.gelu(x, approximate="tanh" if name == "gelu_tanh" else "none")

    def residual(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b
