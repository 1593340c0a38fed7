"""Mistakes that no case of an operation shows by itself: each is refused by its class, not by its numbers."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from rung.check.judge import check
from rung.check.report import Report
from rung.rungs import catalogue
from rung.rungs.numbers import sizes_in

COPY = """/*---
idea = "One thread per element."
dtypes = ["f32"]
[[launch]]
kernel = "add"
grid = "GRID"
block = 64
---*/
extern "C" __global__ void add(const float* a, const float* b, float* out, int B, int T, int C)
{
    const long long count = (long long)B * T * C;
    BODY
}
"""
ROWS = "for (long long r = blockIdx.x; r < (long long)B * T; r += STEP) for (int c = threadIdx.x; c < C; c += 64) "
SUM = "out[r * C + c] = a[r * C + c] + b[r * C + c];"


def verdict_on(grid: str, body: str, folder: Path) -> Report:
    path = folder / "own.cu"
    path.write_text(COPY.replace("GRID", grid).replace("BODY", body))
    return check(catalogue.rung_from_file(catalogue.operation("residual"), path), "f32", device="emulator")


@pytest.mark.slow
@pytest.mark.parametrize("one", ["T == 1 && B > 1", "B == 1 && T > 1 && C > 1", "C == 1 && T > 2", "T == 1 && C == 1"])
def test_a_dimension_of_one_among_ordinary_others_is_tried(one: str, tmp_path: Path) -> None:
    wrong = SUM.replace("+ b", f"+ ({one} ? 2.0f : 1.0f) * b")
    assert verdict_on("B * T", ROWS.replace("STEP", "gridDim.x") + wrong, tmp_path).verdict == "failed"


@pytest.mark.slow
def test_what_is_kept_over_hundreds_of_calls_is_seen(tmp_path: Path) -> None:
    counter = "__shared__ int calls; static __device__ int made; if (threadIdx.x == 0) calls = atomicAdd(&made, 1); "
    body = counter + "__syncthreads(); if (calls < 2000) " + ROWS.replace("STEP", "gridDim.x") + SUM
    report = verdict_on("1", body, tmp_path)
    assert report.verdict == "failed" and "runs" in report.reason, report


ZERO = "float sum = a[r * C + c] + b[r * C + c]; "


@pytest.mark.slow
@pytest.mark.parametrize(
    ("store", "verdict"),
    [
        ("if (sum != 0.0f) out[r * C + c] = sum;", "failed"),
        ("out[r * C + c] = b[r * C + c] == 0.0f ? 1.0f : sum;", "failed"),
        ("out[r * C + c] = sum == 0.0f ? 0.0f : sum;", "ok"),
    ],
)
def test_numbers_that_are_zero_are_tried(store: str, verdict: str, tmp_path: Path) -> None:
    body = ROWS.replace("STEP", "gridDim.x") + "{ " + ZERO + store + " }"
    assert verdict_on("B * T", body, tmp_path).verdict == verdict


@pytest.mark.slow
@pytest.mark.parametrize(
    ("condition", "other", "verdict"),
    [
        ("__CUDA_ARCH__ >= 1000", "out[r * C + c] = a[r * C + c];", "failed"),
        ("__CUDA_ARCH__ < 860", "out[r * C + c] = a[r * C + c];", "failed"),
        ("__CUDA_ARCH__ < 800", "", "ok"),
        ("__CUDA_ARCH__ < 800", "out[r * C + c] = b[r * C + c] + a[r * C + c];", "ok"),
    ],
)
def test_branches_for_other_gpus_are_run(condition: str, other: str, verdict: str, tmp_path: Path) -> None:
    loop = ROWS.replace("STEP", "gridDim.x")
    body = f"\n#if {condition}\n{loop}{{ {other} }}\n#else\n{loop}{SUM}\n#endif\n"
    assert verdict_on("B * T", body, tmp_path).verdict == verdict


def test_a_size_that_leaves_a_remainder_is_named() -> None:
    assert 1016 in sizes_in("if (n % 1009 == 7) out[0] = 0;")


def test_every_mistake_of_the_list_can_be_made() -> None:
    """classes.toml names files and what of their text becomes what; benchmarks/corpus.py judges them."""
    tests = Path(__file__).parents[1]
    classes = tomllib.loads((tests / "broken" / "classes.toml").read_text())["class"]
    kernels = [kernel for some in classes.values() for kernel in some]
    for kernel in kernels:
        text = (tests / kernel["file"]).read_text()
        assert kernel.get("before", "") in text and kernel.get("before", "") != kernel.get("after"), kernel
        assert kernel.get("operation", "residual") in catalogue.operations()
    assert len({tuple(kernel.values()) for kernel in kernels}) == len(kernels)


@pytest.mark.slow
def test_a_scalar_beside_a_dimension_of_one_is_tried(tmp_path: Path) -> None:
    path, text = tmp_path / "own.cu", catalogue.find("embedding/1").source
    path.write_text(text.replace("start + t)", "(T == 1 ? 0 : start) + t)").replace("[5, 3, 4, 6, 7, 8, 9, 10]", "[5]"))
    report = check(catalogue.rung_from_file(catalogue.operation("embedding"), path), "f32", device="emulator")
    assert report.verdict == "failed" and report.failure["dims"]["T"] == 1, report
