"""The routes: completions and related requests, with limits that protect the server."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gpuless.base.files import whole
from rung.errors import RungError
from rung.models.batching.text import Piece
from rung.models.batching.worker_pool import PooledText, WorkerPool
from rung.serve.completions import (
    Call,
    Choice,
    Served,
    answer,
    chat_answer,
    chat_body,
    embeddings,
    joined,
    parse,
    parse_embeddings,
    usage,
    written,
)
from rung.serve.http import Refusal, named
from rung.serve.metrics import Metrics

PAGE = Path(__file__).with_name("page.html")
READ_SECONDS = 30.0  # seconds for a body to arrive
OPEN = ("/", "/health")  # paths that need no key
ID = "x-request-id"
MOST_EMBEDDING = 16  # requests for embeddings at a time
log = logging.getLogger("rung.serve")


@dataclass(frozen=True)
class Limits:
    """Limits of a client's requests."""

    body: int = 4 << 20  # bytes
    queue: int = 1024  # texts that wait, in addition to those in slots
    seconds: float = 600.0  # for a request
    connections: int = 4096
    idle: float = 30.0  # seconds for a request's headers to arrive, and for a client to read
    grace: float = 30.0  # seconds for running requests after a signal
    priority: bool = False  # whether clients may set it


class Server:
    """The application's state."""

    def __init__(
        self, served: Served, pool: WorkerPool, limits: Limits, key: str | None = None, origins: Sequence[str] = (),
        *, local: bool = False,
    ) -> None:  # fmt: skip
        """`local`: it listens on this machine alone, and is asked for by this machine's names, or its origins' own."""
        self.served, self.pool, self.limits, self._key = served, pool, limits, key
        self._names = {"localhost", *(urlsplit(one).hostname or one for one in origins)} if local and not key else None
        self.metrics = Metrics(served.name)
        self.inbox, self._tokenizing = Inbox(), ThreadPoolExecutor(1, "tokenize")
        self._started, self._embedding = int(time.time()), 0
        handlers = {
            ("/", "GET"): self.page,
            ("/health", "GET"): self.health,
            ("/metrics", "GET"): self.show_metrics,
            ("/v1/models", "GET"): self.models,
            ("/v1/models/{name:path}", "GET"): self.model,
            ("/v1/completions", "POST"): self.completions,
            ("/v1/chat/completions", "POST"): self.chat,
            ("/v1/embeddings", "POST"): self.embeddings,
            ("/tokenize", "POST"): self.tokenize,
            ("/detokenize", "POST"): self.detokenize,
            ("/tokenizer_info", "GET"): self.tokenizer_info,
        }
        cors = Middleware(CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"])
        self.app = Starlette(
            routes=[
                Route(path, partial(self._guarded, handler), methods=[method])
                for (path, method), handler in handlers.items()
            ],
            middleware=[cors] if origins else [],
            exception_handlers={HTTPException: _no_route, Exception: _broken},
            lifespan=self._lifespan,
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        if not self.pool.serving:
            await asyncio.to_thread(self.pool.start)
        try:
            yield
        finally:
            await asyncio.to_thread(self.pool.close)

    async def _guarded(self, handler: Callable[[Request], Awaitable[Response]], request: Request) -> Response:
        request.state.id = _id_of(request)
        try:
            self._authorize(request)
            response = await handler(request)
        except Refusal as refusal:
            self.metrics.refused(refusal.status)
            if refusal.status >= 500:
                log.warning("%s: %s", request.state.id, refusal.message)
            response = refusal.response()
        except RungError as error:
            self.metrics.refused(400)
            response = Refusal(400, str(error)).response()
        except ClientDisconnect:
            response = Response(status_code=499)  # not read
        except Exception as error:
            log.exception("%s: the server failed", request.state.id)
            self.metrics.refused(500)
            response = _failed(error)
        response.headers[ID] = request.state.id
        return response

    def _authorize(self, request: Request) -> None:
        # A page whose name an attacker's server has turned into this machine's address sends that name.
        if self._names is not None and not named(request.headers.get("host", ""), self._names):
            message = "the host's name is not this machine's; ask for localhost, or allow the name by --cors."
            raise Refusal(403, message, code="host_not_allowed")
        if self._key is None or request.url.path in OPEN:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(given.strip().encode("latin-1"), self._key.encode())
        if scheme.lower() != "bearer" or not right:
            message = "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'."
            headers = {"WWW-Authenticate": "Bearer", "Connection": "close"}
            raise Refusal(401, message, code="invalid_api_key", headers=headers)

    # ---- bodies -----------------------------------------------------------------------------------------------------

    async def _body(self, request: Request) -> Any:
        # Another site's page can make a browser post forms and plain text here without permission, but not JSON.
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refusal(415, "the body must be JSON; send the header 'Content-Type: application/json'.")
        try:
            raw = await asyncio.wait_for(self._read(request), READ_SECONDS)
        except TimeoutError:
            close = {"Connection": "close"}
            raise Refusal(408, f"the body did not arrive within {READ_SECONDS:g} s.", headers=close) from None
        try:
            return json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise Refusal(400, f"the body is no JSON ({str(error)[:80]}).") from None

    async def _read(self, request: Request) -> bytes:
        length = whole(request.headers.get("content-length", "0"))
        most, raw = self.limits.body, bytearray()
        if length is not None and length <= most:
            async for part in request.stream():
                raw += part
                if len(raw) > most:
                    break
            else:
                return bytes(raw)
        message = f"the body is larger than {most:,} bytes; send fewer or shorter prompts at once."
        raise Refusal(413, message, headers={"Connection": "close"})

    # ---- completions ------------------------------------------------------------------------------------------------

    async def completions(self, request: Request) -> Response:
        return await self._write(request, await self._body(request), Writing)

    async def chat(self, request: Request) -> Response:
        body = await asyncio.to_thread(chat_body, await self._body(request), self.served)
        return await self._write(request, body, ChatWriting)

    async def _write(self, request: Request, body: Any, kind: type[Writing]) -> Response:
        call = await asyncio.to_thread(parse, body, self.served, priority=self.limits.priority, id=request.state.id)
        self._admit(len(call.requests))
        writing = kind(self, call)
        if call.stream:
            return StreamedAnswer(writing)
        async with left_by(request.receive) as disconnected:
            try:
                return JSONResponse(await writing.whole(disconnected))
            finally:
                writing.cancel()

    async def embeddings(self, request: Request) -> Response:
        body = await self._body(request)
        call = await asyncio.to_thread(parse_embeddings, body, self.served)
        self._alive()
        if self._embedding >= MOST_EMBEDDING:
            raise Refusal(429, "too many embeddings are being computed; try again later.", headers={"Retry-After": "1"})
        self._embedding += 1
        try:
            vectors = await asyncio.wait_for(asyncio.wrap_future(self.pool.call(call.work)), self.limits.seconds)
        except TimeoutError:
            raise self.late() from None
        finally:
            self._embedding -= 1
        return JSONResponse(embeddings(call, self.served.name, vectors))

    def late(self) -> Refusal:
        return Refusal(504, f"the request took longer than {self.limits.seconds:g} s; ask for less.")

    def _admit(self, texts: int) -> None:
        self._alive()
        busy, limit = self.pool.texts, self.pool.slots + self.limits.queue
        if busy + texts > limit and busy:
            message = f"{busy} texts are being written or wait, and {limit} is the most; try again later."
            raise Refusal(429, message, code="queue_full", headers={"Retry-After": "1"})
        if texts > limit:
            raise Refusal(400, f"{texts} texts are more than this server takes at once, {limit}; send fewer.", "prompt")

    def _alive(self) -> None:
        if not self.pool.serving:
            raise Refusal(503, "the engine is not running; try again later.", headers={"Retry-After": "5"})

    # ---- other routes ------------------------------------------------------------------------------------------------

    async def page(self, request: Request) -> Response:
        policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
        policy += "frame-ancestors 'none'"
        headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"}
        return HTMLResponse(PAGE.read_text(encoding="utf-8"), headers=headers)

    async def health(self, request: Request) -> Response:
        if not self.pool.healthy:
            raise Refusal(503, "an engine is not running, or does not answer.")
        return JSONResponse({"status": "ok"})

    async def show_metrics(self, request: Request) -> Response:
        workers, texts = self.pool.workers, self.pool.texts
        waiting = min(texts, sum(one.waiting for one in workers))
        self.metrics.waiting.set(waiting)
        self.metrics.running.set(texts - waiting)
        self.metrics.usage.set(sum(one.usage for one in workers) / len(workers) if texts else 0)
        self.metrics.deaths.set(self.pool.deaths)
        self.metrics.restarts.set(sum(one.restarts for one in workers))
        self.metrics.shared.set(sum(one.shared_tokens for one in workers))
        self.metrics.set_back.set(sum(one.set_back for one in workers))
        self.metrics.failures.set(sum(one.failures for one in workers))
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    def _card(self) -> dict[str, Any]:
        s = self.served
        return {
            "id": s.name, "object": "model", "created": self._started, "owned_by": "rung",
            "max_model_len": s.config.context,
        }  # fmt: skip

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name != self.served.name:
            message = f"there is no model {name!r}; this server has {self.served.name!r}."
            raise Refusal(404, message, "model", "model_not_found")
        return JSONResponse(self._card())

    async def tokenize(self, request: Request) -> Response:
        body = await self._body(request)
        text = body.get("prompt") if isinstance(body, dict) else None
        if not isinstance(text, str):
            raise Refusal(400, 'send {"prompt": "a text"}.', "prompt")
        if len(text) > self.served.longest:
            message = f"the text has {len(text):,} characters, more than the model's context holds; send a shorter one."
            raise Refusal(400, message, "prompt", "context_length_exceeded")
        # On a thread of its own: completions do not wait behind texts of megabytes.
        ids = await asyncio.get_running_loop().run_in_executor(self._tokenizing, self.served.tokenizer.encode, text)
        found = {"count": len(ids), "max_model_len": self.served.config.context, "tokens": ids}
        if body.get("return_token_strs") is True:
            found["token_strs"] = [written(id, self.served.tokenizer) for id in ids]
        return JSONResponse(found)

    async def detokenize(self, request: Request) -> Response:
        body = await self._body(request)
        ids = body.get("tokens") if isinstance(body, dict) else None
        vocabulary = self.served.config.vocabulary
        if not isinstance(ids, list) or not all(type(id) is int and 0 <= id < vocabulary for id in ids):
            raise Refusal(400, f'send {{"tokens": [...]}}, whole numbers below {vocabulary}.', "tokens")
        return JSONResponse({"prompt": self.served.tokenizer.decode(ids)})

    async def tokenizer_info(self, request: Request) -> Response:
        s = self.served
        end = s.tokenizer.decode(s.config.eos[:1]) if s.config.eos else None
        begin = end if s.config.bos is None else s.tokenizer.decode((s.config.bos,))
        template = None if s.chat_template is None else s.chat_template.source
        return JSONResponse({
            "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": s.config.context,
            "vocab_size": s.config.vocabulary, "bos_token": begin, "eos_token": end, "unk_token": end,
            "pad_token": None, "chat_template": template,
        })  # fmt: skip


# ---- a running call -------------------------------------------------------------------------------------------------


class Inbox:
    """Pieces from the workers' threads into the event loop, woken once for all that have come."""

    def __init__(self) -> None:
        self._items: deque[tuple[Callable[[Piece], None], Piece]] = deque()
        self._scheduled = False

    def listener(self, handle: Callable[[Piece], None]) -> Callable[[Piece], None]:
        """What a thread may call in place of `handle`."""
        loop = asyncio.get_running_loop()

        def put(piece: Piece) -> None:
            self._items.append((handle, piece))
            if not self._scheduled:
                self._scheduled = True
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(self._drain)

        return put

    def _drain(self) -> None:
        self._scheduled = False
        while self._items:
            handle, piece = self._items.popleft()
            handle(piece)


class Writing:
    """A call's running texts: their pieces in one queue, in the order of arrival."""

    def __init__(self, server: Server, call: Call) -> None:
        self._server, self.call = server, call
        self.choices = [Choice(call, i, server.served.tokenizer) for i in range(len(call.requests))]
        self._pieces: asyncio.Queue[tuple[int, Piece]] = asyncio.Queue()
        self._deadline = time.monotonic() + server.limits.seconds
        self._texts: list[PooledText] = []
        for i, request in enumerate(call.requests):
            watch = server.metrics.begin(len(request.ids))

            def on_piece(piece: Piece, i: int = i, observe: Callable[[Piece], None] = watch.see) -> None:
                observe(piece)
                self._pieces.put_nowait((i, piece))

            text = server.pool.submit(request, server.inbox.listener(on_piece))
            assert isinstance(text, PooledText)
            self._texts.append(text)

    async def parts(self, disconnected: asyncio.Event) -> AsyncIterator[dict[str, Any]]:
        """Each piece as a chunk's choice until all texts have ended; raises Refusal if they cannot."""
        left = len(self.choices)
        leaving = asyncio.ensure_future(disconnected.wait())
        try:
            while left:
                i, piece = await self._next(leaving)
                if piece.error is not None:
                    raise Refusal(500, piece.error, code="engine_error")
                left -= piece.reason is not None
                yield self.choices[i].add(piece)
        finally:
            leaving.cancel()

    async def _next(self, leaving: asyncio.Future[Any]) -> tuple[int, Piece]:
        if self._pieces.empty():
            waiting = asyncio.ensure_future(self._pieces.get())
            try:
                remaining = self._deadline - time.monotonic()
                await asyncio.wait({waiting, leaving}, timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
                if waiting.done():
                    return waiting.result()
            finally:
                waiting.cancel()
            if not leaving.done():
                raise self._late()
        if leaving.done():
            raise ClientDisconnect
        if time.monotonic() > self._deadline:
            raise self._late()
        return self._pieces.get_nowait()

    def _late(self) -> Refusal:
        return self._server.late()

    async def whole(self, disconnected: asyncio.Event) -> dict[str, Any]:
        """The response to a call that does not stream."""
        parts: list[list[dict[str, Any]]] = [[] for _ in self.choices]
        async for part in self.parts(disconnected):
            parts[part["index"]].append(part)
        return answer(self.call, self._server.served, list(map(joined, parts)), usage=self.usage)

    async def chunks(self, disconnected: asyncio.Event) -> AsyncIterator[dict[str, Any]]:
        """The chunks of a streaming call; empty ones are left out."""
        more = {"usage": None} if self.call.include_usage else {}
        served = self._server.served
        async for part in self.parts(disconnected):
            tokens = part["logprobs"] and part["logprobs"]["tokens"]
            if part["text"] or part["finish_reason"] or tokens or "prompt_logprobs" in part:
                yield answer(self.call, served, [part], **more)
        if self.call.include_usage:
            yield answer(self.call, served, [], usage=self.usage)

    @property
    def usage(self) -> dict[str, int]:
        return usage(self.call, self.choices)

    def cancel(self) -> None:
        """Cancel texts that are not needed any more."""
        for text in self._texts:
            if not text.ended:
                self._server.metrics.ended("interrupted")
            text.drop()


class ChatWriting(Writing):
    """The same in a chat's form."""

    async def whole(self, disconnected: asyncio.Event) -> dict[str, Any]:
        return chat_answer(await super().whole(disconnected), set())

    async def chunks(self, disconnected: asyncio.Event) -> AsyncIterator[dict[str, Any]]:
        begun: set[int] = set()
        async for chunk in super().chunks(disconnected):
            yield chat_answer(chunk, begun)


class StreamedAnswer(Response):
    """Server-sent events. When a client disconnects, its texts end, also while nothing is being sent."""

    def __init__(self, writing: Writing) -> None:
        super().__init__(media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self._writing = writing
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def event(data: str) -> None:
            await send({"type": "http.response.body", "body": f"data: {data}\n\n".encode(), "more_body": True})

        async with left_by(receive) as disconnected:
            try:
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                try:
                    async for chunk in self._writing.chunks(disconnected):
                        await event(json.dumps(chunk, ensure_ascii=False, separators=(",", ":")))
                except Refusal as refusal:
                    await event(json.dumps(refusal.body))
                await event("[DONE]")
                await send({"type": "http.response.body", "body": b""})
            except (ClientDisconnect, OSError):
                pass
            finally:
                self._writing.cancel()


@contextlib.asynccontextmanager
async def left_by(receive: Receive) -> AsyncIterator[asyncio.Event]:
    """An event that is set when the client has disconnected."""
    disconnected = asyncio.Event()

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        disconnected.set()

    task = asyncio.create_task(watch())
    try:
        yield disconnected
    finally:
        task.cancel()


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    known = {404: f"there is nothing at {path}.", 405: f"{path} does not take {request.method}."}
    return Refusal(error.status_code, known.get(error.status_code, error.detail), headers=error.headers).response()


def _failed(error: Exception) -> Response:
    return Refusal(500, f"the server failed ({type(error).__name__}).", code="internal_error").response()


async def _broken(request: Request, error: Exception) -> Response:
    return _failed(error)


def _id_of(request: Request) -> str:
    """The client's name for the request, if it can be logged and sent back, or a new one."""
    given = request.headers.get(ID, "")
    return given if given.isascii() and given.isprintable() and 0 < len(given) <= 128 else f"req-{secrets.token_hex(8)}"
