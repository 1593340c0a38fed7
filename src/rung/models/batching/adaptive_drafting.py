"""Texts with or without drafts, whichever was faster so far: the gain is measured, not predicted."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rung.models.batching.text import Backend, Clock, NewTokens, Text

TRIAL = 24  # tokens per speed measurement
SHARE = 0.05  # share of the time that may be spent on trying the slower way


@dataclass
class _Variant:
    backend: Backend
    seconds: float | None = None  # per token, when it was last measured
    cost: float = field(default=0.0)  # of that measurement, including prompts that were read again


class AdaptiveDrafting(Backend):
    """At any time all texts go the same way; they change between turns, and are prefilled again. `exact` selects the
    texts that are the same either way; others are written without drafts.
    """

    def __init__(
        self,
        drafted: Backend,
        plain: Backend,
        exact: Callable[[Text], bool],
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._variants = (_Variant(drafted), _Variant(plain))
        super().__init__()
        self.slots, self.context = drafted.slots, drafted.context
        self._exact, self._now = exact, now
        self._variant, self._texts = self._variants[0], dict[int, Text]()
        self._share_clock()
        self._start(TRIAL)

    def _share_clock(self) -> None:
        self._variants[0].backend.clock = self._variants[1].backend.clock = self.clock

    def _start(self, tokens: int) -> None:
        """Measure again, over this many tokens."""
        self._to_measure, self._made, self._spent, self._cost, self._fresh = tokens, 0, 0.0, 0.0, set[int]()

    @property
    def free_slots(self) -> int:
        return self.slots - len(self._texts)

    def warm(self) -> None:
        for variant in self._variants:
            variant.backend.warm()
        self.clock = Clock()
        self._share_clock()

    def begin(self, slot: int, text: Text) -> None:
        if not self._exact(text) and self._variant is self._variants[0]:
            self._move(self._variants[1])
        self._variant.backend.begin(slot, text)
        self._texts[slot] = text

    def end(self, slot: int) -> None:
        self._variant.backend.end(slot)
        del self._texts[slot]
        self._fresh.discard(slot)

    def turn(self) -> list[NewTokens]:
        if self._made >= self._to_measure:
            self._choose()
        began = self._now()
        found = self._variant.backend.turn()
        seconds = self._now() - began
        self._cost += seconds
        if self._texts and self._fresh >= self._texts.keys():  # no prompt is being read
            self._spent += seconds
            self._made += sum(len(one.tokens) for one in found)
        self._fresh |= {one.slot for one in found if one.tokens}
        return found

    def _choose(self) -> None:
        variant, other = self._variant, self._variants[self._variant is self._variants[0]]
        variant.seconds, trial = self._spent / self._made, self._to_measure == TRIAL
        if trial:
            variant.cost = self._cost
        elsewhere = not trial or other.seconds is None or other.seconds < variant.seconds
        if elsewhere and all(map(self._movable, self._texts.values())):
            self._move(other)
            return
        # Trying the other way and returning may take a share of the time until the next trial.
        self._start(max(2 * TRIAL, int(other.cost / SHARE / max(variant.seconds, 1e-9))))

    def _movable(self, text: Text) -> bool:
        # A text whose window has slid would start its window at another token.
        short = len(text.request.ids) + len(text.tokens) <= self.context
        return bool(text.tokens) and short and text.options.prompt_logprobs is None and self._exact(text)

    def _move(self, to: _Variant) -> None:
        for slot, text in self._texts.items():
            self._variant.backend.end(slot)
            to.backend.begin(slot, text)
        self._variant = to
        self._start(TRIAL)
