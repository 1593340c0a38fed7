"""A family that is not in the package: GPT-2's tensors under other names, and attention beside the MLP, so that both
read the same normalised input and are added to the residual stream together. Windows, caps of scores, a scale of the
embedding and its `wrong` step are fields of its config.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from rung.models.cache import Cache
from rung.models.family import Attention, Config, Family, TensorSpec
from rung.models.plan import Operations
from rung.models.weights import Weights


@dataclass(frozen=True, kw_only=True)
class Reordered(Config):
    model_type: ClassVar[str] = "reordered"

    windows: tuple[int | None, ...]
    caps: tuple[float | None, ...]
    scale: float
    wrong: str

    def attention(self, layer: int) -> Attention:
        return replace(super().attention(layer), window=self.windows[layer], softcap=self.caps[layer])


def parse(fields: Mapping[str, Any], origin: str) -> Config:
    width = fields["width"]
    return Reordered(
        vocabulary=fields["vocabulary"], context=fields["context"], C=width, NH=fields["heads"],
        layers=fields["depth"], F=3 * width, activation="gelu_tanh", eps=1e-5, scale_attention=True,
        scale_by_layer=False, tied=False, eos=(), windows=tuple(fields.get("windows", [None] * fields["depth"])),
        caps=tuple(fields.get("caps", [None] * fields["depth"])), scale=fields.get("scale", 1.0), wrong=fields.get("wrong", ""),
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


# What a forward pass must not do, since it would be done once, while the pass is recorded.
WRONG: dict[str, Callable[..., Any]] = {
    "mul": lambda plan, weights, tokens, x: plan.layernorm(x * 8, weights.ln_f, 1e-5),
    "add_": lambda plan, weights, tokens, x: x.add_(1),
    "getitem": lambda plan, weights, tokens, x: plan.layernorm(x[:, -1:], weights.ln_f, 1e-5),
    "view": lambda plan, weights, tokens, x: x.view(-1),
    "gelu": lambda plan, weights, tokens, x: F.gelu(x),
    "cat": lambda plan, weights, tokens, x: torch.cat((x, torch.zeros_like(x.new_empty(0)))),
    "rand_like": lambda plan, weights, tokens, x: torch.rand_like(x),
    "item": lambda plan, weights, tokens, x: tokens.sum().item(),
    "tolist": lambda plan, weights, tokens, x: tokens.tolist(),
    "eq": lambda plan, weights, tokens, x: tokens == 0,
    "add": lambda plan, weights, tokens, x: 1 + weights.ln_f.weight,
}


def forward(
    plan: Operations, config: Config, weights: Weights, tokens: torch.Tensor, cache: Cache | None
) -> torch.Tensor:
    past = cache.lengths if cache else [0] * tokens.shape[0]
    x = plan.embedding(tokens, past, weights.wte, weights.wpe, config.scale)
    if config.wrong:
        WRONG[config.wrong](plan, weights, tokens, x)
    for i, layer in enumerate(weights.layers):
        n = plan.layernorm(x, layer.norm, config.eps)
        y = plan.attention(plan.matmul(n, layer.qkv), config.attention(i), i, cache)
        h = plan.matmul_activation(n, layer.up, config.activation)
        x = plan.matmul_residual(y, layer.mixed, x)
        x = plan.matmul_residual(h, layer.down, x)
    return plan.layernorm(x, weights.ln_f, config.eps)


FAMILY = Family(title="reordered", parse=parse, tensors=tensors, forward=forward)
