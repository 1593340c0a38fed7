"""The plan of the CPU: compiled code for tokens one by one and for prompts; torch where there is no compiler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from gpuless.base.processors import processors
from rung.errors import RungError
from rung.lazy import torch
from rung.models.cpu import build
from rung.models.cpu.engine import TOKENS_AT_ONCE, CpuSteps, available
from rung.models.cpu.prepared import prepared
from rung.models.family import Config
from rung.models.plan import Service, TorchPlan
from rung.models.score import Rated
from rung.models.tensors import GGUF
from rung.models.weights import Linear, Weights

CPU_DTYPES = ("auto", "float32", "bfloat16", "int8")
MEANS_AT_ONCE = 128  # tokens, between which whoever asked for means may give up
ROOM = 64 << 20  # bytes per allocation for matrices
# Threads synchronize five times per layer: more threads pay off from this many bytes of weights each, up to a maximum.
SMALL = 1 << 30  # bytes of a folder, up to which its weights are kept as they are used, whatever their form was
BYTES_A_THREAD = 16 << 20
MOST_THREADS = 16


def fast_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 itself."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()) and bool(torch.cpu._is_avx512_bf16_supported())


def resolve(dtype: str) -> str:
    """The meaning of `auto` here: bfloat16 if the machine computes with it at full speed."""
    if dtype != "auto":
        return dtype
    return build.DEFAULT if build.begin(build.DEFAULT) is not None or fast_bfloat16() else "float32"


class CpuPlan(TorchPlan):
    """Weights in float32, bfloat16 or int8."""

    name = on = "cpu"
    prompts_alone = True

    def __init__(
        self, dtype: str, threads: int | None = None, window: int | None = None, global_tokens: int = 0
    ) -> None:
        if dtype not in CPU_DTYPES:
            raise RungError(f"the device cpu does not support {dtype}; use one of {', '.join(CPU_DTYPES)}.")
        self.dtype = resolve(dtype)
        self.window, self.global_tokens, self.threads = window, global_tokens, threads
        self._native = None if global_tokens else available(self.dtype)  # only the compiled step has a window
        exact = self.dtype == "float32"
        # torch rounds a row of bfloat16 differently when there are other rows.
        self.tokens_alone = self._native is None and not exact
        self.cache_dtype = "float32" if exact or (self._native is None and not fast_bfloat16()) else "bfloat16"

    # What torch's operations need is made for them: the compiled code does without torch.

    @cached_property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cpu")

    @cached_property
    def stored(self) -> torch.dtype:  # type: ignore[override]
        made: torch.dtype = getattr(torch, self.dtype)
        return made

    @cached_property
    def compute(self) -> torch.dtype:  # type: ignore[override]
        return torch.float32 if self.dtype == "float32" or not fast_bfloat16() else torch.bfloat16

    @cached_property
    def _scratch(self) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8, device="cpu")

    @property
    def notes(self) -> list[str]:
        if self._native is not None or self.global_tokens:
            return []
        return ["torch writes the text, many times slower, for want of a C++ compiler: install g++ or set RUNG_CXX."]

    def read(self, folder: Path, config: Config) -> Weights:
        small = sum(file.stat().st_size for file in folder.iterdir() if file.is_file()) <= SMALL
        if self.dtype != "int8" and not small and not (folder / GGUF).is_file():
            return super().read(folder, config)
        return prepared(folder, config, self.dtype, lambda: TorchPlan.read(self, folder, config))

    def matrix(self, weight: torch.Tensor) -> Linear:
        made = super().matrix(weight)
        made.weight = self._place(made.weight)
        return made

    def _place(self, weight: torch.Tensor) -> torch.Tensor:
        """A copy adjacent to the previous matrices: the compiled code moves whole pages of 2 MB."""
        size = -(-weight.nbytes // 64) * 64
        if size > len(self._scratch):
            self._scratch = torch.empty(max(size, ROOM), dtype=torch.uint8, device="cpu")
        place, self._scratch = self._scratch[: weight.nbytes], self._scratch[size:]
        return place.view(weight.dtype).view(weight.shape).copy_(weight)

    def serve(self, config: Config, weights: Weights) -> Service:
        if self._native is None or not config.family.compiled:
            return Service()
        worth = weights.nbytes() // BYTES_A_THREAD
        threads = self.threads or max(1, min(processors(), MOST_THREADS, worth))
        engine = CpuSteps(self._native, config, weights, threads, self.window)
        return Service(native=engine, rater=NativeRater(engine))


def together(texts: Iterable[Sequence[int]], tokens: int, most: int) -> Iterator[list[Sequence[int]]]:
    """Texts of so many tokens, then of more, up to the most, or one text."""
    some: list[Sequence[int]] = []
    for ids in texts:
        if some and sum(map(len, some)) + len(ids) > tokens:
            yield some
            some, tokens = [], min(2 * tokens, most)
        some.append(ids)
    if some:
        yield some


class NativeRater:
    """Windows of tokens through passes of the compiled code, short ones together."""

    def __init__(self, engine: CpuSteps) -> None:
        self.engine = engine

    def rate(self, windows: Iterable[Sequence[int]], *, whole: bool = True) -> Iterator[Rated]:
        for some in together(windows, 16, TOKENS_AT_ONCE):  # so that the first figures do not wait for many texts
            yield from self._pass(some, whole)

    def means(self, texts: Iterable[Sequence[int]]) -> Iterator[np.ndarray | None]:
        """The mean of each text's last hidden states (C), and None after parts of long ones."""
        for some in together(texts, MEANS_AT_ONCE, MEANS_AT_ONCE):
            long = len(some[0]) > MEANS_AT_ONCE
            yield from self.engine.mean(some[0], MEANS_AT_ONCE) if long else self.engine.means(some)

    def _pass(self, windows: Sequence[Sequence[int]], whole: bool) -> Iterator[Rated]:
        read = [ids for ids in windows if len(ids) > 1]
        found = iter(self.engine.rate(read, whole) if read else ())
        for ids in windows:
            figures = next(found) if len(ids) > 1 else np.empty((0, 3), np.float32)
            known = slice(None if whole else 0)
            yield Rated(figures[:, 0], figures[known, 1].astype(np.int64), figures[known, 2])
