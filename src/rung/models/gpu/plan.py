"""The plan `best`: the engine writes whole texts with the decode ladder; torch does the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from rung.errors import RungError
from rung.models.family import Config
from rung.models.gpu.engine import DTYPES, Engine
from rung.models.gpu.loading import Arrival, arrival
from rung.models.gpu.scoring import GpuScorer
from rung.models.plan import Service, TorchPlan, WrappedPlan
from rung.models.weights import Linear, Weights, as_weights, share
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
            share(weights, self.engine.operands)
        return Service(engine=self.engine, rater=GpuScorer(config, self.engine.operands, ready=self.engine.arrive))

    def embedding(
        self, tokens: torch.Tensor, past: Sequence[int], wte: Linear, wpe: torch.Tensor | None
    ) -> torch.Tensor:
        if self.engine is not None:
            self.engine.arrive()  # a forward pass through torch begins
        return super().embedding(tokens, past, wte, wpe)
