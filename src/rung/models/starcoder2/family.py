"""StarCoder2: Llama's pass with GPT-2's norms, biases and MLP, and a window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from rung.models.decoder import forward
from rung.models.family import QKV, Config, Family, TensorSpec, layer_norm, lm_head, product
from rung.models.fields import Fields
from rung.models.rope import Rope, read_rope

# Fields with which another computation is meant, each with the values that mean none.
OTHERS: Mapping[str, tuple[Any, ...]] = {"hidden_act": ("gelu_pytorch_tanh", None), "quantization_config": (None,)}


@dataclass(frozen=True, kw_only=True)
class StarcoderConfig(Config):
    """The shape of a StarCoder2."""

    model_type: ClassVar[str] = "starcoder2"

    biased: bool  # products; norms always are


def parse(fields: Mapping[str, Any], origin: str) -> Config:
    """The config in a dictionary of config.json's names."""
    f = Fields(fields, origin)
    f.only(OTHERS)
    return StarcoderConfig(
        **{**f.decoder(tied=True), "eps": f.number("norm_epsilon", 1e-5, 1)},
        activation="gelu_tanh",
        window=None if fields.get("sliding_window") is None else f.whole("sliding_window"),
        rope=read_rope(fields, origin),
        biased=f.flag("use_bias", True),
    )


@cache
def tensors(config: StarcoderConfig) -> tuple[TensorSpec, ...]:
    """In the order of a forward pass."""
    biased = config.biased
    return (
        TensorSpec("embed_tokens.weight", ("V", "C"), "wte.weight", "wte", matrix=True),
        *layer_norm("layers.{i}.input_layernorm", "ln_1"),
        *product("self_attn", QKV, "qkv", ("(NH + 2 * NKV) * HS", "C"), biased),
        *product("self_attn", (("o", "C"),), "attn_proj", ("C", "NH * HS"), biased),
        *layer_norm("layers.{i}.post_attention_layernorm", "ln_2"),
        *product("mlp", (("c_fc", "F"),), "fc", ("F", "C"), biased, suffix=""),
        *product("mlp", (("c", "C"),), "mlp_proj", ("C", "F"), biased),
        *layer_norm("norm", "ln_f"),
        lm_head(config),
    )  # fmt: skip


STARCODER2_3B = StarcoderConfig(
    vocabulary=49152, context=16384, C=3072, NH=24, kv_heads=2, layers=30, F=12288, activation="gelu_tanh", eps=1e-5,
    scale_attention=True, scale_by_layer=False, tied=True, eos=(0,), bos=0, window=4096, rope=Rope(999999.4420358813),
    biased=True,
)  # fmt: skip
FAMILY = Family(
    title="StarCoder2",
    parse=parse,
    tensors=tensors,
    forward=forward,
    prefix="model.",
    sizes={"starcoder2-3b": STARCODER2_3B},
    compiled=True,
)
