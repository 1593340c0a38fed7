"""Rungs that use what GPUs have since sm_80 say so, and only those: sm_75 gets a reason, never a compiler's error."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from gpuless.compile import nvrtc
from rung.dtypes import DTYPES
from rung.errors import RungError
from rung.profile.inspect import inspect
from rung.rungs import catalogue
from rung.rungs.base import Rung
from rung.rungs.cuda import INCLUDE, CudaRung

NEWER = re.compile(r"cp_async|\bw?mma|tf32")  # as ptx.cuh and CUDA's headers name them
OLD = "sm_75"


def text_of(rung: Rung) -> str:
    """The rung with the headers of its own, which rung.cuh is not: everybody includes it."""
    assert rung.path is not None
    texts, seen = [rung.source], {"rung.cuh"}
    for text in texts:
        for name in re.findall(r'^#include "([\w.]+)"', text, re.MULTILINE):
            places = [p for p in (rung.path.parent / name, INCLUDE / name) if p.exists()]
            texts += [places[0].read_text()] if places and name not in seen else []
            seen.add(name)
    return "\n".join(texts)


def ladders() -> list[Rung]:
    return [r for operation in catalogue.operations() for r in catalogue.select(operation, None)]


USERS = [r.full_name for r in ladders() if isinstance(r, CudaRung) and NEWER.search(text_of(r))]
DECLARED = [r.full_name for r in ladders() if isinstance(r, CudaRung) and any("sm >= 80" in rule for rule in r.needs)]


def test_every_rung_that_declares_it_is_among_those_that_use_it() -> None:
    assert len(DECLARED) > 10 and set(DECLARED) <= set(USERS)


@pytest.mark.slow
@pytest.mark.parametrize("name", USERS)
def test_an_older_gpu_compiles_the_rung_or_gets_its_rule(name: str) -> None:
    rung = catalogue.find(name)
    for dtype in rung.dtypes:
        for row in inspect([rung], [OLD], dtype=dtype, mix=False):
            assert row.state == "ok" or (row.state == "skipped" and re.search(r"sm >= (80|89|90)", row.reason)), row


@pytest.mark.slow
@pytest.mark.parametrize("name", DECLARED)
def test_what_is_refused_would_not_have_compiled(name: str) -> None:
    rung = catalogue.find(name)
    assert isinstance(rung, CudaRung)
    shape = next(iter(rung.operation.shapes.values()))
    build = rung.build(rung.operation.complete(shape), DTYPES[rung.dtypes[0]])
    with pytest.raises(RungError, match=r"does not compile for sm_75|sm_80"):
        nvrtc.compile_cubin(build, OLD)


@pytest.mark.slow
def test_triton_tiles_that_fit_an_older_gpu_are_not_refused() -> None:
    rung = catalogue.find("attention/29_triton")
    shape = ("usual", rung.operation.complete({"B": 1, "T": 256, "C": 256, "NH": 4}))
    (large,) = inspect([rung], [OLD], dtype="f32", shape=shape, mix=False)
    assert large.state == "skipped" and "BR <= 64" in large.reason
    # In a process of its own, as for a user.
    program = (
        "import sys\n"
        "from rung.rungs import catalogue\n"
        "from rung.profile.inspect import inspect\n"
        "rung = catalogue.find('attention/29_triton')\n"
        "shape = ('usual', rung.operation.complete({'B': 1, 'T': 256, 'C': 256, 'NH': 4}))\n"
        "for how in ({'dtype': 'f32', 'tuning': {'BR': 64}}, {'dtype': 'bf16'}):\n"
        "    (row,) = inspect([rung], [sys.argv[1]], shape=shape, mix=False, **how)\n"
        "    print(row.state, row.reason)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, OLD], capture_output=True, text=True, timeout=120, check=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["ok", "ok"], done.stdout
