"""The sessions of a GPU's texts: how many rows, how long, and which texts move when more arrive or rows are full.

Without `room` a row has the context's length. With it rows are as long as the longest text needs, and all rows together
have at most so many tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rung.models.gpu.engine import GpuSteps
from rung.models.gpu.launched import RunningText, SessionRows, cached_tokens
from rung.models.gpu.row_transfer import RowTransfer, record

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # rows of the sessions between which texts move
OWN = 8  # sessions of runs that are kept when idle
LEAST_TOKENS = 256  # of a row that grows; then twice as many, and so on
GROWN_AHEAD = 64  # tokens of a row beyond its text's: more than the steps that are launched in a turn


class SessionTable:
    """`used` returns the sessions with steps whose tokens have not been seen; `set_back` lets the newest text of a
    session wait."""

    def __init__(
        self, engine: GpuSteps, slots: int, context: int, room: int | None, used: Callable[[], set[int]],
        set_back: Callable[[SessionRows], None],
    ) -> None:  # fmt: skip
        self._engine, self.slots, self.context, self._room = engine, slots, context, room
        self._used, self._set_back = used, set_back
        self.opened: dict[tuple[int, int], SessionRows] = {}  # by rows and capacity; the last used at the end
        self.current: SessionRows | None = None  # in 16 bits, the one with all texts

    @property
    def busy(self) -> int:
        """Rows that are occupied when all launched work is done."""
        return sum(bank.count for bank in self.opened.values())

    def fit(self, more: int, longest: int) -> None:
        """The session has room for this many further texts, of at most `longest` tokens so far."""
        current = self.current
        count, reach = (current.count if current else 0) + more, self.reach(max(longest, self.longest))
        if current is None or count > len(current.rows) or self._engine.capacity(reach) > current.session.capacity:
            self.move(self.rows_for(count), reach)

    def reach(self, tokens: int) -> int:
        """The length of rows for texts of up to so many tokens so far; 0: the context's."""
        if self._room is None:
            return 0
        return min(self.context, max(LEAST_TOKENS, 1 << (tokens + GROWN_AHEAD - 1).bit_length()))

    @property
    def longest(self) -> int:
        """Tokens of the longest running text, with the steps that were launched."""
        if self._room is None or self.current is None:
            return 0  # nothing depends on it
        return max((cached_tokens(live) for live in self.current.active), default=0)

    def has_room(self, texts: int, longest: int) -> bool:
        return self._room is None or self._taken(self.rows_for(texts), self.reach(longest)) <= self._room

    def _taken(self, rows: int, capacity: int) -> float:
        """What a session takes of the room, in tokens of 16 bits."""
        HS = self._engine.config.HS
        return rows * capacity * ((HS + 4) / (2 * HS) if self._engine.eight_bits(rows) else 1)

    def grow(self) -> None:
        """Texts whose rows are nearly full move to longer rows; if these are too many, the newest wait."""
        bank = self.current
        if self._room is None or bank is None:
            return
        while (active := bank.active) and self._needed(active) > bank.session.capacity:
            if len(active) > 1 and not self.has_room(len(active), self.longest):
                self._set_back(bank)
                continue
            reach = self.reach(self.longest)
            if self._engine.capacity(reach) > bank.session.capacity:
                self.move(self.rows_for(len(active)), reach)
            return

    def _needed(self, active: Sequence[RunningText]) -> int:
        """Tokens of a row after the steps that are launched until this is asked again."""
        enqueued = max(live.at.session.enqueued for live in active if live.at is not None)  # of one session
        return max(cached_tokens(live) + min(GROWN_AHEAD, live.limit - enqueued) for live in active)

    def rows_for(self, texts: int) -> int:
        return min(self.slots, next((r for r in ROWS if r >= texts), self.slots))

    def open(self, rows: int, reach: int = 0) -> SessionRows:
        key = rows, self._engine.capacity(reach)
        bank = self.opened.pop(key, None)
        if bank is None:
            used = self._used()
            idle = [k for k, b in self.opened.items() if not b.count and id(b.session) not in used]
            own = [(rows, capacity) for rows, capacity in idle if capacity < self.context]
            if self._room is None:
                for oldest in own[: max(0, len(own) + (key[1] < self.context) - OWN)]:
                    del self.opened[oldest]
            else:
                self._forget(idle, self._taken(*key))
            session = self._engine.open(rows, reach)
            bank = SessionRows(session, RowTransfer(session), [None] * rows, set(range(rows)))
        self.opened[key] = bank
        return bank

    def _forget(self, idle: Sequence[tuple[int, int]], tokens: float) -> None:
        """Idle sessions, the oldest first, until there is room for a further one of so many tokens."""
        assert self._room is not None
        for oldest in idle:
            if sum(self._taken(*key) for key in self.opened) + tokens <= self._room:
                return
            del self.opened[oldest]

    def move(self, rows: int, reach: int) -> SessionRows:
        """Running texts continue in the session with this many rows of this length."""
        old = self.current
        new = self.current = self.open(rows, reach)
        new.stale = set(range(rows))
        if old is None:
            return new
        a, b, active = old.session, new.session, old.active
        old.rows, old.count = [None] * len(old.rows), 0
        records = []
        for row, live in enumerate(active):
            used = cached_tokens(live)
            live.limit += b.enqueued - a.enqueued
            live.offset += a.enqueued - b.enqueued
            stops = live.text.options.stop_tokens
            marked = live.draw.marks is not None
            records.append(record(live.row, row, used, live.limit, live.offset, stops, marked=marked))
            live.sit(new, row)
        if records:
            new.transfer.move(old.transfer.state, records)
        return new
