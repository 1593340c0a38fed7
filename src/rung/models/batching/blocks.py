"""Texts in blocks over several models: a process for each GPU of this machine, or Ray's actors on those of a cluster.

Each block is computed by one model, and every model gives the same result. A block whose process or node is lost is
computed again elsewhere. Results come in the order of the texts.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import socket
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from gpuless.base.files import whole
from rung.errors import RungError, first_line, with_extra
from rung.models.batching.worker_pool import Setup, WorkerPool

if TYPE_CHECKING:
    from rung.models.load import Model

BLOCK = 256  # texts of a block
GPU_BLOCK = 1024  # on a GPU: enough to fill its passes
LISTEN_SECONDS = 5.0  # for a cluster's address to accept a connection
QUEUED = 2  # blocks per process: one is computed while the next waits
Records = list[dict[str, Any]]  # per text


@dataclass(frozen=True)
class Job:
    """`verb` (score or generate) with these options, by the model that `rung.load` gives for `model`."""

    model: Mapping[str, Any]
    verb: str
    options: Mapping[str, Any]

    def run(self, model: Model, texts: list[str]) -> Iterator[Records]:
        """The result for each text."""
        if self.verb == "score":
            for score in model.scores(texts, **self.options):
                yield [score.as_json()]
            return
        samples = self.options.get("num_samples", 1)
        completions = iter(model.generate(texts, **self.options))
        for _ in texts:
            some = itertools.islice(completions, samples)
            yield [{name: value for name, value in asdict(one).items() if value is not None} for one in some]


# ---- processes ------------------------------------------------------------------------------------------------------


def over_gpus(job: Job, texts: Iterable[str], gpus: int, *, block: int = GPU_BLOCK) -> Iterator[Records]:
    """A process for each GPU of this machine."""
    pool = WorkerPool([Setup(job.model, gpu=gpu, texts=False) for gpu in range(gpus)], restart=False)
    pool.start()
    waiting: deque[Future[list[Records]]] = deque()
    source = iter(texts)
    try:
        while True:
            while len(waiting) < QUEUED * gpus and (some := list(itertools.islice(source, block))):
                waiting.append(pool.call(partial(job.run, texts=some)))
            if not waiting:
                return
            yield from waiting.popleft().result()
    finally:
        pool.close()


# ---- Ray ------------------------------------------------------------------------------------------------------------


class Actor:
    """A model on one GPU or core of a cluster."""

    def __init__(self, job: Job) -> None:
        from rung.models.load import load

        self._job, self._model = job, load(**job.model)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[str]]:
        texts = [str(text) for text in batch["text"]]
        return {"records": [json.dumps(records) for records in self._job.run(self._model, texts)]}


def over_ray(job: Job, texts: Iterable[str], address: str, *, block: int | None = None) -> Iterator[Records]:
    """Ray Data over the cluster at an address (auto: the one of this machine, local: one made for this)."""
    with_ray(address)
    import ray

    resources = ray.cluster_resources()
    gpus = 0 if job.model.get("device") == "cpu" else int(resources.get("GPU", 0))
    if gpus:
        count, each = gpus, {"num_gpus": 1}
    else:
        count, each = max(1, int(resources.get("CPU", 1))), {"num_cpus": 1}
        job = Job({**job.model, "threads": job.model.get("threads") or 1}, job.verb, job.options)
    block = block or (GPU_BLOCK if gpus else BLOCK)
    rows = [{"text": text} for text in texts]
    if not rows:
        return
    settings = ray.data.DataContext.get_current()
    settings.execution_options.preserve_order = True
    settings.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    blocks = -(-len(rows) // block)
    found = ray.data.from_items(rows, override_num_blocks=blocks).map_batches(
        Actor, fn_constructor_args=(job,), batch_size=block,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=min(count, blocks)), **each,
    )  # fmt: skip
    try:
        for row in found.iter_rows():
            yield json.loads(row["records"])
    except ray.exceptions.RayError as error:
        raise RungError(f"Ray gave up: {str(error).strip().splitlines()[-1]}") from None


def _require_listener(address: str) -> None:
    """An OSError at once where nothing listens; Ray would try for a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    number = whole(port)
    if host and number is not None and 0 < number < 1 << 16:
        socket.create_connection((host.strip("[]"), number), LISTEN_SECONDS).close()


def with_ray(address: str) -> None:
    """Join a cluster, or start one on this machine; RungError without Ray."""
    try:
        import ray
        import ray.data
    except ModuleNotFoundError as error:
        raise RungError(f"--ray needs {error.name}; install it: {with_extra('ray')}.") from None
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if ray.is_initialized():
        return
    try:
        _require_listener(address)
        ray.init(address=None if address == "local" else address, log_to_driver=False, logging_level="ERROR")
    except (OSError, ValueError, RuntimeError) as error:
        raise RungError(f"there is no Ray cluster at {address} ({first_line(error)}); "
                        "start one with `ray start --head`, or give --ray local.") from None  # fmt: skip
