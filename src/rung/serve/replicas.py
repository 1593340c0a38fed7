"""The server as replicas of Ray Serve behind one address: an engine on each GPU of a cluster, or on each node."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence

from starlette.applications import Starlette

from rung.errors import RungError
from rung.models.batching.protocol import Setup
from rung.models.batching.worker_pool import WorkerPool
from rung.reproduce.parallel.blocks import with_ray
from rung.serve.app import Limits, Server
from rung.serve.run import served_by


def serve_over_ray(
    setup: Setup, address: str, *, name: str | None, host: str, port: int, limits: Limits, key: str | None,
    origins: Sequence[str],
) -> None:  # fmt: skip
    """Serve until SIGINT or SIGTERM."""
    if not port:
        raise RungError("Ray Serve does not support --port 0; name a free port.")
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
