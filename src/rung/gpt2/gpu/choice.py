"""The next token, chosen on the device: the likeliest as the decode rung picks it, or as `Sampling` says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rung.dtypes import dtype as named_dtype
from rung.gpt2.rungs import SAMPLE_RUNGS, find
from rung.gpt2.sampling import WORD, Sampling
from rung.operation import Tensors
from rung.rungs import catalogue
from rung.rungs.base import Device


@dataclass(frozen=True)
class Draw:
    """How a text's tokens are chosen: its sampling, what names its random numbers, its tokens so far as marks."""

    sampling: Sampling
    seed: int
    sequence: int
    marks: torch.Tensor | None = None  # (V); None without penalties

    @property
    def greedy(self) -> bool:
        return self.sampling.temperature == 0 and not self.sampling.penalised


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
        self.marks = torch.zeros(rows, vocabulary, dtype=torch.int32, device=where)
        self._settings = torch.zeros(rows, 8, device=where)
        self._seeds = torch.zeros(rows, 4, dtype=torch.int32, device=where)
        state = {"marks": self.marks, "settings": self._settings, "seeds": self._seeds}
        taken = {name: tensors[name] for name in ("logits", "steps", "next")}
        values, real = catalogue.operation("sample").complete({"B": rows, "V": vocabulary}), named_dtype("f32")
        rungs = (find("sample", name) for name in ([rung] if rung else SAMPLE_RUNGS))
        chosen = next(r for r in rungs if rung or r.refusal(values, real, device=device) is None)
        self._sample = chosen.prepare(taken | state, values, real, device=device)

    def begin(self, sampling: Sampling, seed: int, sequences: Sequence[int], prompts: Sequence[Sequence[int]]) -> None:
        """A new batch: how to choose, and what its prompts hold."""
        draws = [Draw(sampling, seed, sequence, _seen(prompt, self.marks.shape[1]) if sampling.penalised else None)
                 for sequence, prompt in zip(sequences, prompts, strict=True)]  # fmt: skip
        self.greedy = draws[0].greedy
        if not self.greedy:
            self.place(range(len(draws)), [(draw, 0) for draw in draws])

    def place(self, rows: Sequence[int], draws: Sequence[tuple[Draw, int]], *, marks: bool = True) -> None:
        """Rows have other texts from now on; each with what is added to the session's steps to give its own."""
        settings, seeds = [], []
        for draw, offset in draws:
            s = draw.sampling
            settings.append([s.temperature, s.top_k or 0, s.top_p, s.min_p, s.repetition_penalty])
            settings[-1] += [s.presence_penalty, s.frequency_penalty, 0]
            seeds.append([*map(_signed, (draw.seed & WORD, draw.seed >> 32 & WORD)), draw.sequence, offset])
        at = torch.tensor(list(rows), device=self._settings.device)
        self._settings[at] = torch.tensor(settings, device=at.device)
        self._seeds[at] = torch.tensor(seeds, dtype=torch.int32, device=at.device)
        for row, (draw, _) in zip(rows, draws, strict=True):
            if marks and draw.marks is not None:
                self.marks[row] = draw.marks.to(at.device)

    def run(self, *, picked: bool) -> None:
        """`picked`: `next` already holds the likeliest."""
        if not self.greedy:
            self._sample.run()
        elif not picked:
            self._next.copy_(self._logits.argmax(1))


def _seen(prompt: Sequence[int], vocabulary: int) -> torch.Tensor:
    marks = torch.zeros(vocabulary, dtype=torch.int32)
    marks[list(prompt)] = 1
    return marks


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word
