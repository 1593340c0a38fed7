"""The server as clients meet it: OpenAI's own, plain HTTP, Prometheus' parser."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from typing import Any

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

import gpt2_models as models
from rung.models.load import Model
from rung.models.options import Completion
from serving import Running, running

CONTEXT, V = 256, 400
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def model() -> Model:
    return models.ours(models.saved(n_positions=CONTEXT))


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    limits = {"body": 100_000, "queue": 40, "seconds": 20.0}
    with running(models.saved(n_positions=CONTEXT), limits=limits, origins=["https://friend.example"], local=True) as one:
        yield one


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as one:
        yield one


def ask(server: Running, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """Status and JSON (or text) of a request; a body makes it a POST."""
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {"Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
    try:
        with urllib.request.urlopen(urllib.request.Request(server.url + path, data, given), timeout=30) as answer:
            status, text, headers = answer.status, answer.read().decode(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        status, text, headers = error.code, error.read().decode(), dict(error.headers)
    ask.headers = headers  # type: ignore[attr-defined]
    return status, json.loads(text) if "json" in headers.get("content-type", "") else text


def direct(model: Model, prompt: Any, **how: Any) -> list[Completion]:
    how = {"temperature": 1.0, "top_p": 1.0, "max_new_tokens": 16, **how}
    return model.generate([prompt], **how)


def test_a_name_that_is_not_this_machines_is_refused(server: Running) -> None:
    for host, status in (("evil.example", 403), ("127.0.0.1:80", 200), ("[::1]", 200), ("localhost:1", 200),
                         ("friend.example", 200), ("[", 403), ("", 200), ("localhost.", 200), ("user@localhost", 403),
                         ("localhost#y", 403), ("localhost/x", 403)):  # fmt: skip
        assert ask(server, "/health", Host=host)[0] == status, host


# ---- completions ----------------------------------------------------------------------------------------------------


def test_the_openai_client_gets_what_generate_writes(client: openai.OpenAI, model: Model) -> None:
    found = client.completions.create(model="tiny", prompt=PROMPT, seed=3, n=3, max_tokens=12, temperature=0.9, top_p=0.9)
    expected = direct(model, PROMPT, seed=3, num_samples=3, max_new_tokens=12, temperature=0.9, top_p=0.9)
    assert [c.text for c in found.choices] == [c.text for c in expected]
    assert [c.index for c in found.choices] == [0, 1, 2]
    assert [c.finish_reason for c in found.choices] == [c.finish_reason for c in expected]
    prompt_tokens = len(model.tokenizer.encode(PROMPT))
    assert found.usage is not None
    assert found.usage.prompt_tokens == prompt_tokens
    assert found.usage.completion_tokens == sum(len(c.tokens) for c in expected)
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens


def test_a_stream_joins_to_the_whole_and_tells_its_usage(client: openai.OpenAI, model: Model) -> None:
    how: dict[str, Any] = {"model": "tiny", "prompt": [PROMPT, "The wolf"], "seed": 5, "n": 2, "max_tokens": 20}
    texts, ends, usages = [""] * 4, {}, []
    for chunk in client.completions.create(**how, stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason
        usages.append(chunk.usage)
    whole = client.completions.create(**how)
    assert texts == [c.text for c in whole.choices]
    assert ends == {c.index: c.finish_reason for c in whole.choices}
    assert usages[-1] == whole.usage and not any(usages[:-1])
    expected = [*direct(model, PROMPT, seed=5, num_samples=2, max_new_tokens=20),
                *direct(model, "The wolf", seed=5, num_samples=2, max_new_tokens=20)]  # fmt: skip
    assert texts == [c.text for c in expected]


@pytest.mark.parametrize("as_list", [False, True])
def test_tokens_are_prompts_too(client: openai.OpenAI, model: Model, as_list: bool) -> None:
    ids = models.some_ids(20, V)
    found = client.completions.create(model="tiny", prompt=[ids, [5]] if as_list else ids, seed=1, temperature=0)
    assert found.choices[0].text == direct(model, ids, seed=1, temperature=0)[0].text
    assert len(found.choices) == 1 + as_list


def test_every_option_reaches_the_text(client: openai.OpenAI, model: Model) -> None:
    plain = direct(model, PROMPT, seed=8, max_new_tokens=40)[0]
    for given, ours in (
        ({"stop": "e"}, {"stop": ["e"]}),
        ({"stop": ["zz", plain.text[9:12]]}, {"stop": ["zz", plain.text[9:12]]}),
        ({"presence_penalty": 1.5, "frequency_penalty": 0.5}, {"presence_penalty": 1.5, "frequency_penalty": 0.5}),
        ({"extra_body": {"top_k": 4}}, {"top_k": 4}),
        ({"extra_body": {"min_p": 0.2}}, {"min_p": 0.2}),
        ({"extra_body": {"repetition_penalty": 1.8}}, {"repetition_penalty": 1.8}),
        ({"extra_body": {"stop_token_ids": plain.tokens[7:8]}}, {"stop_tokens": plain.tokens[7:8]}),
        (
            {"extra_body": {"stop_token_ids": plain.tokens[2:3], "min_tokens": 9}},
            {"stop_tokens": plain.tokens[2:3], "min_tokens": 9},
        ),
    ):
        (choice,) = client.completions.create(model="tiny", prompt=PROMPT, seed=8, max_tokens=40, **given).choices  # type: ignore[call-overload]
        (expected,) = direct(model, PROMPT, seed=8, max_new_tokens=40, **ours)
        assert (choice.text, choice.finish_reason) == (expected.text, expected.finish_reason), given
        assert choice.text != plain.text, given


def test_log_probabilities_are_the_engines_floats(client: openai.OpenAI, model: Model) -> None:
    (choice,) = client.completions.create(model="tiny", prompt=PROMPT, seed=2, max_tokens=9, logprobs=3).choices
    (expected,) = direct(model, PROMPT, seed=2, max_new_tokens=9, logprobs=True, top_logprobs=3)
    logprobs = choice.logprobs
    assert logprobs is not None and logprobs.token_logprobs == expected.logprobs
    assert logprobs.tokens is not None and logprobs.top_logprobs is not None and logprobs.text_offset is not None
    for name, logprob, top, likeliest in zip(
        logprobs.tokens, logprobs.token_logprobs or [], logprobs.top_logprobs, expected.top_logprobs or [], strict=True
    ):
        assert top[name] == logprob and len(top) in (3, 4)
        assert sorted(top.values(), reverse=True)[:3] == [p for _, p in likeliest]
    whole = PROMPT + choice.text
    for name, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
        assert name.startswith("bytes:") or whole.startswith(name, offset)


@pytest.mark.parametrize("max_tokens", [0, 1])
@pytest.mark.parametrize("stream", [False, True])
def test_an_echoed_prompt_has_log_probabilities_by_which_greedy_shows(
    server: Running, model: Model, max_tokens: int, stream: bool
) -> None:
    ids = [*models.some_ids(20, V), *direct(model, models.some_ids(20, V), temperature=0, max_new_tokens=5)[0].tokens]
    body = {"prompt": ids, "max_tokens": max_tokens, "echo": True, "logprobs": 1, "temperature": 0, "stream": stream}
    status, found = ask(server, "/v1/completions", body)
    assert status == 200
    if stream:
        lines = [line.removeprefix("data: ") for line in found.split("\n\n") if line]
        assert lines.pop() == "[DONE]"
        parts = [json.loads(line)["choices"][0] for line in lines]
        logprobs = {k: [v for part in parts for v in part["logprobs"][k]] for k in parts[0]["logprobs"]}
        text = "".join(part["text"] for part in parts)
    else:
        (choice,) = found["choices"]
        logprobs, text = choice["logprobs"], choice["text"]
        assert found["usage"]["completion_tokens"] == max_tokens
    assert text.startswith(model.tokenizer.decode(ids)) and len(logprobs["tokens"]) == 25 + max_tokens
    assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
    greedy = [p == max(top.values()) for p, top in zip(logprobs["token_logprobs"][1:25], logprobs["top_logprobs"][1:25], strict=True)]
    assert all(greedy[-5:]) and not all(greedy)
    expected = model.logits(ids)[:-1].log_softmax(-1)
    assert logprobs["token_logprobs"][1:25] == pytest.approx(
        [float(row[token]) for row, token in zip(expected, ids[1:], strict=True)], abs=1e-4
    )


def test_a_prompts_log_probabilities_by_token(server: Running) -> None:
    status, found = ask(server, "/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 1, "prompt_logprobs": 2})
    logprobs = found["choices"][0]["prompt_logprobs"]
    assert status == 200 and logprobs[0] is None and len(logprobs) == 3
    for token, entry in zip((6, 7), logprobs[1:], strict=True):
        assert entry[str(token)]["decoded_token"] and sorted(e["rank"] or 9 for e in entry.values())[:2] == [1, 2]


def test_the_end_of_text_ends_a_text_unless_it_is_to_be_ignored(tmp_path: Any) -> None:
    from rung.serve.completions import Served, parse

    ours = models.ours(models.saved(eos_token_id=399))
    served = Served("tiny", ours.config, ours.tokenizer)
    assert parse({"prompt": "a"}, served).requests[0].options.stop_tokens == (399,)
    assert parse({"prompt": "a", "ignore_eos": True}, served).requests[0].options.stop_tokens == ()


def test_many_clients_at_once_get_each_their_own(server: Running, model: Model) -> None:
    prompts = [PROMPT, "The wolf", "Little pig", "A dragon"] * 6
    expected = [direct(model, p, seed=i, max_new_tokens=20)[0].text for i, p in enumerate(prompts)]

    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            made = (client.completions.create(model="tiny", prompt=p, seed=i, max_tokens=20) for i, p in enumerate(prompts))
            return [answer.choices[0].text for answer in await asyncio.gather(*made)]

    assert asyncio.run(all_of_them()) == expected


# ---- leaving --------------------------------------------------------------------------------------------------------


def settled(server: Running) -> bool:
    for _ in range(200):
        if server.pool.texts == 0 and metric(server, "vllm:num_requests_running") == 0:
            return True
        time.sleep(0.01)
    return False


def metric(server: Running, name: str, **labels: str) -> float:
    _, text = ask(server, "/metrics")
    families = text_string_to_metric_families(text)
    return sum(s.value for f in families for s in f.samples if s.name == name and labels.items() <= s.labels.items())


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_slot(server: Running, stream: bool) -> None:
    before = metric(server, "vllm:request_success_total", finished_reason="abort")
    body = json.dumps({"prompt": PROMPT, "max_tokens": 250, "n": 40, "stream": stream, "temperature": 0}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as one:
        one.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        one.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        if stream:
            assert b"200 OK" in one.recv(100)
        while server.pool.texts == 0:
            time.sleep(0.001)
    began = time.monotonic()
    assert settled(server) and time.monotonic() - began < 2
    assert metric(server, "vllm:request_success_total", finished_reason="abort") > before


def test_a_request_that_takes_too_long_gets_a_timeout(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    from rung.serve.app import Limits

    monkeypatch.setattr(server.server, "limits", Limits(queue=100))
    monkeypatch.setattr(server.server.serving, "seconds", 0.05)
    body = {"prompt": PROMPT, "max_tokens": 250, "n": 60, "temperature": 0}
    status, found = ask(server, "/v1/completions", body)
    assert status == 504 and found["error"]["type"] == "timeout_error"
    status, found = ask(server, "/v1/completions", {**body, "stream": True})
    assert status == 200 and '"timeout_error"' in found and found.endswith("data: [DONE]\n\n")
    assert settled(server)


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"prompt": ', "no JSON"),
        (b"[" * 50_000, "no JSON"),
        (b"\xff\xfe", "no JSON"),
        ([], "no JSON object"),
        ({}, "no prompt"),
        ({"prompt": ""}, "prompt is empty"),
        ({"prompt": []}, "no prompt"),
        ({"prompt": ["a", 5]}, "prompt holds 5"),
        ({"prompt": [1, True]}, "prompt holds 1"),
        ({"prompt": [400]}, "token 400"),
        ({"prompt": 7}, "prompt is 7"),
        ({"prompt": "\ud83d"}, "not UTF-8"),
        ({"prompt": "a", "max_tokens": -1}, "max_tokens is -1"),
        ({"prompt": "a", "max_tokens": 300}, "context is 256"),
        ({"prompt": [1] * 257}, "257 tokens"),
        ({"prompt": "a", "temperature": "hot"}, "temperature is 'hot'"),
        ({"prompt": "a", "temperature": float("nan")}, "temperature is nan"),
        ({"prompt": "a", "top_p": 0}, "top-p is 0"),
        ({"prompt": "a", "n": 0}, "n is 0"),
        ({"prompt": "a", "n": 1.5}, "n is 1.5"),
        ({"prompt": ["a", "b"], "n": 1000}, "1024 texts"),
        ({"prompt": "a", "logprobs": 21}, "logprobs is 21"),
        ({"prompt": "a", "logprobs": True}, "logprobs is True"),
        ({"prompt": "a", "stop": [1]}, "stop is"),
        ({"prompt": "a", "stop_token_ids": [400]}, "stop_token_ids"),
        ({"prompt": "a", "stop_token_ids": list(range(65))}, "more than 64"),
        ({"prompt": "a", "stream": "yes"}, "stream is 'yes'"),
        ({"prompt": "a", "seed": "x"}, "seed is 'x'"),
        ({"prompt": "a", "min_tokens": 17}, "min_tokens is 17"),
        ({"prompt": "a", "suffix": "b"}, "suffix is not supported"),
        ({"prompt": "a", "logit_bias": {"400": 1}}, "logit_bias is"),
        ({"prompt": "a", "colour": 1}, "https://"),
        ({"prompt": "a", "n": 2, "best_of": 3}, "best_of is 3"),
    ],
)
def test_what_is_wrong_with_a_body_is_reported(server: Running, body: Any, words: str) -> None:
    status, found = ask(server, "/v1/completions", body)
    assert status == 400 and set(found["error"]) == {"message", "type", "param", "code"}
    assert words in found["error"]["message"] and found["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "fields",
    [{"response_format": {"type": "text"}}, {"tools": [], "tool_choice": "none"}, {"parallel_tool_calls": True}],
)
def test_fields_at_values_without_effect_are_accepted(server: Running, fields: dict[str, Any]) -> None:
    assert ask(server, "/v1/completions", {"prompt": "a", "max_tokens": 1, **fields})[0] == 200


def test_a_response_follows_the_schema_that_its_format_names(server: Running) -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer", "maximum": 99}}, "required": ["age"],
              "additionalProperties": False}  # fmt: skip
    body: Any = {"prompt": "Once", "max_tokens": 60, "seed": 4}
    answers = {}
    for name, form in (("schema", {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}),
                       ("object", {"type": "json_object"})):  # fmt: skip
        status, found = ask(server, "/v1/completions", {**body, "response_format": form})
        assert status == 200
        answers[name] = found["choices"][0]
    assert list(json.loads(answers["schema"]["text"])) == ["age"] and answers["schema"]["finish_reason"] == "stop"
    assert answers["object"]["text"].startswith("{")
    for wrong in ({"type": "yaml"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {"schema": {"type": 5}}}):
        status, refused = ask(server, "/v1/completions", {**body, "response_format": wrong})
        assert status == 400 and refused["error"]["param"] == "response_format"


def test_prompts_and_texts_beyond_the_context_have_one_code(server: Running) -> None:
    for body in ({"prompt": [1] * (CONTEXT + 1)}, {"prompt": "a", "max_tokens": CONTEXT + 1}, {"prompt": "a" * 50_000}):
        status, found = ask(server, "/v1/completions", body)
        assert status == 400 and found["error"]["code"] == "context_length_exceeded"


def test_a_model_that_is_not_there(server: Running) -> None:
    status, found = ask(server, "/v1/completions", {"model": "gpt-9", "prompt": "a"})
    assert status == 404 and found["error"]["code"] == "model_not_found"
    assert ask(server, "/v1/models/gpt-9")[0] == 404
    assert ask(server, "/nowhere")[0] == 404 and ask(server, "/v1/completions")[0] == 405


def test_bodies_that_are_too_large_or_no_json_are_refused(server: Running) -> None:
    assert ask(server, "/v1/completions", b" " * 100_001)[0] == 413
    assert ask(server, "/v1/completions", {"prompt": "a"}, Content_Type="text/plain")[0] == 415
    chunks = b"".join(b"8000\r\n" + b" " * 0x8000 + b"\r\n" for _ in range(4)) + b"0\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as one:
        one.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        one.sendall(b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
        assert b" 413 " in one.recv(1000)


def test_a_full_queue_is_reported_with_when_to_retry(server: Running) -> None:
    body = json.dumps({"prompt": PROMPT, "max_tokens": 250, "n": 44, "temperature": 0}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as one:
        one.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        one.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        while server.pool.texts == 0:
            time.sleep(0.001)
        status, found = ask(server, "/v1/completions", {"prompt": "a"})
        assert status == 429 and found["error"]["code"] == "queue_full"
        assert {k.lower(): v for k, v in ask.headers.items()}["retry-after"] == "1"  # type: ignore[attr-defined]
    assert settled(server)
    assert ask(server, "/v1/completions", {"prompt": "a", "n": 45})[0] == 400


def test_a_key_is_asked_for_where_there_is_one(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.server, "_key", "geheim ✓")
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        status, found = ask(server, "/v1/models", **headers)
        assert status == 401 and found["error"]["code"] == "invalid_api_key"
    monkeypatch.setattr(server.server, "_key", "secret")
    assert ask(server, "/v1/models", Authorization="Bearer secret")[0] == 200
    assert ask(server, "/health")[0] == ask(server, "/")[0] == 200
    assert ask(server, "/metrics")[0] == 401


def test_other_origins_are_allowed_only_where_they_were_named(server: Running) -> None:
    ask(server, "/v1/models", Origin="https://friend.example")
    assert "https://friend.example" in ask.headers.values()  # type: ignore[attr-defined]
    ask(server, "/v1/models", Origin="https://other.example")
    assert not any("allow-origin" in name.lower() for name in ask.headers)  # type: ignore[attr-defined]


# ---- other routes ---------------------------------------------------------------------------------------------


def test_models_and_tokens_are_listed(client: openai.OpenAI, server: Running, model: Model) -> None:
    assert [m.id for m in client.models.list()] == ["tiny"] and client.models.retrieve("tiny").id == "tiny"
    text = "Die Märchen 🐉"
    _, found = ask(server, "/tokenize", {"prompt": text, "return_token_strs": True})
    ids = model.tokenizer.encode(text)
    assert found["tokens"] == ids and found["count"] == len(ids) and found["max_model_len"] == CONTEXT
    assert len(found["token_strs"]) == len(ids)
    assert ask(server, "/detokenize", {"tokens": ids})[1] == {"prompt": text}
    for path, body in (("/tokenize", {"prompt": 5}), ("/tokenize", []), ("/detokenize", {"tokens": [400]})):
        assert ask(server, path, body)[0] == 400
    info = ask(server, "/tokenizer_info")[1]
    assert info["model_max_length"] == CONTEXT and info["tokenizer_class"] == "PreTrainedTokenizerFast"
    status, refused = ask(server, "/tokenize", {"prompt": "a" * 50_000})
    assert status == 400 and refused["error"]["code"] == "context_length_exceeded"
    assert ask(server, "/health") == (200, {"status": "ok"})


def test_metrics_count_what_was_written(server: Running) -> None:
    names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:time_to_first_token_seconds_count")
    before = [metric(server, name) for name in names]
    ask(server, "/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 7, "n": 2})
    assert [metric(server, name) - b for name, b in zip(names, before, strict=True)] == [6, 14, 2]
    _, text = ask(server, "/metrics")
    found = {s.name for family in text_string_to_metric_families(text) for s in family.samples}
    assert found >= {
        "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
        "vllm:request_success_total", "vllm:inter_token_latency_seconds_bucket",
        "vllm:e2e_request_latency_seconds_sum", "vllm:request_queue_time_seconds_count",
    }  # fmt: skip


def test_the_page_asks_nothing_of_others(server: Running) -> None:
    status, page = ask(server, "/")
    assert status == 200 and not re.search(r"""(src|href)=["'](https?:)?//""", page)
    policy = ask.headers["content-security-policy"]  # type: ignore[attr-defined]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy


def test_what_is_no_http_and_another_protocol_are_answered_in_openais_form(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.sendall(b"nonsense\r\n\r\n")
        head, _, content = b"".join(iter(partial(raw.recv, 1 << 16), b"")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and json.loads(content)["error"]["type"] == "invalid_request_error"
    caplog.clear()
    assert ask(server, "/health", Connection="Upgrade", Upgrade="websocket")[0] == 200 and not caplog.records
