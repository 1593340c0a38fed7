"""Llama, and the models that have its layer: RMSNorm, rotary positions, shared keys and values, a gated MLP."""

from __future__ import annotations

from functools import cache

from rung.models.decoder import forward
from rung.models.family import FC, QKV, Family, TensorSpec, lm_head, product, rms_norm
from rung.models.llama.config import LlamaConfig, parse, size
from rung.models.rope import Rope


@cache
def tensors(config: LlamaConfig) -> tuple[TensorSpec, ...]:
    """In the order of a forward pass."""
    per_head = (
        rms_norm("layers.{i}.self_attn.q_norm", "q_norm", "HS"),
        rms_norm("layers.{i}.self_attn.k_norm", "k_norm", "HS"),
    )
    return (
        TensorSpec("embed_tokens.weight", ("V", "C"), "wte.weight", "wte", matrix=True),
        rms_norm("layers.{i}.input_layernorm", "ln_1"),
        *product("self_attn", QKV, "qkv", ("(NH + 2 * NKV) * HS", "C"), config.qkv_bias),
        *(per_head if config.qk_norm else ()),
        *product("self_attn", (("o", "C"),), "attn_proj", ("C", "NH * HS"), config.proj_bias),
        rms_norm("layers.{i}.post_attention_layernorm", "ln_2"),
        *product("mlp", FC, "fc", ("2 * F", "C"), config.mlp_bias),
        *product("mlp", (("down", "C"),), "mlp_proj", ("C", "F"), config.mlp_bias),
        rms_norm("norm", "ln_f"),
        lm_head(config),
    )  # fmt: skip


LLAMA3 = Rope(5e5, "llama3", 32.0, 1.0, 4.0, 8192.0)
SIZES = {
    "llama-3.2-1b": size(128256, 2048, 8192, 16, 32, 8, 64, LLAMA3, eos=(128001,), bos=128000),
    "llama-3.2-3b": size(128256, 3072, 8192, 28, 24, 8, 128, LLAMA3, eos=(128001,), bos=128000),
    "qwen2.5-0.5b": size(151936, 896, 4864, 24, 14, 2, 64, Rope(1e6), eps=1e-6, qkv_bias=True, eos=(151643,), bos=None),
    "qwen3-0.6b": size(151936, 1024, 3072, 28, 16, 8, 128, Rope(1e6), eps=1e-6, qk_norm=True, eos=(151645,), bos=None),
    "smollm2-135m": size(49152, 576, 1536, 30, 9, 3, 64, Rope(1e5), context=8192, eos=(0,), bos=0),
    "tinyllama-1.1b": size(32000, 2048, 5632, 22, 32, 4, 64, Rope(), context=2048, tied=False),
}
FAMILY = Family(
    title="Llama",
    parse=parse,
    tensors=tensors,
    forward=forward,
    prefix="model.",
    ignored=r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",  # which old versions of transformers saved
    sizes=SIZES,
    compiled=True,
    serves=("mistral", "qwen2", "qwen3"),
)
