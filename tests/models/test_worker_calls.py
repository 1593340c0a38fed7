"""Calls in workers: nobody waits for one any more, or the worker dies; without processes."""

from __future__ import annotations

import queue
from concurrent.futures import Future
from typing import Any

import pytest
import torch

import gpt2_models as models
import rung
from rung.models.batching.text import Piece, Request
from rung.models.batching.worker import _compute
from rung.models.batching.worker_pool import Call, Cancel, EngineLost, Result, Setup, WorkerPool
from rung.models.options import Options, Prompt


def pool_of(workers: int, **how: Any) -> tuple[WorkerPool, list[list[Any]]]:
    """A pool whose workers are alive, and what each has been sent."""
    pool = WorkerPool([Setup({})] * workers, restart=False, **how)
    sent: list[list[Any]] = []
    for worker in pool.workers:
        sent.append([])
        worker.send = sent[-1].append  # type: ignore[method-assign, assignment]
        pool.ready(worker)
    return pool, sent


def some(model: Any) -> Any:
    yield model


def test_a_cancelled_call_before_a_death_keeps_nobody_waiting() -> None:
    pool, _ = pool_of(1)
    gone, pieces = list[bool](), list[Piece]()
    pool.on_gone = lambda: gone.append(True)
    cancelled, other = pool.call(some), pool.call(some)
    pool.submit(Request(Prompt("", (1,)), Options(), 0), pieces.append)
    assert cancelled.cancel()
    pool.died(pool.workers[0], -9)
    assert gone == [True] and pieces[-1].error is not None
    with pytest.raises(EngineLost):
        other.result(0)


def test_a_worker_is_told_that_nobody_waits_for_a_call() -> None:
    pool, (sent,) = pool_of(1)
    future = pool.call(some)
    (call,) = sent
    assert isinstance(call, Call) and future.cancel()
    assert sent[1:] == [Cancel(call.key)]
    pool.answered(pool.workers[0], Result(call.key, [1]))  # it was too late
    assert future.cancelled()


def test_a_call_waits_for_a_worker_that_is_being_started_again() -> None:
    pool, (sent,) = pool_of(1)
    (worker,) = pool.workers
    worker.alive = False
    worker.settled.clear()
    future: Future[Any] = pool.call(some)
    assert not sent and not future.done()
    pool.ready(worker)
    pool.answered(worker, Result(sent[0].key, [2]))
    assert future.result(0) == [2]


def test_a_call_is_computed_again_elsewhere_and_fails_at_its_second_death() -> None:
    pool, (one, other) = pool_of(2)
    future = pool.call(some)
    first = pool.workers[0] if one else pool.workers[1]
    pool.died(first, -9)
    assert not future.done() and one and other
    pool.died(next(worker for worker in pool.workers if worker is not first), -9)
    with pytest.raises(EngineLost):
        future.result(0)


@pytest.mark.parametrize("leaves", [False, True])
def test_a_call_is_given_up_between_parts_of_a_long_text(leaves: bool) -> None:
    wanted, outbox, read = {7}, queue.SimpleQueue[Any](), list[Any]()

    def work(model: Any) -> Any:
        for part in (None, None, [1.0]):
            read.append(part)
            if leaves:
                wanted.discard(7)
            yield part

    _compute(Call(7, work), None, outbox, wanted)  # type: ignore[arg-type]
    assert len(read) == (1 if leaves else 3) and outbox.empty() == leaves
    if not leaves:
        assert outbox.get() == Result(7, [[1.0]])


def test_a_long_texts_mean_comes_in_parts() -> None:
    model = rung.load(models.saved(n_positions=400), dtype="float32", device="cpu")
    if model.transformer.service.native is None:
        pytest.skip("needs a C++ compiler")
    ids = [models.some_ids(300), models.some_ids(5, seed=1)]
    parts = list(model.means(ids))
    found = [part for part in parts if part is not None]
    assert parts.index(found[0]) > 1 and len(found) == 2
    for text, mean in zip(ids, found, strict=True):
        assert torch.allclose(torch.tensor(mean), model.hidden_states(text, [-1])[0][0].mean(0), atol=1e-5)
