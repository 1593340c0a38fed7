"""Gemma 3 without pictures: RMSNorm before and after each part of a layer, norms of queries and keys, windows in most
layers, which have a rotation of their own, and a gated GELU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

from gpuless.base.files import shown
from rung.errors import RungError
from rung.lazy import torch
from rung.models.cache import Cache
from rung.models.family import FC, QKV, Attention, Config, Family, TensorSpec, lm_head, product, rms_norm
from rung.models.fields import Fields
from rung.models.plan import Operations, Rotation
from rung.models.rope import Rope, read_rope, tables
from rung.models.weights import Weights

# Fields with which another computation is meant, each with the values that mean none.
OTHERS: Mapping[str, tuple[Any, ...]] = {
    "hidden_activation": ("gelu_pytorch_tanh", None),
    "attention_bias": (False, None),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "use_bidirectional_attention": (False, None),
    "quantization_config": (None,),
}
KINDS = ("sliding_attention", "full_attention")  # of layers
PERIOD = 6  # of them one attends to all tokens, the last


@dataclass(frozen=True, kw_only=True)
class GemmaConfig(Config):
    """The shape of a Gemma 3."""

    model_type: ClassVar[str] = "gemma3_text"

    scale: float  # of queries times keys
    sliding: tuple[bool, ...]  # whether a layer has the window, and the local rotation
    local: Rope

    @property
    def embedding_scale(self) -> float:
        return math.sqrt(self.C)

    def rope_of(self, layer: int) -> Rope | None:
        return self.local if self.sliding[layer] else self.rope

    def attention_scale(self, layer: int) -> float:
        return self.scale

    def attention(self, layer: int) -> Attention:
        return replace(super().attention(layer), window=self.window if self.sliding[layer] else None)

    def turns(self, layer: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of a layer's rotation."""
        rope = self.rope_of(layer)
        assert rope is not None
        return tables(rope, self.HS, self.context, device)


def parse(fields: Mapping[str, Any], origin: str) -> Config:
    """The config in a dictionary of config.json's names."""
    f = Fields(fields, origin)
    f.only(OTHERS)
    shape = f.decoder(tied=True)
    kinds = _kinds(f, shape["layers"])
    ropes = fields.get("rope_parameters") or {}
    if not isinstance(ropes, dict) or not all(isinstance(ropes.get(kind), dict | None) for kind in KINDS):
        raise f.refuse("rope_parameters", f"an object with {' and '.join(KINDS)}")
    local, full = ({"rope_parameters": ropes.get(kind)} for kind in KINDS)
    local["rope_theta"] = fields.get("rope_local_base_freq") or 1e4
    full |= {"rope_theta": fields.get("rope_theta") or 1e6, "rope_scaling": fields.get("rope_scaling")}
    scale = f.number("query_pre_attn_scalar", 256.0)
    if not 0 < scale < math.inf:
        raise f.refuse("query_pre_attn_scalar", "a number above 0")
    return GemmaConfig(
        **shape, activation="geglu_tanh", scale=scale**-0.5,
        window=f.whole("sliding_window", default=4096), sliding=tuple(kind == KINDS[0] for kind in kinds),
        rope=read_rope(full, origin), local=read_rope(local, origin),
    )  # fmt: skip


def _kinds(f: Fields, layers: int) -> list[str]:
    """Each layer's kind, by a list or by the period of those without a window."""
    period = f.whole("sliding_window_pattern", "_sliding_window_pattern", default=PERIOD)
    given = f.fields.get("layer_types")
    kinds = [KINDS[(i + 1) % period == 0] for i in range(layers)] if given is None else given
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in KINDS for kind in kinds):
        known = " or ".join(KINDS)
        raise RungError(f"{f.origin} gives layer_types as {shown(given)}; name {known} for each layer.")
    return kinds


@cache
def tensors(config: GemmaConfig) -> tuple[TensorSpec, ...]:
    """In the order of a forward pass. In files the weight of a norm has 1 less."""

    def norm(name: str, role: str, width: str = "C") -> TensorSpec:
        return rms_norm(name, role, width, plus=1.0)

    return (
        TensorSpec("embed_tokens.weight", ("V", "C"), "wte.weight", "wte", matrix=True),
        norm("layers.{i}.input_layernorm", "ln_1"),
        *product("self_attn", QKV, "qkv", ("(NH + 2 * NKV) * HS", "C"), False),
        norm("layers.{i}.self_attn.q_norm", "q_norm", "HS"),
        norm("layers.{i}.self_attn.k_norm", "k_norm", "HS"),
        *product("self_attn", (("o", "C"),), "attn_proj", ("C", "NH * HS"), False),
        norm("layers.{i}.post_attention_layernorm", "ln_1_post"),
        norm("layers.{i}.pre_feedforward_layernorm", "ln_2"),
        *product("mlp", FC, "fc", ("2 * F", "C"), False),
        *product("mlp", (("down", "C"),), "mlp_proj", ("C", "F"), False),
        norm("layers.{i}.post_feedforward_layernorm", "ln_2_post"),
        norm("norm", "ln_f"),
        lm_head(config),
    )  # fmt: skip


def forward(
    plan: Operations, config: GemmaConfig, weights: Weights, tokens: torch.Tensor, cache: Cache | None
) -> torch.Tensor:
    """(B, T) -> (B, T, C): what the LM head reads. The cache is filled, not advanced."""
    eps, past = config.eps, cache.lengths if cache else [0] * tokens.shape[0]
    x = plan.embedding(tokens, past, weights.wte, None, config.embedding_scale)
    for i, layer in enumerate(weights.layers):
        rotation = Rotation(config.NH, config.NKV, *config.turns(i, plan.device), layer.q_norm, layer.k_norm, eps)
        qkv = plan.rotate(plan.layernorm_matmul(x, layer.ln_1, eps, layer.qkv), rotation, past)
        y = plan.attention(qkv, config.attention(i), i, cache)  # (B, T, NH * HS)
        if i == config.layers - 1:
            y, x = plan.last_tokens(y, x)
        y = plan.layernorm(plan.matmul(y, layer.attn_proj), layer.ln_1_post, eps)
        x, n = plan.residual_layernorm(x, y, layer.ln_2, eps)
        h = plan.matmul_activation(n, layer.fc, config.activation)  # (B, T, F)
        x = plan.residual(x, plan.layernorm(plan.matmul(h, layer.mlp_proj), layer.ln_2_post, eps))
    return plan.layernorm(x, weights.ln_f, eps)


def size(C: int, F: int, layers: int) -> Config:
    """The config of a published model."""
    return GemmaConfig(
        vocabulary=262144, context=32768, C=C, NH=4, kv_heads=1, head_size=256, layers=layers, F=F,
        activation="geglu_tanh", eps=1e-6, scale_attention=True, scale_by_layer=False, tied=True, eos=(1, 106), bos=2,
        scale=256**-0.5, window=512, sliding=tuple((i + 1) % PERIOD > 0 for i in range(layers)),
        rope=Rope(1e6), local=Rope(),
    )  # fmt: skip


FAMILY = Family(
    title="Gemma 3",
    parse=parse,
    tensors=tensors,
    forward=forward,
    prefix="model.",
    sizes={"gemma-3-270m": size(640, 2048, 18), "gemma-3-1b": size(1152, 6912, 26)},
    compiled=True,
)
