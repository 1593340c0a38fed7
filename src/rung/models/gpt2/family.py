"""GPT-2: its config, its tensors, and its layer as operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from gpuless.base.files import shown
from rung.errors import RungError
from rung.lazy import torch
from rung.models.cache import Cache
from rung.models.family import Config, Family, Split, TensorSpec, layer_norm, lm_head
from rung.models.fields import Fields
from rung.models.gpt2 import rungs
from rung.models.plan import Operations
from rung.models.weights import Weights

# Activations by their names in config.json.
ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu_erf", "relu": "relu"}


@dataclass(frozen=True)
class GPT2Config(Config):
    """The shape of a GPT-2."""

    model_type: ClassVar[str] = "gpt2"


def size(layers: int, C: int, NH: int) -> Config:
    """The config of one of OpenAI's models."""
    return GPT2Config(50257, 1024, C, NH, layers, 4 * C, "gelu_tanh", 1e-5, True, False, True, (50256,))


def parse(fields: Mapping[str, Any], origin: str, kind: type[Config] = GPT2Config) -> Config:
    """The config in a dictionary of config.json's names, as a `kind` of config."""
    if fields.get("add_cross_attention"):
        raise RungError(f"{origin} requires cross attention, which rung does not support; use a plain GPT-2.")

    f = Fields(fields, origin)
    activation = fields.get("activation_function", "gelu_new")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise RungError(f"{origin} names the activation {shown(activation)}; rung has {known}.")
    C = f.whole("n_embd", "hidden_size", default=768)
    NH = f.whole("n_head", "num_attention_heads", default=12)
    if C % NH:
        raise RungError(f"{origin} divides {C} channels among {NH} heads; n_embd must be a multiple of n_head.")
    return kind(
        vocabulary=f.whole("vocab_size", default=50257),
        context=f.whole("n_positions", "max_position_embeddings", "n_ctx", default=1024),
        C=C,
        NH=NH,
        layers=f.whole("n_layer", "num_hidden_layers", default=12),
        F=f.whole("n_inner", default=4 * C),
        activation=ACTIVATIONS[activation],
        eps=f.number("layer_norm_epsilon", 1e-5, 1),
        scale_attention=f.flag("scale_attn_weights", True),
        scale_by_layer=f.flag("scale_attn_by_inverse_layer_idx", False),
        tied=f.flag("tie_word_embeddings", True),
        eos=f.tokens("eos_token_id", 50256),
    )


UNITS = Split(0, "F")
QKV = Split(0, "NH", groups=3)


def _product(
    name: str, role: str, operand: str, inputs: str, outputs: str, split: Split, *, before_sum: bool = False
) -> tuple[TensorSpec, ...]:
    """GPT-2's own code calls its matrices Conv1D and keeps them as (inputs, outputs)."""
    # Biases are added once, after the parts of a sum.
    of_bias = split if split.axis == 0 else None
    return (
        TensorSpec(
            f"{name}.weight", (inputs, outputs), f"{role}.weight", f"{operand}_w", matrix=True, transposed=True,
            eight=operand, split=split, before_sum=before_sum,
        ),
        TensorSpec(f"{name}.bias", (outputs,), f"{role}.bias", f"{operand}_b", split=of_bias),
    )  # fmt: skip


@cache
def tensors(config: Config) -> tuple[TensorSpec, ...]:
    """In the order of a forward pass."""
    return (
        TensorSpec("wte.weight", ("V", "C"), "wte.weight", "wte", matrix=True, std=0.05),
        TensorSpec("wpe.weight", ("MAXT", "C"), "wpe", "wpe"),
        *layer_norm("h.{i}.ln_1", "ln_1", "ln1"),
        *_product("h.{i}.attn.c_attn", "qkv", "qkv", "C", "3 * C", QKV),
        *_product("h.{i}.attn.c_proj", "attn_proj", "proj", "C", "C", Split(1, "NH"), before_sum=True),
        *layer_norm("h.{i}.ln_2", "ln_2", "ln2"),
        *_product("h.{i}.mlp.c_fc", "fc", "fc", "C", "F", UNITS),
        *_product("h.{i}.mlp.c_proj", "mlp_proj", "fc2", "F", "C", Split(1, "F"), before_sum=True),
        *layer_norm("ln_f", "ln_f", "lnf"),
        lm_head(config, std=0.05),
    )  # fmt: skip


def forward(
    plan: Operations, config: Config, weights: Weights, tokens: torch.Tensor, cache: Cache | None
) -> torch.Tensor:
    """(B, T) -> (B, T, C): what the LM head reads. The cache is filled, not advanced."""
    eps = config.eps
    x = plan.embedding(tokens, cache.lengths if cache else [0] * tokens.shape[0], weights.wte, weights.wpe)
    for i, layer in enumerate(weights.layers):
        qkv = plan.layernorm_matmul(x, layer.ln_1, eps, layer.qkv)  # (B, T, 3C)
        y = plan.attention(qkv, config.attention(i), i, cache)
        if i == config.layers - 1:
            y, x = plan.last_tokens(y, x)
        x, n = plan.matmul_residual_layernorm(y, layer.attn_proj, x, layer.ln_2, eps)
        h = plan.matmul_activation(n, layer.fc, config.activation)  # (B, T, F)
        x = plan.matmul_residual(h, layer.mlp_proj, x)
    return plan.layernorm(x, weights.ln_f, eps)


SIZES = {
    "gpt2": size(12, 768, 12),
    "gpt2-medium": size(24, 1024, 16),
    "gpt2-large": size(36, 1280, 20),
    "gpt2-xl": size(48, 1600, 25),
    "distilgpt2": size(6, 768, 12),
}
FAMILY = Family(
    title="GPT-2",
    parse=parse,
    tensors=tensors,
    forward=forward,
    prefix="transformer.",
    ignored=r"h\.\d+\.attn\.(bias|masked_bias)",  # causal masks, which old versions of transformers saved
    sizes=SIZES,
    steps=rungs,
    compiled=True,
)
