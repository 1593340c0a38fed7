"""The plan `best`: the engine writes whole texts with the decode ladder; torch does the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from rung.errors import RungError
from rung.models.gpt2.config import Config
from rung.models.gpt2.weights import Linear, Weights
from rung.models.gpu.engine import DTYPES, Engine
from rung.models.gpu.loading import Arrival, arrival, as_weights
from rung.models.gpu.operands import LINEARS, NORMS
from rung.models.gpu.rating import GpuRater
from rung.models.plan import Service, WrappedPlan
from rung.models.torch_plan import TorchPlan
from rung.rungs.base import Device

COMPUTE = {"float32": torch.float32, "tf32": torch.float32, "float16": torch.float16}


class GpuPlan(WrappedPlan):
    """`kernels` may name rungs of decode and sample; with `overlapped`, computation starts while later weights are
    still being read. With the `cache` int8, sessions of many rows keep keys and values in 8 bits."""

    def __init__(
        self,
        device: Device,
        dtype: str,
        kernels: Mapping[str, str],
        *,
        overlapped: bool = True,
        cache: str | None = None,
    ) -> None:
        if device == "cuda" and not torch.cuda.is_available():
            raise RungError("No CUDA device was found; choose the device cpu, or emulator for rungs.")
        if dtype == "auto":
            dtype = "bfloat16" if device == "cuda" else "float32"
        if dtype not in DTYPES:
            raise RungError(f"the plan best has no {dtype}; use one of {', '.join(DTYPES)}.")
        self._compute = COMPUTE.get(dtype, torch.bfloat16)
        if cache is not None and self._compute == torch.float32:
            raise RungError(f"the cache {cache} is for models in 16 bits, and the dtype is {dtype}; choose bfloat16.")
        self._cache = cache
        self._eight_bits = dtype == "int8"
        where = torch.device("cuda" if device == "cuda" else "cpu")
        operations = TorchPlan(where, torch.int8 if self._eight_bits else self._compute, self._compute)
        operations.on, operations.dtype = device, dtype
        super().__init__(operations, "best")
        self._device: Device = device
        self._kernels, self._overlapped = dict(kernels), overlapped
        self.engine: Engine | None = None
        self._arrival: Arrival | None = None

    def read(self, folder: Path, config: Config) -> Weights:
        if self._overlapped and not self._eight_bits:
            self._arrival = arrival(folder, config, self._compute, self.device)
        if self._arrival is None:
            return super().read(folder, config)
        self._arrival.start()
        return as_weights(self._arrival.operands, config)

    def serve(self, config: Config, weights: Weights) -> Service:
        rung, sample = self._kernels.get("decode"), self._kernels.get("sample")
        self.engine = Engine(
            config,
            weights,
            self.dtype,
            self._device,
            rung=rung,
            sample=sample,
            arrival=self._arrival,
            cache=self._cache,
        )
        if self._arrival is None and not self._eight_bits:
            _share(weights, self.engine)
        return Service(writer=self.engine, rater=GpuRater(config, self.engine.operands, ready=self.engine.arrive))

    def embedding(self, tokens: torch.Tensor, past: Sequence[int], wte: Linear, wpe: torch.Tensor) -> torch.Tensor:
        if self.engine is not None:
            self.engine.arrive()  # a forward pass through torch begins
        return super().embedding(tokens, past, wte, wpe)


def _share(weights: Weights, engine: Engine) -> None:
    """The layers' tensors become views of the stacked ones, so that weights are stored once."""
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
