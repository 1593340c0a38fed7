"""Activations of a forward pass by TransformerLens' hook names, as a dictionary or as a file."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence

from rung.errors import RungError
from rung.lazy import torch
from rung.models.cache import Cache
from rung.models.family import Attention, Config
from rung.models.plan import Plan, WrappedPlan, attended, heads_of, seen
from rung.models.transformer import Transformer
from rung.models.weights import Linear, Norm, Weights

See = Callable[[str, "torch.Tensor"], None]
OF_A_BLOCK = (
    "hook_resid_pre", "ln1.hook_normalized", "attn.hook_q", "attn.hook_k", "attn.hook_v", "attn.hook_pattern",
    "attn.hook_z", "hook_attn_out", "hook_resid_mid", "ln2.hook_normalized", "mlp.hook_pre", "mlp.hook_post",
    "hook_mlp_out", "hook_resid_post",
)  # fmt: skip


def names(config: Config) -> list[str]:
    """Every available name, in the order of the pass."""
    blocks = [f"blocks.{i}.{name}" for i in range(config.layers) for name in OF_A_BLOCK]
    return ["hook_embed", *(() if config.rotary else ("hook_pos_embed",)), *blocks, "ln_final.hook_normalized"]


class WatchedPlan(WrappedPlan):
    """A plan that reports each result. Fused operations are split into their parts, so that each is reported. A product
    or norm is identified by its weights; an activation or sum by the product before it.
    """

    def __init__(self, inner: Plan, weights: Weights, names: frozenset[str], see: See) -> None:
        super().__init__(inner, inner.name)
        self._names, self._show, self._weights = names, see, weights
        self._products: dict[int, tuple[int, str]] = {}
        self._norms: dict[int, str] = {id(weights.ln_f): "ln_final"}
        for i, layer in enumerate(weights.layers):
            products = {"qkv": layer.qkv, "attn": layer.attn_proj, "fc": layer.fc, "mlp": layer.mlp_proj}
            self._products |= {id(linear): (i, name) for name, linear in products.items()}
            norms = {role: held for role, held in vars(layer).items() if isinstance(held, Norm)}
            self._norms |= {id(held): f"blocks.{i}.{role.replace('_', '', 1)}" for role, held in norms.items()}
        self._last = (0, "")  # the last product

    def _see(self, name: str, tensor: torch.Tensor) -> None:
        if name in self._names:
            self._show(name, tensor)

    def embedding(
        self, tokens: torch.Tensor, past: Sequence[int], wte: Linear, wpe: torch.Tensor | None, scale: float = 1.0
    ) -> torch.Tensor:
        x = super().embedding(tokens, past, wte, wpe, scale)
        if {"hook_embed", "hook_pos_embed"} & self._names:
            if wpe is not None:
                self._see("hook_pos_embed", wpe[: tokens.shape[1]].to(x.dtype).expand(x.shape))
            self._see("hook_embed", super().embedding(tokens, past, wte, None, scale))
        self._see("blocks.0.hook_resid_pre", x)
        return x

    def layernorm(self, x: torch.Tensor, norm: Norm, eps: float) -> torch.Tensor:
        y = super().layernorm(x, norm, eps)
        self._see(f"{self._norms[id(norm)]}.hook_normalized", y)
        return y

    def matmul(self, x: torch.Tensor, linear: Linear) -> torch.Tensor:
        y = super().matmul(x, linear)
        i, name = self._last = self._products.get(id(linear), (0, "head"))
        if name in ("attn", "mlp"):
            self._see(f"blocks.{i}.hook_{name}_out", y)
        elif name == "fc":
            self._see(f"blocks.{i}.mlp.hook_pre", y)
        return y

    def attention(self, qkv: torch.Tensor, how: Attention, layer: int, cache: Cache | None) -> torch.Tensor:
        T, heads = qkv.shape[1], heads_of(qkv, how)
        for letter, tensor in zip("qkv", heads, strict=True):
            self._see(f"blocks.{layer}.attn.hook_{letter}", tensor.transpose(1, 2))
        name = f"blocks.{layer}.attn.hook_pattern"
        if name in self._names:
            here = torch.zeros(1, dtype=torch.int64, device=qkv.device)
            one = torch.eye(T, dtype=torch.float32, device=qkv.device).expand(*heads[1].shape[:2], T, T)
            mask = seen(here, T, T, how.window)
            # Of such values the results are the probabilities.
            pattern = attended(heads[0].float(), heads[1].float(), one, how, mask, False)
            self._show(name, pattern.view(*qkv.shape[:2], how.NH, T).transpose(1, 2))
        y = super().attention(qkv, how, layer, cache)
        self._see(f"blocks.{layer}.attn.hook_z", y.view(*qkv.shape[:2], how.NH, -1))
        return y

    def activation(self, x: torch.Tensor, name: str) -> torch.Tensor:
        y = super().activation(x, name)
        self._see(f"blocks.{self._last[0]}.mlp.hook_post", y)
        return y

    def residual(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        x = super().residual(a, b)
        i, name = self._last
        self._see(f"blocks.{i}.hook_resid_{'mid' if name == 'attn' else 'post'}", x)
        if name == "mlp":
            self._see(f"blocks.{i + 1}.hook_resid_pre", x)
        return x


def capture(transformer: Transformer, tokens: torch.Tensor, patterns: Sequence[str], see: See) -> None:
    """One forward pass over tokens (B, T); `see` gets each activation that matches a pattern, as it is computed.

    Patterns are names, with * for any part of one: "blocks.*.hook_resid_post". An activation is valid until the next
    operation runs, so `see` must copy what it keeps.
    """
    known = names(transformer.config)
    requested: set[str] = set()
    for pattern in patterns:
        found = fnmatch.filter(known, pattern)
        if not found:
            raise RungError(f"no activation is called {pattern!r}; names are like {known[2]}, * for any part.")
        requested |= set(found)
    plan = WatchedPlan(transformer.plan, transformer.weights, frozenset(requested), see)
    with torch.no_grad():
        Transformer(transformer.config, transformer.weights, plan).hidden(tokens.to(plan.device))
