"""The protocol between a process and its workers: set-up, requests to a worker, pieces from it."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from rung.models.batching.text import Piece, Request
from rung.processors import gpu_named


@dataclass(frozen=True)
class Setup:
    """What a worker must load: keywords of `rung.load`, slots (None: by available memory), its one visible GPU.

    A `warm` worker is ready when it has prepared for any text; one without `texts` only computes calls.
    """

    model: Mapping[str, Any]
    slots: int | None = None
    gpu: int | None = None
    warm: bool = False
    texts: bool = True


@dataclass(frozen=True)
class Ready:
    """The model is loaded."""

    slots: int


@dataclass(frozen=True)
class Failed:
    """The model could not be loaded."""

    reason: str


@dataclass(frozen=True)
class Progress:
    """Pieces of texts by the parent's keys, and how the engine is; sent each second at least."""

    pieces: list[tuple[int, Piece]]
    running: int
    waiting: int
    usage: float
    stalled: float  # seconds of its present step
    failures: int


@dataclass(frozen=True)
class Submit:
    key: int
    request: Request


@dataclass(frozen=True)
class Cancel:
    key: int


@dataclass(frozen=True)
class Call:
    """Compute work(model)."""

    key: int
    work: Callable[..., Any]


@dataclass(frozen=True)
class Result:
    key: int
    value: Any = None
    error: str = ""


@dataclass(frozen=True)
class Stop:
    """End; running texts are interrupted."""


def start(setup: Setup) -> tuple[subprocess.Popen[bytes], Connection]:
    """A worker that starts loading; its first message is Ready or Failed."""
    ours, theirs = socket.socketpair()
    # The child uses this process's import path.
    program = f"import sys; sys.path[:] = {sys.path}; from rung.models.batching import worker; worker"
    program += f".main({theirs.fileno()})"
    seeing = [] if setup.gpu is None else ["env", f"CUDA_VISIBLE_DEVICES={gpu_named(setup.gpu)}"]
    with theirs:
        process = subprocess.Popen(
            [*seeing, sys.executable, "-c", program], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )
    connection = Connection(ours.detach())
    connection.send(setup)
    return process, connection
