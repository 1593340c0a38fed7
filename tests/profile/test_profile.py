"""Profiles: ncu's table read and put into words, ncu missing or refused, and a token's time taken apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rung.cli import console
from rung.dtypes import dtype
from rung.errors import RungError
from rung.profile import counters, ncu, trace
from rung.rungs import catalogue
from rung.rungs.base import Subject
from rung.show import profile_tables
from verbs import rung

TABLE = (Path(__file__).parents[1] / "data" / "ncu_raw.csv").read_text()
NO_GPU = not torch.cuda.is_available()


def subject() -> Subject:
    one = catalogue.find("attention/13_flash")
    return Subject(one, "b4t64", one.operation.complete(one.operation.shapes["b4t64"]), dtype("f32"))


def fake_ncu(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = folder / "ncu"
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    monkeypatch.setenv("RUNG_NCU", str(path))
    return path


def test_ncus_table_is_read_whatever_stands_around_it() -> None:
    first, second = ncu.parse(TABLE)
    assert (first.kernel, first.block, first.grid) == ("flash", "(256, 1, 1)", "(16, 12, 8)")
    assert first.metrics["gpu__time_duration.sum"] == pytest.approx(41.216e-6)
    assert first.metrics["dram__bytes_read.sum"] == 1_500_000
    assert "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active" not in first.metrics  # "n/a"
    assert second.kernel == "unpermute"
    assert ncu.parse("==ERROR== nothing was profiled\n") == []


def test_units_are_brought_to_seconds_and_bytes() -> None:
    text = TABLE.replace('"byte","byte","ns"', '"Mbyte","Kbyte","us"')
    metrics = ncu.parse(text)[1].metrics
    assert metrics["gpu__time_duration.sum"] == pytest.approx(4000e-6)
    assert metrics["dram__bytes_read.sum"] == 1e12 and metrics["dram__bytes_write.sum"] == 1e9


def test_counters_become_figures_and_the_three_worst_stalls_have_a_meaning() -> None:
    report = counters.report(subject(), ncu.parse(TABLE))
    flash, unpermute = report.kernels
    assert flash.figures["ways_load"] == 32.0  # wavefronts an instruction: every lane in the same bank
    assert flash.figures["conflicts_load"] == 31_000
    assert "ways_load" not in unpermute.figures
    assert [s.name for s in flash.stalls] == ["long_scoreboard", "short_scoreboard", "barrier"]
    assert flash.stalls[0].share == pytest.approx(0.45)
    assert "memory" in flash.stalls[0].meaning and "shared memory" in flash.stalls[1].meaning
    assert [s.name for s in unpermute.stalls] == ["long_scoreboard"]
    assert flash.classes == {"fp32": 30_000, "memory": 10_000}
    assert report.dram_bytes == 4_000_000
    assert report.seconds == pytest.approx(45.216e-6)
    assert report.model_bytes == subject().rung.operation.cost(subject().values, 4).bytes


def test_two_rungs_are_printed_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    one = counters.report(subject(), ncu.parse(TABLE)[:1])
    other = counters.report(
        Subject(catalogue.find("attention/14"), "b4t64", subject().values, dtype("f32")),
        ncu.parse(TABLE.replace('"31,000","32,000"', '"0","1,000"'))[:1],
    )
    console.show(profile_tables.counters([one, other]))
    shown = capsys.readouterr().out
    (conflicts,) = [line for line in shown.splitlines() if line.startswith("bank conflicts, loads")]
    assert conflicts.split()[-2:] == ["31,000", "0"]
    (ways,) = [line for line in shown.splitlines() if line.startswith("wavefronts per shared load")]
    assert ways.split()[-2:] == ["32.00", "1.00"]
    assert "against  attention/14_padded_keys" in shown
    assert "2.00 MB to and from memory; its cost model says" in shown
    assert "instructions: fp32 75%, memory 25%" in shown
    assert "tensor pipe" not in shown  # not counted here, so not shown


def fabricated(rung: str, *kernels: tuple[str, float, float | None]) -> counters.Report:
    """A report as ncu's table gives it, of (kernel, ns, wavefronts of its 1000 shared loads or none at all)."""
    head, units, flash, unpermute = [line for line in TABLE.splitlines() if line.startswith('"')]
    lines = [head, units]
    for name, took, wavefronts in kernels:
        line = unpermute if wavefronts is None else flash.replace('"32,000"', f'"{wavefronts:.0f}"')
        line = line.replace('"unpermute(', f'"{name}(').replace('"flash(', f'"{name}(')
        lines.append(line.replace('"41,216"', f'"{took:.0f}"').replace('"4000"', f'"{took:.0f}"'))
    about = Subject(catalogue.find(rung), "b4t64", subject().values, dtype("f32"))
    return counters.report(about, ncu.parse("\n".join(lines)))


def test_a_kernel_is_asked_for_by_name_wherever_it_stands() -> None:
    report = fabricated(
        "attention/13", ("contiguous", 90_000, None), ("flash", 20_000, 2_000), ("flash", 30_000, 8_000)
    )
    assert report.kernels[0].kernel == "contiguous"
    assert report.kernel("flash").figures["ways_load"] == 8.0  # of the longer of the two
    with pytest.raises(RungError, match=r"attention/13_flash launched no kernel 'merge'.*contiguous, flash"):
        report.kernel("merge")


def test_kernels_stand_beside_those_of_their_name_and_the_others_by_time() -> None:
    one = fabricated(
        "attention/13",
        ("contiguous", 5_000, None),
        ("flash", 40_000, 32_000),
        ("long", 9_000, None),
        ("short", 1, None),
    )
    other = fabricated("attention/14", ("flash", 10_000, 1_000), ("merge", 8_000, None), ("contiguous", 6_000, None))
    pairs = [tuple(k and k.kernel for k in group) for group in counters.side_by_side([one, other])]
    assert pairs == [("flash", "flash"), ("long", "merge"), ("contiguous", "contiguous"), ("short", None)]
    assert [k.kernel for (k,) in counters.side_by_side([one]) if k] == ["flash", "long", "contiguous", "short"]


def test_what_a_kernel_has_none_of_is_a_dash_in_its_column(capsys: pytest.CaptureFixture[str]) -> None:
    one = fabricated("attention/13", ("contiguous", 5_000, None), ("flash", 40_000, 32_000))
    other = fabricated("attention/14", ("contiguous", 5_000, None), ("flash", 10_000, 1_000))
    console.show(profile_tables.counters([one, other]))
    shown = capsys.readouterr().out.splitlines()
    (head,) = [line for line in shown if line.count("contiguous") == 2]
    assert head.split()[::2] == ["13_flash", "14_padded_keys"] * 2
    assert head.split()[1::2] == ["flash", "flash", "contiguous", "contiguous"]
    (ways,) = [line for line in shown if line.startswith("wavefronts per shared load")]
    assert ways.split()[-4:] == ["32.00", "1.00", "-", "-"]


def test_ncu_is_asked_to_leave_the_clocks_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "table.csv"
    table.write_text(TABLE)
    script = f'echo "$@" > {tmp_path}/words\nwhile [ "$1" != --log-file ]; do shift; done\ncp {table} "$2"\n'
    fake_ncu(tmp_path, script, monkeypatch)
    launches = ncu.run(["prog", "argument"], ["gpu__time_duration.sum", "launch__waves_per_multiprocessor"])
    assert [x.kernel for x in launches] == ["flash", "unpermute"]
    words = (tmp_path / "words").read_text().split()
    assert words[words.index("--clock-control") + 1] == "none"
    assert words[words.index("--metrics") + 1] == "gpu__time_duration.sum,launch__waves_per_multiprocessor"
    assert words[-2:] == ["prog", "argument"]


def test_an_ncu_that_knows_other_metrics_is_asked_for_its_full_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table.csv"
    table.write_text(TABLE)
    script = (
        'case "$*" in *"--set full"*) ;; *) echo "==ERROR== Failed to find metric smsp__old.sum"; exit 1;; esac\n'
        f'while [ "$1" != --log-file ]; do shift; done\ncp {table} "$2"\n'
    )
    fake_ncu(tmp_path, script, monkeypatch)
    assert len(ncu.run(["prog"], ["smsp__old.sum"])) == 2


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo '==ERROR== ERR_NVGPUCTRPERM - no permission to access counters'; exit 1", "NVreg_Restrict"),
        ("echo 'rung: attention/13_flash is wrong at this shape: out.' >&2; exit 2", "wrong at this shape"),
        ("echo '==ERROR== The application returned an error code (11).'; exit 11", r"error code \(11\)"),
        ("exit 9", "exit code 9.*printed nothing"),
    ],
)
def test_an_ncu_that_profiles_nothing_is_reported_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    fake_ncu(tmp_path, script + "\n", monkeypatch)
    with pytest.raises(RungError, match=message) as found:
        ncu.run(["prog"], ["gpu__time_duration.sum"])
    assert "\n" not in str(found.value)


def test_a_missing_ncu_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RUNG_NCU", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(ncu, "PLACES", ())
    assert rung("profile", "attention/13") == 2
    assert "install NVIDIA's package nsight-compute" in capsys.readouterr().err
    monkeypatch.setenv("RUNG_NCU", str(tmp_path / "nowhere"))
    with pytest.raises(RungError, match="RUNG_NCU names"):
        ncu.find()


@pytest.mark.skipif(not NO_GPU, reason="here is a GPU")
def test_with_ncu_but_no_gpu_the_gpu_is_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_ncu(tmp_path, "exit 0\n", monkeypatch)
    assert rung("profile", "attention/13") == 2
    assert "no CUDA device was found" in capsys.readouterr().err


def event(name: str, start: float, took: float, category: str = "kernel", thread: int = 7) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": took, "pid": 0, "tid": thread}


def test_a_tokens_time_is_divided_into_kernels_and_gaps() -> None:
    events = [
        event("aten::mm", 0, 500, "cpu_op", 1),
        event("matmul", 10, 20),
        event("copy", 25, 15, "gpu_memcpy"),  # overlaps: no gap
        event("matmul", 50, 20),
        {"ph": "M", "name": "process_name"},
    ]
    found = trace.breakdown(events, tokens=2)
    assert (found.device, found.tokens) == ("cuda", 2)
    assert found.seconds == pytest.approx(30e-6) and found.gap == pytest.approx(5e-6)
    assert [(s.name, s.calls) for s in found.shares] == [("matmul", 1.0), ("copy", 0.5)]
    assert [s.running for s in found.shares] == pytest.approx([20e-6, 7.5e-6])
    assert [s.seconds for s in found.shares] == pytest.approx([20e-6, 5e-6])  # the copy's first 5 us went on beside


def test_copies_and_calls_of_cuda_are_summed_over_the_whole_run() -> None:
    copy = "Memcpy HtoD (Pageable -> Device)"
    events = [
        event("matmul", 10, 20),
        {**event(copy, 40, 5, "gpu_memcpy"), "args": {"bytes": 4096}},
        {**event(copy, 50, 15, "gpu_memcpy"), "args": {"bytes": 8192}},
        event("Memset (Device)", 70, 1, "gpu_memset"),
        event("cudaLaunchKernel", 0, 4, "cuda_runtime", 1),
        event("cuLaunchKernelEx", 5, 9, "cuda_driver", 1),
    ]
    found = trace.breakdown(events, tokens=2)
    assert [(t.name, t.calls, t.bytes) for t in found.copies] == [(copy, 2, 12_288), ("Memset (Device)", 1, 0)]
    assert found.copies[0].seconds == pytest.approx(20e-6)
    assert [t.name for t in found.calls] == ["cuLaunchKernelEx", "cudaLaunchKernel"]


def test_kernels_that_wait_beside_their_producers_add_only_what_outlasts_them() -> None:
    events = [event("first", 0, 40), event("second", 10, 50), event("inner", 12, 3), event("third", 70, 10)]
    found = trace.breakdown(events, tokens=1)
    shares = {s.name: (s.running, s.seconds) for s in found.shares}
    assert shares["second"] == pytest.approx((50e-6, 20e-6)) and shares["inner"] == pytest.approx((3e-6, 0.0))
    assert found.gap == pytest.approx(10e-6)
    assert sum(s.seconds for s in found.shares) + found.gap == pytest.approx(found.seconds) == pytest.approx(80e-6)


def test_on_a_cpu_the_outermost_operators_count() -> None:
    events = [
        event("aten::linear", 0, 100, "cpu_op", 1),
        event("aten::addmm", 10, 80, "cpu_op", 1),  # inside
        event("aten::gelu", 120, 30, "cpu_op", 1),
        event("aten::mul", 20, 10, "cpu_op", 2),  # another thread
    ]
    found = trace.breakdown(events, tokens=1)
    assert found.device == "cpu"
    assert {s.name for s in found.shares} == {"aten::linear", "aten::gelu", "aten::mul"}
    assert found.gap == pytest.approx(20e-6)


def test_nothing_profiled_is_a_sentence() -> None:
    with pytest.raises(RungError, match="recorded no kernel and no operator"):
        trace.breakdown([], tokens=3)


def test_generation_is_profiled_here_with_a_chrome_trace(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "deep" / "trace.json"
    assert rung("profile", "generate", "--device", "cpu", "-n", "3", "--trace", str(path), "--json") == 0
    message = capfd.readouterr()
    assert "USDT" not in message.err  # torch's profiler keeps its own log to itself
    answer = json.loads(message.out)
    assert answer["kind"] == "profile" and answer["what"] == "inner"
    assert 0 < answer["metrics"]["gap_us"] < answer["metrics"]["token_us"]
    assert any(s["name"].startswith("aten::") for s in answer["detail"]["shares"])
    assert json.loads(path.read_text())["traceEvents"]


@pytest.mark.gpu
def test_a_step_of_random_weights_is_broken_down_by_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    assert rung("profile", "generate", "--device", "cuda", "--model", "random:gpt2", "-n", "24", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    shares, metrics = answer["detail"]["shares"], answer["metrics"]
    assert answer["options"]["tokens"] == 24 and "advance" in {s["name"] for s in shares}
    spent = sum(s["seconds"] for s in shares) * 1e6
    assert spent + metrics["gap_us"] == pytest.approx(metrics["token_us"], rel=1e-5)
    assert 0 < metrics["floor_us"] < metrics["token_us"]


@pytest.mark.gpu
def test_padding_the_keys_makes_the_bank_conflicts_disappear() -> None:
    try:
        ncu.find()
    except RungError as error:
        pytest.skip(str(error))
    values = catalogue.operation("attention").complete({"B": 1, "T": 128, "C": 768, "NH": 12})
    ways = []
    for name in ("attention/13_flash", "attention/14_padded_keys"):
        about = Subject(catalogue.find(name), "small", values, dtype("f32"))
        try:
            report = counters.profile(about)
        except RungError as error:
            if "performance counters" in str(error):
                pytest.skip(str(error))
            raise
        ways.append(report.kernel("flash").figures["ways_load"])
    assert ways[0] > 4 and ways[1] < 2
