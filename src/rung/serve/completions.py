"""OpenAI's completions: from a JSON body to requests, and from pieces back to choices."""

from __future__ import annotations

import base64
import codecs
import hashlib
import json
import secrets
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from rung.errors import RungError
from rung.models.batching.constraint import compiled
from rung.models.batching.text import Piece, Request, check
from rung.models.family import Config
from rung.models.generate import SEED_BITS
from rung.models.options import MOST_BIAS, MOST_STOPS, Chosen, Options, Prompt
from rung.models.sampling import Sampling
from rung.models.tokenizer import Tokenizer
from rung.serve.chat import ChatTemplate
from rung.serve.http import Refusal

if TYPE_CHECKING:
    from rung.models.load import Model

MOST_LOGPROBS = 20
MOST_TEXTS = 1024  # of one request: prompts times n
MOST_PROMPT_LOGPROBS = 1 << 17  # numbers of one answer: texts times tokens of their prompts times alternatives
MOST_INPUTS = 256  # of one request for embeddings
MOST_INPUT_TOKENS = 1 << 17  # of all of them
MOST_BIASES = 300
# Fields without effect, and OpenAI fields that are accepted only with a value without effect.
IGNORED = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "suffix": (None, ""), "tools": (None, []), "tool_choice": (None, "none", "auto"),
    "parallel_tool_calls": (None, True, False),
}  # fmt: skip
TOO_LONG = "the prompt has {:,} tokens, more than the context of {:,}; shorten it."
DOCUMENT = "https://github.com/rung-gpu/rung/blob/main/docs/serving.md"


@dataclass(frozen=True)
class Served:
    """The server's model, as needed for checking requests."""

    name: str
    config: Config
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None = None

    @cached_property
    def longest(self) -> int:
        """Characters of a prompt beyond which it cannot fit into the context, whatever its tokens are."""
        longest = max(len(self.tokenizer.bytes(token)) for token in range(self.config.vocabulary))
        return self.config.context * max(1, longest) * self.tokenizer.shrinks

    @cached_property
    def fingerprint(self) -> str:
        """Changes with whatever may change a seeded text: the version, the model."""
        what = f"{version('rung')} {self.name} {self.config}"
        return f"rung_{hashlib.sha256(what.encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class Call:
    """A parsed body."""

    requests: list[Request]  # the samples of a prompt next to each other; one choice each
    n: int
    echo: bool
    logprobs: int | None
    prompt_logprobs: int | None
    stream: bool
    include_usage: bool
    id: str = field(default_factory=lambda: f"cmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def prompt_tokens(self) -> int:
        return sum(len(request.ids) for request in self.requests[:: self.n])


# ---- in -------------------------------------------------------------------------------------------------------------


class _Fields:
    """The fields of a body, each read once, by type; the remaining ones are unknown."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._left = dict(body)

    def take(self, name: str, expected: str, holds: Callable[[Any], bool], default: Any) -> Any:
        value = self._left.pop(name, None)
        if value is None:
            return default
        if not holds(value):
            raise Refusal(400, f"{name} is {show(value)}; it must be {expected}.", name)
        return value

    def whole(self, name: str, low: int, high: int, default: Any) -> Any:
        def holds(v: Any) -> bool:
            return _whole(v) and low <= v <= high

        return self.take(name, f"a whole number from {low} to {high}", holds, default)

    def number(self, name: str, low: float, high: float, default: float) -> float:
        def holds(v: Any) -> bool:
            return isinstance(v, int | float) and not isinstance(v, bool) and low <= v <= high

        return float(self.take(name, f"a number from {low:g} to {high:g}", holds, default))

    def flag(self, name: str) -> bool:
        return bool(self.take(name, "true or false", lambda v: isinstance(v, bool), False))

    def end(self) -> None:
        for name, values in NEUTRAL.items():
            if self._left.pop(name, None) not in values:
                raise Refusal(400, f"{name} is not supported; leave it out.", name)
        for name in self._left.keys() - IGNORED:
            raise Refusal(400, f"there is no field {show(name)}; {DOCUMENT} lists the fields.", name)


def _whole(v: Any) -> bool:
    return isinstance(v, int) and not isinstance(v, bool)


def show(value: Any) -> str:
    """A client's value in a message."""
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _fields(body: Any, served: Served) -> _Fields:
    if not isinstance(body, dict):
        raise Refusal(400, 'the body is no JSON object; send {"prompt": ...}.')
    f = _Fields(body)
    model = f.take("model", "a string", lambda v: isinstance(v, str), served.name)
    if model != served.name:
        raise Refusal(
            404, f"there is no model {show(model)} here; this server has {served.name!r}.", "model", "model_not_found"
        )
    return f


@dataclass(frozen=True)
class Following:
    """The grammar that a text follows, and after which text (see Constraint)."""

    grammar: str
    trigger: str = ""


def parse(
    body: Any, served: Served, *, priority: bool = False, id: str = "", following: Following | None = None
) -> Call:
    """A call; raises Refusal if the request is not possible."""
    f = _fields(body, served)
    prompts = _prompts(f, served, "prompt")
    n = f.whole("n", 1, MOST_TEXTS, 1)
    f.take("best_of", f"{n}, like n", lambda v: v == n, None)
    if n * len(prompts) > MOST_TEXTS:
        raise Refusal(400, f"{len(prompts)} prompts with n {n} are more than {MOST_TEXTS} texts; send fewer.", "n")
    max_tokens = f.whole("max_tokens", 0, 1 << 20, 16)
    min_tokens = f.whole("min_tokens", 0, 1 << 20, 0)
    if min_tokens > max_tokens:
        raise Refusal(400, f"min_tokens is {min_tokens}; it must not be above max_tokens, {max_tokens}.", "min_tokens")
    echo, logprobs = f.flag("echo"), f.whole("logprobs", 0, MOST_LOGPROBS, None)
    prompt_logprobs = f.whole("prompt_logprobs", 0, MOST_LOGPROBS, None)
    top_k = f.whole("top_k", -1, 1 << 31, 0)
    stop_tokens = f.take("stop_token_ids", "a list of tokens", _tokens, [])
    if any(t >= served.config.vocabulary for t in stop_tokens):
        raise Refusal(400, f"stop_token_ids are not all below {served.config.vocabulary}.", "stop_token_ids")
    if not f.flag("ignore_eos"):
        stop_tokens = [*stop_tokens, *served.config.eos]
    if len(stop_tokens) > MOST_STOPS:
        raise Refusal(400, f"stop_token_ids and the model's own are more than {MOST_STOPS}.", "stop_token_ids")
    stream = f.flag("stream")
    details = f.take("stream_options", "an object", lambda v: isinstance(v, dict), {})
    seed, schema = f.whole("seed", -(1 << 63), (1 << 64) - 1, None), _schema(f, served)
    try:
        options = Options(
            sampling=Sampling(
                temperature=f.number("temperature", 0, 100, 1.0),
                top_k=top_k if top_k > 0 else None,
                top_p=f.number("top_p", 0, 1, 1.0),
                min_p=f.number("min_p", 0, 1, 0.0),
                repetition_penalty=f.number("repetition_penalty", 0, 1e6, 1.0),
                presence_penalty=f.number("presence_penalty", -1e6, 1e6, 0.0),
                frequency_penalty=f.number("frequency_penalty", -1e6, 1e6, 0.0),
            ),
            max_new_tokens=max_tokens,
            min_tokens=min_tokens,
            stop=tuple(_stops(f)),
            stop_tokens=tuple(stop_tokens),
            logprobs=logprobs is not None,
            top_logprobs=logprobs or 0,
            prompt_logprobs=_of_prompt(echo, logprobs, prompt_logprobs, max_tokens),
            priority=f.whole("priority", -(1 << 31), 1 << 31, 0),
            logit_bias=_biases(f, served.config.vocabulary),
            schema=following.grammar if following else schema,
            trigger=following.trigger if following else "",
        )
        f.end()
        if options.priority and not priority:
            raise Refusal(400, "priority is not open to clients; `rung serve --allow-priority` allows it.", "priority")
        for prompt in prompts:
            options = _fits(prompt, options, served.config)
    except RungError as error:
        raise Refusal(400, str(error)) from None
    if options.prompt_logprobs is not None:
        numbers = n * sum(len(prompt.ids) for prompt in prompts) * (1 + options.prompt_logprobs)
        if numbers > MOST_PROMPT_LOGPROBS:
            raise Refusal(
                400, f"the log-probabilities of the prompts are {numbers:,} numbers, and an answer holds at most "
                f"{MOST_PROMPT_LOGPROBS:,}; ask for fewer texts.", "n",
            )  # fmt: skip
    # Without a seed the texts of different prompts are independent; with one each is what it is alone.
    seeds = [secrets.randbits(SEED_BITS) if seed is None else seed % (1 << 64) for _ in prompts]
    requests = [
        Request(prompt, options, first, sample, id)
        for prompt, first in zip(prompts, seeds, strict=True)
        for sample in range(n)
    ]
    usage = stream and details.get("include_usage") is True
    return Call(requests, n, echo, logprobs, prompt_logprobs, stream, usage)


def _of_prompt(echo: bool, logprobs: int | None, requested: int | None, max_tokens: int) -> int | None:
    """How many alternatives are reported at each of the prompt's tokens; None if not requested."""
    counts = [k for k in (requested, logprobs if echo else None, 0 if max_tokens == 0 else None) if k is not None]
    return max(counts) if counts else None


def _fits(prompt: Prompt, options: Options, config: Config) -> Options:
    if len(prompt.ids) > config.context:
        message = TOO_LONG.format(len(prompt.ids), config.context)
        raise Refusal(400, message, "prompt", "context_length_exceeded")
    check(prompt, options, config)
    together = len(prompt.ids) + max(0, options.max_new_tokens)
    if together > config.context + 1:
        raise Refusal(
            400,
            f"the model's context is {config.context} tokens, but {len(prompt.ids)} of the prompt and max_tokens "
            f"{options.max_new_tokens} are more; request at most {config.context + 1 - len(prompt.ids)}.",
            "max_tokens",
            "context_length_exceeded",
        )
    return options.within(config.vocabulary)


def _tokens(value: Any) -> bool:
    return isinstance(value, list) and set(map(type, value)) <= {int} and (not value or min(value) >= 0)


def _biases(f: _Fields, vocabulary: int) -> tuple[tuple[int, float], ...]:
    def holds(v: Any) -> bool:
        return isinstance(v, dict) and len(v) <= MOST_BIASES and all(
            token.isascii() and token.isdigit() and len(token) < 10 and int(token) < vocabulary
            and isinstance(bias, int | float) and not isinstance(bias, bool) and abs(bias) <= MOST_BIAS
            for token, bias in v.items()
        )  # fmt: skip

    expected = f"an object of up to {MOST_BIASES} tokens below {vocabulary}, as texts, and numbers"
    found: dict[str, float] = f.take("logit_bias", expected, holds, {})
    return tuple((int(token), float(bias)) for token, bias in found.items())


def _schema(f: _Fields, served: Served) -> str | None:
    """The schema of a response_format: OpenAI's types text, json_object and json_schema."""

    def holds(v: Any) -> bool:
        kind = v.get("type") if isinstance(v, dict) else None
        return kind in ("text", "json_object") or (
            kind == "json_schema" and isinstance(v.get("json_schema"), dict)
            and isinstance(v["json_schema"].get("schema"), dict)
        )  # fmt: skip

    expected = 'an object of the type "text", "json_object" or "json_schema", the last with json_schema and its schema'
    given = f.take("response_format", expected, holds, {"type": "text"})
    if given["type"] == "text":
        return None
    schema = json.dumps({"type": "object"} if given["type"] == "json_object" else given["json_schema"]["schema"])
    try:
        compiled(schema, served.tokenizer)
    except RungError as error:
        raise Refusal(400, str(error), "response_format") from None
    return schema


def _prompts(f: _Fields, served: Served, name: str, most: int = MOST_TEXTS) -> list[Prompt]:
    expected = "a text, a list of texts, a list of tokens or a list of such lists"
    given = f.take(name, expected, lambda v: isinstance(v, str | list), None)
    if given is None or given == []:
        raise Refusal(400, f"there is no {name}; give a text, texts, or tokens.", name)
    if isinstance(given, str) or _tokens(given):
        given = [given]
    if len(given) > most:
        raise Refusal(400, f"{name} holds {len(given)} texts, more than {most}; send fewer.", name)
    prompts = []
    for one in given:
        if isinstance(one, str):
            if len(one) > served.longest:  # known without a tokenizer, which would take seconds
                context = served.config.context
                message = f"{name} has {len(one):,} characters, which the model's context of {context:,} cannot hold."
                raise Refusal(400, message, name, "context_length_exceeded")
            try:
                prompts.append(Prompt(one, tuple(served.tokenizer.encode(one, begin=True))))
            except RungError as error:
                raise Refusal(400, str(error), name) from None
        elif _tokens(one):
            if len(one) > served.config.context:
                raise Refusal(400, TOO_LONG.format(len(one), served.config.context), name, "context_length_exceeded")
            prompts.append(Prompt(served.tokenizer.decode(one), tuple(one)))
        else:
            raise Refusal(400, f"{name} holds {show(one)}; it must be {expected}.", name)
    return prompts


def _stops(f: _Fields) -> Sequence[str]:
    def holds(v: Any) -> bool:
        texts = isinstance(v, list) and len(v) <= MOST_STOPS and all(isinstance(s, str) for s in v)
        return isinstance(v, str) or texts

    given = f.take("stop", f"a text or a list of up to {MOST_STOPS} texts", holds, [])
    return [given] if isinstance(given, str) else given


# ---- out ------------------------------------------------------------------------------------------------------------


def written(token: int, tokenizer: Tokenizer) -> str:
    """A token as text; bytes that do not form a character are spelled out, so that tokens stay distinct."""
    raw = tokenizer.bytes(token)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class Choice:
    """One text of a call, and the parts of its choice that each piece adds."""

    def __init__(self, call: Call, index: int, tokenizer: Tokenizer) -> None:
        self.call, self.index, self.request = call, index, call.requests[index]
        self.new_tokens = 0
        self.reason: str | None = None
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0 if call.echo else len(self.request.prompt.text)
        self._begun = False

    def add(self, piece: Piece) -> dict[str, Any]:
        """The choice of a chunk, from this piece."""
        call, text, chosen = self.call, piece.text, list[Chosen | None](piece.details or ())
        choice: dict[str, Any] = {"index": self.index}
        if not self._begun:
            self._begun = True
            if call.echo:
                text = self.request.prompt.text + text
                chosen = [*(piece.prompt or ()), *chosen]
            if call.prompt_logprobs is not None and piece.prompt is not None:
                choice["prompt_logprobs"] = [self._by_id(c) for c in piece.prompt]
        self.new_tokens += len(piece.tokens)
        self.reason = piece.reason
        choice["text"] = text
        choice["logprobs"] = self._logprobs(chosen) if call.logprobs is not None else None
        choice["finish_reason"] = "length" if piece.reason == "context" else piece.reason  # as in OpenAI's API
        return choice

    def _logprobs(self, chosen: Sequence[Chosen | None]) -> dict[str, Any]:
        columns: dict[str, list[Any]] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
        for c in chosen:
            token = self.request.ids[0] if c is None else c.token
            columns["text_offset"].append(self._place(token))
            columns["tokens"].append(written(token, self._tokenizer))
            columns["token_logprobs"].append(None if c is None else c.logprob)
            columns["top_logprobs"].append(None if c is None else self._top(c))
        return columns

    def _place(self, token: int) -> int:
        """Where a token's text begins; for part of a character this is known only when the rest arrives, or does
        not."""
        raw, before = self._tokenizer.bytes(token), self._offset
        shown = self._decoder.decode(raw)
        self._offset += len(shown)
        try:
            return before + len(shown) - len(raw.decode("utf-8"))
        except UnicodeDecodeError:
            return before

    def _top(self, chosen: Chosen) -> dict[str, float | None]:
        """The most likely tokens by name, always including the chosen one."""
        likeliest = chosen.top[: self.call.logprobs]
        return {written(t, self._tokenizer): p for t, p in likeliest} | {
            written(chosen.token, self._tokenizer): chosen.logprob
        }

    def _by_id(self, chosen: Chosen | None) -> dict[str, Any] | None:
        if chosen is None:
            return None
        ranks = {token: rank for rank, (token, _) in enumerate(chosen.top, 1)}
        likeliest = dict(chosen.top[: self.call.prompt_logprobs]) | {chosen.token: chosen.logprob}
        return {
            str(token): {"logprob": p, "rank": ranks.get(token), "decoded_token": written(token, self._tokenizer)}
            for token, p in likeliest.items()
        }


def joined(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The whole choice from those of its chunks."""
    whole: dict[str, Any] = {**parts[0], "text": "".join(part["text"] for part in parts)}
    whole["finish_reason"] = parts[-1]["finish_reason"]
    if whole["logprobs"] is not None:
        whole["logprobs"] = {name: [v for part in parts for v in part["logprobs"][name]] for name in whole["logprobs"]}
    return whole


def usage(call: Call, choices: Sequence[Choice]) -> dict[str, int]:
    """OpenAI's count of tokens."""
    new = sum(choice.new_tokens for choice in choices)
    return {"prompt_tokens": call.prompt_tokens, "completion_tokens": new, "total_tokens": call.prompt_tokens + new}


def answer(call: Call, served: Served, choices: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    """A completion, or one of its chunks."""
    head = {
        "id": call.id, "object": "text_completion", "created": call.created, "model": served.name,
        "system_fingerprint": served.fingerprint,
    }  # fmt: skip
    return {**head, "choices": list(choices), **more}


# ---- embeddings -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EmbeddingCall:
    """A parsed body. `work` computes its vectors from a model, in a worker."""

    prompts: list[Prompt]
    base64: bool

    @property
    def work(self) -> Callable[[Model], Iterator[list[float] | None]]:
        return methodcaller("means", [prompt.ids for prompt in self.prompts])


def parse_embeddings(body: Any, served: Served) -> EmbeddingCall:
    """A call; raises Refusal if the request is not possible."""
    f = _fields(body, served)
    prompts = _prompts(f, served, "input", MOST_INPUTS)
    form = f.take("encoding_format", "'float' or 'base64'", lambda v: v in ("float", "base64"), "float")
    f.take("dimensions", f"{served.config.C}, the model's own", lambda v: v == served.config.C, None)
    f.end()
    for prompt in prompts:
        wrong = any(token >= served.config.vocabulary for token in prompt.ids)
        if wrong:
            raise Refusal(400, f"an input has a token outside the vocabulary of {served.config.vocabulary:,}.", "input")
        if not 0 < len(prompt.ids) <= served.config.context:
            message = f"an input must have 1 to {served.config.context:,} tokens of the model; got {len(prompt.ids):,}."
            raise Refusal(400, message, "input", "context_length_exceeded")
    if (tokens := sum(len(prompt.ids) for prompt in prompts)) > MOST_INPUT_TOKENS:
        message = f"the inputs have {tokens:,} tokens, and a request may have {MOST_INPUT_TOKENS:,}; send fewer."
        raise Refusal(400, message, "input")
    return EmbeddingCall(prompts, form == "base64")


def embeddings(call: EmbeddingCall, model: str, vectors: Sequence[Sequence[float]]) -> dict[str, Any]:
    """OpenAI's answer."""
    data = []
    for i, vector in enumerate(vectors):
        packed = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode() if call.base64 else vector
        data.append({"object": "embedding", "index": i, "embedding": packed})
    tokens = sum(len(prompt.ids) for prompt in call.prompts)
    return {
        "object": "list", "data": data, "model": model, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}
    }  # fmt: skip
