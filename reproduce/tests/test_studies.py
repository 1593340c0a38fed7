"""Studies: what they ask, what they conclude from figures, and that none is made up where no time can be taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import gpuless
from gpuless.compile import nvrtc
from rung.errors import RungError
from rung.models.gpt2.family import GPT2Config
from rung.results import store
from rung.rungs import catalogue
from rung.rungs.base import Rung
from rung_reproduce import findings
from rung_reproduce import studies as study
from rung_reproduce.studies import (
    attention_scaling,
    cache,
    fusion,
    memory_latency,
    precision,
    restrict,
    softmax,
    vocab,
    waves,
)
from rung_reproduce.studies.common import Time, shown, times
from verbs import rung

Clock = Callable[[str, Mapping[str, float], str], float | None]


class FakeRunner:
    """A GPU with 132 multiprocessors whose times are a function of the rung, the shape and the dtype."""

    gpu, sms, quick = True, 132, False

    def __init__(self, clock: Clock, peak: Callable[[str, int], int] = lambda rung, n: 0) -> None:
        self.clock, self.bytes = clock, peak
        self.asked: list[tuple[str, ...]] = []

    def race(
        self, rungs: Sequence[str | Rung], values: Mapping[str, float], dtype: str, seconds: float = 0.1
    ) -> dict[str, Time]:
        chosen = [
            catalogue.find(r) if isinstance(r, str) else r for r in rungs
        ]  # a study may only name what there is ...
        self.asked.append(tuple(one.full_name for one in chosen))
        found = {}
        for one in chosen:
            name = one.full_name
            one.operation.complete(values)  # ... at shapes that are one
            if dtype not in one.dtypes:
                found[name] = Time(None, f"has no {dtype} version")
                continue
            us = self.clock(name, values, dtype)
            found[name] = Time(us, "" if us else "too slow", 2e-3 if dtype == "bf16" else 1e-7)
        return found

    def host(self, rungs: Sequence[str], shape: str, dtype: str) -> float | None:
        assert all(shape in catalogue.find(name).operation.shapes for name in rungs)
        return 3.0 * len(rungs)

    def peak(self, rung: str, values: Mapping[str, float], dtype: str) -> int | None:
        return self.bytes(rung, int(values["T"]))


def test_softmax_tells_how_the_trees_gain_changes_with_the_row() -> None:
    def clock(name: str, values: Mapping[str, float], dtype: str) -> float:
        return values["S"] if name == softmax.TREE else values["S"] * 3 * (256 / values["S"]) ** 0.25

    found = study.run("softmax", FakeRunner(clock))
    assert [row[0] for row in found.rows] == [256, 512, 1024, 2048, 4096, 8192]
    assert found.rows[0][-2:] == ("3.00x", "5.07x")  # as the source's table has it
    assert "3x at N = 256" in found.finding and "less and less" in found.finding


def test_vocab_tells_what_the_ragged_width_costs_each() -> None:
    def clock(name: str, values: Mapping[str, float], dtype: str) -> float:
        ragged = values["OC"] == vocab.RAGGED
        return (200.0 if ragged else 40.0) if name == vocab.LIBRARY else (66.0 if ragged else 60.0)

    found = study.run("vocab", FakeRunner(clock))
    assert "costs cuBLAS 5x" in found.finding and "1.1x" in found.finding
    assert "ours 3x as fast as cuBLAS" in found.finding


def test_waves_finds_the_edge_and_predicts_the_saw_tooth() -> None:
    tile = catalogue.find(waves.RUNG).tuned(None)

    def clock(name: str, values: Mapping[str, float], dtype: str) -> float:
        tiles = -(-values["T"] // tile["BM"]) * (values["OC"] // tile["BN"])
        return 50.0 * -(-tiles // 132)

    found = study.run("waves", FakeRunner(clock))
    edge = 12 * tile["BM"]  # 132 multiprocessors take eleven tiles across and twelve down
    assert f"({edge} to {edge + 1}) costs +100%" in found.finding and "predicts +100%" in found.finding
    ours, predicted, _ = found.series
    assert [b for _, b in ours.points] == pytest.approx([b for _, b in predicted.points])
    rows = {row[0]: row for row in found.rows}
    assert rows[edge][2:4] == (1, "100%") and rows[edge + 1][2:4] == (2, "54%")


def test_squares_are_grouped_by_divisor_and_by_waves() -> None:
    def clock(name: str, values: Mapping[str, float], dtype: str) -> float:
        n = int(values["T"])
        return (1.0 + n % 2) * -(-(-(-n // 256) * -(-n // 128)) // 108)  # the lecture's tile on its A100; odd: twice

    squares = study.run("waves", FakeRunner(clock)).more["squares"]
    rows = {row[0]: dict(zip(squares.columns, row, strict=True)) for row in squares.rows}
    assert {1792, 1793} <= set(rows) and len(rows) > 50
    assert [rows[n]["tiles of 256 x 128"] for n in (1792, 1793)] == [98, 120]
    assert [rows[n]["divisible by"] for n in (1792, 1793, 1800, 1794)] == [128, 1, 8, 2]
    assert "1793 takes cuBLAS 4.00 times as long as 1792" in squares.finding
    first, *_, last = squares.series
    assert (first.label, last.label) == ("cuBLAS, multiples of 128", "cuBLAS, odd sizes")
    assert {rows[int(x)]["divisible by"] for x, _ in first.points} == {128}


@pytest.mark.parametrize("sms", [132, 108, 84, 142, 7])
def test_waves_lays_whole_waves_on_any_gpu(sms: int) -> None:
    across = waves._divisor(sms)
    assert sms % across == 0
    sizes = waves.row_counts(sms // across, 128, quick=True)
    edge = sms // across * 128
    assert {edge, edge + 1} <= set(sizes) and min(sizes) > 0


def test_attention_scaling_compares_time_memory_and_growth() -> None:
    def clock(name: str, values: Mapping[str, float], dtype: str) -> float | None:
        n = values["T"] / 1024
        if name == attention_scaling.NAIVE:
            return 1000 * n**2 if n < 8 else None
        return 100 * n if name == attention_scaling.LOCAL else 50 * n**2

    def peak(name: str, n: int) -> int:
        return 12 * 4 * n * n if name == attention_scaling.NAIVE else 0

    found = study.run("attention-scaling", FakeRunner(clock, peak))
    assert "At 4096 tokens tiles are 20x as fast" in found.finding
    assert "0.0 MB instead of 805.3 MB" in found.finding
    assert "grows with N to the 1.0, the tiles' to the 2.0" in found.finding
    assert found.drawable and "too slow" not in found.svg()


def test_fusion_names_the_most_and_the_least_gain() -> None:
    def clock(name: str, values: Mapping[str, float], dtype: str) -> float:
        if name == "pointwise/01_five_kernels":
            return 500.0
        return 120.0 if name == "layernorm_matmul/03_tensor_cores" else 50.0

    found = study.run("fusion", FakeRunner(clock))
    assert "'sin² + cos²: five kernels' (10x)" in found.finding
    assert "loses for 'layernorm, then product' (0.83x as fast)" in found.finding
    assert len(found.rows) == len(fusion.PAIRS)


def test_fused_rungs_and_their_parts_compute_the_same_at_the_shapes_of_the_study() -> None:
    for pair in fusion.PAIRS:
        for name, values in (*pair.first, pair.fused):
            one = catalogue.find(name)
            assert one.refusal(one.operation.complete(values), precision_dtype(pair.dtype)) is None


def precision_dtype(name: str):  # type: ignore[no-untyped-def]
    from rung.dtypes import dtype

    return dtype(name)


def test_precision_tells_what_bf16_gains_and_loses() -> None:
    def clock(name: str, values: Mapping[str, float], dtype: str) -> float:
        heavy = name.startswith(("matmul", "attention"))
        return 100.0 / ((8 if heavy else 2) if dtype == "bf16" else 1)

    found = study.run("precision", FakeRunner(clock))
    assert "matmul becomes 8x as fast and gelu 2x" in found.finding
    assert "2e-03 in bf16" in found.finding
    assert {row[0] for row in found.rows} == set(precision.ASKED)


def test_memory_latency_finds_the_plateaus() -> None:
    l2 = 60 << 20
    ns = {1 << e: 20.0 if e <= 17 else 140.0 if e <= 25 else 600.0 for e in range(12, 31)}
    found = memory_latency.report(15.0, ns, l2, 1.98)
    assert found.finding == (
        "Shared memory has a latency of 15 ns, L1 20 ns (1.3x), L2 140 ns (9.3x), global memory 600 ns (40.0x)."
    )
    assert found.rows[0][:4] == ("shared memory", "16 KiB", "15.0", "30")
    assert {row[0] for row in found.rows} == {"shared memory", "L1", "L2", "global memory", "between"}


def test_a_chain_visits_every_line_once_and_comes_back() -> None:
    chain = memory_latency.chain(64, 32, "cpu")
    at, seen = 0, []
    for _ in range(64):
        seen.append(at)
        at = int(chain.next[at])
    assert at == 0 and sorted(seen) == [i * 32 for i in range(64)]
    assert chain.after(64) == 0 and chain.after(3) == seen[3]


@pytest.mark.skipif(gpuless.available() is not None, reason=str(gpuless.available()))
@pytest.mark.parametrize("kernel", ["chase_global", "chase_shared"])
def test_the_chasing_kernels_end_where_the_chain_says(kernel: str) -> None:
    module = gpuless.load(memory_latency.build(), settings=gpuless.Settings())
    chain = memory_latency.chain(64, 1, "cpu")
    memory_latency.walk(module, kernel, chain, 64, 37)
    chain.next[chain.order[5]] = 0  # the chain is cut
    with pytest.raises(RungError, match="instead of"):
        memory_latency.walk(module, kernel, chain, 64, 37)


def test_the_chasing_kernels_compile_for_a_gpu_and_keep_their_loads() -> None:
    cubin = nvrtc.compile_cubin(memory_latency.build(), "sm_90")
    assert cubin.resources["chase_shared"].static_shared == 4096 * 4
    assert all(r.spill_stores == 0 for r in cubin.resources.values())


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
@pytest.mark.parametrize(
    "name", [n for n in study.STUDIES if n not in ("precision", "attention", "cache", "ranks", "restrict")]
)
def test_without_a_gpu_no_time_is_made_up(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert rung("study", name) == 2
    assert "no CUDA device was found" in capsys.readouterr().err


def test_a_study_writes_a_chart_and_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rung_reproduce.studies import common

    monkeypatch.setenv("RUNG_RESULTS", str(tmp_path / "results.jsonl"))
    monkeypatch.setattr(common, "Gpu", lambda **_: FakeRunner(lambda name, values, dtype: 10.0))
    assert rung("study", "fusion", "--chart", str(tmp_path / "charts" / "fusion.svg")) == 0
    out = capsys.readouterr().out
    assert "Fusing gains most for" in out and "separate us" in out
    svg = (tmp_path / "charts" / "fusion.svg").read_text()
    assert svg.startswith("<svg") and "Fusing gains most for" in svg
    row, launches = store.read(tmp_path / "results.jsonl")
    assert launches.part == "launches" and launches.detail["rows"][0][:2] == ["gelu and bias", 2]
    assert (row.kind, row.what, row.quick) == ("study", "fusion", False)
    assert row.detail["finding"] in out and len(row.detail["series"]) == 2
    told = findings.of_study("fusion")
    assert told and all(f.says in out for f in told) and "(theirs 0.4071, here 0.5): the same" in out and findings.of_study("softmax") == []


def test_an_unknown_study_and_the_list_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert rung("study", "tides") == 2
    assert "there is no study 'tides'; there are waves" in capsys.readouterr().err
    rung("study")
    out = capsys.readouterr().out
    assert all(name in out for name in study.STUDIES)


def test_figures_are_written_with_three_digits() -> None:
    assert [shown(x) for x in (0.1234, 1.234, 12.34, 123.4, 1234.0, None)] == [
        "0.123", "1.23", "12.3", "123", "1234", "",
    ]  # fmt: skip
    assert [times(x) for x in (0.83, 5.12, 120.4)] == ["0.83x", "5.1x", "120x"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", list(study.STUDIES))
def test_on_a_gpu_every_study_comes_to_a_conclusion(name: str) -> None:
    from rung_reproduce.studies import cutlass
    from rung_reproduce.studies.common import Gpu

    if name == "cutlass":
        try:
            cutlass.require()
        except RungError as absent:
            pytest.skip(str(absent))
    found = study.run(name, Gpu(quick=True))
    assert found.rows and found.drawable == bool(found.x_label) and "could be" not in found.finding


@pytest.mark.gpu
@pytest.mark.alone
def test_on_a_gpu_a_load_from_memory_is_not_one_from_the_l2() -> None:
    from rung_reproduce.studies.common import Gpu

    found = study.run("memory-latency", Gpu(quick=True))
    ns = {str(where): float(str(value)) for where, _, value, *_ in found.rows}
    assert ns["L1"] < 0.5 * ns["L2"] and ns["L2"] < 0.6 * ns["global memory"], ns


def on_a_cpu() -> FakeRunner:
    runner = FakeRunner(lambda name, values, dtype: None)
    runner.gpu = False
    return runner


def small_gpt2() -> GPT2Config:
    return GPT2Config(500, 64, 32, 2, 2, 128, "gelu_tanh", 1e-5, True, False, True, (499,))


def test_the_caches_study_writes_the_same_tokens_with_and_without_a_cache_on_a_cpu_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cache, "POSITIONS", (4, 48))
    found = cache.run(on_a_cpu(), config=small_gpt2())
    assert found.columns == ("N", "without, ms", "with, ms", "cache, MB") and found.weights == "random"
    assert [row[0] for row in found.rows] == [4, 48] and "on a CPU" in found.title
    assert found.rows[1][-1] == f"{2 * 2 * 32 * 4 * 48 / 1e6:.2f}"
    passes = found.more["passes"]
    assert [(row[0], row[1], row[-1]) for row in passes.rows] == [
        (n, chain, cache.STEPS) for n in (4, 48) for chain in ("without", "with")
    ]
    assert all(float(cell) > 0 for row in passes.rows for cell in row[2:5])


def test_a_method_whose_text_differs_ends_the_caches_study(monkeypatch: pytest.MonkeyPatch) -> None:
    real = cache._methods

    def other(*about: Any) -> Any:
        yield from real(*about)
        yield "wrong", lambda prompt: iter([1] * cache.STEPS)

    monkeypatch.setattr(cache, "_methods", other)
    monkeypatch.setattr(cache, "POSITIONS", (4,))
    with pytest.raises(RungError, match="wrong writes other tokens after 4"):
        cache.run(on_a_cpu(), config=small_gpt2())


def test_the_caches_study_tells_the_gain_the_growth_and_the_first_pass() -> None:
    def passes(first: float, later: float) -> cache.Passes:
        return cache.Passes((1,) * 4, (first, later, later, later))

    found = {
        "without": {8: passes(0.002, 0.002), 1000: passes(0.02, 0.02)},
        "with": {8: passes(0.0021, 0.001), 1000: passes(0.03, 0.002)},
    }
    report = cache.report(found, small_gpt2(), "a GPU")
    assert "2x as fast after 8 tokens and 10x after 1000" in report.finding
    assert "without it a step takes 10x as long there, with it 2x" in report.finding
    assert "1.50 times as long when it fills the cache" in report.more["passes"].finding


def test_restrict_goes_to_every_pointer_of_the_kernels_alone_and_the_result_compiles(tmp_path: Path) -> None:
    text = '__device__ float f(float* a);\nextern "C" __global__ void k(const Real* x, float *__restrict__ y, int n)\n{'
    new = restrict.restricted(text)
    assert new == (
        "__device__ float f(float* a);\n"
        'extern "C" __global__ void k(const Real* __restrict__ x, float * __restrict__ y, int n)\n{'
    )
    rungs = restrict.pair("residual/01_naive", tmp_path)
    (kernel,) = restrict.compared(rungs, "f32")
    assert kernel.name == "residual" and not kernel.same, "loads go through the read-only path"
    (same,) = restrict.compared((rungs[0], rungs[0]), "f32")
    assert same.same and same.registers[0] == same.registers[1] == kernel.registers[0]


def test_a_sum_in_16_bits_stops_growing_and_an_exponential_overflows() -> None:
    found = {(case, dtype): (float(result), error) for case, dtype, result, error in precision.bits_and_range().rows}
    exact = 8192 * 0.1
    assert (
        found["sum of 8192 times 0.1", "f16"][0] < exact / 2 and found["sum of 8192 times 0.1", "bf16"][0] < exact / 10
    )
    assert found["sum of 8192 times 0.1", "f32"][0] == pytest.approx(exact, rel=1e-3)
    naive, shifted = "softmax of 12, 11, 3: exp as it is", "softmax of 12, 11, 3: exp less the maximum"
    assert found[naive, "f16"][1] == "overflows"
    assert all(float(found[case, d][1]) < 1e-2 for case in (naive, shifted) for d in ("bf16", "f32"))
    assert float(found[shifted, "f16"][1]) < 1e-2


def test_the_lectures_tiles_on_its_gpu_are_one_wave_and_two() -> None:
    found = waves.limited(FakeRunner(lambda name, values, dtype: 50.0 * (1 + (values["T"] > 1792))))
    assert [(row[1], row[2], float(row[3])) for row in found.rows] == [(98, 1, 50.0), (120, 2, 100.0)]


def test_the_summary_of_a_pass_has_its_kernels_copies_and_calls_by_time() -> None:
    from rung.profile.trace import Breakdown, Share, Total
    from rung_reproduce.studies import summary

    base = Breakdown(
        "cuda", 3, 0.2, 0.0, [Share("matmul", 49, 0.06, 0.06), Share("query_key", 12, 0.14, 0.14)],
        [Total("HtoD", 3, 1e-6)], [Total("cudaLaunchKernel", 90, 3e-4), Total("cudaMemcpyAsync", 3, 1e-3)],
    )  # fmt: skip
    found = summary.report({summary.STEPS[0]: base, summary.STEPS[3]: base})
    assert found.rows == [("query_key", "12", "140.000", "70.0"), ("matmul", "49", "60.000", "30.0")]
    assert found.finding.startswith("query_key takes the most of 200 ms")
    assert [row[0] for row in found.more["calls"].rows] == ["cudaMemcpyAsync", "cudaLaunchKernel"]
    assert set(found.more) == {"copies", "calls", "cuBLAS"} and found.more["cuBLAS"].rows == found.rows
