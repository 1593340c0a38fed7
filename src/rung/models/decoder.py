"""The forward pass of decoders with rotary positions and two norms per layer: Llama's, StarCoder2's."""

from __future__ import annotations

from rung.lazy import torch
from rung.models.cache import Cache
from rung.models.family import Config
from rung.models.plan import Operations, Rotation
from rung.models.rope import tables
from rung.models.weights import Weights


def forward(
    plan: Operations, config: Config, weights: Weights, tokens: torch.Tensor, cache: Cache | None
) -> torch.Tensor:
    """(B, T) -> (B, T, C): what the LM head reads. The cache is filled, not advanced."""
    eps, past = config.eps, cache.lengths if cache else [0] * tokens.shape[0]
    assert config.rope is not None
    turns = tables(config.rope, config.HS, config.context, plan.device)
    x = plan.embedding(tokens, past, weights.wte, None)
    for i, layer in enumerate(weights.layers):
        of_heads = (getattr(layer, "q_norm", None), getattr(layer, "k_norm", None))
        rotation = Rotation(config.NH, config.NKV, *turns, *of_heads, eps)
        qkv = plan.rotate(plan.layernorm_matmul(x, layer.ln_1, eps, layer.qkv), rotation, past)
        y = plan.attention(qkv, config.attention(i), i, cache)  # (B, T, NH * HS)
        if i == config.layers - 1:
            y, x = plan.last_tokens(y, x)
        x, n = plan.matmul_residual_layernorm(y, layer.attn_proj, x, layer.ln_2, eps)
        h = plan.matmul_activation(n, layer.fc, config.activation)  # (B, T, F)
        x = plan.matmul_residual(h, layer.mlp_proj, x)
    return plan.layernorm(x, weights.ln_f, eps)
