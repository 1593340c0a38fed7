"""Several tokens of each of a few texts in one step of the decode ladder: what drafts are read with."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rung.gpt2.cache import Cache
from rung.gpt2.cpu.engine import Column
from rung.gpt2.gpu.engine import Engine


class Columns:
    """A session whose rows may be neighbouring tokens of one text; its caches are those of as many texts."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._session = engine, engine.few_rows()
        self.columns_at_once = self._session.rows
        self.cache: Cache | None = Cache.over(self._session.tensors["k_cache"], self._session.tensors["v_cache"])

    @torch.inference_mode()
    def step(self, columns: Sequence[Column], cache: Cache, outputs: int) -> torch.Tensor:
        """Logits (outputs, V) of the columns that ask for them; a text's stand side by side."""
        firsts: list[int] = []
        for i, column in enumerate(columns):
            firsts.append(firsts[-1] if i and columns[i - 1].row == column.row else i)
        # Rows that are left go on behind the last text, where nothing counts.
        missing = self.columns_at_once - len(columns)
        state = {
            "tokens": [*(c.token for c in columns), *[0] * missing],
            "lengths": [*(c.position for c in columns), *[0] * missing],
            "texts": [*firsts, *[firsts[-1]] * missing],
            "caches": [*(c.row for c in columns), *[0] * missing],
        }
        session = self._session
        with self._engine.lock:
            self._engine.arrive()
            for name, numbers in state.items():
                session.tensors[name].copy_(torch.tensor(numbers, dtype=torch.int32))
            session.decode.run()
        order = [0] * outputs
        for i, column in enumerate(columns):
            if column.output >= 0:
                order[column.output] = i
        return session.tensors["logits"][torch.tensor(order, device=session.where)]
