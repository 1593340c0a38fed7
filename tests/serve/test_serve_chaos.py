"""A loaded server, and poison: no request changes or ends another; what is unbounded elsewhere is bounded before a key."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from test_serve import ask

import gpt2_models as models
from rung.models.batching import worker_pool
from rung.models.load import Model
from serving import Running, command, running

CONTEXT = 256
LIMITS = {"idle": 1.0, "seconds": 30.0, "queue": 200}
POISON: list[dict[str, Any]] = [
    {"temperature": 1e-300}, {"temperature": 2.9e-39}, {"min_tokens": 1, "stop_token_ids": list(range(64))},
    {"top_p": 1e-300}, {"repetition_penalty": 1e6}, {"presence_penalty": -1e6}, {"logit_bias": {"5": -1e6}},
    {"top_k": 1 << 31}, {"n": 40, "max_tokens": 200}, {"stop": ["\ud800"]}, {"prompt": [0] * 250, "prompt_logprobs": 5},
]  # fmt: skip


def folder() -> Path:
    return models.saved(n_positions=CONTEXT)


@pytest.fixture(scope="module")
def model() -> Model:
    return models.ours(folder())


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(folder(), slots=8, workers=2, limits=LIMITS, key="secret") as one:
        yield one


def expected(model: Model, seed: int, tokens: int = 60) -> str:
    how: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "max_new_tokens": tokens}
    return model.generate("Once upon a time", seed=seed, **how).text


def one(server: Running, seed: int, tokens: int = 60) -> str:
    body = {"prompt": "Once upon a time", "seed": seed, "max_tokens": tokens}
    status, answer = ask(server, "/v1/completions", body, Authorization="Bearer secret")
    assert status == 200, answer
    text: str = answer["choices"][0]["text"]
    return text


@contextlib.contextmanager
def others(server: Running, model: Model, count: int = 6, tokens: int = 60) -> Iterator[None]:
    """Clients that write texts all the while; each text is as it is alone."""
    with ThreadPoolExecutor(count) as pool:
        found: list[Future[str]] = [pool.submit(one, server, seed, tokens) for seed in range(count)]
        yield
        assert [future.result(60) for future in found] == [expected(model, seed, tokens) for seed in range(count)]


def settled(server: Running) -> bool:
    until = time.monotonic() + 10
    while server.pool.texts and time.monotonic() < until:
        time.sleep(0.01)
    return server.pool.texts == 0


def raw(server: Running, head: str, body: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    connection.sendall(head.encode() + body)
    return connection


def request_bytes(body: dict[str, Any]) -> tuple[str, bytes]:
    payload = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head + f"Authorization: Bearer secret\r\nContent-Length: {len(payload)}\r\n\r\n", payload


@pytest.mark.slow
def test_poison_beside_others_changes_and_ends_none(server: Running, model: Model) -> None:
    with others(server, model):
        for more in POISON:
            body = {"prompt": "The wolf", "max_tokens": 8, **more}
            status, answer = ask(server, "/v1/completions", body, Authorization="bearer secret")
            assert status in (200, 400), (more, answer)
            json.dumps(answer, allow_nan=False)
    assert settled(server)


@pytest.mark.slow
def test_clients_that_never_read_or_finish_and_that_leave_are_cut_off(server: Running, model: Model) -> None:
    silent: list[socket.socket] = []
    with others(server, model):
        head, payload = request_bytes({"prompt": "a", "max_tokens": 250, "n": 6, "logprobs": 20, "stream": True})
        for _ in range(3):
            reader = socket.socket()
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect(("127.0.0.1", server.port))
            reader.sendall(head.encode() + payload)
            silent.append(reader)
        silent += [raw(server, "GET /health HTTP/1.1\r\nHost:") for _ in range(3)]  # headers that do not end
        silent += [raw(server, "") for _ in range(3)]
        for _ in range(4):
            raw(server, *request_bytes({"prompt": "a", "max_tokens": 250, "n": 4})).close()
    until = time.monotonic() + 15
    while server._uvicorn.server_state.connections and time.monotonic() < until:
        time.sleep(0.1)
    assert not server._uvicorn.server_state.connections, "connections are kept"
    assert settled(server)
    for connection in silent:
        connection.close()


def test_headers_are_bounded_before_a_key_is_asked_for(server: Running) -> None:
    sent = 0
    with raw(server, "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n") as connection, contextlib.suppress(OSError):
        for i in range(5000):
            connection.sendall(f"X-{i}: {'a' * 4000}\r\n".encode())
            sent += 4000
    assert sent < 16_000_000
    assert ask(server, "/health")[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGSTOP])
def test_a_killed_or_stopped_engine_ends_no_text(
    server: Running, model: Model, kind: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "SILENT_SECONDS", 2.0)
    monkeypatch.setattr(worker_pool, "HUNG_SECONDS", 4.0)
    deaths = server.pool.deaths
    with others(server, model, count=8, tokens=240):
        while server.pool.texts < 8:
            time.sleep(0.001)
        victim = max(server.pool.workers, key=lambda worker: len(worker.texts))
        assert victim.process is not None and victim.texts
        os.kill(victim.process.pid, kind)
        if kind == signal.SIGSTOP:  # the event loop waits for nobody
            until = time.monotonic() + 10
            while ask(server, "/health")[0] == 200:
                assert time.monotonic() < until, "a stopped engine is called healthy"
                time.sleep(0.1)
            for _ in range(40):  # more than a socket holds
                began = time.monotonic()
                ask(server, "/health")
                assert time.monotonic() - began < 1
    assert server.pool.deaths == deaths + 1
    _, text = ask(server, "/metrics", Authorization="Bearer secret")
    assert f'rung:worker_deaths{{model_name="tiny"}} {deaths + 1}.0' in text
    until = time.monotonic() + 60
    while ask(server, "/health")[0] != 200:
        assert time.monotonic() < until, "it is not started again"
        time.sleep(0.1)


@pytest.mark.slow
def test_a_stream_goes_on_where_it_was_when_its_engine_dies(server: Running, model: Model) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0) as client:
        stream = client.completions.create(model="tiny", prompt="Once upon a time", seed=3, max_tokens=240, stream=True)
        pieces = [next(stream).choices[0].text]
        victim = next(worker for worker in server.pool.workers if worker.texts)
        assert victim.process is not None
        os.kill(victim.process.pid, signal.SIGKILL)
        pieces += [chunk.choices[0].text for chunk in stream if chunk.choices]
    assert "".join(pieces) == expected(model, 3, 240)


@pytest.mark.slow
def test_a_server_whose_engine_cannot_be_kept_running_ends_with_a_code() -> None:
    with command("--model", str(folder()), "--dtype", "float32", "--slots", "2") as (process, url):
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        until = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < until:
            for pid in children.read_text().split() if process.poll() is None else ():
                with contextlib.suppress(OSError):
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.2)
        assert process.poll() not in (None, 0)
        with pytest.raises(OSError):
            urllib.request.urlopen(f"{url}/health", timeout=5)


@pytest.mark.slow
def test_texts_that_cannot_fit_are_refused_without_a_tokenizer_and_others_do_not_wait(
    server: Running, model: Model
) -> None:
    large = {"prompt": "a " * 1_500_000}
    began = time.monotonic()
    status, answer = ask(server, "/v1/completions", large, Authorization="Bearer secret")
    assert status == 400 and answer["error"]["code"] == "context_length_exceeded"
    assert time.monotonic() - began < 2
    done = threading.Thread(target=ask, args=(server, "/tokenize", large), kwargs={"Authorization": "Bearer secret"})
    done.start()
    while done.is_alive():
        began = time.monotonic()
        assert ask(server, "/health")[0] == 200
        assert time.monotonic() - began < 1.5
        time.sleep(0.05)
    done.join()


def test_a_small_request_does_not_wait_for_a_large_one(server: Running, model: Model) -> None:
    large = {"prompt": "The wolf", "n": 100, "max_tokens": 100, "ignore_eos": True}
    head, payload = request_bytes(large)
    with raw(server, head, payload):
        until = time.monotonic() + 10
        while server.pool.texts < 100 and time.monotonic() < until:
            time.sleep(0.01)
        left = server.pool.texts
        assert one(server, 2, 8) == expected(model, 2, 8)
        assert left >= 100 and server.pool.texts > 40, "it waited for the large request"
    assert settled(server)


def test_what_a_request_can_ask_for_is_bounded(server: Running) -> None:
    key = {"Authorization": "Bearer secret"}
    for body in ({"prompt": [5] * 200, "echo": True, "logprobs": 20, "n": 128}, {"prompt": "a", "priority": -5}):
        assert ask(server, "/v1/completions", body, **key)[0] == 400
    assert ask(server, "/v1/completions", {"prompt": "a", "\ud800": 1}, **key)[0] == 400
    assert ask(server, "/v1/models", Authorization="secret")[0] == 401
    assert ask(server, "/v1/models", Authorization="Bearer schlüssel".encode().decode("latin-1"))[0] == 401


def test_requests_have_ids_and_answers_a_fingerprint(server: Running) -> None:
    key = {"Authorization": "Bearer secret"}
    status, answer = ask(server, "/v1/completions", {"prompt": "a", "max_tokens": 1}, X_Request_Id="mine-1", **key)
    assert status == 200 and ask.headers["x-request-id"] == "mine-1"  # type: ignore[attr-defined]
    assert answer["system_fingerprint"].startswith("rung_")
    ask(server, "/v1/nothing", X_Request_Id="x" * 500, **key)
    ask(server, "/health")
    assert ask.headers["x-request-id"].startswith("req-")  # type: ignore[attr-defined]


def test_a_bias_forbids_and_forces_tokens(server: Running, model: Model) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0) as client:
        plain = client.completions.create(model="tiny", prompt="Once", max_tokens=1, temperature=0, logprobs=1)
        greedy = model.generate("Once", max_new_tokens=1, temperature=0).tokens[0]
        other = client.completions.create(
            model="tiny", prompt="Once", max_tokens=4, temperature=0, logit_bias={str(greedy): -100}
        )
        forced = client.completions.create(
            model="tiny", prompt="Once", max_tokens=4, temperature=1.0, logit_bias={"17": 1000}
        )
    assert plain.choices[0].text != other.choices[0].text
    assert forced.choices[0].text == model.tokenizer.decode([17] * 4)


def test_embeddings_are_the_models_in_both_encodings(server: Running, model: Model) -> None:
    texts = ["Once upon a time", "The wolf"]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0) as client:
        packed = client.embeddings.create(model="tiny", input=texts)
        plain = client.embeddings.create(model="tiny", input=texts, encoding_format="float")
        tokens = client.embeddings.create(model="tiny", input=[model.tokenizer.encode(texts[0])])
    for i, vector in enumerate(model.embed(texts)):
        assert plain.data[i].embedding == pytest.approx(vector.tolist(), rel=1e-6)
        assert packed.data[i].embedding == pytest.approx(vector.tolist(), rel=1e-6)
    assert tokens.data[0].embedding == pytest.approx(plain.data[0].embedding, rel=1e-6)
    assert plain.usage.prompt_tokens == sum(len(model.tokenizer.encode(text)) for text in texts)


def test_embeddings_end_with_their_client(server: Running) -> None:
    body = json.dumps({"input": [[1] * 250] * 256}).encode()
    with raw(server, "POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n") as one:
        one.sendall(b"Authorization: Bearer secret\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        until = time.monotonic() + 30
        while not any(worker.calls for worker in server.pool.workers):
            assert time.monotonic() < until
            time.sleep(0.001)
    while any(worker.calls for worker in server.pool.workers):
        assert time.monotonic() < until, "nobody waits for it, and it is computed on"
        time.sleep(0.01)
    status, found = ask(server, "/v1/embeddings", {"input": [[1] * 250] * 256 * 3}, Authorization="Bearer secret")
    assert status == 400 and found["error"]["param"] == "input"


@pytest.mark.slow
def test_a_chat_is_a_completion_of_what_the_models_template_writes(server: Running, model: Model, tmp_path: Path) -> None:
    messages: Any = [{"role": "user", "content": "Once upon"}]
    status, answer = ask(server, "/v1/chat/completions", {"messages": messages}, Authorization="Bearer secret")
    assert status == 400 and answer["error"]["code"] == "no_chat_template"
    for file in folder().iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    with running(tmp_path, slots=2) as other, openai.OpenAI(base_url=f"{other.url}/v1", api_key="x") as client:
        how: Any = {"model": "tiny", "messages": messages, "seed": 4, "temperature": 1.0}
        whole = client.chat.completions.create(**how, max_completion_tokens=12, logprobs=True, top_logprobs=2)
        stream = list(client.chat.completions.create(**how, max_tokens=12, stream=True))
        wanted = model.generate("[user] Once upon\n[assistant]", seed=4, temperature=1.0, top_p=1.0, max_new_tokens=12)
        assert whole.choices[0].message.content == wanted.text and whole.choices[0].message.role == "assistant"
        assert whole.object == "chat.completion" and whole.choices[0].logprobs is not None
        assert stream[0].choices[0].delta.role == "assistant"
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == wanted.text
        assert ask(other, "/v1/chat/completions", {"messages": [{"role": 1}]})[0] == 400
