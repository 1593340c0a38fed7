"""Several tokens of each of a few texts in one step of the decode ladder, to verify drafts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rung.models.cache import Cache
from rung.models.cpu.engine import Column
from rung.models.gpu.engine import Engine
from rung.models.gpu.memory import sent

STATE = ("tokens", "lengths", "texts", "caches")


class Columns:
    """A session whose rows may be consecutive tokens of one text; it has one cache per text."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._session = engine, engine.few_rows()
        self.columns_at_once = self._session.rows
        self._numbers = torch.zeros(len(STATE) + 1, self.columns_at_once, dtype=torch.int32, device=self._session.where)
        self.cache: Cache | None = Cache.over(self._session.tensors["k_cache"], self._session.tensors["v_cache"])

    @torch.inference_mode()
    def step(self, columns: Sequence[Column], cache: Cache, outputs: int) -> torch.Tensor:
        """Logits (outputs, V) of the columns that request them; those of a text are contiguous."""
        firsts: list[int] = []
        for i, column in enumerate(columns):
            firsts.append(firsts[-1] if i and columns[i - 1].row == column.row else i)
        # Surplus rows continue after the last text; their results are ignored.
        missing = self.columns_at_once - len(columns)
        order = [0] * outputs
        for i, column in enumerate(columns):
            if column.output >= 0:
                order[column.output] = i
        state = [
            [*(c.token for c in columns), *[0] * missing],
            [*(c.position for c in columns), *[0] * missing],
            [*firsts, *[firsts[-1]] * missing],
            [*(c.row for c in columns), *[0] * missing],
            [*order, *[0] * (self.columns_at_once - outputs)],
        ]
        session = self._session
        with self._engine.lock:
            self._engine.arrive()
            sent(state, self._numbers)  # one copy to the device, and from there to the step's inputs
            torch._foreach_copy_([session.tensors[name] for name in STATE], list(self._numbers[: len(STATE)]))
            session.decode.run()
            return session.tensors["logits"][self._numbers[-1, :outputs]]
