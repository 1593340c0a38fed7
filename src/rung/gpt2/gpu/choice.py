"""The next token, chosen on the device."""

from __future__ import annotations

from collections.abc import Sequence

from rung.dtypes import Dtype
from rung.gpt2.sampling import Sampling
from rung.kernel import Device
from rung.operation import Tensors


class Choice:
    """Turns `logits` into `next`, as `Sampling` says."""

    def __init__(self, tensors: Tensors, rows: int, vocabulary: int, real: Dtype, device: Device) -> None:
        self.t = tensors
        self.greedy = True

    def begin(
        self, sampling: Sampling, seed: int, sequences: Sequence[int], prompts: Sequence[Sequence[int]]
    ) -> None:
        """A new batch: how to choose, and what its prompts hold."""
        self.greedy = sampling.temperature == 0 and not sampling.penalised

    def run(self, after_pick: bool = False) -> None:
        """`after_pick`: the decode rung has already picked the likeliest."""
        if self.greedy:
            if not after_pick:
                self.t["next"].copy_(self.t["logits"].argmax(1))
            return
        raise NotImplementedError
