"""`rung count`: tables, annotated source, comparison, goals; and the same from Python."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

import rung
from emulation import needs_compiler
from gpuless import machine
from prediction_tables import kendall
from rung.cli import console, main
from rung.dtypes import DTYPES
from rung.profile import emulated
from rung.rungs import catalogue
from rung.rungs.base import Subject
from rung.show import counts, drawings

pytestmark = [needs_compiler, pytest.mark.skipif(bool(machine.unavailable()), reason=machine.unavailable())]


def run(capsys: pytest.CaptureFixture[str], *words: str, verb: str = "count") -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main([verb, *words])
    return int(ended.value.code or 0), capsys.readouterr().out


def test_padding_removes_the_conflicts_of_a_tile(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, "transpose/3", "--vs", "transpose/2", "--shape", "R=64,C=64", "--json")
    padded, tiled = (c["kernels"][0] for c in json.loads(text)["results"])
    assert code == 0
    assert padded["figures"]["conflicts_load"] == 0
    assert tiled["figures"]["ways_load"] == 32
    assert tiled["figures"]["global_read_bytes"] == 4 * 64 * 64
    worst = max(tiled["lines"], key=lambda line: line["wavefronts"])
    source = catalogue.find("transpose/2").source.splitlines()
    assert "[threadIdx.x]" in source[worst["line"] - 1]


def test_lines_stand_beside_their_counts(capsys: pytest.CaptureFixture[str]) -> None:
    _, text = run(capsys, "transpose/2", "--shape", "R=64,C=64", "--lines")
    source = catalogue.find("transpose/2").source.splitlines()
    assert len(text.splitlines()) == len(source)
    assert any("ld shared 128 x 32.00" in line for line in text.splitlines())


def test_a_narrow_margin_keeps_short_marks_beside_lines_and_long_ones_above() -> None:
    lines = [("ld shared 8 x 1.00", "| a"), ("ld shared 8 x 1.00; st shared 8 x 1.00", "| b"), ("", "| c")]
    wide, narrow = (counts._beside(lines, margin) for margin in (60, 26))
    assert [line.index("|") for line in wide] == [39] * 3
    assert narrow == ["ld shared 8 x 1.00 | a", f"{lines[1][0]}\n{'':18} | b", f"{'':18} | c"]


@pytest.mark.slow
def test_a_difference_shows_what_its_lines_cost_before_and_after(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, "attention/14", "--diff", "--count", verb="show")
    costs = re.findall(r"ld shared [\d,]+ x ([\d.]+) \| ([-+])", out)
    assert code == 0 and [(sign, float(cost) > 2) for cost, sign in costs] == [("-", True), ("+", False)]
    code, out = run(capsys, "transpose/3", "--diff", "--count", verb="show")  # what changed is the declaration
    before, after = re.findall(r"^ {4}.*ld shared [\d,]+ x ([\d.]+)$", out, re.MULTILINE)
    assert code == 0 and float(before) > 16 and float(after) == 1


@pytest.mark.parametrize(("goal", "code"), [("ways(ld) <= 1.1", 1), ("sectors_per_request(ld) <= 4", 0), ("x <= 1", 2)])
def test_a_missed_goal_is_a_negative_result(capsys: pytest.CaptureFixture[str], goal: str, code: int) -> None:
    assert run(capsys, "transpose/2", "--shape", "R=64,C=64", "--goal", goal)[0] == code


def test_a_users_file_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(catalogue.find("gelu/1").source)
    code, text = run(capsys, "gelu", str(path), "--shape", "B=1,T=8,C=64", "--json")
    figures = json.loads(text)["results"][0]["kernels"][0]["figures"]
    assert code == 0
    assert figures["global_read_bytes"] == figures["global_write_bytes"] == 4 * 8 * 64


def test_python_gets_the_same_rows() -> None:
    rows = rung.count("transpose/2", shape="R=64,C=64")
    assert emulated.figures(rows[0].kernels[0])["ways_load"] == 32
    assert "bank conflicts" in repr(rows)


def test_large_shapes_are_extrapolated_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    one = catalogue.find("layernorm/3")
    values = one.operation.complete({"B": 9, "T": 256, "C": 16})
    subject = Subject(one, "nine", values, DTYPES["f32"])
    direct = emulated.count(subject)
    assert direct.exact
    for limit in ("MOST_WORK", "PART_WORK"):  # then three rows of T are counted in place of nine
        monkeypatch.setattr(emulated, limit, emulated.work(subject, values) / 2)
    shorter = emulated.count(subject)
    assert not shorter.exact
    assert [emulated.figures(k) for k in shorter.kernels] == [emulated.figures(k) for k in direct.kernels]
    assert [k.config for k in shorter.kernels] == [k.config for k in direct.kernels]


def test_orders_agree_or_not() -> None:
    assert kendall([1, 2, 3], [10, 20, 30]) == 1
    assert kendall([1, 2, 3], [3, 2, 1]) == -1
    assert kendall([1, 1], [1, 2]) == 0


def test_one_counter_of_a_rung_has_an_answer() -> None:
    assert emulated.figure("transpose/2", "ways_load", shape="R=64,C=64") == 32
    assert emulated.figure("transpose/2", "shared_loads", shape="R=64,C=64") == 128


@pytest.mark.slow
def test_a_check_of_a_file_names_its_most_expensive_line_and_judges_its_goals(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.cu"
    path.write_text("""__global__ void relu(const float* x, float* out, int N)
{
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    for (int i = row * 32; i < row * 32 + 32; i++)
        if (i < N)
            out[i] = x[i] < 0.0f ? 0.0f : x[i];
}
""")
    seen = []
    for goals in ([], ["--goal", "sectors_per_request(ld) <= 4"], ["--goal", "sectors_per_request(ld) > 4"]):
        with pytest.raises(SystemExit) as ended:
            main(["check", "relu", str(path), "--dtype", "f32", "--case", "power of two and one", *goals])
        out = capfd.readouterr().out
        seen.append(int(ended.value.code or 0))
        remarks = [line for line in out.splitlines() if line.startswith("remark:")]
        assert len(remarks) == 1 and "line 6" in remarks[0] and "32 elements apart" in remarks[0]
    assert seen == [0, 1, 0]


def test_the_first_block_of_an_asynchronous_kernel_is_told_in_order() -> None:
    """A bulk copy begins before it arrives, and each is drawn once."""
    rung_ = catalogue.find("layernorm/13")
    values = rung_.operation.complete({"B": 1, "T": 64, "C": 768})
    counted = emulated.run(Subject(rung_, "small", values, DTYPES["f32"]))
    events = counted.kernels[0].events
    begun = {e.copy: at for at, e in enumerate(events) if e.what == "copy"}
    arrived = {e.copy: at for at, e in enumerate(events) if e.what == "arrived"}
    assert begun and begun.keys() == arrived.keys() and all(begun[copy] < arrived[copy] for copy in begun)
    assert {e.amount for e in events if e.what == "copy"} <= {4 * 768}
    svg = drawings.timeline(counted.kernels[0])
    assert svg.count("a copy of 3,072 bytes") == len(begun)
    assert ElementTree.fromstring(svg).tag.endswith("svg")


# What Nsight Compute measured on an H200: (rung, shape, dtype, figure, of all launches).
MEASURED = [
    ("reduce/01_linear", "b8192n768", "f32", "global_loads", 196_608),
    ("reduce/01_linear", "b65536n1024", "f32", "global_loads", 2_097_152),  # rows share a warp: not counted at few rows
    ("matmul/23_tensor_stores", "b4t64 out", "bf16", "fadd", 196_608),  # a tile holds two texts: not counted at one
    ("matmul/14_mma_pipeline", "decode", "bf16", "global_read_bytes", 9_486_336),  # cp.async of rows that are read twice
    ("attention/24_output_in_registers", "n256", "f32", "global_read_bytes", 421_888),  # ... to rows of odd places
    ("matmul/09_wmma_tf32", "decode", "tf32", "global_loads", 74_880),  # and others by generic addresses
]


@pytest.mark.parametrize(("name", "shape", "dtype", "figure", "measured"), MEASURED)
def test_counts_are_those_of_the_hardware(name: str, shape: str, dtype: str, figure: str, measured: float) -> None:
    assert emulated.figure(name, figure, shape=shape, dtype=dtype) == measured


def test_a_rung_whose_parent_has_another_format_is_drawn_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """attention/35 is of f32, the rung that it came from of halves."""
    page = tmp_path / "page.html"
    code, _ = run(capsys, "attention/35", "-o", str(page), verb="draw")
    assert code == 0 and "attention/31_producer" not in page.read_text()


def test_kernels_that_do_not_fit_beside_each_other_are_below(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = ("", *(f"kernel_number_{n}" for n in range(7)))
    rows = [("grid", *map(str, range(1, 8))), ("only of the last", *["0"] * 6, "3")]
    monkeypatch.setenv("COLUMNS", "80")
    for terminal, tables in ((True, 3), (False, 1)):
        monkeypatch.setattr(console, "is_terminal", lambda terminal=terminal: terminal)
        console.tables(columns, rows)
        out = capsys.readouterr().out
        assert out.count("grid") == tables and all(name in out for name in columns)
        assert out.count("only of the last") == 1
        assert not terminal or max(map(len, out.splitlines())) <= 80
