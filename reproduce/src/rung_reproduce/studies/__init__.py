"""Questions about GPUs that need more than one figure: each is a module here, with a table, a chart and a sentence."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import asdict
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rung.errors import RungError
from rung.results import machine
from rung.results.row import Row
from rung.rungs import catalogue, identity

if TYPE_CHECKING:
    from rung_reproduce.show.charts import Found
    from rung_reproduce.studies.common import Runner

# name on the command line -> module, and what it asks
STUDIES = {
    "waves": ("waves", "What does the last, partly filled wave of blocks cost a matrix product?"),
    "vocab": ("vocab", "Why are 50304 columns faster than 50257?"),
    "softmax": ("softmax", "What does a tree gain over one thread per row, for rows of 256 to 8192?"),
    "attention": ("attention", "Attention from sequential C++ to CUDA and MPI: what did each step gain?"),
    "ranks": ("ranks", "The same attention on one core, over the processes of a host, and with CUDA, causal and full."),
    "attention-scaling": ("attention_scaling", "Time and peak memory as the context grows."),
    "cache": ("cache", "What does a KV cache gain, at the first pass and at later ones? (On a CPU too.)"),
    "restrict": ("restrict", "Does __restrict__ change the baseline's kernels or their times? (On a CPU too.)"),
    "summary": ("summary", "What does the course's forward pass spend by kernel, by copy and by CUDA call?"),
    "memory-latency": ("memory_latency", "What are the latencies of shared memory, L1, L2 and global memory?"),
    "cutlass": ("cutlass", "How far is the ladder from CUTLASS? (Needs nvcc and its headers.)"),
    "fusion": ("fusion", "What is gained by fusing one kernel into another?"),
    "loading": ("loading", "What is gained by overlapping reading, copying and computing while a model is loaded?"),
    "sparsity": ("sparsity", "Where does a sparse product stand under the roofline, beside a dense one?"),
    "precision": ("precision", "What are the time and the error of each number format?"),
}


def run(name: str, runner: Runner, **options: Any) -> Found:
    """Carry out one study; `options` are those that its module takes."""
    found: Found = _module(name).run(runner, **options)
    found.texts |= {rung: identity.text(catalogue.find(rung)) for rung in getattr(runner, "raced", ())}
    return found


def require(name: str) -> None:
    """Raises a RungError where a study needs something beyond a GPU that this machine does not have."""
    getattr(_module(name), "require", lambda: None)()


def _module(name: str) -> ModuleType:
    if name not in STUDIES:
        raise RungError(f"there is no study {name!r}; there are {', '.join(STUDIES)}.")
    return importlib.import_module(f"rung_reproduce.studies.{STUDIES[name][0]}")


def as_results(name: str, found: Found, *, quick: bool = False, options: Mapping[str, Any] | None = None) -> list[Row]:
    """The study as the results store keeps it: a row for itself, and one for each further table."""
    return [
        Row(
            kind="study",
            what=name,
            part=part,
            options=dict(options or {}),
            texts=found.texts,
            detail={
                "title": one.title,
                "columns": list(one.columns),
                "rows": [list(r) for r in one.rows],
                "finding": one.finding,
                "series": [asdict(s) for s in one.series],
                "axes": {"x": one.x_label, "y": one.y_label, "log_x": one.log_x, "log_y": one.log_y},
            },
            weights=found.weights,
            quick=quick,
            machine=machine.facts(),
            state=machine.state(),
        )
        for part, one in {"": found, **found.more}.items()
    ]
