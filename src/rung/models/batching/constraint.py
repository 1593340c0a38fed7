"""Texts that follow a JSON schema: which tokens may come next, by the library llguidance."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from rung.errors import RungError, with_extra
from rung.models.tokenizer import Tokenizer

LONGEST = 1 << 16  # characters of a schema


class Constraint:
    """The state of one text. `ended` says that the schema is fulfilled and allows nothing more."""

    def __init__(self, schema: str, tokenizer: Tokenizer, ends: Sequence[int]) -> None:
        self._matcher, self._ends = compiled(schema, tokenizer).deep_copy(), list(ends)
        self.ended = False

    def forbid(self, scores: torch.Tensor) -> torch.Tensor:
        """Logits (1, V) without the tokens that may not come next; an end may where the schema is fulfilled."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = torch.zeros(scores.shape[-1], dtype=torch.bool, device="cpu")
        known = torch.from_numpy(np.unpackbits(bits, bitorder="little")[: len(allowed)]).bool()
        allowed[: len(known)] = known
        allowed[self._ends] = self._matcher.is_accepting()
        if not allowed.any():
            raise RungError(f"the schema leaves no token to choose ({self._matcher.get_error() or 'it is complete'}).")
        return scores.masked_fill(~allowed.to(scores.device), -torch.inf)

    def add(self, token: int) -> None:
        if token not in self._ends:
            self._matcher.consume_token(token)
            self.ended = self._matcher.is_stopped()


@lru_cache(16)
def compiled(schema: str, tokenizer: Tokenizer) -> Any:
    """The schema's matcher at a text's beginning; a RungError where there is none."""
    try:
        from llguidance import LLMatcher
    except ModuleNotFoundError:
        raise RungError(f"schemas need the package llguidance; install it: {with_extra('schema')}.") from None
    if len(schema) > LONGEST:
        raise RungError(f"the schema has {len(schema):,} characters; give one of at most {LONGEST:,}.")
    try:
        if not isinstance(json.loads(schema), dict):
            raise ValueError
        grammar = LLMatcher.grammar_from_json_schema(schema, defaults={"whitespace_pattern": " ?"})
    except (ValueError, RecursionError):
        raise RungError("the schema is not a JSON object; give a JSON schema.") from None
    if problem := LLMatcher.validate_grammar(grammar, _vocabulary(tokenizer)):
        raise RungError(f"the schema is not one that can be followed ({' '.join(problem.split())[:160]}).")
    return LLMatcher(_vocabulary(tokenizer), grammar, log_level=0)


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
