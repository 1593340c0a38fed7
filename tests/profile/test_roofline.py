"""The roofline: ceilings, ridges and points are where the figures say, and labels do not cover each other."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from result_rows import CEILINGS, MACHINE, document, of_other_code, row
from rung.dtypes import dtype
from rung.profile import counters, ncu, roofline
from rung.results import current, store
from rung.rungs import catalogue
from rung.rungs.base import Subject
from rung.show import charts, roofline_chart
from rung.show.charts import Point, Roof

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def found(tmp_path: Path) -> current.Figures:
    path = document(
        tmp_path / "bench.jsonl",
        [
            row("matmul/naive", 21000.0, shape="4096x768x3072"),
            row("matmul/register_tiles", 730.0, shape="4096x768x3072"),
            row("matmul/torch", 400.0, shape="4096x768x3072"),
            row("attention/flash", 100.0, shape="b4t64"),
            row("relu/vectors", 10.0, shape="n1m"),
            row("transpose/tiled", 10.0, shape="c768x768"),
        ],
    )
    return current.of_gpu(store.load(path), None)


def column(found: current.Figures, name: str, kind: str = "f32") -> list[current.Figure]:
    ladder = found.ladder(name)
    return ladder.column(kind, ladder.headline(kind))


def test_ceilings_are_the_measured_and_the_data_sheets(found: current.Figures) -> None:
    measured, sheet = roofline_chart.roofs(found.limits, ["f32"])
    assert (measured.bytes, measured.flops) == (CEILINGS.metrics["copy_bytes_per_s"], CEILINGS.metrics["f32_flops"])
    assert measured.ridge == pytest.approx(50e12 / 4e12)
    assert sheet.dashed and sheet.flops == 67e12
    assert measured.at(1.0) == 4e12 and measured.at(1000.0) == 50e12


def test_a_faster_copy_than_the_ceilings_raises_the_limit(tmp_path: Path) -> None:
    rows = [row("copy/vectors", 100.0, shape="n64m"), row("copy/vectors", 0.5, shape="n1m")]
    path = document(tmp_path / "copy.jsonl", rows)
    limits = current.of_gpu(store.load(path), None).limits
    assert limits.bytes == pytest.approx(2 * 4 * 67108864 / 100e-6)  # the small one fits the L2 and does not count


def test_points_stand_at_their_intensity_and_rate(found: current.Figures) -> None:
    naive, tiles, torch = roofline.place(column(found, "matmul"))
    flops, size = 2 * 4096 * 768 * 3072, 4 * (4096 * 768 + 768 * 3072 + 3072 + 4096 * 3072)
    assert naive.flops == pytest.approx(flops, rel=1e-3) and naive.bytes == pytest.approx(size, rel=1e-3)
    assert tiles.rate == pytest.approx(naive.flops / 730e-6)
    assert tiles.figure.bound == "compute"
    assert tiles.figure.share == pytest.approx(tiles.rate / 50e12)
    assert torch.figure.library


def test_what_computes_nothing_has_no_place(found: current.Figures) -> None:
    assert roofline.place(column(found, "transpose")) == []


def test_counted_bytes_make_a_second_hollow_point(found: current.Figures) -> None:
    one = catalogue.find("attention/13_flash")
    values = one.operation.complete(one.operation.shapes["b4t64"])
    subject = Subject(one, "b4t64", values, dtype("f32"))
    table = (Path(__file__).parents[1] / "data" / "ncu_raw.csv").read_text()
    counted = counters.as_result(subject, None, counters.report(subject, ncu.parse(table)))
    (placed,) = roofline.place(column(found, "attention"), [counted])
    assert placed.counted == 4_000_000
    svg = roofline_chart.chart([placed], found.limits)
    assert svg.count("<circle") == 2 and svg.count('fill="var(--surface)" stroke="var(--f32)"') == 1
    assert replace(found, results=[of_other_code(counted)]).of_kind("profile") == []


def circles(svg: str) -> list[tuple[float, float]]:
    root = ET.fromstring(charts.standalone(svg, "light"))
    return [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in root.iter(f"{SVG}circle")]


def test_a_point_on_the_roof_is_drawn_on_the_roof() -> None:
    roof = Roof("a roof", 1e12, 10e12)
    on_slope, on_flat, below = (
        Point("a", 2.0, 2e12, "f32"),
        Point("b", 50.0, 10e12, "f32"),
        Point("c", 50.0, 1e11, "f32"),
    )
    svg = charts.roofline([roof], [on_slope, on_flat, below], title="t", description="d")
    commands = re.search(r'<path d="M([^"]+)"', svg)
    assert commands is not None
    (x1, y1), (x2, y2), (_, y3) = [tuple(map(float, p.split())) for p in commands[1].split(" L")]
    (ax, ay), (bx, by), (cx, cy) = circles(svg)
    assert ay == pytest.approx(y1 + (ax - x1) * (y2 - y1) / (x2 - x1), abs=0.5)
    assert by == pytest.approx(y3, abs=0.5) and bx == cx and cy > by


def test_labels_of_one_column_do_not_cover_each_other() -> None:
    points = [Point(f"rung {i}", 10.0, 1e12 * (1 + i / 100), "f32") for i in range(20)]
    svg = charts.roofline([Roof("a roof", 1e12, 10e12)], points, title="t", description="d")
    root = ET.fromstring(charts.standalone(svg, "light"))
    places = sorted(float(t.attrib["y"]) for t in root.iter(f"{SVG}text") if (t.text or "").startswith("rung "))
    assert len(places) == 20
    assert min(b - a for a, b in itertools.pairwise(places)) >= 13.9


@pytest.mark.parametrize("places", [[5.0, 5.0, 5.0], [0.0, 100.0], [98.0, 99.0, 100.0], [3.0, 4.0, 60.0, 61.0]])
def test_spreading_keeps_order_distance_and_bounds(places: list[float]) -> None:
    moved = charts.spread(places, 10.0, 0.0, 100.0)
    assert all(b - a >= 10 - 1e-9 for a, b in itertools.pairwise(moved))
    assert moved[0] >= 0 and moved[-1] <= 100
    if all(b - a >= 10 for a, b in itertools.pairwise(places)):
        assert moved == places


def rung(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "RUNG_RESULTS": str(cwd / "store.jsonl")}
    return subprocess.run(
        [sys.executable, "-m", "rung", "roofline", *words],
        capture_output=True, text=True, cwd=cwd, env=environment, check=False,
    )  # fmt: skip


def test_the_command_prints_a_table_and_draws(found: current.Figures, tmp_path: Path) -> None:
    done = rung("matmul", "relu", "--results", "bench.jsonl", "-o", "roof.svg", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert MACHINE["gpu"] in done.stdout and "f32 measured: 50 TFLOP/s, 4.00 TB/s; ridge 12" in done.stdout
    line = next(x for x in done.stdout.splitlines() if "05_register_tiles" in x).split()
    assert line[1:3] == ["f32", "4096x768x3072"] and "53 %" in " ".join(line)
    picture = (tmp_path / "roof.svg").read_text()
    assert "matmul 05 register tiles" in picture and "var(" not in picture
    ET.fromstring(picture)
    output = json.loads(rung("matmul", "--results", "bench.jsonl", "--json", cwd=tmp_path).stdout)
    assert [r["rung"] for r in output["rungs"]] == ["matmul/01_naive", "matmul/05_register_tiles", "matmul/torch"]


@pytest.mark.slow
def test_what_was_not_measured_is_reported_in_one_sentence(found: current.Figures, tmp_path: Path) -> None:
    for words, output in (
        (("gelu",), "gelu was not measured on NVIDIA H200; `rung bench gelu` there does."),
        (("matmul", "--dtype", "bf16"), "matmul at bf16 was not measured on NVIDIA H200"),
        (("transpose",), "does no arithmetic"),
        (("matmul", "-o", "missing/x.svg"), "missing/x.svg cannot be written: No such file or directory."),
        (("matmul", "--dtype", "f8"), "f8"),
    ):
        done = rung(*words, "--results", "bench.jsonl", cwd=tmp_path)
        assert done.returncode == 2 and output in done.stderr and done.stderr.count("\n") == 1
    done = rung("matmul", "--results", "nothing.json", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.startswith("rung: there is no results file nothing.json")
