"""A family that is not in the package: GPT-2's tensors under other names, and attention beside the MLP, so that both
read the same normalised input and are added to the residual stream together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from rung.models.cache import Cache
from rung.models.family import Config, Family, TensorSpec
from rung.models.plan import Plan
from rung.models.weights import Weights


@dataclass(frozen=True)
class Reordered(Config):
    model_type: ClassVar[str] = "reordered"


def parse(fields: Mapping[str, Any], origin: str) -> Config:
    width = fields["width"]
    return Reordered(
        vocabulary=fields["vocabulary"], context=fields["context"], C=width, NH=fields["heads"],
        layers=fields["depth"], F=3 * width, activation="gelu_tanh", eps=1e-5, scale_attention=True,
        scale_by_layer=False, tied=False, eos=(),
    )  # fmt: skip


def tensors(config: Config) -> tuple[TensorSpec, ...]:
    def product(name: str, role: str, inputs: str, outputs: str) -> tuple[TensorSpec, TensorSpec]:
        weight = TensorSpec(f"{name}.weight", (outputs, inputs), f"{role}.weight", f"{role}_w", matrix=True, eight=role)
        return weight, TensorSpec(f"{name}.bias", (outputs,), f"{role}.bias", f"{role}_b")

    def norm(name: str, role: str) -> tuple[TensorSpec, TensorSpec]:
        weight = TensorSpec(f"{name}.weight", ("C",), f"{role}.weight", f"{role}_w", std=0.1, mean=1.0)
        return weight, TensorSpec(f"{name}.bias", ("C",), f"{role}.bias", f"{role}_b")

    return (
        TensorSpec("tokens", ("V", "C"), "wte.weight", "wte", matrix=True),
        TensorSpec("positions", ("MAXT", "C"), "wpe", "wpe"),
        *norm("blocks.{i}.norm", "norm"),
        *product("blocks.{i}.keys", "qkv", "C", "3 * C"),
        *product("blocks.{i}.mixed", "mixed", "C", "C"),
        *product("blocks.{i}.up", "up", "C", "F"),
        *product("blocks.{i}.down", "down", "F", "C"),
        *norm("norm", "ln_f"),
        TensorSpec("head", ("V", "C"), "head.weight", "head_w", matrix=True, eight="head"),
    )


def forward(plan: Plan, config: Config, weights: Weights, tokens: torch.Tensor, cache: Cache | None) -> torch.Tensor:
    past = cache.lengths if cache else [0] * tokens.shape[0]
    x = plan.embedding(tokens, past, weights.wte, weights.wpe)
    for i, layer in enumerate(weights.layers):
        n = plan.layernorm(x, layer.norm, config.eps)
        y = plan.attention(plan.matmul(n, layer.qkv), config.NH, config.attention_scale(i), i, cache)
        h = plan.matmul_activation(n, layer.up, config.activation)
        x = plan.matmul_residual(y, layer.mixed, x)
        x = plan.matmul_residual(h, layer.down, x)
    return plan.layernorm(x, weights.ln_f, config.eps)


FAMILY = Family(title="reordered", parse=parse, tensors=tensors, forward=forward)
