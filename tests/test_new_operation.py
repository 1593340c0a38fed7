"""A new operation is a folder with operation.py and a rung: it is listed, checked, forecast and reported as it stands."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gpuless
from rung.cli import main
from rung.operation import MORE_LADDERS
from rung.rungs import catalogue

OPERATION = '''
"""A vector times a number."""

from rung.operation import Case, Cost, Library, Operand, Operation, Race


def reference(t, v):
    return {"out": t["x"] * v["factor"]}


OPERATION = Operation(
    name="scaling",
    summary="out = factor x",
    dims=("N",),
    scalars={"factor": 3.0},
    operands=(Operand("x", ("N",), aliases=("signal",)), Operand("out", ("N",), role="out")),
    reference=reference,
    cost=lambda v, size: Cost(flops=v["N"], bytes=2 * v["N"] * size),
    cases=(Case("one", dict(N=1)), Case("odd", dict(N=1031)), Case("another factor", dict(N=67, factor=-0.5))),
    shapes={"n1m": dict(N=1 << 20), "n64m": dict(N=64 << 20)},
    libraries=(Library("torch", lambda x, factor: x * factor),),
    races=(Race("n64m", ("f32",)),),
    words=("amplify",),
)
'''

RUNG = """/*---
idea   = "One thread per number."
expect = "The bandwidth of a copy."
dtypes = ["f32", "bf16"]
[[launch]]
kernel = "scaling"
grid   = "(N + 255) // 256"
block  = "256"
---*/
#include "rung.cuh"
extern "C" __global__ void scaling(const Real* x, Real* out, int N, float factor)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = Real(factor * float(x[i]));
}
"""


@pytest.fixture
def ladders(tmp_path: Path) -> Path:
    folder = tmp_path / "ladders" / "scaling"
    folder.mkdir(parents=True)
    (folder / "operation.py").write_text(OPERATION)
    (folder / "01_naive.cu").write_text(RUNG)
    return folder.parent


@pytest.fixture
def rung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """The command line in this process; what the catalogue remembers of the folders is forgotten around each call."""
    monkeypatch.setenv("RUNG_RESULTS", str(tmp_path / "results.jsonl"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    def call(*words: str | Path) -> tuple[int, str, str]:
        monkeypatch.setenv(MORE_LADDERS, "")
        forget()
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        message = capsys.readouterr()
        return int(ended.value.code or 0), message.out, message.err

    yield call
    forget()


def forget() -> None:
    catalogue.operations.cache_clear()
    catalogue.rungs.cache_clear()


Call = Callable[..., tuple[int, str, str]]


def test_it_is_listed_and_forecast(ladders: Path, rung: Call) -> None:
    code, out, _ = rung("--ladders", ladders, "list", "scaling")
    assert code == 0 and "01_naive" in out and "torch" in out
    code, _, err = rung("--ladders", ladders, "bench", "scaling")
    assert code == 2 and "Would have timed scaling/01_naive, scaling/torch at n1m f32" in err
    assert "scaling" in rung("--ladders", ladders, "bench", "all")[2]
    assert "there is no operation 'scaling'" in rung("list", "scaling")[2]


@pytest.mark.slow
@pytest.mark.skipif(gpuless.available() is not None, reason="the emulator needs g++")
def test_it_is_checked_and_a_wrong_rung_is_caught(ladders: Path, rung: Call) -> None:
    code, out, err = rung("--ladders", ladders, "check", "scaling/1", "--device", "emulator", "--json")
    assert code == 0, err
    assert {row["verdict"] for row in json.loads(out)["results"]} == {"ok"}
    (ladders / "scaling" / "02_wrong.cu").write_text(RUNG.replace("factor * float", "3.0f * float"))
    code, out, _ = rung("--ladders", ladders, "check", "scaling/2", "--device", "emulator")
    assert code == 1 and "another factor" in out


@pytest.mark.skipif(gpuless.available() is not None, reason="the emulator needs g++")
def test_a_file_is_known_by_the_words_and_names_of_its_operation(ladders: Path, rung: Call, tmp_path: Path) -> None:
    file = tmp_path / "amplify.cu"
    file.write_text(
        "__global__ void amplify(const float* signal, const float factor, float* y, int n) {\n"
        "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i < n) y[i] = factor * signal[i];\n}\n"
    )
    code, _, err = rung("--ladders", ladders, "check", file, "--quick", "--write")
    assert code == 0, err
    header = file.read_text().partition("---*/")[0]
    assert 'signal = "x"' in header and 'y = "out"' in header


@pytest.mark.slow
def test_it_is_reported(ladders: Path, rung: Call, tmp_path: Path) -> None:
    code, _, err = rung("--ladders", ladders, "report", "--no-compile", "-o", tmp_path / "report.html")
    assert code == 0, err
    text = (tmp_path / "report.html").read_text()
    assert "out = factor x" in text and "One thread per number." in text


@pytest.mark.parametrize("role", ['"output"', '"in"'])
def test_an_operation_without_a_result_is_refused(role: str, ladders: Path, rung: Call) -> None:
    (ladders / "scaling" / "operation.py").write_text(OPERATION.replace('role="out"', f"role={role}"))
    code, _, err = rung("--ladders", ladders, "list", "scaling")
    assert code == 2 and role.strip('"') in err and "with roles" in err


def test_two_ladders_of_one_operation_and_a_missing_folder_are_refused(ladders: Path, rung: Call) -> None:
    (ladders / "gelu").mkdir()
    (ladders / "gelu" / "operation.py").write_text(OPERATION.replace('"scaling"', '"gelu"'))
    assert "hold the same operation" in rung("--ladders", ladders, "list")[2]
    code, _, err = rung("--ladders", ladders / "nowhere", "list")
    assert code == 2 and "there is no folder" in err
    code, _, err = rung("--ladders", ladders / "scaling", "list", "scaling")
    assert code == 2 and f"{ladders / 'scaling'} holds" in err
