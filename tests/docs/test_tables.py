"""Tables and pictures are made of the published results, and of nothing else."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

import counter_tables
import tables
from generation_tables import COMPILED
from result_rows import MACHINE, TIME, document, of_other_code, row
from rung.errors import RungError
from rung.results import codes, store
from rung.results.row import Row
from rung.show import row_text
from rung.show.report import page as report


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with two ladders and a README."""
    for name in ("gelu", "layernorm"):
        page = tmp_path / "src/rung/ladders" / name / "README.md"
        page.parent.mkdir(parents=True)
        page.write_text(f"# {name}\n\nProse.\n\n<!-- times -->\n<!-- /times -->\n\nMore prose.\n")
    (tmp_path / "README.md").write_text(
        "# rung\n<!-- climb:layernorm -->\nold\n<!-- /climb:layernorm -->\nkept\n"
    )
    document(
        tmp_path / "results/h200/bench.jsonl",
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
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def page(root: Path, name: str = "layernorm") -> str:
    return tables.generated(root)[root / f"src/rung/ladders/{name}/README.md"]


def line(text: str, rung: str, dtype: str = "f32") -> list[str]:
    """The cells of a rung's line in the table of a number format."""
    part = text.partition(f"| {dtype} |")[2]
    found = next(x for x in part.splitlines() if rung in x)
    return [c.strip() for c in found.strip("|").split("|")]


@pytest.mark.slow
def test_nothing_in_the_repository_is_stale() -> None:
    late = [str(p.relative_to(tables.ROOT)) for p in tables.stale()]
    assert late == [], "run `make tables` and commit the result"


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
    refused = row("layernorm/unrolled", None, verdict="too slow", forecast_s=8.2)
    document(root / "results/h200/slow.jsonl", [refused])
    assert line(page(root), "02_unrolled")[3] == "about 8 s"
    write(root)
    assert "02 unrolled would take about 8 s" in (root / "docs/pictures/climb-layernorm-light.svg").read_text()


def test_a_forecast_of_less_than_a_second_is_shown(root: Path) -> None:
    refused = row("layernorm/unrolled", None, verdict="too slow", forecast_s=0.3)
    document(root / "results/h200/slow.jsonl", [refused])
    assert line(page(root), "02_unrolled")[3] == "under 1 s"


def test_a_ladder_is_judged_by_the_shape_at_which_most_of_it_has_a_time(root: Path) -> None:
    alone = [row("reduce/triton", 60.0, shape="b65536n1024")]
    document(root / "results/h200/one.jsonl", alone)
    found, _ = tables.figures(store.published(root))
    assert found.ladder("reduce").headline("f32") == "b65536n1024"
    both = [row(f"reduce/{n}", 20.0, shape="b16n1m") for n in ("triton", "atomic")]
    document(root / "results/h200/two.jsonl", both)
    found, _ = tables.figures(store.published(root))
    assert found.ladder("reduce").headline("f32") == "b16n1m"


def test_a_ladder_without_results_stays_empty(root: Path) -> None:
    assert "<!-- times -->\n<!-- /times -->" in page(root, "gelu")


def test_the_newest_file_wins_whatever_its_name(root: Path) -> None:
    document(root / "results/h200/a.jsonl", [row("layernorm/naive", 570.0)], time="2026-02-01T00:00:00Z")
    document(root / "results/h200/z.jsonl", [row("layernorm/naive", 111.0)], time="2025-01-01T00:00:00Z")
    assert line(page(root), "01_naive")[3] == "570"


def test_a_figure_of_other_code_leaves_its_place_empty_and_says_since_when(root: Path) -> None:
    old = of_other_code(row("layernorm/tree", 50.0, time="2026-03-01T00:00:00Z"))
    older_naive = of_other_code(row("layernorm/naive", 1.0, time="2026-03-01T00:00:00Z"))
    document(root / "results/h200/later.jsonl", [old, older_naive])
    text = page(root)
    assert line(text, "05_tree")[3:] == ["code changed since 2026-03-01", "", ""] and "50.0" not in text
    assert line(text, "01_naive")[3] == "580"  # an older one of the code at hand


def test_text_of_other_code_leaves_its_place_empty_and_says_since_when(root: Path) -> None:
    (root / "README.md").write_text("<!-- gpu -->\n<!-- /gpu -->\n")
    shown = Row(
        kind="generate", what="gpt2", part="text", dtype="bfloat16", weights="random", machine=MACHINE, time="2026-03-01T00:00:00Z",
        options={"by": "rung", "texts": 1}, detail={"rung": "naive"}, metrics={"tokens_per_s": 5400.0},
    )  # fmt: skip
    changed = replace(shown, what="gpt2-xl", texts={"decode/01_recompute": "0" * 16})
    store.write(root / "results/h200/generate.jsonl", [shown, changed])
    write(root)
    readme = (root / "README.md").read_text()
    assert "| gpt2 bfloat16, random weights, one text | 5,400 |" in readme
    assert "| gpt2-xl bfloat16, random weights, one text | code changed since 2026-03-01 |  |  |" in readme


def test_scores_stand_beside_transformers_of_the_same_run(root: Path) -> None:
    (root / "README.md").write_text("<!-- speed:score -->\n<!-- /speed:score -->\n")
    ours = Row(
        kind="generate", what="gpt2", part="score", dtype="bfloat16", weights="random", machine=MACHINE, time=TIME,
        options={"by": "rung", "texts": 32, "tokens": "1024"}, metrics={"tokens_per_s": 3000.0, "peak_mb": 234.0},
    )  # fmt: skip
    theirs = replace(ours, options={**ours.options, "by": COMPILED}, metrics={"tokens_per_s": 2000.0})
    other_day = replace(ours, options={**ours.options, "by": "transformers, eager"}, time="2025-01-01T00:00:00Z")
    store.write(root / "results/h200/generate.jsonl", [ours, theirs, other_day])
    write(root)
    expected = "| gpt2 bfloat16, random weights, 32 texts of 1024 tokens | 3,000 | 234 | 2,000 | 1.50× |  |  |"
    assert expected in (root / "README.md").read_text()


def test_the_courses_climb_stands_beside_the_projects_own_speeds(root: Path) -> None:
    (root / "README.md").write_text("<!-- course -->\n<!-- /course -->\n<!-- speed:course -->\n<!-- /speed:course -->\n")
    shown = Row(
        kind="climb", what="gpt2", part="reductions", dtype="float32", weights="random", machine=MACHINE, time=TIME,
        options={"study": "course", "new_tokens": 50}, detail={"step": 1, "idea": ""}, metrics={"tokens_per_s": 40.0, "kernel_ms": 2.0},
    )  # fmt: skip
    first = replace(shown, part="baseline", detail={"step": 0, "idea": ""}, metrics={"tokens_per_s": 10.0, "kernel_ms": 12.0})
    other = replace(first, options={}, metrics={"tokens_per_s": 99.0})
    store.write(root / "results/h200/climb.jsonl", [shown, first, other])
    write(root)
    short, _, whole = (root / "README.md").read_text().partition("<!-- /course -->")
    assert "| baseline | 12 | 10 | 5 |" in short and "reductions" not in short
    assert "Ours: gpt2, random weights, 50 tokens, on an NVIDIA H200." in short
    assert whole.index("| baseline | 12 |  | 10 | 5 |") < whole.index("| reductions | 2 | 6.00× | 40 |  |") and "99" not in whole


@pytest.mark.parametrize(("us", "said"), [(5.0, True), (20.0, False)])
def test_more_than_the_limit_is_explained_where_it_stands(root: Path, us: float, said: bool) -> None:
    (root / "README.md").write_text("<!-- ladders -->\n<!-- /ladders -->\n")
    document(root / "results/h200/later.jsonl", [row("layernorm/registers", us, dtype="bf16")], time="2026-02-01T00:00:00Z")
    write(root)
    for text in ((root / "README.md").read_text(), page(root)):
        assert ("More than 100 %: the limit is a copy's rate" in text) == said


def test_the_climb_is_a_picture_in_light_and_dark(root: Path) -> None:
    write(root)
    readme = (root / "README.md").read_text()
    assert "old" not in readme and "kept" in readme
    for scheme in ("light", "dark"):
        path = root / f"docs/pictures/climb-layernorm-{scheme}.svg"
        assert f"pictures/{path.name}" in readme
        text = path.read_text()
        assert "var(" not in text
        svg = ET.fromstring(text)
        name = svg.find("{http://www.w3.org/2000/svg}title")
        description = svg.find("{http://www.w3.org/2000/svg}desc")
        assert name is not None and "layernorm" in (name.text or "")
        assert description is not None and "08 registers" in (description.text or "")
        labels = [t.text for t in svg.iter("{http://www.w3.org/2000/svg}text")]
        assert labels.index("01 naive") < labels.index("08 registers") < labels.index("torch")


def test_the_readme_tells_of_the_model_the_checks_and_the_cpu(root: Path) -> None:
    parts = ("climb:model", "check", "cpu", "cpu:time")
    (root / "README.md").write_text("".join(f"<!-- {p} -->\n<!-- /{p} -->\n" for p in parts))
    steps = [
        Row(kind="climb", what="gpt2", part=name, dtype="bfloat16", weights="random", machine=MACHINE, time=TIME,
            detail={"step": i, "idea": ""}, metrics={"tokens_per_s": rate, "of_bandwidth": 0.3})
        for i, (name, rate) in enumerate((("naive", 120.0), ("07_graph", 5400.0)))
    ]  # fmt: skip
    figures = {"cases": 9, "error_element": 0.25, "error_norm": 3e-7, "norm_cap": 1e-5}
    checks = [
        replace(row(rung, None, shape=shape), kind="check", shape="", verdict=verdict, metrics=figures, commit="abc1234def")
        for rung, shape, verdict in (
            ("layernorm/naive", "b8t1024", "ok"), ("gelu/naive", "b8t1024", "failed"), ("gelu/vector", "b8t1024", "skipped")
        )
    ]  # fmt: skip
    checks.append(replace(checks[0], dtype="i8"))  # which the rung does not take (any more)
    cpu = Row(
        kind="generate", what="gpt2", part="text", dtype="int8", weights="random", time=TIME,
        options={"by": "rung", "texts": 1, "prompt_tokens": 8, "new_tokens": 64}, detail={"peer": "transformers bfloat16"},
        metrics={"tokens_per_s": 80.0, "vs_peer": 3.2, "kl_nats": 2e-4},
        machine={"cpu": "Xeon", "cores": 2, "torch": "2.13", "transformers": "5"},
    )  # fmt: skip
    store.write(root / "results/h200/more.jsonl", [*steps, *checks])
    narrow = replace(
        cpu, options={**cpu.options, "clock": "cpu", "vectors": "AVX2", "texts": 8},
        metrics={"tokens_per_s": 90.0, "vs_llama": 2.5},
    )
    store.write(root / "results/cpu/generate.jsonl", [cpu, narrow])
    write(root)
    readme = (root / "README.md").read_text()
    assert "in bfloat16 from 120 tokens/s (naive) to 5,400 (07_graph)" in readme
    assert "random weights" in (root / "docs/pictures/climb-model-dark.svg").read_text()
    assert "ok      layernorm/01_naive  f32   9 cases  0.250 of bound" in readme
    assert "1 of 2 implementations and number formats are right on an NVIDIA H200 (commit abc1234)." in readme
    assert "| gpt2 | AVX2 | 8 |  |  | 90, 2.50× |" in readme
    assert "| rung int8 | 80 | 3.20× bfloat16 |  |  |  |  | 2.0e-04 |" in readme and "gpt2, random weights" in readme


def numbers(text: str) -> list[str]:
    return re.findall(r"\d[\d,.]*\d|\d", text)


@pytest.mark.slow
def test_results_report_and_figures_show_the_same() -> None:
    """Of each ladder's first and best rung: what the overview of the figures says is what the other two do."""
    readme = (tables.ROOT / "docs" / "figures.md").read_text(encoding="utf-8")
    gpu, _ = tables.figures(store.published())
    page = report.build(gpu, {})
    listed = {(r.what, r.dtype, r.shape): row_text.headline(r) for r in gpu.results if r.kind == "bench" and codes.current(r)}
    for name in gpu.names():
        ladder = gpu.ladder(name)
        if not ladder.ours()[2]:
            continue  # only libraries were timed
        description = re.search(rf"^\| \[{name}\]\([^)]*\) \| \d+ \| (\S+) → (\S+) µs \((\w+), ([^)]*)\) \|", readme, re.MULTILINE)
        assert description is not None, name
        first, best, dtype, shape = description.groups()
        ours = [f for f in ladder.column(dtype, shape) if not f.library]
        fastest = min(ours, key=lambda f: f.us)
        for shown, figure in ((first, ours[0]), (best, fastest)):
            assert listed[figure.row.what, dtype, shape] == f"{shown} µs"
            assert f"<strong>{shown} µs</strong> in {dtype}" in page.partition(f'id="{name}-{figure.name}"')[2].partition("</article>")[0]


PROSE_FREE = ("README.md", "docs/figures.md", "docs/generation.md", "docs/llama.md")
MEASURED = re.compile(r"\d[\d,.]* ?(?:µs|us\b|tokens/s|TB/s|GB/s|TFLOP/s|times as fast|× )|\d ?% of (?:memory|bandwidth|the speed)")


@pytest.mark.parametrize("name", PROSE_FREE)
def test_prose_holds_no_measured_figure(name: str) -> None:
    """Figures stand in the parts that are made from rows; what a sentence says of them would grow old."""
    text = (tables.ROOT / name).read_text(encoding="utf-8")
    prose = re.sub(r"<!-- ([\w:]+) -->.*?<!-- /\1 -->|```.*?```", "", text, flags=re.DOTALL)
    assert MEASURED.findall(prose) == []


@pytest.mark.parametrize("name", ["other", "mutants:gpu-other", "a/b"])
def test_a_part_that_nothing_makes_is_named(root: Path, name: str) -> None:
    (root / "README.md").write_text(f"<!-- {name} -->\nkept\n<!-- /{name} -->\n")
    with pytest.raises(RungError, match=rf"README.md has an unknown part '{name}'"):
        tables.generated(root)


def test_writing_twice_changes_nothing(root: Path) -> None:
    assert tables.stale(root)
    write(root)
    assert tables.stale(root) == {}


def test_a_picture_that_nothing_makes_any_more_is_stale(root: Path) -> None:
    write(root)
    left = root / "docs/pictures/climb-gelu-light.svg"
    left.write_text("<svg/>")
    assert tables.stale(root) == {left: None}


def test_an_edited_time_is_stale(root: Path) -> None:
    write(root)
    path = root / "src/rung/ladders/layernorm/README.md"
    path.write_text(path.read_text().replace("| 580 |", "| 280 |"))
    assert list(tables.stale(root)) == [path]


def test_conflicts_are_compared_with_wavefronts_without_waits_where_a_row_has_them() -> None:
    """A profile of one GPU holds waits for other warps in its conflicts; that of another has figures without."""
    counted = {"wavefronts_load": 96.0, "conflicts_load": 32.0}
    waits = {"wavefronts_load": 200.0, "conflicts_load": 136.0}

    def of(kind: str, figures: dict[str, float], gpu: str) -> Row:
        kernel = {"kernel": "transpose", "figures": figures, "opcodes": {}}
        made = row("transpose/02_tiled", None, shape="c768x768")
        return replace(made, kind=kind, detail={"kernels": [kernel]}, machine={"gpu": gpu})

    def off(*profiles: Row) -> dict[str, float]:
        found = counter_tables.pairs([*profiles, of("count", counted, "")])
        return {p.figure: p.measured - p.counted for p in found if p.figure.endswith(("load", "conflicts"))}

    without = {"passes_load": 97.0, "passes_store": 0.0, "ideal_passes": 64.0}
    old, new = of("profile", waits, "A"), of("profile", waits | without, "B")
    assert off(old) == {"ideal_load": 0}
    assert off(new, old) == off(old, new) == {"passes_load": 1, "conflicts": 1}
