"""The server under load and faults: nothing lost, nothing mixed, memory flat; signals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from test_serve import ask, metric, settled

import gpt2_models as models
from rung.models.load import Model
from serving import Running, command, running

CONTEXT = 256
PROMPTS = ["Once upon a time", "The wolf", "Little pig", "A dragon", "Die Märchen", models.TEXT[:200]]


def folder() -> Path:
    return models.saved(n_positions=CONTEXT)


@pytest.fixture(scope="module")
def model() -> Model:
    return models.ours(folder())


def body(seed: int, prompt: str, **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "seed": seed, "max_tokens": 24, **more}


def expected(model: Model, seed: int, prompt: str) -> str:
    return model.generate(prompt, seed=seed, temperature=1.0, top_p=1.0, max_new_tokens=24).text


# ---- signals --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_signal_lets_what_runs_finish(model: Model) -> None:
    with command("--model", str(folder()), "--dtype", "float32", "--slots", "2", "--name", "tiny") as (process, url):
        request = urllib.request.Request(
            f"{url}/v1/completions", json.dumps({**body(4, "The wolf", n=30, stream=True), "model": "tiny"}).encode(),
            {"Content-Type": "application/json"},
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=60) as answer:
            first = answer.readline()
            process.send_signal(signal.SIGTERM)
            rest = answer.read().decode()
        chunks = [json.loads(line[6:]) for line in (first.decode() + rest).splitlines() if line.startswith("data: {")]
        ends = [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
        assert len(ends) == 30 and rest.endswith("data: [DONE]\n\n")
        text = "".join(c["text"] for chunk in chunks for c in chunk["choices"] if c["index"] == 0)
        assert text == expected(model, 4, "The wolf")
        assert process.wait(30) == 0


@pytest.mark.slow
def test_a_connection_made_while_the_server_ends_does_not_hold_it_up() -> None:
    with running(folder()) as server:
        busy = threading.Event()
        server.loop.call_soon_threadsafe(lambda: (busy.set(), time.sleep(1)))  # it is accepted when the end has begun
        busy.wait()
        late = socket.create_connection(("127.0.0.1", server.port))
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 4  # less than the grace
        late.close()


def test_a_signal_after_the_ready_line_ends_in_order() -> None:
    with command("--model", str(folder()), "--dtype", "float32") as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.slow
def test_the_documents_curl_lines_work() -> None:
    import re
    import subprocess

    root = Path(__file__).parents[2]
    pages = [(root / page).read_text(encoding="utf-8") for page in ("README.md", "docs/serving.md")]
    lines = [line for page in pages for line in re.findall(r"^curl (?:.*\\\n)*.*$", page, re.MULTILINE)]
    assert len(lines) >= 3
    with command("--dtype", "float32") as (_, url):
        for line in lines:
            done = subprocess.run(
                ["bash", "-c", line.replace("http://127.0.0.1:8000", url)], capture_output=True, text=True, timeout=60
            )
            assert done.returncode == 0 and '"error"' not in done.stdout and done.stdout, line


# ---- load -----------------------------------------------------------------------------------------------------------


class Client:
    """One of many, on its own connections, by bytes: a client library would not send rubbish."""

    def __init__(self, server: Running, answers: dict[tuple[int, int], str], dice: random.Random) -> None:
        self.port, self.answers, self.dice = server.port, answers, dice
        self.kept = self.left = self.refused = 0

    async def until(self, end: float) -> None:
        while time.monotonic() < end:
            kind = self.dice.choices(("keep", "leave", "rubbish"), (0.57, 0.33, 0.1))[0]
            await getattr(self, kind)()

    async def _send(self, payload: bytes, headers: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
        writer.write(head + headers + b"Content-Length: %d\r\n\r\n" % len(payload) + payload)
        return reader, writer

    async def _close(self, writer: asyncio.StreamWriter) -> None:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def keep(self) -> None:
        seed, which = self.dice.randrange(4), self.dice.randrange(len(PROMPTS))
        stream = self.dice.random() < 0.5
        reader, writer = await self._send(json.dumps(body(seed, PROMPTS[which], stream=stream)).encode())
        raw = bytearray()
        slow = self.dice.random() < 0.1
        while part := await asyncio.wait_for(reader.read(64 if slow else 65536), 60):
            raw += part
            if slow:
                await asyncio.sleep(0.005)
        await self._close(writer)
        head, _, content = bytes(raw).partition(b"\r\n\r\n")
        if b" 429 " in head.split(b"\r\n")[0]:
            assert b"retry-after" in head.lower()
            self.refused += 1
            await asyncio.sleep(0.05)
            return
        assert b" 200 " in head.split(b"\r\n")[0], head
        if stream:
            lines = _unchunked(content).decode().split("\n\n")
            assert lines[-2:] == ["data: [DONE]", ""]
            text = "".join(json.loads(line[6:])["choices"][0]["text"] for line in lines[:-2])
        else:
            text = json.loads(content)["choices"][0]["text"]
        assert text == self.answers[seed, which]
        self.kept += 1

    async def leave(self) -> None:
        payload = json.dumps(body(1, PROMPTS[0], max_tokens=200, stream=self.dice.random() < 0.5, n=2)).encode()
        reader, writer = await self._send(payload)
        if self.dice.random() < 0.5:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reader.read(200), self.dice.random() * 0.2)
        elif self.dice.random() < 0.5:
            with contextlib.suppress(OSError):
                writer.write_eof()  # half closed: nothing more comes, an answer could still be read
            await asyncio.sleep(0.01)
        await self._close(writer)
        self.left += 1

    async def rubbish(self) -> None:
        wrong: list[tuple[bytes, bytes, bytes]] = [
            (b'{"prompt": "Once', b"", b" 400 "),
            (b'{"prompt": 5}', b"", b" 400 "),
            (b'{"prompt": "a", "max_tokens": "many"}', b"", b" 400 "),
            (b"\x00\xff" * 100, b"", b" 400 "),
            (b"x" * (10 << 20), b"", b" 413 "),
        ]
        payload, headers, status = self.dice.choice(wrong)
        reader, writer = await self._send(payload, headers)
        try:
            line = await asyncio.wait_for(reader.readline(), 60)
            assert status in line or line == b"", line
        except ConnectionError:
            assert len(payload) > 1 << 20  # the response came before all was sent
        await self._close(writer)
        self.refused += 1


def _unchunked(content: bytes) -> bytes:
    whole = bytearray()
    while content:
        size, _, content = content.partition(b"\r\n")
        count = int(size, 16)
        whole += content[:count]
        content = content[count + 2 :]
    return bytes(whole)


def memory(pid: int) -> float:
    """Resident MB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.parametrize(
    ("clients_at_once", "seconds"),
    [pytest.param(40, 5.0, marks=pytest.mark.slow), pytest.param(200, 60.0, marks=pytest.mark.soak)],
)
def test_many_clients_for_a_while_of_which_many_misbehave(model: Model, clients_at_once: int, seconds: float) -> None:
    answers = {(s, i): expected(model, s, p) for s in range(4) for i, p in enumerate(PROMPTS)}
    with command("--model", str(folder()), "--dtype", "float32", "--slots", "16", "--max-queue", "400") as (process, url):
        server: Any = type("There", (), {"port": int(url.rpartition(":")[2]), "url": url})()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        clients = [Client(server, answers, random.Random(i)) for i in range(clients_at_once)]
        sizes: list[tuple[float, ...]] = []
        ask(server, "/v1/completions", body(0, PROMPTS[0]))
        processes = [Path(f"/proc/{pid}") for pid in (process.pid, *children)]
        files = [len(list((one / "fd").iterdir())) for one in processes]
        threads: list[list[int]] = []

        async def watch(end: float) -> None:
            while time.monotonic() < end:
                await asyncio.sleep(seconds / 30)
                sizes.append(tuple(memory(int(pid)) for pid in (process.pid, *children)))
                threads.append([len(list((one / "task").iterdir())) for one in processes])

        async def everyone() -> None:
            end = time.monotonic() + seconds
            await asyncio.gather(watch(end), *(client.until(end) for client in clients))

        asyncio.run(everyone())
        finished, left, refused = (sum(getattr(c, k) for c in clients) for k in ("kept", "left", "refused"))
        print(f"{finished} finished, {left} left, {refused} refused; MB at {sizes[0]} .. {sizes[-1]}")
        assert finished > clients_at_once and left > clients_at_once / 2 and refused > clients_at_once / 10
        time.sleep(1)
        assert metric(server, "vllm:num_requests_running") == metric(server, "vllm:num_requests_waiting") == 0
        third = len(sizes) // 3
        for early, late in zip(sizes[third], sizes[-1], strict=True):
            assert late < 1.1 * early + 30, "memory grows"
        for one, before, early in zip(processes, files, threads[third], strict=True):
            assert len(list((one / "fd").iterdir())) <= before, "files are left open"
            assert len(list((one / "task").iterdir())) <= early, "threads are left"
        assert ask(server, "/v1/completions", body(0, PROMPTS[0]))[1]["choices"][0]["text"] == answers[0, 0]


def test_a_slow_body_gets_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    from rung.serve import app

    monkeypatch.setattr(app, "READ_SECONDS", 0.2)
    with running(folder(), slots=1) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as one:
            one.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
            one.sendall(b"Content-Length: 100\r\n\r\n{")
            assert b" 408 " in one.recv(1000)
        assert settled(server)


# ---- replicas ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_cluster_serves_replicas_behind_one_address(model: Model) -> None:
    pytest.importorskip("ray")
    import openai

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ("--model", str(folder()), "--dtype", "float32", "--name", "tiny", "--device", "cpu", "--ray", "local")
    with command(*words, port=port) as (process, url):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=60)
        request_body: Any = body(3, PROMPTS[0], model="tiny", temperature=1.0, top_p=1.0)
        assert client.completions.create(**request_body).choices[0].text == expected(model, 3, PROMPTS[0])
        pieces = [chunk.choices[0].text for chunk in client.completions.create(**request_body, stream=True)]
        assert len(pieces) > 1 and "".join(pieces) == expected(model, 3, PROMPTS[0])
        with pytest.raises(openai.BadRequestError):
            client.completions.create(**{**request_body, "max_tokens": "many"})
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
