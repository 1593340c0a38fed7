"""A model's weights as operands of the decode ladder: one tensor for each kind, the layers stacked."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from rung.models import quantize
from rung.models.gpt2.config import Config
from rung.models.gpt2.weights import Layer, Linear, Norm, Weights
from rung.operation import Tensors, Values

ACTIVATIONS = ("gelu_tanh", "gelu_erf", "relu")  # in the order of the ladder's `act`
LINEARS: dict[str, Callable[[Layer], Linear]] = {
    "qkv": lambda layer: layer.qkv,
    "proj": lambda layer: layer.attn_proj,
    "fc": lambda layer: layer.fc,
    "fc2": lambda layer: layer.mlp_proj,
}
NORMS: dict[str, Callable[[Layer], Norm]] = {"ln1": lambda layer: layer.ln_1, "ln2": lambda layer: layer.ln_2}


def stack(weights: Weights, compute: torch.dtype, device: torch.device, *, int8: bool = False) -> Tensors:
    """Every operand that is a weight. With `int8` the matrices are also included in eight bits."""

    def stacked(parts: Iterable[torch.Tensor | None], dtype: torch.dtype) -> torch.Tensor:
        present = [p for p in parts if p is not None]
        whole = torch.empty((len(present), *present[0].shape), dtype=dtype, device=device)
        for i, part in enumerate(present):
            whole[i].copy_(part)
        return whole

    layers, found = weights.layers, {}
    for name, norm in NORMS.items():
        found[f"{name}_w"] = stacked((norm(layer).weight for layer in layers), compute)
        found[f"{name}_b"] = stacked((norm(layer).bias for layer in layers), compute)
    for name, linear in LINEARS.items():
        chosen = [linear(layer) for layer in layers]
        found[f"{name}_b"] = stacked((c.bias for c in chosen), compute)
        found[f"{name}_w"] = stacked((quantize.to_float(c, compute) for c in chosen), compute)
        if int8:
            eight = [_eight_bits(c) for c in chosen]
            found[f"{name}_q"] = stacked((e.weight for e in eight), torch.int8)
            found[f"{name}_s"] = stacked((e.scale for e in eight), torch.float32)
    found["wte"] = quantize.to_float(weights.wte, compute).to(device).contiguous()
    tied = weights.head is weights.wte
    found["head_w"] = found["wte"] if tied else quantize.to_float(weights.head, compute).to(device).contiguous()
    if int8:
        head = _eight_bits(weights.head)
        assert head.scale is not None
        found["head_q"], found["head_s"] = head.weight.to(device), head.scale.to(device)
    found["wpe"] = weights.wpe.to(device, compute).contiguous()
    found["lnf_w"] = weights.ln_f.weight.to(device, compute).contiguous()
    found["lnf_b"] = weights.ln_f.bias.to(device, compute).contiguous()
    return found


def _eight_bits(linear: Linear) -> Linear:
    return linear if linear.scale is not None else quantize.to_int8(linear.weight)


def dims(config: Config, rows: int, capacity: int) -> Values:
    """The ladder's dims and scalars for this model."""
    return {
        "B": rows,
        "L": config.layers,
        "C": config.C,
        "NH": config.NH,
        "F": config.F,
        "V": config.vocabulary,
        "MAXT": capacity,
        "eps": config.eps,
        "scale": config.attention_scale(0),
        "act": ACTIVATIONS.index(config.activation),
        "by_layer": int(config.scale_by_layer),
    }
