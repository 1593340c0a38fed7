"""The config.json of Llama, Mistral, Qwen 2 and Qwen 3: the fields that matter for inference, checked when read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from rung.errors import RungError
from rung.files import shown
from rung.models.family import Config, Fields

LONGEST_CONTEXT = 1 << 15  # tokens; models that were trained on longer texts are run up to here
# Fields with which another computation is meant, each with the values that mean none.
OTHERS: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish", None),
    "pretraining_tp": (1, None),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "quantization_config": (None,),
    "partial_rotary_factor": (1, None),
    "num_experts": (None,),
    "num_local_experts": (None,),
    "residual_multiplier": (1, None),
}


@dataclass(frozen=True)
class Scaling:
    """How rotary frequencies differ from base^(-2i / HS): all divided by `factor` (linear), or only the slow ones, with
    a transition between wavelengths of `original` / `high` and `original` / `low` tokens (llama3)."""

    kind: str
    factor: float
    low: float = 1.0
    high: float = 4.0
    original: float = 8192.0


@dataclass(frozen=True, kw_only=True)
class LlamaConfig(Config):
    """The shape of a model with Llama's layer."""

    model_type: ClassVar[str] = "llama"

    base: float
    scaling: Scaling | None
    qkv_bias: bool
    proj_bias: bool
    mlp_bias: bool
    qk_norm: bool

    @property
    def rotary(self) -> bool:
        return True

    def angles(self) -> torch.Tensor:
        """The angle of each position and pair of channels (MAXT, HS / 2), in float64."""
        pairs = torch.arange(0, self.HS, 2, dtype=torch.float64, device="cpu")
        frequencies = self.base ** -(pairs / self.HS)
        s = self.scaling
        if s is not None and s.kind == "linear":
            frequencies = frequencies / s.factor
        elif s is not None:
            turns = s.original * frequencies / (2 * math.pi)  # in the original context
            fast = ((turns - s.low) / (s.high - s.low)).clamp(0, 1)
            frequencies = frequencies * (fast + (1 - fast) / s.factor)
        return torch.outer(torch.arange(self.context, dtype=torch.float64, device="cpu"), frequencies)


def parse(fields: Mapping[str, Any], origin: str) -> Config:
    """The config in a dictionary of config.json's names."""
    f, kind = Fields(fields, origin), fields["model_type"]
    for name, plain in OTHERS.items():
        if fields.get(name) not in plain:
            raise RungError(f"{origin} gives {name} as {shown(fields[name])}, which rung does not support for {kind}.")
    C, NH = f.whole("hidden_size"), f.whole("num_attention_heads")
    NKV = f.whole("num_key_value_heads", default=NH)
    if NH % NKV:
        raise RungError(f"{origin} divides {NH} heads among {NKV} of keys; num_attention_heads must be a multiple.")
    if fields.get("head_dim") is None and C % NH:
        raise RungError(f"{origin} divides {C} channels among {NH} heads; give head_dim.")
    HS = f.whole("head_dim", default=max(1, C // NH))
    if HS % 2:
        raise RungError(f"{origin} gives head_dim as {HS}; rotary positions need pairs of channels.")
    eos, bos = f.tokens("eos_token_id", None), f.tokens("bos_token_id", None)
    biased = f.flag("attention_bias", False)
    return LlamaConfig(
        vocabulary=f.whole("vocab_size"),
        context=min(f.whole("max_position_embeddings"), LONGEST_CONTEXT),
        C=C,
        NH=NH,
        layers=f.whole("num_hidden_layers"),
        F=f.whole("intermediate_size"),
        activation="swiglu",
        eps=f.number("rms_norm_eps", 1e-6, 1),
        scale_attention=True,
        scale_by_layer=False,
        tied=f.flag("tie_word_embeddings", False),
        eos=eos,
        bos=bos[0] if bos else None,
        kv_heads=NKV,
        head_size=HS,
        window=_window(f, kind),
        base=_rope(fields, origin)[0],
        scaling=_rope(fields, origin)[1],
        qkv_bias=True if kind == "qwen2" else biased,
        proj_bias=kind != "qwen2" and biased,
        mlp_bias=f.flag("mlp_bias", False),
        qk_norm=kind == "qwen3",
    )


def _window(f: Fields, kind: str) -> int | None:
    """The same for all layers, or None."""
    if f.fields.get("sliding_window") is None or (kind != "mistral" and not f.flag("use_sliding_window", False)):
        return None
    if kind != "mistral" and f.fields.get("max_window_layers", 0) != 0:
        raise RungError(f"{f.origin} uses sliding_window in some layers only, which rung does not support.")
    return f.whole("sliding_window")


def _rope(fields: Mapping[str, Any], origin: str) -> tuple[float, Scaling | None]:
    """Base and scaling; new versions of transformers keep both in rope_parameters, over which rope_scaling has
    precedence."""
    both = [fields.get(name) or {} for name in ("rope_scaling", "rope_parameters")]
    for one in both:
        if not isinstance(one, dict):
            raise RungError(f"{origin} gives rope_scaling as {shown(one)}; it must be an object.")
    given = both[0] or both[1]
    theta = next((one["rope_theta"] for one in (*both, fields) if one.get("rope_theta") is not None), 1e4)
    f = Fields({**given, "rope_theta": theta}, origin)
    base = f.number("rope_theta", 1e4)
    if not 0 < base < math.inf:
        raise RungError(f"{origin} gives rope_theta as {shown(theta)}; it must be a number above 0.")
    kind = given.get("rope_type", given.get("type", "default"))
    if kind == "default":
        return base, None
    if kind not in ("linear", "llama3"):
        raise RungError(f"{origin} scales rotary positions by {shown(kind)}; rung has default, linear and llama3.")
    original = fields.get("original_max_position_embeddings", fields.get("max_position_embeddings", 8192))
    factor, low, high, original = (
        f.number(name, default)
        for name, default in (
            ("factor", 1.0), ("low_freq_factor", 1.0), ("high_freq_factor", 4.0),
            ("original_max_position_embeddings", original),
        )
    )  # fmt: skip
    if factor <= 0 or high <= low:
        raise RungError(f"{origin} scales rotary positions by factors that are not positive and ascending.")
    return base, Scaling(kind, factor, low, high, original)


def size(V: int, C: int, F: int, layers: int, NH: int, NKV: int, HS: int, base: float, **more: Any) -> Config:
    """The config of a known model."""
    defaults: dict[str, Any] = {
        "scaling": None, "qkv_bias": False, "proj_bias": False, "mlp_bias": False, "qk_norm": False, "eps": 1e-5,
        "context": LONGEST_CONTEXT, "tied": True, "eos": (2,), "bos": 1,
    }  # fmt: skip
    return LlamaConfig(
        vocabulary=V, C=C, F=F, layers=layers, NH=NH, kv_heads=NKV, head_size=HS, base=base, activation="swiglu",
        scale_attention=True, scale_by_layer=False, **{**defaults, **more},
    )  # fmt: skip
