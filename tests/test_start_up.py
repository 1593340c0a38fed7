"""Verbs that only read text answer at once: torch, whose import takes seconds, stays out of their process."""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest

from rung.lazy import begin_context
from rung.operation import Operation, folders
from rung.rungs.base import Rung
from rung.rungs.cuda import CudaRung

PROGRAM = Path(__file__).parents[1] / "gpuless/tests/programs/right/adamw.cu"
RUN = """
import sys
from rung.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    heavy = {"torch", "triton", "transformers", "cuda.core"} & set(sys.modules)
    print(sorted(heavy), end.code, file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["list"],
        ["list", "attention", "--json"],
        ["show", "matmul/5", "--diff"],
        ["show", "softmax/9", "--json"],
        ["results", "--op", "matmul"],
        ["study"],
        ["new", "layernorm", "my_idea.cu"],
        ["inspect", "layernorm/2", "--arch", "sm_90"],
        ["roofline", "layernorm"],
        ["report"],
        pytest.param(["count", str(PROGRAM)], marks=pytest.mark.slow),
        ["bench", "--help"],
        ["generate", "--help"],
    ],
    ids=" ".join,
)
def test_verbs_do_without_torch(words: list[str], tmp_path: Path) -> None:
    env = {**os.environ}
    command = [sys.executable, "-c", RUN, *words]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1] == "[] 0", done.stderr


KERNEL = """
__global__ void relu(float* out, const float* x, int N)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = fmaxf(x[i], 0.f);
}
"""
WITHOUT = f"import sys; sys.modules['torch'] = None\n{RUN}"


@pytest.mark.parametrize(
    "words",
    [
        ["check", "relu/1", "--quick"],
        ["check", "relu", "mine.cu", "--quick"],
        ["count", "relu/1"],
        pytest.param(["draw", "relu", "mine.cu"], marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_cuda_kernels_are_judged_counted_and_drawn_where_torch_is_not_installed(
    words: list[str], tmp_path: Path
) -> None:
    (tmp_path / "mine.cu").write_text(KERNEL)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *words], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert done.stderr.splitlines()[-1].endswith(" 0"), done.stderr


def test_where_torch_is_not_installed_a_verb_that_needs_it_says_so() -> None:
    words = [sys.executable, "-c", WITHOUT, "bench", "relu/1"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert "pip install 'rung[models]'" in done.stderr and done.stderr.splitlines()[-1].endswith(" 2"), done.stderr


def test_where_torch_is_not_installed_a_rung_that_needs_it_is_not_judged() -> None:
    words = ["check", "relu/triton", "--dtype", "f32", "--json"]
    done = subprocess.run([sys.executable, "-c", WITHOUT, *words], capture_output=True, text=True, timeout=60)
    told = json.loads(done.stdout)
    assert told["verdict"] == "not judged" and "rung[models]" in told["findings"][0]["text"], done.stdout


def test_text_on_a_cpu_does_without_rungs_and_what_compiles_them() -> None:
    program = "import sys, rung; rung.load('inner', device='cpu').generate('a', max_new_tokens=2); "
    program += "print(sorted({'rung.rungs.catalogue', 'rung.operation', 'gpuless.compile.nvrtc', 'triton'} & set(sys.modules)))"
    env = {**os.environ}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


def test_what_is_imported_later_is_the_module_itself() -> None:
    import torch
    import torch.nn.functional

    from rung import lazy

    assert lazy.torch.float32 is torch.float32
    assert lazy.F.gelu is torch.nn.functional.gelu
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        lazy.torch.nothing  # noqa: B018


def test_naming_a_rung_reads_no_other_of_its_ladder(monkeypatch: pytest.MonkeyPatch) -> None:
    from rung.rungs import catalogue

    ladder = {rung.name: rung for rung in catalogue.rungs("layernorm")}
    read: list[str] = []

    def reading(of: Operation, path: Path) -> tuple[Rung, ...]:
        read.append(path.stem)
        return (CudaRung(of, path),)

    monkeypatch.setattr(catalogue, "rungs_in_file", reading)
    for name in ("_rungs_at", "rungs"):  # empty here; plans of other tests keep the rungs that they have
        monkeypatch.setattr(catalogue, name, cache(getattr(catalogue, name).__wrapped__))
    found = {spec: catalogue.find(f"layernorm/{spec}").name for spec in ("9", "09_split", "split", "torch")}
    assert found == {"9": "09_split", "09_split": "09_split", "split": "09_split", "torch": "torch"}
    assert found["torch"] in ladder and read == ["09_split"]


def test_without_a_driver_no_context_is_begun_and_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def missing(name: str) -> NoReturn:
        asked.append(name)
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    begin_context().join(10)
    assert asked == ["libcuda.so.1"]


def test_a_context_is_begun_on_the_first_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Driver:
        def __getattr__(self, name: str) -> Callable[..., int]:
            return lambda *_: calls.append(name) or 0

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Driver())
    begin_context().join(10)
    assert calls == ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"]


def test_a_ladder_that_is_added_while_python_runs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNG_LADDERS", str(tmp_path))
    assert "mine" not in folders()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "operation.py").write_text("")
    assert folders()["mine"] == tmp_path / "mine"
