"""Errors in the form of OpenAI, and connections with bounds: how many there are, how long one may idle, send
its headers, or leave an answer unread.

They hold before a request is parsed, so that nobody needs a key to meet them. Headers that are not complete are bounded
by h11, to 64 KiB, and complete ones by the server.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import urlsplit

import h11
from starlette.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

UNREAD = 1 << 18  # bytes in a connection's socket


class FromClient(logging.LoggerAdapter[logging.Logger]):
    """Says whose request a message is about."""

    @property
    def level(self) -> int:
        return self.logger.level

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        client = (self.extra or {}).get("client")
        return (f"{client[0]}: {msg}" if isinstance(client, tuple) else msg), kwargs


def bounded(connections: int, seconds: float) -> type[H11Protocol]:
    """The protocol of a server with these bounds."""

    class Bounded(H11Protocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.logger = FromClient(self.logger, {"client": self.client})  # type: ignore[assignment]
            one = transport.get_extra_info("socket")
            if one is not None:  # what a client leaves unread is the server's memory, in the kernel as well
                one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNREAD)
            if len(self.connections) > connections:
                transport.abort()
            else:
                self._limit(self._silent)

        def connection_lost(self, exc: Exception | None) -> None:
            self._unlimit()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._unlimit()  # a request is being answered; its body has a limit of its own
            elif self._timer is None:
                self._limit(self._silent)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete):
                self._limit(self._silent)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._limit(self._unread)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._unlimit()

        def timeout_keep_alive_handler(self) -> None:
            if self.transport.get_write_buffer_size():
                self.transport.abort()  # it would wait until the client has read
            else:
                super().timeout_keep_alive_handler()

        def send_400_response(self, msg: str) -> None:
            body = Refusal(400, msg).response()
            headers = [*body.raw_headers, (b"connection", b"close")]
            head = h11.Response(status_code=400, headers=headers, reason=STATUS_PHRASES[400])
            for event in (head, h11.Data(data=bytes(body.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
            self.transport.close()

        def _should_upgrade(self) -> bool:
            return False  # what asks for another protocol is answered in this one

        def _limit(self, end: Any) -> None:
            self._unlimit()
            self._timer = self.loop.call_later(seconds, end)

        def _unlimit(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _silent(self) -> None:
            """No whole request came in time."""
            if self.cycle is None or self.cycle.response_complete:
                self.transport.abort()

        def _unread(self) -> None:
            """The client has not read for too long."""
            self.transport.abort()

    return Bounded


TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    431: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


class Refusal(Exception):
    """A request that is answered with an error."""

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        message = _utf8(message)
        param = param and _utf8(param)
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body, self.status, self.headers)


def named(host: str, names: Collection[str]) -> bool:
    """Whether a request's Host is absent, an address, or one of the names; a browser sends neither user nor path."""
    try:
        parts = urlsplit(f"//{host}")
        name = (parts.hostname or "").removesuffix(".")
        return not host or (parts.netloc == host and "@" not in host and (
            name in names or bool(ipaddress.ip_address(name))
        ))  # fmt: skip
    except ValueError:
        return False


def _utf8(text: str) -> str:
    """A text that can be sent, though it may quote half a surrogate pair of the client's."""
    return text.encode("utf-8", "backslashreplace").decode()
