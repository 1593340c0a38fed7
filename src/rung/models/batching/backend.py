"""The backend: slots for texts, each with its own keys and values, that advance together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from rung.errors import RungError
from rung.models.batching.text import Text
from rung.models.options import Chosen


@dataclass(slots=True)
class NewTokens:
    """Tokens that a turn chose for a slot, in order. None if only its prompt was read, as requested.

    Plain numbers: an object for each token would keep Python's collector busy.
    """

    slot: int
    tokens: Sequence[int] = ()
    details: Sequence[Chosen] | None = None  # of the same tokens, for a text that requested log-probabilities
    prompt: Sequence[Chosen | None] | None = None
    full: bool = False  # no room is left for another token
    error: str | None = None  # this text cannot go on; the others can


@dataclass
class Clock:
    """Where the engine's time went, since its creation."""

    prompt_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    proposed: int = 0  # tokens of drafts
    accepted: int = 0
    drafted: int = 0  # steps with a draft
    # With a GPU, which works in parallel with the host.
    admit_seconds: float = 0.0  # on the host, for prompts and new texts
    launch_seconds: float = 0.0  # on the host, for steps
    idle_seconds: float = 0.0  # on the GPU at least, between two turns
    passes: int = 0
    padded_tokens: int = 0
    steps: int = 0
    row_steps: int = 0  # rows that had a text


def failure(error: Exception) -> str:
    """The sentence for the reader of a text that cannot go on."""
    if isinstance(error, RungError):
        return str(error)
    return f"the engine failed ({type(error).__name__}: {error}); the text was not finished."


class Backend(ABC):
    """Texts occupy `slots` slots. All methods are called from one thread."""

    slots: int
    context: int  # tokens that a slot has room for

    def __init__(self) -> None:
        self.clock = Clock()

    @property
    @abstractmethod
    def free_slots(self) -> int:
        """How many more texts it can take now."""

    def warm(self) -> None:
        """Prepare for any text, so that the first ones are as fast as the others."""
        self.clock = Clock()  # not counted in the statistics

    @abstractmethod
    def begin(self, slot: int, text: Text) -> None:
        """A new text; its slot is the lowest free number."""

    @abstractmethod
    def turn(self) -> list[NewTokens]:
        """Advance the texts by a step, or read a part of their prompts. Texts may be left out of a turn."""

    @abstractmethod
    def end(self, slot: int) -> None:
        """The slot's text has ended or was cancelled; its state is discarded."""
