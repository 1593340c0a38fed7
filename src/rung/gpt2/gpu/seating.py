"""Moves texts into rows of a session by one copy and one launch, from their prefill or from another session. The host
never waits: its data about each text goes as a record through pinned memory, and the rest is copied on the GPU, after
the steps that were launched before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import torch

from rung.cuda.launch import Argument, Build, LaunchConfig
from rung.dtypes import Dtype
from rung.gpt2.gpu.choice import SEEDS, SETTINGS, Draw
from rung.gpt2.gpu.memory import sent
from rung.gpt2.gpu.session import MOST_STOPS, Session
from rung.operation import Tensors
from rung.rungs.cuda import INCLUDE, load_module

HEAD = 6
RECORD = HEAD + SETTINGS + SEEDS + MOST_STOPS
THREADS = 256
BLOCKS = 64  # of a text
FEW = 8  # records that go in a launch of their own size
FROM = ("done", "history", "marks", "k_cache", "v_cache")
TO = ("tokens", *FROM, "lengths", "limits", "stops", "stop_tokens", "settings", "seeds")


def record(of: int, to: int, length: int, limit: int, draw: Draw, offset: int, stops: Sequence[int]) -> list[int]:
    """The text in row `of` goes on in row `to`, with so many tokens cached, until the session's step `limit`."""
    head = [of, to, length, limit, len(stops), int(draw.marks is not None)]
    return [*head, *draw.packed(offset), *stops, *[0] * (MOST_STOPS - len(stops))]


def left(row: int) -> list[int]:
    """The row writes no more tokens."""
    return [-1, row, *[0] * (RECORD - 2)]


NOBODY = [-1, -1, *[0] * (RECORD - 2)]


class Seating:
    """The rows of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.state = session.tensors | session.choice.state
        self.state["next"] = self.state["tokens"]  # a text that moves continues after its last token
        self._records = torch.zeros(session.rows, RECORD, dtype=torch.int32, device=session.where)
        self._few = self._records[:FEW]
        self._launches: dict[tuple[int, ...], Callable[[], None]] = {}

    def leave(self, rows: Sequence[int]) -> None:
        """These rows write no more tokens."""
        self.move(self.state, [left(row) for row in rows])

    def move(self, source: Tensors, records: Sequence[Sequence[int]]) -> None:
        """Texts from rows of another state, whose last tokens are in `next`."""
        to = self._few if len(records) <= FEW else self._records
        sent([*records, *[NOBODY] * (len(to) - len(records))], to)
        self.bring(source, to)

    def bring(self, source: Tensors, records: torch.Tensor) -> None:
        """The same with records (n, RECORD) that are on the device."""
        key = (source["next"].data_ptr(), records.data_ptr(), len(records))
        if key not in self._launches:
            self._launches[key] = self._bind(source, records)
        self._launches[key]()

    def _bind(self, source: Tensors, records: torch.Tensor) -> Callable[[], None]:
        session, config = self._session, self._session.config
        module = load_module(build(session.real), session.device)
        sizes = (config.layers, source["k_cache"].shape[1], source["k_cache"].shape[3], session.rows, session.capacity)
        arguments: list[Argument] = [("pointer", records), ("i32", RECORD), ("i32", MOST_STOPS)]
        arguments += [("pointer", source[name]) for name in ("next", *FROM)]
        arguments += [("pointer", self.state[name]) for name in TO]
        arguments += [("i32", n) for n in (*sizes, config.NH, config.HS, config.vocabulary)]
        launch = LaunchConfig(grid=(BLOCKS, records.shape[0], 1), block=(THREADS, 1, 1))
        module.prepare("seat", launch)
        return module.bind("seat", launch, arguments)


@cache
def build(real: Dtype) -> Build:
    """The kernel."""
    source = Path(__file__).with_name("seat.cu")
    return Build(
        source=source.read_text(encoding="utf-8"),
        origin=str(source),
        kernels=("seat",),
        defines=((real.macro, "1"),),
        include=(str(INCLUDE),),
    )
