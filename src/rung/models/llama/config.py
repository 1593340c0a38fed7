"""The config.json of Llama, Mistral, Qwen 2 and Qwen 3: the fields that matter for inference, checked when read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rung.errors import RungError
from rung.models.family import Config
from rung.models.fields import LONGEST_CONTEXT, Fields
from rung.models.rope import Rope, read_rope

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


@dataclass(frozen=True, kw_only=True)
class LlamaConfig(Config):
    """The shape of a model with Llama's layer."""

    model_type: ClassVar[str] = "llama"

    qkv_bias: bool
    proj_bias: bool
    mlp_bias: bool
    qk_norm: bool


def parse(fields: Mapping[str, Any], origin: str) -> Config:
    """The config in a dictionary of config.json's names."""
    f, kind = Fields(fields, origin), fields["model_type"]
    f.only(OTHERS)
    biased = f.flag("attention_bias", False)
    return LlamaConfig(
        **f.decoder(tied=False),
        activation="swiglu",
        window=_window(f, kind),
        rope=read_rope(fields, origin),
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


def size(V: int, C: int, F: int, layers: int, NH: int, NKV: int, HS: int, rope: Rope, **more: Any) -> Config:
    """The config of a known model."""
    defaults: dict[str, Any] = {
        "qkv_bias": False, "proj_bias": False, "mlp_bias": False, "qk_norm": False, "eps": 1e-5,
        "context": LONGEST_CONTEXT, "tied": True, "eos": (2,), "bos": 1,
    }  # fmt: skip
    return LlamaConfig(
        vocabulary=V, C=C, F=F, layers=layers, NH=NH, kv_heads=NKV, head_size=HS, rope=rope, activation="swiglu",
        scale_attention=True, scale_by_layer=False, **{**defaults, **more},
    )  # fmt: skip
