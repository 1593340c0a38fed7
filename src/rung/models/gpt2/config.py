"""GPT-2's config.json: the fields that matter for inference, checked when read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rung.errors import RungError
from rung.files import shown
from rung.models.family import Config, Fields

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
