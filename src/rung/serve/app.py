"""The routes: completions and related requests, with limits that protect the server."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import secrets
import time
from asyncio import FIRST_COMPLETED
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

from gpuless.base.files import whole
from rung.errors import RungError
from rung.models.batching.worker_pool import EngineLost, WorkerPool
from rung.serve.chat_completions import Chat, read_chat
from rung.serve.completions import Call, Following, Served, embeddings, parse, parse_embeddings, written
from rung.serve.http import Refusal, named
from rung.serve.metrics import Metrics
from rung.serve.responses import read_response
from rung.serve.writing import ChatWriting, ResponseWriting, Serving, StreamedAnswer, Writing, left_by

PAGE = Path(__file__).with_name("page.html")
HEADERS = 1 << 16  # bytes of a request's headers and path
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
        self.serving = Serving(served, pool, self.metrics, limits.seconds)
        self._tokenizing, self._templates = ThreadPoolExecutor(1, "tokenize"), ThreadPoolExecutor(1, "template")
        self._started, self._embedding = int(time.time()), 0
        handlers = {
            ("/", "GET"): self.page,
            ("/health", "GET"): self.health,
            ("/metrics", "GET"): self.show_metrics,
            ("/v1/models", "GET"): self.models,
            ("/v1/models/{name:path}", "GET"): self.model,
            ("/v1/completions", "POST"): self.completions,
            ("/v1/chat/completions", "POST"): self.chat,
            ("/v1/responses", "POST"): self.responses,
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
            self.close()
            await asyncio.to_thread(self.pool.close)

    def close(self) -> None:
        """End what could hold up the end of this process."""
        if self.served.chat_template is not None:
            self.served.chat_template.close()
        for pool in (self._templates, self._tokenizing):
            pool.shutdown(wait=False, cancel_futures=True)

    async def _guarded(self, handler: Callable[[Request], Awaitable[Response]], request: Request) -> Response:
        request.state.id = _id_of(request)
        try:
            if len(request.url.path) + sum(len(k) + len(v) for k, v in request.headers.raw) > HEADERS:
                raise Refusal(431, f"the headers are larger than {HEADERS:,} bytes.", headers={"Connection": "close"})
            self._authorize(request)
            response = await handler(request)
        except Refusal as refusal:
            self.metrics.refused(refusal.status)
            if refusal.status >= 500 and request.url.path not in OPEN:  # a probe asks each second
                log.warning("%s: %s", request.state.id, refusal.message)
            response = refusal.response()
        except EngineLost as error:
            self.metrics.refused(503)
            response = Refusal(503, str(error), code="engine_error", headers={"Retry-After": "5"}).response()
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
        chat = await self._read_chat(await self._body(request))
        return await self._write(request, chat.body, partial(ChatWriting, chat=chat), chat.following)

    async def responses(self, request: Request) -> Response:
        reply = read_response(await self._body(request))
        chat = await self._read_chat(reply.chat)
        kind = partial(ResponseWriting, chat=chat, reply=reply)
        return await self._write(request, chat.body, kind, chat.following)

    async def _read_chat(self, body: Any) -> Chat:
        # Templates are the model's programs: a thread of their own, since they may take all the time that they have.
        read = asyncio.get_running_loop().run_in_executor(self._templates, read_chat, body, self.served)
        try:
            return await asyncio.wait_for(read, self.serving.seconds)
        except TimeoutError:
            raise self.serving.late() from None

    async def _write(
        self, request: Request, body: Any, kind: Callable[[Serving, Call], Writing], following: Following | None = None
    ) -> Response:
        call = await asyncio.to_thread(
            parse, body, self.served, priority=self.limits.priority, id=request.state.id, following=following
        )
        self._admit(len(call.requests))
        writing = kind(self.serving, call)
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
        computed = asyncio.wrap_future(self.pool.call(call.work))
        try:
            async with left_by(request.receive) as disconnected:
                leaving = asyncio.ensure_future(disconnected.wait())
                try:
                    await asyncio.wait({computed, leaving}, timeout=self.serving.seconds, return_when=FIRST_COMPLETED)
                finally:
                    leaving.cancel()
            if not computed.done():
                raise ClientDisconnect if disconnected.is_set() else self.serving.late()
            return JSONResponse(embeddings(call, self.served.name, computed.result()))
        finally:
            computed.cancel()  # the worker is told, too
            self._embedding -= 1

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
        ids = await asyncio.get_running_loop().run_in_executor(self._tokenizing, self.served.tokenizer.encode, text)
        found = {"count": len(ids), "max_model_len": self.served.config.context, "tokens": ids}
        if body.get("return_token_strs") is True:
            found["token_strs"] = [written(id, self.served.tokenizer) for id in ids]
        return JSONResponse(found)

    async def detokenize(self, request: Request) -> Response:
        body = await self._body(request)
        ids = body.get("tokens") if isinstance(body, dict) else None
        vocabulary = self.served.config.vocabulary
        if (
            not isinstance(ids, list)
            or not set(map(type, ids)) <= {int}
            or (ids and not 0 <= min(ids) <= max(ids) < vocabulary)
        ):
            raise Refusal(400, f'send {{"tokens": [...]}}, whole numbers below {vocabulary}.', "tokens")
        text = await asyncio.get_running_loop().run_in_executor(self._tokenizing, self.served.tokenizer.decode, ids)
        return JSONResponse({"prompt": text})

    async def tokenizer_info(self, request: Request) -> Response:
        s = self.served
        end = s.tokenizer.decode(s.config.eos[:1]) if s.config.eos else None
        begin = end if s.config.bos is None else s.tokenizer.decode((s.config.bos,))
        template = None if s.chat_template is None else s.chat_template.source
        return JSONResponse({
            "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": s.config.context,
            "vocab_size": s.config.vocabulary, "bos_token": begin, "eos_token": end, "unk_token": s.tokenizer.unknown,
            "pad_token": None, "chat_template": template,
        })  # fmt: skip


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
