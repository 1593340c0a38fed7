"""GPT-2's config.json: the fields that matter for inference, checked when read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rung.errors import RungError
from rung.files import shown
from rung.models.family import Config

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

    def whole(names: tuple[str, ...], default: int) -> int:
        value = next((fields[name] for name in names if fields.get(name) is not None), default)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 31:
            raise RungError(f"{origin} gives {names[0]} as {shown(value)}; it must be a whole number from 1 to 2^31.")
        return value

    def flag(name: str, default: bool) -> bool:
        value = fields.get(name, default)
        if not (value is None or isinstance(value, bool)):
            raise RungError(f"{origin} gives {name} as {shown(value)}; it must be true or false.")
        return bool(value)

    activation = fields.get("activation_function", "gelu_new")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise RungError(f"{origin} names the activation {shown(activation)}; rung has {known}.")
    C, NH = whole(("n_embd", "hidden_size"), 768), whole(("n_head", "num_attention_heads"), 12)
    if C % NH:
        raise RungError(f"{origin} divides {C} channels among {NH} heads; n_embd must be a multiple of n_head.")
    eps = fields.get("layer_norm_epsilon", 1e-5)
    if isinstance(eps, bool) or not isinstance(eps, int | float) or not 0 <= eps <= 1:
        raise RungError(f"{origin} gives layer_norm_epsilon as {shown(eps)}; it must be a number such as 1e-05.")
    eos = fields.get("eos_token_id", 50256)
    ends = [] if eos is None else eos if isinstance(eos, list) else [eos]
    if not all(isinstance(end, int) and not isinstance(end, bool) and abs(end) < 1 << 31 for end in ends):
        raise RungError(f"{origin} gives eos_token_id as {shown(eos)}; it must be a token's number, or several.")
    return kind(
        vocabulary=whole(("vocab_size",), 50257),
        context=whole(("n_positions", "max_position_embeddings", "n_ctx"), 1024),
        C=C,
        NH=NH,
        layers=whole(("n_layer", "num_hidden_layers"), 12),
        F=whole(("n_inner",), 4 * C),
        activation=ACTIVATIONS[activation],
        eps=float(eps),
        scale_attention=flag("scale_attn_weights", True),
        scale_by_layer=flag("scale_attn_by_inverse_layer_idx", False),
        tied=flag("tie_word_embeddings", True),
        eos=tuple(ends),
    )
