"""GPT-2's config.json: the fields that matter for inference, checked when read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rung import files
from rung.errors import RungError
from rung.files import shown

# Activations by their names in config.json.
ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu_erf", "relu": "relu"}


@dataclass(frozen=True)
class Config:
    """The shape of a GPT-2. Names of widths are those used in the kernels."""

    vocabulary: int
    context: int
    C: int
    NH: int
    layers: int
    F: int  # width of the MLP
    activation: str  # one of ACTIVATIONS' values
    eps: float
    scale_attention: bool
    scale_by_layer: bool
    tied: bool  # the LM head is the token embedding
    eos: tuple[int, ...]

    @property
    def HS(self) -> int:
        return self.C // self.NH

    def attention_scale(self, layer: int) -> float:
        """The factor of queries times keys in this layer."""
        scale = 1 / math.sqrt(self.HS) if self.scale_attention else 1.0
        return scale / (layer + 1) if self.scale_by_layer else scale


def read_config(path: Path) -> Config:
    """The config in a file; RungError when it is not a GPT-2's."""
    try:
        fields = files.read_json(path, "fetch the model again")
    except FileNotFoundError:
        raise RungError(f"{path} is missing: a model's folder holds config.json next to its weights.") from None
    except OSError as error:
        raise RungError(f"{path} cannot be read ({error.strerror}); fetch the model again.") from None
    if not isinstance(fields, dict):
        raise RungError(f"{path} does not hold a JSON object; fetch the model again.")
    return parse_config(fields, str(path))


def parse_config(fields: Mapping[str, Any], origin: str) -> Config:
    """The config in a dictionary of config.json's names."""
    kind = fields.get("model_type")
    if kind != "gpt2":
        raise RungError(f"{origin} describes a model of type {shown(kind)}; rung runs models of type 'gpt2'.")
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
    return Config(
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
