"""A text being generated: from chosen tokens to pieces of text, and when it ends; stop strings, found across token
boundaries, are never shown. The backend, whose slots write texts together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rung.errors import RungError
from rung.models.family import Config
from rung.models.options import Chosen, Completion, Options, Prompt, Reason
from rung.models.tokenizer import Detokenizer, Tokenizer

if TYPE_CHECKING:
    from rung.models.batching.constraint import Constraint


@dataclass(frozen=True)
class Request:
    """A text to write. `seed` and `sample` determine its random numbers. Texts with the same `call` were requested
    together: their engine admits calls in turns, and names the call in its log. `rows` is the
    number of texts that begin together, if they may have a session of their number of rows, and `reach` the most tokens
    that one of them may have, its prompt included; 0: the context.
    """

    prompt: Prompt
    options: Options
    seed: int
    sample: int = 0
    call: str = ""
    rows: int | None = None
    reach: int = 0

    @property
    def ids(self) -> tuple[int, ...]:
        return self.prompt.ids


@dataclass(slots=True)
class Piece:
    """The part that a turn added to a text. `reason` is set with the last piece, `error` when it could not go on."""

    text: str = ""
    tokens: Sequence[int] = ()
    details: Sequence[Chosen] | None = None  # of the same tokens, where log-probabilities were requested
    reason: Reason | None = None
    prompt: Sequence[Chosen | None] | None = None  # the prompt's own log-probabilities, with the first piece
    queued: float | None = None  # seconds that it waited for a slot, with the first piece
    error: str | None = None

    @property
    def last(self) -> bool:
        return self.reason is not None or self.error is not None


def check(prompt: Prompt, options: Options, config: Config) -> None:
    """RungError if this model cannot continue this prompt."""
    if not prompt.ids:
        raise RungError("the prompt is empty; give at least one character to continue.")
    if len(prompt.ids) > config.context and not options.slide:
        raise RungError(
            f"the prompt has {len(prompt.ids):,} tokens and the model's context {config.context:,}; "
            "shorten it, or let it slide to keep its end."
        )
    if len(prompt.ids) > config.context and options.prompt_logprobs is not None:
        raise RungError(
            f"the prompt has {len(prompt.ids):,} tokens, and log-probabilities of a prompt need all of them within "
            f"the model's context of {config.context:,}; shorten it."
        )
    if max(prompt.ids) >= config.vocabulary or min(prompt.ids) < 0:
        raise RungError(
            f"the prompt has token {max(prompt.ids)}, but the model only {config.vocabulary:,}; "
            "use the model's own tokenizer."
        )


def required(tokenizer: Tokenizer | None) -> Tokenizer:
    if tokenizer is None:
        raise RungError("a schema is followed by a model's text, and this model has no tokenizer.")
    return tokenizer


class Text:
    """A request's tokens so far, its text, and why it ended."""

    def __init__(self, request: Request, tokenizer: Tokenizer | None) -> None:
        self.request, self.options = request, request.options
        self.tokens: list[int] = []
        self.reason: Reason | None = None
        self._tokenizer = tokenizer
        self._constraint: Constraint | None = None
        self._detokenizer = Detokenizer(tokenizer) if tokenizer else None
        self._stops = StopFinder(self.options.stop)
        self._stop_tokens = frozenset(self.options.stop_tokens)

    @property
    def constraint(self) -> Constraint | None:
        """The state of its schema, if it has one."""
        schema = self.options.schema
        if schema is not None and self._constraint is None:
            from rung.models.batching.constraint import Constraint

            options = self.options
            self._constraint = Constraint(schema, required(self._tokenizer), options.stop_tokens, options.trigger)
        return self._constraint

    def accept(self, tokens: Sequence[int]) -> str:
        """Add tokens, up to the text's end; returns the text that can no longer change."""
        if not self.options.stop:
            return self._add(tokens)
        piece = ""
        for token in tokens:  # a stop string may end the text after each
            piece += self._add((token,))
            if self.reason is not None:
                break
        return piece

    def _add(self, tokens: Sequence[int]) -> str:
        room, stops = self.options.max_new_tokens - len(self.tokens), False
        if len(tokens) > room:
            tokens = tokens[:room]
        if self._stop_tokens and not self._stop_tokens.isdisjoint(tokens):
            tokens = tokens[: next(i for i, token in enumerate(tokens) if token in self._stop_tokens)]
            stops = True
        self.tokens += tokens
        piece = self._detokenizer.push(tokens) if self._detokenizer else ""
        if self.options.stop:
            piece = self._push(piece)
        if self._stops.stopped:
            self.reason = "stop"
        elif stops or (self._constraint is not None and self._constraint.ended):
            piece += self.finish("stop")
        elif len(tokens) == room:
            piece += self.finish("length")
        return piece

    def finish(self, reason: Reason) -> str:
        """End the text; returns what was held back."""
        rest = self._push(self._detokenizer.flush()) if self._detokenizer else ""
        if not self._stops.stopped:
            rest += self._stops.flush()
        self.reason = "stop" if self._stops.stopped else reason
        return rest

    def _push(self, text: str) -> str:
        return text if len(self.tokens) < self.options.min_tokens else self._stops.push(text)

    def window(self, context: int) -> tuple[int, ...]:
        """The tokens to read next. When they fill the context, the newer half is kept."""
        ids = (*self.request.ids, *self.tokens)
        return ids if len(ids) <= context else ids[-max(1, context // 2) :]


class Transcript:
    """A reader's text: its pieces joined."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.reason: Reason | None = None
        self.tokens: list[int] = []
        self._text: list[str] = []
        self._details: list[Chosen] = []
        self._prompt: list[Chosen | None] | None = None

    def add(self, piece: Piece) -> None:
        """One more piece; RungError if it reports that the text cannot go on."""
        if piece.error is not None:
            raise RungError(piece.error)
        self._text.append(piece.text)
        self.tokens += piece.tokens
        if piece.details is not None:
            self._details += piece.details
        if piece.prompt is not None:
            self._prompt = list(piece.prompt)
        self.reason = piece.reason

    def completion(self) -> Completion:
        request, options = self.request, self.request.options
        text = "".join(self._text)
        return Completion(
            prompt=request.prompt.text,
            text=request.prompt.text + text if options.echo else text,
            tokens=list(self.tokens),
            finish_reason=self.reason or "interrupted",
            sample=request.sample,
            seed=request.seed,
            prompt_tokens=len(request.ids),
            logprobs=[c.logprob for c in self._details if c.logprob is not None] if options.logprobs else None,
            top_logprobs=[c.top for c in self._details] if options.top_logprobs else None,
            prompt_logprobs=self._prompt,
        )


class StopFinder:
    """Passes text through until one of the strings appears; holds back what might become one."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = [s for s in strings if s]
        self._pending = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The text that can be shown now."""
        if not self._strings:
            return text
        pending = self._pending + text
        found = [at for at in (pending.find(s) for s in self._strings) if at >= 0]
        if found:
            self.stopped, self._pending = True, ""
            return pending[: min(found)]
        overlap = max(self._overlap(pending, s) for s in self._strings)
        self._pending = pending[len(pending) - overlap :]
        return pending[: len(pending) - overlap]

    def flush(self) -> str:
        """Returns what was held back, at the end of the text."""
        pending, self._pending = self._pending, ""
        return pending

    @staticmethod
    def _overlap(text: str, string: str) -> int:
        # How many of the text's last characters begin the string.
        return next((n for n in range(min(len(string) - 1, len(text)), 0, -1) if text.endswith(string[:n])), 0)


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
    shared_tokens: int = 0  # of prompts, which were found in memory in place of being read
    set_back: int = 0  # times that a text gave back its memory, to be read again later
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

    @property
    def usage(self) -> float | None:
        """The share of the memory for keys and values that is in use; None: that of all slots' tokens."""
        return None

    def warm(self) -> None:
        """Prepare for any text, so that the first ones are as fast as the others."""
        self.clock = Clock()  # not counted in the statistics

    def takes(self, request: Request) -> bool:
        """Whether it can take this text now, too."""
        return self.free_slots > 0

    @abstractmethod
    def begin(self, slot: int, text: Text) -> None:
        """A new text; its slot is the lowest free number."""

    @abstractmethod
    def turn(self) -> list[NewTokens]:
        """Advance the texts by a step, or read a part of their prompts. Texts may be left out of a turn."""

    @abstractmethod
    def end(self, slot: int) -> None:
        """The slot's text has ended or was cancelled; its state is discarded."""
