"""The model's operations through rungs: on a GPU, or on the emulator.

Every call finds its output at the same address as in the step before, so a rung is bound to its tensors
once per shape and afterwards only launched. What no rung does (an activation that is not GPT-2's own,
attention of new tokens to a cache) torch does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from rung import catalogue
from rung.dtypes import dtype as named_dtype
from rung.errors import RungError
from rung.gpt2.cache import Cache
from rung.gpt2.torch_plan import TorchPlan
from rung.gpt2.weights import Linear, Norm
from rung.lab import tunings

if TYPE_CHECKING:
    from rung.expressions import Number
    from rung.kernel import Device, Prepared, Rung
    from rung.operation import Tensors

SHORT_NAMES = {"float32": "f32", "tf32": "tf32", "float16": "f16", "bfloat16": "bf16"}


class LadderPlan(TorchPlan):
    """`rungs` names a rung for each operation that is to run on one; the others run through torch."""

    def __init__(self, device: Device, dtype: str, name: str, rungs: Mapping[str, str]) -> None:
        if dtype == "auto":
            dtype = "bfloat16" if device == "cuda" else "float32"
        if dtype not in SHORT_NAMES:
            raise RungError(f"rungs have no {dtype}; use one of {', '.join(SHORT_NAMES)}, or --device cpu.")
        if device == "cuda" and not torch.cuda.is_available():
            raise RungError("no CUDA device is to be seen; use --device cpu, or --device emulator for rungs.")
        self.name, self.dtype, self.on = name, dtype, device
        self._device: Device = device
        self._real = named_dtype(SHORT_NAMES[dtype])
        self.rungs = {operation: _find(operation, rung) for operation, rung in rungs.items()}
        super().__init__(
            torch.device("cuda" if device == "cuda" else "cpu"), self._real.torch, self._real.torch
        )
        self._calls: Counter[tuple[str, tuple[int, ...]]] = Counter()
        self._outputs: dict[tuple[str, tuple[int, ...], int], torch.Tensor] = {}
        self._prepared: dict[tuple[object, ...], Prepared] = {}
        self._lasting: set[int] = set()  # memory that is neither freed nor moved between steps

    def matrix(self, weight: torch.Tensor) -> Linear:
        linear = super().matrix(weight)
        self._lasting.add(_memory(linear.weight))
        return linear

    def vector(self, tensor: torch.Tensor) -> torch.Tensor:
        vector = tensor.to(self.device, self.compute).contiguous()
        self._lasting.add(_memory(vector))
        return vector

    def embedding(
        self, tokens: torch.Tensor, past: Sequence[int], wte: Linear, wpe: torch.Tensor
    ) -> torch.Tensor:
        self._calls.clear()  # a forward pass begins
        if "embedding" not in self.rungs or len(set(past)) > 1:
            return super().embedding(tokens, past, wte, wpe)
        B, T = tokens.shape
        (V, C), MAXT = wte.weight.shape, wpe.shape[0]
        dims = {"B": B, "T": T, "C": C, "V": V, "MAXT": MAXT, "start": past[0]}
        tensors = {"tokens": tokens.to(torch.int32), "wte": wte.weight, "wpe": wpe}
        return self._run("embedding", (B, T, C), tensors, dims)

    def layernorm(self, x: torch.Tensor, norm: Norm, eps: float) -> torch.Tensor:
        if "layernorm" not in self.rungs:
            return super().layernorm(x, norm, eps)
        tensors = {"x": x, "weight": norm.weight, "bias": norm.bias}
        return self._run("layernorm", tuple(x.shape), tensors, {**_dims(x), "eps": eps})

    def matmul(self, x: torch.Tensor, linear: Linear) -> torch.Tensor:
        if "matmul" not in self.rungs:
            return super().matmul(x, linear)
        B, T, C = x.shape
        OC = linear.weight.shape[0]
        tensors = {"x": x, "weight": linear.weight}
        if linear.bias is not None:
            tensors["bias"] = linear.bias
        return self._run("matmul", (B, T, OC), tensors, {"B": B, "T": T, "C": C, "OC": OC})

    def attention(
        self, qkv: torch.Tensor, NH: int, scale: float, layer: int, cache: Cache | None
    ) -> torch.Tensor:
        past = cache.lengths if cache else [0]
        if "attention" in self.rungs and not any(past):
            return self._whole_attention(qkv, NH, scale, layer, cache)
        if "softmax" in self.rungs and len(set(past)) == 1:
            return self._attention_by_parts(qkv, NH, scale, layer, cache)
        return super().attention(qkv, NH, scale, layer, cache)

    def _whole_attention(
        self, qkv: torch.Tensor, NH: int, scale: float, layer: int, cache: Cache | None
    ) -> torch.Tensor:
        B, T, width = qkv.shape
        C = width // 3
        q, k, v = self._heads(qkv, NH)
        if cache is not None:
            cache.write(layer, k, v)
        dims = {"B": B, "T": T, "C": C, "NH": NH, "scale": scale}
        return self._run("attention", (B, T, C), {"qkv": qkv, "q": q, "k": k, "v": v}, dims)

    def _attention_by_parts(
        self, qkv: torch.Tensor, NH: int, scale: float, layer: int, cache: Cache | None
    ) -> torch.Tensor:
        B, T, width = qkv.shape
        q, k, v = self._heads(qkv, NH)
        if cache is not None:
            cache.write(layer, k, v)
            k, v = cache.read(layer, T)
        x = q @ k.transpose(2, 3)  # (B, NH, T, S)
        dims = {"B": B, "NH": NH, "T": T, "S": k.shape[2], "scale": scale}
        p = self._run("softmax", tuple(x.shape), {"x": x}, dims)
        return (p @ v).transpose(1, 2).reshape(B, T, width // 3)

    def activation(self, x: torch.Tensor, name: str) -> torch.Tensor:
        operation = {"gelu_tanh": "gelu", "relu": "relu"}.get(name, "")
        if operation not in self.rungs:
            return super().activation(x, name)
        return self._run(operation, tuple(x.shape), {"x": x}, _dims(x))

    def residual(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if "residual" not in self.rungs:
            return super().residual(a, b)
        return self._run("residual", tuple(a.shape), {"a": a, "b": b}, _dims(a))

    def _run(
        self, operation: str, shape: tuple[int, ...], tensors: Tensors, dims: Mapping[str, Number]
    ) -> torch.Tensor:
        rung = self.rungs[operation]
        out = self._output(operation, shape)
        given = {name: self._lasts(operation, name, tensor) for name, tensor in tensors.items()}
        given["out"] = out
        key = (operation, *dims.values(), *(t.data_ptr() for t in given.values()))
        prepared = self._prepared.get(key)
        if prepared is None:
            values = rung.operation.complete(dims)
            tuning = tunings.best(rung, values, self._real.name) if self.on == "cuda" else None
            prepared = rung.prepare(given, values, self._real, device=self._device, tuning=tuning)
            self._prepared[key] = prepared
        prepared.run()
        return out

    def _lasts(self, operation: str, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if _memory(tensor) in self._lasting:
            return tensor
        return self._output(f"{operation} {name}", tuple(tensor.shape), tensor.dtype).copy_(tensor)

    def _output(
        self, operation: str, shape: tuple[int, ...], dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        # Two buffers a shape, in turn: at most the call before last still holds what is needed
        # (the residual stream, while the next one is added to it).
        turn = self._calls[operation, shape] % 2
        self._calls[operation, shape] += 1
        key = (operation, shape, turn)
        if key not in self._outputs:
            self._outputs[key] = torch.empty(shape, dtype=dtype or self.compute, device=self.device)
            self._lasting.add(_memory(self._outputs[key]))
        return self._outputs[key]


def _find(operation: str, rung: str) -> Rung:
    if rung.endswith((".cu", ".py")):
        return catalogue.rung_from_file(catalogue.operation(operation), Path(rung))
    return catalogue.find(f"{operation}/{rung}")


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _dims(x: torch.Tensor) -> dict[str, Number]:
    B, T, C = x.shape
    return {"B": B, "T": T, "C": C}
