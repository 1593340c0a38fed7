"""Texts that follow a JSON schema or a grammar: which tokens may come next, by the library llguidance."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from rung.arrays import Array
from rung.errors import RungError, with_extra
from rung.lazy import torch
from rung.models.tokenizer import Tokenizer

LONGEST = 1 << 16  # characters of a schema
DEEP = "the schema is nested too deeply; give a flatter one."
NO_TOKEN = "the schema leaves no token to choose: it refers to itself without end, or is too deep."
GRAMMAR = "%llguidance {}"  # the first line of a schema that is a grammar in llguidance's form of Lark


class Constraint:
    """The state of one text. `ended` says that the schema is fulfilled and allows nothing more. With a `trigger` the
    text is free until it has written that; what comes next follows the schema, and then the text is free again."""

    def __init__(self, schema: str, tokenizer: Tokenizer, ends: Sequence[int], trigger: str = "") -> None:
        self._schema, self._ends, self._tokenizer = compiled(schema, tokenizer), list(ends), tokenizer
        self._trigger, self._tail = trigger.encode(), b""
        self._matcher = None if trigger else self._schema.deep_copy()
        self.ended = False

    def forbid(self, scores: Array) -> Array:
        """Logits (1, V) without the tokens that may not come next; an end may where the schema is fulfilled."""
        if self._matcher is None:
            return scores
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.zeros(scores.shape[-1], bool)
        known = np.unpackbits(bits, bitorder="little")[: len(allowed)]
        allowed[: len(known)] = known
        allowed[self._ends] = self._matcher.is_accepting()
        if not allowed.any():
            raise RungError(NO_TOKEN)
        if isinstance(scores, np.ndarray):
            return np.where(allowed, scores, -np.inf)
        return scores.masked_fill(torch.from_numpy(~allowed).to(scores.device), -np.inf)

    def add(self, token: int) -> None:
        if token in self._ends:
            return
        if self._matcher is not None:
            self._matcher.consume_token(token)
            if self._matcher.is_stopped():
                self.ended = not self._trigger
                self._matcher = None if self._trigger else self._matcher
            return
        self._tail = (self._tail + self._tokenizer.bytes(token))[-len(self._trigger) :]
        if self._tail == self._trigger:
            self._tail, self._matcher = b"", self._schema.deep_copy()


@lru_cache(16)
def compiled(schema: str, tokenizer: Tokenizer) -> Any:
    """The schema's matcher at a text's beginning; a RungError where there is none."""
    try:
        from llguidance import LLMatcher
    except ModuleNotFoundError:
        raise RungError(f"schemas need the package llguidance; install it: {with_extra('schema')}.") from None
    if len(schema) > LONGEST:
        raise RungError(f"the schema has {len(schema):,} characters; give one of at most {LONGEST:,}.")
    grammar = LLMatcher.grammar_from_lark(schema) if schema.startswith(GRAMMAR) else _of_schema(schema)
    if problem := LLMatcher.validate_grammar(grammar, _vocabulary(tokenizer)):
        raise RungError(f"the schema is not one that can be followed ({' '.join(problem.split())[:160]}).")
    made = LLMatcher(_vocabulary(tokenizer), grammar, log_level=0)
    if not any(made.deep_copy().compute_bitmask()):
        raise RungError(NO_TOKEN)
    return made


def _of_schema(schema: str) -> Any:
    from llguidance import LLMatcher

    try:
        given = json.loads(schema, parse_int=_bounded)
    except RecursionError:
        raise RungError(DEEP) from None
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise RungError("the schema is not a JSON object; give a JSON schema.")
    try:
        return LLMatcher.grammar_from_json_schema(schema, defaults={"whitespace_pattern": " ?"})
    except (ValueError, RecursionError):  # the library's own parser has a limit
        raise RungError(DEEP) from None


def _bounded(digits: str) -> int:
    # The library computes with 64 bits, and would take the largest number of these in place of a larger one.
    if len(digits) > 20 or not -(1 << 63) <= int(digits) < 1 << 63:
        raise RungError(f"the schema has the number {digits[:40]}, beyond 64 bits; leave it out.")
    return int(digits)


class _Tokens:
    """What llguidance reads of a tokenizer."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.eos_token_id = tokenizer.size  # one that no text has: ends are the text's own
        self.tokens = [*map(tokenizer.bytes, range(tokenizer.size)), b"<end>"]
        self.special_token_ids = [*tokenizer.added, tokenizer.size]
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)


@lru_cache(4)
def _vocabulary(tokenizer: Tokenizer) -> Any:
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(_Tokens(tokenizer)))
