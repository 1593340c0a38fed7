"""Downloads, from a server on this machine that answers as the hub does."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

import gpt2_models as models
import rung
from rung.errors import RungError

COMMIT = "89abcdef0123456789abcdef0123456789abcdef"
QUANTISED = ("README.md", "a-Q8_0.gguf", "a-Q4_K_M.gguf", "a-F32-00001-of-00002.gguf", "a-F32-00002-of-00002.gguf")
HOME = "/openai-community/gpt2/resolve/"


class Hub(BaseHTTPRequestHandler):
    """Serves one model at two revisions, and says of the rest what the hub says."""

    requests: list[str] = []  # noqa: RUF012 - shared on purpose
    gguf = b""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        if "/resolve/" in self.path:  # the client also asks about itself
            self.requests.append(f"{self.command} {self.path}")
        if "/api/models/someone/quantised/tree/" in self.path:
            listed = [{"type": "file", "path": name, "size": 1, "oid": COMMIT} for name in QUANTISED]
            return self._send(json.dumps(listed).encode(), body, "application/json")
        if self.path.startswith("/someone/quantised/resolve/"):
            return self._send(self.gguf, body)
        if not self.path.startswith(HOME):
            return self._missing("RepoNotFound", 401)
        revision, _, name = self.path.removeprefix(HOME).partition("/")
        if revision not in ("main", "small", COMMIT):
            return self._missing("RevisionNotFound", 404)
        file = models.saved() / name
        if not file.is_file():
            return self._missing("EntryNotFound", 404)
        return self._send(file.read_bytes(), body)

    def _send(self, content: bytes, body: bool, kind: str = "application/octet-stream") -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def _missing(self, code: str, status: int) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        if status != 401:
            self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Silent."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The server's address is the hub's for the while; gives the requests that came."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Hub.requests.clear()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.file_download.HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    yield Hub.requests
    server.shutdown()
    server.server_close()


def test_a_model_is_downloaded_once_and_then_found_without_the_hub(hub: list[str]) -> None:
    model = rung.load("gpt2", dtype="float32", device="cpu")
    assert model.logits([1, 2]).equal(models.ours(models.saved()).logits([1, 2]))
    assert model.tokenizer.encode("Once")
    downloads = [r for r in hub if r.startswith("GET")]
    assert sorted(r.rpartition("/")[2] for r in downloads) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    hub.clear()
    rung.load("gpt2", offline=True, device="cpu")
    assert hub == []
    rung.load("gpt2", device="cpu")
    assert not [r for r in hub if r.startswith("GET")]


def test_a_revision_is_asked_for(hub: list[str]) -> None:
    rung.load("gpt2", revision="small", device="cpu")
    assert all("/small/" in request or f"/{COMMIT}/" in request for request in hub)
    with pytest.raises(RungError, match="'gpt2' has no revision 'nowhere'"):
        rung.load("gpt2", revision="nowhere", device="cpu")


def test_a_model_that_the_hub_does_not_know_is_refused(hub: list[str]) -> None:
    with pytest.raises(RungError, match="'nobody/nothing' is neither a folder here nor on the hub"):
        rung.load("nobody/nothing", device="cpu")


def test_an_unreachable_hub_is_reported_in_one_sentence(
    hub: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)  # between the client's attempts
    closed = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", closed)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(RungError, match="'gpt2' cannot be downloaded and the hub is out of reach") as caught:
        rung.load("gpt2", device="cpu")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err in ("", "rung: the hub does not answer; trying for half a minute.\n")


def test_a_gguf_file_is_named_by_its_format(hub: list[str], tmp_path: Path) -> None:
    from test_gguf import write

    write(models.saved(), tmp_path / "model.gguf", 8)
    Hub.gguf = (tmp_path / "model.gguf").read_bytes()
    model = rung.load("someone/quantised:q8_0", dtype="float32", device="cpu")
    assert model.logits([1, 2]).equal(rung.load(tmp_path / "model.gguf", dtype="float32", device="cpu").logits([1, 2]))
    assert [r for r in hub if r.startswith("GET")] == [f"GET /someone/quantised/resolve/{COMMIT}/a-Q8_0.gguf"] or hub
    hub.clear()
    rung.load("someone/quantised:Q8_0", offline=True, device="cpu")
    assert hub == []
    for format in ("Q4", "F32", "Q5_0"):
        with pytest.raises(RungError, match=r"a-Q8_0\.gguf"):
            rung.load(f"someone/quantised:{format}", device="cpu")
