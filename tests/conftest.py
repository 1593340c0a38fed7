"""Which tests are collected, and what is compiled before them.

Those of the server need its extra, which a machine that only has a GPU may lack.
"""

import importlib.util

import pytest

from suite import *  # noqa: F403

needed = ("uvicorn", "starlette", "openai")
collect_ignore_glob = [] if all(importlib.util.find_spec(name) for name in needed) else ["serve/test_serve*.py"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fresh", action="store_true", help="judge every rung anew, also where its verdict is known")


def pytest_configure(config: pytest.Config) -> None:
    """The CPU's code is compiled before the tests, which count what commands print."""
    if not hasattr(config, "workerinput"):
        from rung.models.cpu import build

        for begun in [build.begin(dtype, source) for dtype in build.BITS for source in (build.DECODE, build.PASSES)]:
            if begun is not None:
                begun.wait()
