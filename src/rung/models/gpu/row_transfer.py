"""Moves texts into rows of a session by one copy and one launch, from their prefill or from another session. The host
never waits: its data about each text goes as a record through pinned memory, and the rest is copied on the GPU, after
the steps that were launched before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import torch

from gpuless.launch import Argument, Build, LaunchConfig
from rung.dtypes import Dtype
from rung.models.gpu.device_copy import sent
from rung.models.gpu.session import Session
from rung.models.options import MOST_STOPS
from rung.operation import Tensors
from rung.quantised import CACHES, EIGHT_BIT_CACHES
from rung.rungs.cuda import build_of, load_module

HEAD = 8
RECORD = HEAD + MOST_STOPS
THREADS = 256
BLOCKS = 64  # of a text
FEW = 8  # records that get a launch of their own size
FROM = ("done", "history", "marks", "settings", "seeds")
TO = ("tokens", *FROM)
REST = ("lengths", "limits", "stops", "stop_tokens")


def record(
    of: int, to: int, length: int, limit: int, offset: int, stops: Sequence[int], *, marked: bool = False,
    drawn: int | None = None,
) -> list[int]:  # fmt: skip
    """The text in row `of` continues in row `to`, with this many tokens cached, until the session's step `limit`. Its
    last token and its draw's settings are in row `drawn`, if not in `of`; `offset` is the draw's here."""
    head = [of, of if drawn is None else drawn, to, length, limit, offset, len(stops), int(marked)]
    return [*head, *stops, *[0] * (MOST_STOPS - len(stops))]


def stop_row(row: int) -> list[int]:
    """The row writes no more tokens."""
    return [-1, -1, row, *[0] * (RECORD - 3)]


EMPTY_RECORD = stop_row(-1)


class RowTransfer:
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
        self.move(self.state, [stop_row(row) for row in rows])

    def move(self, source: Tensors, records: Sequence[Sequence[int]]) -> None:
        """Texts from rows of another state, whose last tokens are in `next`."""
        to = self._few if len(records) <= FEW else self._records
        sent([*records, *[EMPTY_RECORD] * (len(to) - len(records))], to)
        self.bring(source, to)

    def bring(self, source: Tensors, records: torch.Tensor) -> None:
        """The same with records (n, RECORD) that are on the device."""
        key = (source["next"].data_ptr(), source["history"].data_ptr(), records.data_ptr(), len(records))
        if key not in self._launches:
            self._launches[key] = self._bind(source, records)
        self._launches[key]()

    def _bind(self, source: Tensors, records: torch.Tensor) -> Callable[[], None]:
        session, config = self._session, self._session.config
        there, here = _caches(source), _caches(self.state)
        module = load_module(build(session.real, len(there) > 2, len(here) > 2), session.device)
        sizes = (config.layers, there[0].shape[1], there[0].shape[3], session.rows, session.capacity)
        arguments: list[Argument] = [("pointer", records), ("i32", RECORD), ("i32", MOST_STOPS)]
        arguments += [("pointer", source[name]) for name in ("next", *FROM)]
        arguments += _pointers(there)
        arguments += [("pointer", self.state[name]) for name in TO]
        arguments += _pointers(here)
        arguments += [("pointer", self.state[name]) for name in REST]
        arguments += [("i32", n) for n in (*sizes, config.NKV, config.HS, config.vocabulary)]
        launch = LaunchConfig(grid=(BLOCKS, records.shape[0], 1), block=(THREADS, 1, 1))
        module.prepare("copy_rows", launch)
        return module.bind("copy_rows", launch, arguments)


def _caches(state: Tensors) -> list[torch.Tensor]:
    """Keys and values; in eight bits, and then their scales."""
    return [state[name] for name in (EIGHT_BIT_CACHES if "k_cache_q" in state else CACHES)]


def _pointers(caches: Sequence[torch.Tensor]) -> list[Argument]:
    # In 16 bits there are no scales; their pointers are placeholders that nothing reads.
    return [("pointer", t) for t in [*caches, *caches][:4]]


@cache
def build(real: Dtype, from_eight: bool = False, to_eight: bool = False) -> Build:
    """The kernel, for keys and values in eight bits on either side."""
    ways = ("FROM_EIGHT", int(from_eight)), ("TO_EIGHT", int(to_eight))
    return build_of(Path(__file__).with_name("copy_rows.cu"), ("copy_rows",), (real.macro, 1), *ways)
