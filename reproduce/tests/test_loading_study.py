"""The study of loading: real runs on a CPU, what it concludes from given figures, and its time line."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch

from rung.models import family
from rung.models import weights as model_weights
from rung.models.family import Config
from rung.models.gpu.loading import Span
from rung.models.weights import read_weights
from rung_reproduce.show.timeline import Lane, Timeline, joined
from rung_reproduce.studies import loading
from rung_reproduce.studies.loading import PIPELINED, SERIAL, Run

SVG = "{http://www.w3.org/2000/svg}"


def small() -> Config:
    whole = family.config_of("gpt2")
    return dataclasses.replace(whole, layers=2, vocabulary=100, C=64, F=256, NH=2, context=32)


def given(from_disk: int | None = 0) -> dict[str, Run]:
    """Reading 60 ms, copying 20 and computing 10: apart 90 ms, together 66."""

    def run(method: tuple[tuple[str, str, float, float], ...], total: float) -> Run:
        return Run(tuple(Span(*span) for span in method), total, from_disk)

    apart = (("read", "a", 0.0, 0.06), ("copy", "a", 0.06, 0.08), ("compute", "layer 0", 0.08, 0.09))
    together = (
        ("read", "a", 0.0, 0.03),
        ("copy", "a", 0.03, 0.04),
        ("read", "b", 0.03, 0.06),
        ("compute", "layer 0", 0.04, 0.045),
        ("copy", "b", 0.05, 0.06),
        ("compute", "layer 1", 0.061, 0.066),
    )
    return {SERIAL: run(apart, 0.09), PIPELINED: run(together, 0.066)}


def test_the_file_it_writes_is_a_gpt2(tmp_path: Path) -> None:
    config = small()
    size = loading.write(tmp_path, config)
    assert size == (tmp_path / "model.safetensors").stat().st_size
    right = model_weights.weights_of(config, "cpu")
    found = read_weights(tmp_path, config, lambda w: type(right.wte)(w), lambda v: v)
    assert torch.equal(found.layers[1].fc.weight, right.layers[1].fc.weight)
    assert torch.equal(found.layers[0].ln_2.bias, right.layers[0].ln_2.bias)
    assert torch.equal(found.wte.weight, right.wte.weight)


def test_both_methods_run_and_every_part_is_on_the_timeline(tmp_path: Path) -> None:
    loading.write(tmp_path, small())
    found, plain = loading.measure(tmp_path, small(), torch.device("cpu"), torch.bfloat16, 2)
    assert found.keys() == {SERIAL, PIPELINED} and plain > 0
    for one in found.values():
        computed = [s for s in one.spans if s.what == "compute"]
        assert [s.name for s in computed] == ["embeddings", "layer 0", "layer 1", "logits"]
        assert {s.what for s in one.spans} == {"read", "copy", "compute"}
        assert one.total == computed[-1].end == max(s.end for s in one.spans)
    serial = found[SERIAL]
    assert max(s.end for s in serial.spans if s.what == "copy") <= serial.first_layer
    answer = loading.report(found, plain, 1 << 20)
    assert answer.drawable and len(answer.rows) == 3
    assert all(len(row) == len(answer.columns) for row in answer.rows)


def test_the_sentence_follows_from_the_figures() -> None:
    text = loading.sentence(given(), 0.12)
    assert "after 66 ms, one after the other after 90 ms (1.4x), loaded plainly after 120 ms: 80% of the way" in text
    assert "to the 60 ms of the longest part alone (read)" in text
    assert "The first layer computes after 40 ms, the last tensor is read after 60 ms." in text
    assert text.endswith("The file came from the page cache: reading it from a disk would take longer.")
    assert loading.sentence(given(498_000_000), 0.12).endswith(
        "498 MB per run came from a disk, the rest from the page cache."
    )
    assert "The system does not report whether" in loading.sentence(given(None), 0.12)


def test_a_pipeline_without_a_gain_is_reported() -> None:
    slower = given()
    slower[PIPELINED] = dataclasses.replace(slower[PIPELINED], total=0.1)
    assert loading.reached(slower) == 0
    assert "(0.9x)" in loading.sentence(slower, 0.12) and "of the way" not in loading.sentence(slower, 0.12)


def test_the_chart_has_a_lane_for_each_part_of_each_method_on_one_scale() -> None:
    answer = loading.report(given(), 0.12, 498_000_000)
    root = ET.fromstring(answer.svg())
    words = [t.text for t in root.iter(f"{SVG}text")]
    for method in (SERIAL, PIPELINED):
        assert all(f"{method}: {kind}" in words for kind in ("read", "copy", "compute"))
    bars = {r.find(f"{SVG}title").text: r for r in root.iter(f"{SVG}rect")}  # type: ignore[union-attr]
    left, width = (lambda r: float(r.get("x")), lambda r: float(r.get("width")))
    whole, copied = bars[f"{SERIAL}: read: 0 to 60"], bars[f"{SERIAL}: copy: 60 to 80"]
    assert width(whole) == pytest.approx(3 * width(copied), rel=0.01)
    assert left(copied) == pytest.approx(left(whole) + width(whole), abs=0.2)
    assert f"{PIPELINED}: read: 0 to 60" in bars  # two stretches without a gap are one bar
    assert f"{PIPELINED}: compute: 40 to 45" in bars and f"{PIPELINED}: compute: 61 to 66" in bars


def test_curves_show_the_lanes_as_broken_lines() -> None:
    answer = loading.report(given(), 0.12, 1)
    assert [s.label for s in answer.series][:2] == [f"{SERIAL}: read", f"{SERIAL}: copy"]
    assert answer.series[0].points == [(0.0, 6.0), (60.0, 6.0), (60.0, None)]
    assert len(answer.series[-1].points) == 6


def test_stretches_are_joined_over_gaps_that_none_would_see() -> None:
    assert joined([(5, 6), (0, 1), (1.05, 2)], 0.1) == ((0, 2), (5, 6))
    assert joined([(0, 4), (1, 2)], 0.1) == ((0, 4),)
    line = Timeline.of("", ("a",), [], "", [Lane("x", "read", ((0.0, 1.0), (1.5, 2.0)))], "ms")
    assert line.lanes[0].stretches == ((0.0, 1.0), (1.5, 2.0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_copies_run_beside_reading(tmp_path: Path) -> None:
    config = dataclasses.replace(family.config_of("gpt2"), layers=4, vocabulary=8192)
    loading.write(tmp_path, config)
    found, _ = loading.measure(tmp_path, config, torch.device("cuda"), torch.bfloat16, 3)
    for one in found.values():
        assert [s.name for s in one.spans if s.what == "compute"][1:5] == [f"layer {i}" for i in range(4)]
    pipelined = found[PIPELINED]
    last = max(s.end for s in pipelined.spans if s.what == "read")
    assert min(s.begin for s in pipelined.spans if s.what == "copy") < last
