"""The plan `best`: whole texts are written by the engine, on the decode ladder; torch does what is left."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from rung.errors import RungError
from rung.gpt2.config import Config
from rung.gpt2.gpu.engine import DTYPES, Engine
from rung.gpt2.gpu.loading import Arrival, arrival, as_weights
from rung.gpt2.gpu.operands import LINEARS, NORMS
from rung.gpt2.sampling import Sampling
from rung.gpt2.torch_plan import TorchPlan
from rung.gpt2.weights import Linear, Weights
from rung.rungs.base import Device

WAYS = ("overlapped", "plain")
WAY = "RUNG_LOADING"  # the environment's word on how weights are loaded
COMPUTE = {"float32": torch.float32, "tf32": torch.float32, "float16": torch.float16}


class GpuPlan(TorchPlan):
    """`rungs` may name the rung of decode; `graph` and `steps` say how its steps are launched."""

    name = "best"

    def __init__(self, device: Device, dtype: str, rungs: Mapping[str, str]) -> None:
        if device == "cuda" and not torch.cuda.is_available():
            raise RungError("no CUDA device is to be seen; use --device cpu, or --device emulator for rungs.")
        if dtype == "auto":
            dtype = "bfloat16" if device == "cuda" else "float32"
        if dtype not in DTYPES:
            raise RungError(f"the plan best has no {dtype}; use one of {', '.join(DTYPES)}.")
        self.on, self.dtype = device, dtype
        self._device: Device = device
        self._rung = rungs.get("decode")
        compute = COMPUTE.get(dtype, torch.bfloat16)
        stored = torch.int8 if dtype == "int8" else compute
        super().__init__(torch.device("cuda" if device == "cuda" else "cpu"), stored, compute)
        self.engine: Engine | None = None
        self._arriving: Arrival | None = None

    def fetch(self, folder: Path, config: Config) -> Weights | None:
        way = os.environ.get(WAY) or WAYS[0]
        if way not in WAYS:
            raise RungError(f"{way!r} is no way to load weights; set {WAY} to one of {', '.join(WAYS)}.")
        if way == "plain" or self.stored == torch.int8:
            return None
        self._arriving = arrival(folder, config, self.compute, self.device)
        if self._arriving is None:
            return None
        self._arriving.start()
        return as_weights(self._arriving.operands, config)

    def ready(self, config: Config, weights: Weights) -> None:
        self.engine = Engine(config, weights, self.dtype, self._device, rung=self._rung, arriving=self._arriving)
        if self._arriving is None and self.stored != torch.int8:
            _share(weights, self.engine)

    def embedding(self, tokens: torch.Tensor, past: Sequence[int], wte: Linear, wpe: torch.Tensor) -> torch.Tensor:
        if self.engine is not None:
            self.engine.arrive()  # a forward pass through torch begins
        return super().embedding(tokens, past, wte, wpe)

    def write(
        self,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        *,
        stop_tokens: Sequence[int],
        sampling: Sampling,
        seed: int,
        sequences: Sequence[int],
    ) -> Iterator[list[int]] | None:
        assert self.engine is not None
        return self.engine.write(
            prompts, limits, stop_tokens=stop_tokens, sampling=sampling, seed=seed, sequences=sequences
        )


def _share(weights: Weights, engine: Engine) -> None:
    """The layers' tensors become views of the stacked ones, so that weights are there once."""
    operands = engine.operands
    tied = weights.head is weights.wte
    weights.wte.weight, weights.wpe = operands["wte"], operands["wpe"]
    if not tied:
        weights.head.weight = operands["head_w"]
    weights.ln_f.weight, weights.ln_f.bias = operands["lnf_w"], operands["lnf_b"]
    for i, layer in enumerate(weights.layers):
        for name, linear in LINEARS.items():
            linear(layer).weight, linear(layer).bias = operands[f"{name}_w"][i], operands[f"{name}_b"][i]
        for name, norm in NORMS.items():
            norm(layer).weight, norm(layer).bias = operands[f"{name}_w"][i], operands[f"{name}_b"][i]
