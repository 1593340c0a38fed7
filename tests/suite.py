"""What every suite of the checkout needs: its own store of results, and a share of the processors for each of several
processes. A conftest.py takes it by `from suite import *`."""

import os
import tempfile
from pathlib import Path

import pytest

__all__ = ["PACKAGES", "pytest_collection_modifyitems"]

ROOT = Path(__file__).parents[1]
PACKAGES = os.pathsep.join(str(ROOT / place) for place in ("src", "gpuless/src", "reproduce/src"))  # a child's PYTHONPATH

# Never among the results of whoever runs the tests: those are of tests that share the GPU.
_store = tempfile.TemporaryDirectory(prefix="rung-tests-")
os.environ["RUNG_RESULTS"] = str(Path(_store.name) / "results.jsonl")


def _take_a_share(worker: str, workers: int) -> None:
    """Each of several test processes keeps to its share of the processors.

    Threads of two processes on the same two processors spin while they wait for each other: three times the work. With
    more processors than workers each gets several, as the references of the GPU's tests can use them.
    """
    here = sorted(os.sched_getaffinity(0))
    share, number = max(1, len(here) // workers), int(worker.removeprefix("gw"))
    first = number * share % len(here)
    os.sched_setaffinity(0, set(here[first : first + share]))


if "PYTEST_XDIST_WORKER" in os.environ and hasattr(os, "sched_setaffinity"):
    _take_a_share(os.environ["PYTEST_XDIST_WORKER"], int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Other processes' tests share the GPU's clock and memory: times are compared where no other test runs."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        for item in items:
            if item.get_closest_marker("alone"):
                item.add_marker(pytest.mark.skip("times are compared where no other test runs (without -n)"))
