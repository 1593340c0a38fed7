"""From a model's name to a server that listens, until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import resource
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette

from rung.errors import RungError
from rung.models.batching.worker_pool import Setup, WorkerPool
from rung.models.family import read_config, shortened
from rung.models.folders import find
from rung.models.tokenizer import read_tokenizer
from rung.serve.app import Limits, Server
from rung.serve.chat import template_of
from rung.serve.completions import Served
from rung.serve.http import bounded

log = logging.getLogger("rung.serve")


class _Uvicorn(uvicorn.Server):
    """The first signal lets running requests finish, a second ends at once, with rung's exit code."""

    ready = ""  # printed once connections are accepted and signals are heeded

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.ready:
            print(self.ready, file=sys.stderr, flush=True)

    async def _wait_tasks_to_complete(self) -> None:
        """Also ends connections that were accepted while the server ended: they would be kept alive."""

        async def end() -> None:
            while True:
                for connection in list(self.server_state.connections):
                    connection.shutdown()
                await asyncio.sleep(0.1)

        ending = asyncio.ensure_future(end())
        try:
            await super()._wait_tasks_to_complete()
        finally:
            ending.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._asked_to_end)
        yield

    def end(self) -> None:
        """At once: there is little to wait for."""
        self.config.timeout_graceful_shutdown = 1
        self.should_exit = True

    def _asked_to_end(self) -> None:
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True


def serve(
    setups: Sequence[Setup], *, name: str | None, host: str, port: int, limits: Limits, key: str | None,
    origins: Sequence[str],
) -> None:  # fmt: skip
    """Serve until SIGINT or SIGTERM, or until no engine is left, which is a RungError."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(name)s: %(message)s")
    served, pool = served_by(setups[0], name), WorkerPool(setups)
    with _listen(host, port) as listening:
        pool.start()
        try:
            lost = asyncio.run(_serve(pool, served, listening, limits, key, origins))
        finally:
            pool.close()
    if lost:
        raise RungError("no engine could be kept running; their messages are above.")


def served_by(setup: Setup, name: str | None) -> Served:
    """The model's description for clients."""
    how: dict[str, Any] = dict(setup.model)
    folder = find(how["model"], revision=how.get("revision"), offline=how.get("offline", False))
    return served_from(folder, name or how["model"], how.get("context"))


def served_from(folder: Path, name: str, context: int | None = None) -> Served:
    """The same of a model's folder."""
    config, tokenizer = shortened(read_config(folder / "config.json"), context), read_tokenizer(folder)
    return Served(name, config, tokenizer, template_of(folder, config, tokenizer))


async def _serve(
    pool: WorkerPool, served: Served, listening: socket.socket, limits: Limits, key: str | None, origins: Sequence[str]
) -> bool:
    """Serve until a signal, or until no engine can be kept running: whether that was the end."""
    local = ipaddress.ip_address(listening.getsockname()[0]).is_loopback
    if not local and not key:
        log.warning("others reach this server, and it asks for no key; --api-key-file FILE asks for one.")
    app = Server(served, pool, limits, key, origins, local=local).app
    server = _Uvicorn(settings(app, limits))
    loop = asyncio.get_running_loop()

    lost: list[bool] = []

    def end() -> None:
        lost.append(True)
        loop.call_soon_threadsafe(server.end)

    pool.on_gone = end
    listening.listen(2048)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    slots = f"{pool.slots} texts at a time"
    server.ready = f"rung: {served.name} at http://{shown}:{port} ({slots}); Ctrl-C ends."
    await server.serve(sockets=[listening])
    return bool(lost)


def settings(app: Starlette, limits: Limits) -> uvicorn.Config:
    """uvicorn's settings."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    http = bounded(max(1, min(limits.connections, files - 64)), limits.idle)
    return uvicorn.Config(
        app, http=http, ws="none", log_level="warning", access_log=False, server_header=False,
        timeout_keep_alive=int(max(1, limits.idle)), timeout_graceful_shutdown=int(max(1, limits.grace)),
    )  # fmt: skip


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except socket.gaierror as error:
        raise RungError(f"there is no address {host} ({error.strerror}); choose another --host.") from None
    except (OSError, OverflowError) as error:
        raise RungError(f"cannot listen on {host} port {port} ({error}); choose another --port.") from None
    return listening


def serve_over_ray(
    setup: Setup, address: str, *, name: str | None, host: str, port: int, limits: Limits, key: str | None,
    origins: Sequence[str],
) -> None:  # fmt: skip
    """Serve until SIGINT or SIGTERM."""
    if not port:
        raise RungError("Ray Serve does not support --port 0; name a free port.")
    from rung.models.batching.blocks import with_ray  # no other server needs it

    with_ray(address)
    import ray
    from ray import serve

    def build() -> Starlette:  # in each replica, whose lifespan starts its engine
        return Server(served_by(setup, name), WorkerPool([setup]), limits, key, origins).app

    gpus = 0 if setup.model["device"] == "cpu" else int(ray.cluster_resources().get("GPU", 0))
    nodes = sum(node["Alive"] for node in ray.nodes())
    replica = serve.deployment(
        name="rung", num_replicas=gpus or nodes, max_ongoing_requests=limits.queue + 1024,
        ray_actor_options={"num_gpus": 1} if gpus else {"num_cpus": 1},
    )(serve.ingress(build)())  # fmt: skip
    serve.start(proxy_location="HeadOnly", http_options={"host": host, "port": port})
    try:
        serve.run(replica.bind(), name="rung", route_prefix="/")
        print(f"rung: {gpus or nodes} replicas at http://{host}:{port}; Ctrl-C ends.", file=sys.stderr, flush=True)
        _signalled().wait()
    except RuntimeError as error:
        raise RungError(f"Ray Serve could not start the replicas: {str(error).splitlines()[-1]}") from None
    finally:
        serve.shutdown()


def _signalled() -> threading.Event:
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    return ended
