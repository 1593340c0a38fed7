"""A running call: its texts' pieces, from the workers' threads into the event loop, as answers or streams of events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rung.models.batching.text import Piece
from rung.models.batching.worker_pool import GONE, PooledText, WorkerPool
from rung.serve.chat_completions import Answer, Chat, chat_answer
from rung.serve.completions import Call, Choice, Served, answer, joined, usage
from rung.serve.http import Refusal
from rung.serve.metrics import Metrics
from rung.serve.responses import Reply, message_item, text_part


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


@dataclass
class Serving:
    """What all running calls of a server share."""

    served: Served
    pool: WorkerPool
    metrics: Metrics
    seconds: float  # for a request
    inbox: Inbox = field(default_factory=Inbox)

    def late(self) -> Refusal:
        return Refusal(504, f"the request took longer than {self.seconds:g} s; ask for less.")


class Writing:
    """A call's running texts: their pieces in one queue, in the order of arrival."""

    def __init__(self, serving: Serving, call: Call) -> None:
        self._serving, self.call = serving, call
        self.choices = [Choice(call, i, serving.served.tokenizer) for i in range(len(call.requests))]
        self._pieces: asyncio.Queue[tuple[int, Piece]] = asyncio.Queue()
        self._deadline = time.monotonic() + serving.seconds
        self._texts: list[PooledText] = []
        for i, request in enumerate(call.requests):
            watch = serving.metrics.begin(len(request.ids))

            def on_piece(piece: Piece, i: int = i, observe: Callable[[Piece], None] = watch.see) -> None:
                observe(piece)
                self._pieces.put_nowait((i, piece))

            text = serving.pool.submit(request, serving.inbox.listener(on_piece))
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
                    raise Refusal(503 if piece.error == GONE else 500, piece.error, code="engine_error")
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
        return self._serving.late()

    async def whole(self, disconnected: asyncio.Event) -> dict[str, Any]:
        """The response to a call that does not stream."""
        parts: list[list[dict[str, Any]]] = [[] for _ in self.choices]
        async for part in self.parts(disconnected):
            parts[part["index"]].append(part)
        return answer(self.call, self._serving.served, list(map(joined, parts)), usage=self.usage)

    async def chunks(self, disconnected: asyncio.Event) -> AsyncIterator[dict[str, Any]]:
        """The chunks of a streaming call; empty ones are left out."""
        more = {"usage": None} if self.call.include_usage else {}
        served = self._serving.served
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
                self._serving.metrics.ended("interrupted")
            text.drop()


class ChatWriting(Writing):
    """The same in a chat's form."""

    def __init__(self, serving: Serving, call: Call, *, chat: Chat) -> None:
        self._chat, self._answers = chat, dict[int, Answer]()
        super().__init__(serving, call)

    async def whole(self, disconnected: asyncio.Event) -> dict[str, Any]:
        return chat_answer(await super().whole(disconnected), self._chat, self._answers, chunk=False)

    async def chunks(self, disconnected: asyncio.Event) -> AsyncIterator[dict[str, Any]]:
        async for chunk in super().chunks(disconnected):
            yield chat_answer(chunk, self._chat, self._answers, chunk=True)


class ResponseWriting(ChatWriting):
    """The same in the form of /v1/responses."""

    def __init__(self, serving: Serving, call: Call, *, chat: Chat, reply: Reply) -> None:
        super().__init__(serving, call, chat=chat)
        self._reply = reply

    async def whole(self, disconnected: asyncio.Event) -> dict[str, Any]:
        found = await super().whole(disconnected)
        return self._reply.answer(found["model"], found["choices"][0], found["usage"])

    async def chunks(self, disconnected: asyncio.Event) -> AsyncIterator[dict[str, Any]]:
        reply, model, event = self._reply, self._serving.served.name, self._reply.event
        for kind in ("created", "in_progress"):
            yield event(kind, response=reply.answer(model, None, None))
        text, calls, reason, item = "", list[Any](), None, message_item("", status="in_progress")
        at = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        async for chunk in super().chunks(disconnected):
            for choice in chunk["choices"]:
                delta, reason = choice["delta"], choice["finish_reason"]
                if new := delta.get("content"):
                    if not text:
                        yield event("output_item.added", output_index=0, item=item)
                        yield event("content_part.added", **at, part=text_part(""))
                    text += new
                    yield event("output_text.delta", **at, delta=new, logprobs=[])
                calls += delta.get("tool_calls", ())
        if text:
            yield event("output_text.done", **at, text=text, logprobs=[])
            yield event("content_part.done", **at, part=text_part(text))
            yield event("output_item.done", output_index=0, item=message_item(text, item["id"]))
        choice = {"finish_reason": reason, "message": {"content": text, "tool_calls": calls}}
        found = reply.answer(model, choice, self.usage)
        for index, one in enumerate(found["output"]):
            if one["type"] == "function_call":
                where = {"item_id": one["id"], "output_index": index}
                yield event("output_item.added", output_index=index, item={**one, "arguments": ""})
                yield event("function_call_arguments.delta", **where, delta=one["arguments"])
                yield event("function_call_arguments.done", **where, name=one["name"], arguments=one["arguments"])
                yield event("output_item.done", output_index=index, item=one)
            else:
                found["output"][index] = message_item(text, item["id"])
        yield event("incomplete" if found["status"] == "incomplete" else "completed", response=found)


class StreamedAnswer(Response):
    """Server-sent events. When a client disconnects, its texts end, also while nothing is being sent."""

    def __init__(self, writing: Writing) -> None:
        super().__init__(media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self._writing = writing
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def event(data: str, kind: str = "") -> None:
            body = f"event: {kind}\ndata: {data}\n\n" if kind else f"data: {data}\n\n"
            await send({"type": "http.response.body", "body": body.encode(), "more_body": True})

        async with left_by(receive) as disconnected:
            try:
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                try:
                    async for chunk in self._writing.chunks(disconnected):
                        data = json.dumps(chunk, ensure_ascii=False, separators=(",", ":"))
                        await event(data, chunk.get("type", ""))
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
