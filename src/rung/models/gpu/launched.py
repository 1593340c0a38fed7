"""What was launched: texts in rows of sessions, their steps, and the tokens that come to the host later."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from rung.models.batching.text import Text
from rung.models.gpu.device_copy import to_host
from rung.models.gpu.row_transfer import RowTransfer
from rung.models.gpu.session import Session
from rung.models.gpu.token_sampler import Draw
from rung.models.options import Chosen
from rung.models.sampling import NOT_FINITE


@dataclass(eq=False)
class RunningText:
    """A text in a row."""

    slot: int
    text: Text
    draw: Draw
    base: int  # tokens that were read before it wrote here
    wrote: int  # number of its tokens by then
    count: int = 0  # tokens that were seen since
    limit: int = 0  # the session's step count at its last token
    offset: int = 0  # offset from the session's steps to its own
    at: SessionRows | None = None
    row: int = -1  # while a row is assigned
    dropped: bool = False  # whatever was launched for it is not needed

    def sit(self, at: SessionRows, row: int) -> None:
        """It goes on in a free row."""
        self.at, self.row, at.rows[row] = at, row, self
        at.count += 1
        at.stale.discard(row)

    def leave(self) -> None:
        """Its row is free once all that was launched has run."""
        if self.at is not None:
            self.at.rows[self.row] = None
            self.at.count -= 1
            self.at, self.row = None, -1

    def drop(self) -> None:
        """It ends here, or waits to be read again."""
        self.dropped = True
        if self.at is not None:
            self.at.stale.add(self.row)
            self.leave()


def cached_tokens(live: RunningText) -> int:
    """Its tokens whose keys and values are in its row once all that was launched has run."""
    assert live.at is not None
    return live.base + live.at.session.enqueued + live.offset - live.wrote - 1


def has_occurred(event: torch.cuda.Event | None) -> bool:
    return event is None or bool(event.query())  # type: ignore[no-untyped-call]


Arrived = tuple[RunningText, Sequence[int], Sequence[Chosen] | None, str | None]  # tokens, their details, an error


class Launch(Protocol):
    """A launch, and its tokens."""

    steps: int
    active: list[RunningText | None]  # by row; None: this row has no text

    def take(self) -> list[Arrived] | None:
        """The tokens that have arrived; None before that."""


@dataclass
class FirstLaunch:
    """The first tokens of prompts that were read together."""

    active: list[RunningText | None]
    tokens: torch.Tensor  # (rows), on the host
    peaks: torch.Tensor  # (rows), the largest logits
    ready: torch.cuda.Event | None
    logprobs: Logprobs | None
    steps: int = 1

    def take(self) -> list[Arrived] | None:
        if not has_occurred(self.ready) or (self.logprobs and not has_occurred(self.logprobs.ready)):
            return None
        self.steps = 0
        tokens, finite = self.tokens.tolist(), self.peaks.isfinite().tolist()
        return [
            (live, tokens[row : row + 1], details_of(self.logprobs, row, tokens[row : row + 1]),
             None if finite[row] else NOT_FINITE)
            for row, live in enumerate(self.active) if live and not live.dropped
        ]  # fmt: skip


@dataclass
class StepLaunch:
    """Steps of a session, with the texts of its rows."""

    session: Session
    first: int
    steps: int
    active: list[RunningText | None]
    whole: bool = False  # its tokens are taken together
    logprobs: Logprobs | None = None

    def extends_to(self, later: StepLaunch, most: int) -> bool:
        """Whether steps that follow, with the same texts, are taken together with these: at most so many."""
        if later.session is not self.session or later.first != self.first + self.steps or later.active != self.active:
            return False
        if self.logprobs or later.logprobs or not (self.whole and later.whole) or self.steps + later.steps > most:
            return False
        self.steps += later.steps
        return True

    def take(self) -> list[Arrived] | None:
        count = min(self.session.seen - self.first, self.steps)
        if count <= 0 or (self.logprobs and not has_occurred(self.logprobs.ready)):
            return None
        if self.whole and count < self.steps:
            return None  # a turn costs the host as much for a token of each text as for eight
        rows = self.session.block(self.first, count)
        self.first, self.steps = self.first + count, self.steps - count
        found: list[Arrived] = []
        for row, live in enumerate(self.active):
            if live is not None and not live.dropped and (tokens := rows[row])[0] >= 0:
                if tokens[-1] < 0:
                    tokens = tokens[: tokens.index(-1)]
                details = details_of(self.logprobs, row, tokens) if self.logprobs else None
                error = NOT_FINITE if details and not math.isfinite(details[0].logprob or 0) else None
                found.append((live, tokens, details, error))
        return found


@dataclass
class Logprobs:
    """Log-probabilities of a step's tokens, being copied to the host."""

    values: torch.Tensor  # (rows), of the chosen tokens
    top: torch.Tensor | None  # (rows, k), the largest
    ids: torch.Tensor | None
    counts: list[int | None]  # by row: how many of the most likely; None: none requested
    ready: torch.cuda.Event | None

    def of(self, row: int, token: int) -> Chosen:
        count = self.counts[row]
        if count is None:
            return Chosen(token)
        best: tuple[tuple[int, float], ...] = ()
        if count and self.top is not None and self.ids is not None:
            best = tuple(zip(self.ids[row, :count].tolist(), self.top[row, :count].tolist(), strict=True))
        return Chosen(token, float(self.values[row]), best)


def details_of(logprobs: Logprobs | None, row: int, tokens: Sequence[int]) -> list[Chosen] | None:
    if logprobs is None or logprobs.counts[row] is None:
        return None
    return [logprobs.of(row, token) for token in tokens]


@dataclass
class SessionRows:
    """A session and the texts of its rows."""

    session: Session
    transfer: RowTransfer
    rows: list[RunningText | None]
    stale: set[int] = field(default_factory=set)  # rows whose text has left, not yet reported to the session
    count: int = 0  # rows that have a text

    @property
    def active(self) -> list[RunningText]:
        return [live for live in self.rows if live is not None]


def measure_logprobs(
    logits: torch.Tensor, active: Sequence[RunningText | None], rows: int
) -> Callable[[torch.Tensor], Logprobs] | None:
    """Log-probabilities of all rows, if one of the texts requests them; before penalties and masks."""
    counts: list[int | None] = [None] * rows
    for row, live in enumerate(active):
        if live is not None and live.text.options.tells_logprobs:
            counts[row] = live.text.options.top_logprobs
    if all(w is None for w in counts):
        return None
    logprobs = logits.log_softmax(-1)

    def of(tokens: torch.Tensor) -> Logprobs:
        most = max(w or 0 for w in counts)
        best = logprobs.topk(min(most, logprobs.shape[-1])) if most else None
        places = tokens.long().clamp(0, logprobs.shape[1] - 1)  # of logits that are no numbers none is the largest
        values, ready = to_host(logprobs.gather(1, places[:, None])[:, 0])
        if best is None:
            return Logprobs(values, None, None, counts, ready)
        top, _ = to_host(best.values)
        ids, ready = to_host(best.indices)
        return Logprobs(values, top, ids, counts, ready)

    return of
