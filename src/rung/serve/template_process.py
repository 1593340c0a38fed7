"""Chat templates are programs that a model brings: they are rendered by a process of their own, whose time, memory and
output are bounded. It is started at the first message, and again after a template that used up its bounds."""

from __future__ import annotations

import contextlib
import json
import math
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rung.errors import RungError

CPU_SECONDS = 2  # of the process, for a text
SECONDS = 30.0  # until it is given up: the machine may be busy
MEMORY = 512 << 20  # bytes beyond those of the idle process
OUTPUT = 16 << 20  # characters of a text


class TemplateProcess:
    """Renders one template; from any thread, one text at a time."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._end: Any = lambda: None

    def render(self, names: Mapping[str, Any]) -> str:
        """The template's text with these names; a RungError where it has none."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()
            assert self._connection is not None
            try:
                self._connection.send_bytes(json.dumps(names).encode())
                if not self._connection.poll(SECONDS):
                    raise EOFError
                found = json.loads(self._connection.recv_bytes())
            except (EOFError, OSError):
                self.close()
                raise RungError(
                    "the model's chat template takes too much time or memory for these messages; use another model, or "
                    "/v1/completions."
                ) from None
        if problem := found.get("error"):
            raise RungError(f"the model's chat template cannot write these messages ({problem}).")
        text: str = found["text"]
        return text

    def _start(self) -> None:
        self.close()
        ours, theirs = socket.socketpair()
        program = f"import sys; sys.path[:] = {sys.path}; from rung.serve import template_process as here"
        program += f"; here.main({theirs.fileno()})"
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", program], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        self._process, self._connection = process, Connection(ours.detach())
        self._connection.send_bytes(self._source.encode())
        self._end = weakref.finalize(self, _end, process, self._connection)

    def close(self) -> None:
        """End the process; whoever waits for it gets an error."""
        self._end()
        self._process = self._connection = None


def _end(process: subprocess.Popen[bytes], connection: Connection) -> None:
    process.kill()
    process.wait()
    connection.close()


# ---- the process ----------------------------------------------------------------------------------------------------


def main(descriptor: int) -> None:
    """The child."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    import jinja2.ext  # noqa: F401 - before memory is bounded

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    with Connection(descriptor) as connection, contextlib.suppress(EOFError, OSError):
        source, template, problem = connection.recv_bytes().decode(), None, ""
        while True:
            names = json.loads(connection.recv_bytes())
            resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time()) + CPU_SECONDS, -1))
            if template is None and not problem:
                try:
                    template = _compile(source)  # which computes what is constant
                except Exception as error:
                    problem = _shown(error)
            found = {"error": problem} if template is None else _render(template, names)
            connection.send_bytes(json.dumps(found).encode())


def _render(template: Any, names: Mapping[str, Any]) -> dict[str, str]:
    parts, size = [], 0
    try:
        for part in template.generate(**names):
            parts.append(part)
            size += len(part)
            if size > OUTPUT:
                return {"error": f"it writes more than {OUTPUT:,} characters"}
    except Exception as error:  # whatever a template's own program raises; MemoryError and RecursionError, too
        return {"error": _shown(error)}
    return {"text": "".join(parts)}


def _shown(error: Exception) -> str:
    return str(error)[:120] or type(error).__name__


def _compile(source: str) -> Any:
    """Jinja2 as transformers uses it."""
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        """A block around what the assistant writes; it changes no text."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def fail(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _as_json
    environment.globals |= {"raise_exception": fail, "strftime_now": time.strftime}
    return environment.from_string(source)


def _as_json(x: Any, ensure_ascii: bool = False, indent: int | None = None, **how: Any) -> str:
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, **how)
