"""The next token, chosen on the device: the likeliest as the decode rung picks it, or as `Sampling` says."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rung.dtypes import dtype as named_dtype
from rung.gpt2.rungs import SAMPLE_RUNGS, find
from rung.gpt2.sampling import WORD, Sampling
from rung.operation import Tensors
from rung.rungs import catalogue
from rung.rungs.base import Device


class Choice:
    """Turns `logits` into `next`, by `rung` or the first that takes the shape.

    Its settings lie in device memory: what is captured serves them all.
    """

    def __init__(
        self, tensors: Tensors, rows: int, vocabulary: int, device: Device, rung: str | None = None
    ) -> None:
        where = tensors["logits"].device
        self.greedy = True
        self._next, self._logits = tensors["next"], tensors["logits"]
        self._marks = torch.zeros(rows, vocabulary, dtype=torch.int32, device=where)
        self._settings = torch.zeros(rows, 8, device=where)
        self._seeds = torch.zeros(rows, 4, dtype=torch.int32, device=where)
        state = {"marks": self._marks, "settings": self._settings, "seeds": self._seeds}
        taken = {name: tensors[name] for name in ("logits", "steps", "next")}
        values, real = catalogue.operation("sample").complete({"B": rows, "V": vocabulary}), named_dtype("f32")
        rungs = (find("sample", name) for name in ([rung] if rung else SAMPLE_RUNGS))
        chosen = next(r for r in rungs if rung or r.refusal(values, real, device=device) is None)
        self._sample = chosen.prepare(taken | state, values, real, device=device)

    def begin(self, sampling: Sampling, seed: int, sequences: Sequence[int], prompts: Sequence[Sequence[int]]) -> None:
        """A new batch: how to choose, and what its prompts hold."""
        s = sampling
        self.greedy = s.temperature == 0 and not s.penalised
        if self.greedy:
            return
        settings = [s.temperature, s.top_k or 0, s.top_p, s.min_p, s.repetition_penalty]
        settings += [s.presence_penalty, s.frequency_penalty, 0]
        self._settings.copy_(torch.tensor(settings).expand_as(self._settings))
        words = [_signed(seed & WORD), _signed(seed >> 32 & WORD)]
        self._seeds.copy_(torch.tensor([[*words, sequence, 0] for sequence in sequences], dtype=torch.int32))
        if s.penalised:
            seen = torch.zeros(self._marks.shape, dtype=torch.int32)
            for row, prompt in enumerate(prompts):
                seen[row, list(prompt)] = 1
            self._marks.copy_(seen)

    def run(self, *, picked: bool) -> None:
        """`picked`: `next` already holds the likeliest."""
        if not self.greedy:
            self._sample.run()
        elif not picked:
            self._next.copy_(self._logits.argmax(1))


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word
