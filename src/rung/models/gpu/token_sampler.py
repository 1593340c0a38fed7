"""Choosing the next token on the device: the decode rung's argmax, or by the rules of `Sampling`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rung.dtypes import dtype as named_dtype
from rung.models.gpu.device_copy import sent
from rung.models.operations import find, sample_rungs
from rung.models.sampling import WORD, Sampling
from rung.operation import Tensors
from rung.rungs import catalogue
from rung.rungs.base import Device, Prepared

SETTINGS, SEEDS = 8, 4  # numbers per text


@dataclass(frozen=True)
class Draw:
    """How a text's tokens are chosen: its sampling, the key of its random numbers, its tokens so far as marks."""

    sampling: Sampling
    seed: int
    sequence: int
    marks: torch.Tensor | None = None  # (V); None without penalties

    @property
    def greedy(self) -> bool:
        return self.sampling.greedy


class TokenSampler:
    """Turns `logits` into `next`, by `rung` or the first that supports the shape. Its settings are in device memory (in
    `tensors` if they contain them), so that one captured graph is used for all settings.
    """

    def __init__(self, tensors: Tensors, rows: int, vocabulary: int, device: Device, rung: str | None = None) -> None:
        where = tensors["logits"].device
        self.greedy = True
        self._next, self._logits = tensors["next"], tensors["logits"]
        self.state = {
            "marks": torch.zeros(rows, vocabulary, dtype=torch.int32, device=where),
            "settings": torch.zeros(rows, SETTINGS, dtype=torch.float32, device=where),
            "seeds": torch.zeros(rows, SEEDS, dtype=torch.int32, device=where),
        }
        self.state |= {name: tensors[name] for name in ("settings", "seeds") if name in tensors}
        inputs = {name: tensors[name] for name in ("logits", "steps", "next")}
        values, real = catalogue.operation("sample").complete({"B": rows, "V": vocabulary}), named_dtype("f32")
        rungs = (find("sample", name) for name in ([rung] if rung else sample_rungs()))
        chosen = next(r for r in rungs if rung or r.refusal(values, real, device=device) is None)
        self._arguments = inputs | self.state, values, real, device
        self._rung = chosen
        self._sample: Prepared | None = None

    def prepare(self) -> Prepared:
        """The rung that draws tokens, when a text needs it: it takes longer to compile than most kernels."""
        if self._sample is None:
            tensors, values, real, device = self._arguments
            self._sample = self._rung.prepare(tensors, values, real, device=device)
        return self._sample

    def mark(self, row: int, draw: Draw) -> None:
        """The tokens of this row's text so far, if its sampling needs them."""
        if draw.marks is not None:
            sent(draw.marks.numpy(), self.state["marks"][row])

    def run(self, *, picked: bool) -> None:
        """`picked`: `next` already holds the argmax."""
        if not self.greedy:
            self.prepare().run()
        elif not picked:
            self._next.copy_(self._logits.argmax(1))


def packed(draws: Sequence[tuple[Draw, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Settings (n, SETTINGS) and seeds (n, SEEDS) in the kernels' layout, all as 32-bit integers. A draw's offset is
    added to the kernels' steps to give its text's own."""
    settings = np.zeros((len(draws), SETTINGS), dtype=np.float32)
    seeds = np.zeros((len(draws), SEEDS), dtype=np.uint32)
    for row, (draw, offset) in enumerate(draws):
        s = draw.sampling
        settings[row, :7] = (
            s.temperature, s.top_k or 0, s.top_p, s.min_p, s.repetition_penalty, s.presence_penalty, s.frequency_penalty
        )  # fmt: skip
        seeds[row] = (draw.seed & WORD, draw.seed >> 32 & WORD, draw.sequence & WORD, offset & WORD)
    return settings.view(np.int32), seeds.view(np.int32)
