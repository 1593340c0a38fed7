"""Questions about GPUs that one figure cannot answer: each a module here, a table, a chart and a sentence."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rung.errors import RungError
from rung.results import store

if TYPE_CHECKING:
    from rung.show.found import Found
    from rung.study.common import Lab

# name on the command line -> module, and what it asks
STUDIES = {
    "waves": ("waves", "What does the last, half-empty wave of blocks cost a matrix product?"),
    "vocab": ("vocab", "Why are 50304 columns faster than 50257?"),
    "softmax": ("softmax", "What does a tree gain over one thread a row, for rows of 256 to 8192?"),
    "attention": ("attention", "Attention from sequential C++ to CUDA and MPI: what did each step gain?"),
    "attention-scaling": ("attention_scaling", "Time and peak memory as the context grows."),
    "memory-latency": ("memory_latency", "How far away are shared memory, L1, L2 and global memory?"),
    "fusion": ("fusion", "What does it gain to fuse one kernel into another?"),
    "loading": ("loading", "What does it gain to read, copy and compute at the same time while a model is loaded?"),
    "precision": ("precision", "What does each number format cost, and what does it lose?"),
}


def run(name: str, lab: Lab, **options: Any) -> Found:
    """Carry out one study; `options` are those that its module takes."""
    if name not in STUDIES:
        raise RungError(f"there is no study {name!r}; there are {', '.join(STUDIES)}.")
    module = importlib.import_module(f"rung.study.{STUDIES[name][0]}")
    found: Found = module.run(lab, **options)
    return found


def as_result(name: str, found: Found, machine: dict[str, Any]) -> dict[str, Any]:
    """The study as the results store keeps it."""
    return {
        "kind": "study",
        "study": name,
        "operation": "",
        "rung": f"study/{name}",
        "digest": "",
        "dtype": "",
        "values": {},
        "tuning": {},
        "title": found.title,
        "columns": list(found.columns),
        "rows": [list(r) for r in found.rows],
        "finding": found.finding,
        "series": [{"label": s.label, "points": [list(p) for p in s.points], "dashed": s.dashed} for s in found.series],
        "axes": {"x": found.x_label, "y": found.y_label, "log_x": found.log_x, "log_y": found.log_y},
        "machine": machine,
        **({"more": {part: as_result(name, f, machine) for part, f in found.more.items()}} if found.more else {}),
    }


def keep(name: str, found: Found, machine: dict[str, Any]) -> None:
    """Add the study to the results."""
    store.append(as_result(name, found, machine))
