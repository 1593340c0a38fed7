"""A model in the form that lm-evaluation-harness takes: `lm_eval.simple_evaluate(model=HarnessModel(rung.load("gpt2")),
...)`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval import utils
from lm_eval.api.model import TemplateLM

from rung.errors import RungError
from rung.models.load import Model

NEW_TOKENS = 256  # if a task does not give a number


class HarnessModel(TemplateLM):  # type: ignore[misc]
    """Likelihoods come from the model's rater, texts from its engine. A request's figures do not depend on others."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        if not model.config.eos:
            raise RungError("evaluation needs an end-of-text token, which the model's config does not name.")
        self.model = model
        self.max_length = model.config.context

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text, and precedes one without context."""
        return self.model.config.eos[0]

    @property
    def tokenizer_name(self) -> str:
        """The key under which requests are cached."""
        return self.model.name.replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """The tokens of a text, without special tokens."""
        return self.model.tokenizer.encode(string)

    def _loglikelihood_tokens(self, requests: Sequence[Any], **_: Any) -> list[tuple[float, bool]]:
        """The log-probability of each continuation, and whether greedy decoding would write it."""
        # The last token is only predicted, so the context may be full before it.
        windows = [[*context, *continuation][-(self.max_length + 1) :] for _, context, continuation in requests]
        found = []
        for rated, (_, _, continuation) in zip(self.model.rater.rate(windows), requests, strict=True):
            last = rated.last(min(len(continuation), len(rated.logprobs)))
            found.append((math.fsum(last.logprobs.tolist()), not bool(last.ranks.any())))
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Each text's log-probability, every token predicted once, in windows that do not overlap."""
        windows: list[tuple[None, list[int], list[int]]] = []
        counts = []
        for (text,) in (request.args for request in requests):
            tokens = self.tok_encode(text)
            rolled = utils.get_rolling_token_windows(
                token_list=tokens, prefix_token=self.prefix_token_id, max_seq_len=self.max_length, context_len=1
            )
            made = [(None, *utils.make_disjoint_window(window)) for window in rolled]
            windows += made
            counts.append(len(made))
        values = iter(self._loglikelihood_tokens(windows))
        return [math.fsum(next(values)[0] for _ in range(count)) for count in counts]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Continuations of the contexts, each up to its stop strings."""
        return [self._continue(*request.args) for request in requests]

    def _continue(self, context: str, kwargs: Mapping[str, Any]) -> str:
        until = kwargs.get("until") or []
        new = int(kwargs.get("max_gen_toks", kwargs.get("max_new_tokens", NEW_TOKENS)))
        if new >= self.max_length:
            raise RungError(f"the task requests {new} new tokens, but the model's context is {self.max_length}.")
        temperature = float(kwargs.get("temperature", 0.0)) if kwargs.get("do_sample", "temperature" in kwargs) else 0.0
        ids = self.tok_encode(context)[-(self.max_length - new) :]
        return self.model.generate(
            [ids], max_new_tokens=new, temperature=temperature, stop=[until] if isinstance(until, str) else list(until)
        )[0].text
