"""Tables and pictures are made of the published results, and of nothing else."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from result_rows import MACHINE, document, row
from rung.rungs import catalogue
from rung.show import tables


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with two ladders and a README."""
    for name in ("gelu", "layernorm"):
        page = tmp_path / "src/rung/ladders" / name / "README.md"
        page.parent.mkdir(parents=True)
        page.write_text(f"# {name}\n\nProse.\n\n<!-- times -->\n<!-- /times -->\n\nMore prose.\n")
    (tmp_path / "README.md").write_text(
        "# rung\n<!-- climb:layernorm -->\nold\n<!-- /climb:layernorm -->\n<!-- other -->\nkept\n<!-- /other -->\n"
    )
    document(
        tmp_path / "results/h200/bench.json",
        [
            row("layernorm/naive", 580.0, library_us=40.0),
            row("layernorm/registers", 20.0, library_us=40.0),
            row("layernorm/torch", 40.0),
            row("layernorm/registers", 11.0, dtype="bf16", library_us=33.0),
            row("layernorm/torch", 33.0, dtype="bf16"),
            row("layernorm/registers", 9.9, shape="b4t64", library_us=12.0),
            row("layernorm/warp", 21.0, verdict="failed", reason="wrong"),
        ],
    )
    return tmp_path


def write(root: Path) -> None:
    for path, text in tables.generated(root).items():
        tables._write(path, text)


def page(root: Path, name: str = "layernorm") -> str:
    return tables.generated(root)[root / f"src/rung/ladders/{name}/README.md"]


def line(text: str, rung: str, dtype: str = "f32") -> list[str]:
    """The cells of a rung's line in the table of a number format."""
    part = text.partition(f"| {dtype} |")[2]
    found = next(x for x in part.splitlines() if rung in x)
    return [c.strip() for c in found.strip("|").split("|")]


def test_nothing_in_the_repository_is_stale() -> None:
    late = [str(p.relative_to(tables.ROOT)) for p in tables.stale()]
    assert late == [], "run `make tables` and commit what it writes"


def test_a_ladder_gets_a_table_for_each_number_format(root: Path) -> None:
    text = page(root)
    assert text.startswith("# layernorm\n\nProse.") and text.endswith("More prose.\n")
    naive = line(text, "01_naive")
    assert naive[0] == "[01_naive](01_naive.cu)"
    assert naive[2:] == ["", "580", "2 %", "0.07×"]  # 50 MB / 580 µs of 4 TB/s
    assert line(text, "08_registers")[2:] == ["**9.90**", "**20.0**", "63 %", "2.00×"]
    assert line(text, "08_registers", "bf16")[2:] == ["**11.0**", "57 %", "3.00×"]
    assert line(text, "torch")[2:] == ["", "40.0", "31 %", ""]


def test_what_failed_its_check_has_no_time(root: Path) -> None:
    assert "07_warp" not in page(root)


def test_what_was_too_slow_to_time_has_its_forecast(root: Path) -> None:
    reason = "a call would take about 8 s; --patience allows for it"
    refused = row("layernorm/unrolled", 1.0, verdict="refused", reason=reason, cold_us=None)
    document(root / "results/h200/slow.json", [refused])
    assert line(page(root), "02_unrolled")[3] == "about 8 s"
    write(root)
    assert "02 unrolled would take about 8 s" in (root / "docs/pictures/climb-layernorm-light.svg").read_text()


def test_a_forecast_of_less_than_a_second_is_not_told_as_none(root: Path) -> None:
    reason = "a call would take about 0 s; --patience allows for it"
    refused = row("layernorm/unrolled", 1.0, verdict="refused", reason=reason, cold_us=None)
    document(root / "results/h200/slow.json", [refused])
    assert line(page(root), "02_unrolled")[3] == "under 1 s"


def test_a_ladder_is_judged_by_the_shape_at_which_most_of_it_has_a_time(root: Path) -> None:
    alone = [row("reduce/triton", 60.0, shape="b65536n1024")]
    document(root / "results/h200/one.json", alone)
    found = tables._published(root)
    assert found is not None and found.ladder("reduce").headline("f32") == "b65536n1024"
    both = [row(f"reduce/{n}", 20.0, shape="b16n1m") for n in ("triton", "atomic")]
    document(root / "results/h200/two.json", both)
    found = tables._published(root)
    assert found is not None and found.ladder("reduce").headline("f32") == "b16n1m"


def test_a_ladder_without_results_stays_empty(root: Path) -> None:
    assert "<!-- times -->\n<!-- /times -->" in page(root, "gelu")


def test_the_newest_file_wins_whatever_its_name(root: Path) -> None:
    document(root / "results/h200/a.json", [row("layernorm/naive", 570.0)], time="2026-02-01T00:00:00Z")
    document(root / "results/h200/z.json", [row("layernorm/naive", 111.0)], time="2025-01-01T00:00:00Z")
    assert line(page(root), "01_naive")[3] == "570"


def test_a_figure_of_an_earlier_source_is_marked_and_yields_to_one_of_the_present(root: Path) -> None:
    later = "2026-03-01T00:00:00Z"
    old = row("layernorm/tree", 50.0, digest="0" * 16)
    older_naive = row("layernorm/naive", 1.0, digest="0" * 16)
    document(root / "results/h200/later.json", [old, older_naive], time=later)
    text = page(root)
    assert line(text, "05_tree")[3] == "50.0†"
    assert "† measured on an earlier version" in text
    assert line(text, "01_naive")[3] == "580"


def test_what_a_rung_says_of_itself_does_not_make_its_figures_old(tmp_path: Path) -> None:
    rung = catalogue.find("layernorm/tree")
    assert rung.path is not None
    told, changed = tmp_path / "05_tree.cu", tmp_path / "changed.cu"
    told.write_text(re.sub(r'^found  *= "[^\n]*"$', 'found = "Twice as fast."', rung.source, flags=re.MULTILINE))
    changed.write_text(rung.source.replace("BLOCK = [", "BLOCK = [32, "))
    other = catalogue.rung_from_file(rung.operation, told)
    assert other.found == "Twice as fast." and other.digest == rung.digest
    assert catalogue.rung_from_file(rung.operation, changed).digest != rung.digest


def test_the_climb_is_a_picture_in_light_and_dark(root: Path) -> None:
    write(root)
    readme = (root / "README.md").read_text()
    assert "old" not in readme and "kept" in readme
    for scheme in ("light", "dark"):
        path = root / f"docs/pictures/climb-layernorm-{scheme}.svg"
        assert f"docs/pictures/{path.name}" in readme
        text = path.read_text()
        assert "var(" not in text
        svg = ET.fromstring(text)
        name = svg.find("{http://www.w3.org/2000/svg}title")
        told = svg.find("{http://www.w3.org/2000/svg}desc")
        assert name is not None and "layernorm" in (name.text or "")
        assert told is not None and "08 registers" in (told.text or "")
        labels = [t.text for t in svg.iter("{http://www.w3.org/2000/svg}text")]
        assert labels.index("01 naive") < labels.index("08 registers") < labels.index("torch")


def test_the_readme_tells_of_the_model_the_checks_and_the_cpu(root: Path) -> None:
    parts = ("climb:model", "check", "cpu")
    (root / "README.md").write_text("".join(f"<!-- {p} -->\n<!-- /{p} -->\n" for p in parts))
    step = {"dtype": "bfloat16", "of_bandwidth": 0.3, "gain": None, "what": "", "verdict": "ok"}
    climbed = {
        "model": "gpt2", "new_tokens": 512, "machine": MACHINE,
        "rows": [
            {**step, "name": "naive", "tokens_per_second": 120.0},
            {**step, "name": "07_graph", "tokens_per_second": 5400.0, "gain": 45.0},
        ],
    }  # fmt: skip
    report = {"dtype": "f32", "cases": 9, "norm": 3e-7, "norm_cap": 1e-5}
    checks = {
        "device": "NVIDIA H200", "commit": "abc1234",
        "reports": [
            {**report, "rung": "layernorm/01_naive", "verdict": "ok", "element": 0.25},
            {**report, "rung": "a/2", "verdict": "failed", "element": 7.0},
            {**report, "rung": "a/3", "verdict": "skipped", "element": 0.0},
        ],
    }
    cpu = {
        "what": "gpt2 124M", "first_token_s": {"median": 1.9},
        "machine": {"processor": "Xeon", "processors": 2, "torch": "2.13", "transformers": "5"},
        "generation": {
            "rung int8": {"tokens_per_s": {"median": 80.0}, "against": "transformers bfloat16", "ratio": {"median": 3.2}}
        },
        "prefill": {}, "accuracy": {"rung int8": {"kl_divergence_per_token": 2e-4}},
    }  # fmt: skip
    for name, value in (("h200/climb", climbed), ("h200/check", checks), ("cpu_generate", cpu)):
        (root / f"results/{name}.json").write_text(json.dumps(value))
    write(root)
    readme = (root / "README.md").read_text()
    assert "in bfloat16 from 120 tokens/s (naive) to 5,400 (07_graph)" in readme
    assert (root / "docs/pictures/climb-model-dark.svg").is_file()
    assert "layernorm/01_naive  f32        9        0.250     3.0e-07  1e-05  ok" in readme
    assert "1 of 2 implementations and number formats are right on an NVIDIA H200 (commit abc1234)." in readme
    assert "| rung int8 | 80 | 3.20× bfloat16 |  |  | 2.0e-04 |" in readme


def test_writing_twice_changes_nothing(root: Path) -> None:
    assert tables.stale(root)
    write(root)
    assert tables.stale(root) == []


def test_a_picture_that_nothing_makes_any_more_is_stale(root: Path) -> None:
    write(root)
    left = root / "docs/pictures/climb-gelu-light.svg"
    left.write_text("<svg/>")
    assert tables.stale(root) == [left]


def test_an_edited_time_is_stale(root: Path) -> None:
    write(root)
    path = root / "src/rung/ladders/layernorm/README.md"
    path.write_text(path.read_text().replace("| 580 |", "| 280 |"))
    assert tables.stale(root) == [path]
