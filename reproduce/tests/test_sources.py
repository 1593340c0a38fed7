"""The five documents' figures: each place of ours is one that can be filled, and is filled from a row alone."""

from __future__ import annotations

import json

import pytest

from rung.errors import RungError
from rung.results import codes, store
from rung.results.row import Row
from rung.rungs import catalogue
from rung_reproduce import sources
from rung_reproduce.climbs import attention, course, model
from rung_reproduce.show import forms
from rung_reproduce.studies import STUDIES
from verbs import rung

FIGURES = [f for e in sources.experiments() for f in e.figures]


def test_each_of_the_five_documents_has_author_title_year_address_and_figures() -> None:
    assert len(sources.documents()) == 5
    for document in sources.documents().values():
        assert document.authors and document.title and document.year and document.address and document.gpu
        assert any(e.document == document for e in sources.experiments())


@pytest.mark.parametrize("kind", ["bench", "profile", "sweep"])
def test_a_place_names_a_rung_a_shape_and_a_tuning_that_exist(kind: str) -> None:
    for place in sources.references(kind):
        rung = catalogue.find(place.what)
        assert place.dtype in rung.dtypes, place
        assert place.shape in rung.operation.shapes or "=" in place.shape, place
        assert all(value in rung.tune[name] for name, value in place.tuning.items()), place
        if place.kernels and "*" not in "".join(place.kernels):  # a library's kernels have no list
            launched = [e.kernel for e in rung.header.launches]  # type: ignore[attr-defined]
            for name, _, turn in (kernel.partition("#") for kernel in place.kernels):
                # a kernel that is launched for several operands is told apart
                assert launched.count(name) >= int(turn or 1) and (turn or launched.count(name) == 1), place


def test_a_step_of_the_climb_and_a_study_that_a_place_names_exist() -> None:
    steps = {s.name for s in model.steps(["float32", "bfloat16"])}
    assert {r.what for r in sources.references("climb")} <= steps
    steps_of_course = {(s.name, s.dtype) for s in course.steps()}
    assert {(r.what, r.dtype) for r in sources.references("course")} <= steps_of_course
    for r in (*sources.references("text"), *sources.references("kernels")):
        assert r.what in {variant.name for variant in attention.variants("emulator", dtype=r.dtype)}, r
    assert {r.what.partition("/")[0] for r in sources.references("study")} <= set(STUDIES)


def bench(what: str, us: float, **more: object) -> Row:
    row = Row(kind="bench", what=what, dtype="f32", shape="b4t64", metrics={"cold_us": us})
    return Row.of_json({**row.as_json(), **more})


def figure(title: str, what: str) -> sources.Figure:
    found = [f for e in sources.experiments() if e.title.startswith(title) for f in e.figures if f.what == what]
    assert len(found) == 1
    return found[0]


def test_a_time_of_ours_is_the_calls_of_a_forward_pass_in_their_unit() -> None:
    place = figure("Time of a forward pass's calls before and after", "layernorm, reduction")
    assert (place.value, place.unit) == (355, "us")
    assert place.beside([bench("layernorm/18_ceiling_halves", 4.0)]) == pytest.approx(100.0)
    assert place.beside([bench("layernorm/18_ceiling_halves", 4.0, shape="b8t1024")]) is None
    assert place.beside([bench("layernorm/18_ceiling_halves", 4.0, quick=True)]) is None
    assert place.command == "rung bench layernorm/18_ceiling_halves --dtype f32 --shape b4t64"


def test_a_ratio_needs_both_of_its_rows() -> None:
    place = figure("One shared buffer and shuffles", "times as fast")
    before, after = bench("attention/25_flash2", 30.0), bench("attention/26_flash2_shuffles", 20.0)
    assert place.beside([before]) is None
    assert place.beside([before, after]) == 1.5


def test_a_sum_over_the_shapes_of_a_forward_pass_needs_all_of_its_rows() -> None:
    place = figure("All products of a forward pass", "shared and register tiles")
    shapes = ("b4t64 qkv", "b4t64 out", "b4t64", "b4t64 proj", "lm head")
    some = [bench("matmul/32_one_operand_shared", 1000.0, shape=shape) for shape in shapes]
    assert place.beside(some) == pytest.approx(4 * 12 + 1) and place.unit == "ms"
    assert place.beside(some[1:]) is None


def test_a_share_is_a_sum_over_a_sum_that_holds_it() -> None:
    place = figure("All products beside the rest", "their share of the run, %")
    assert len(place.ours) > place.added == len(sources.PRODUCTS)
    rows = [bench(r.what, 1000.0, shape=r.shape) for r in place.ours]
    products = sum(sources.PRODUCTS.values())
    rest = sum(r.calls for r in place.ours[place.added :]) - products
    assert place.beside(rows) == pytest.approx(100 * products / (products + rest))
    assert place.beside([row for row in rows if row.what != "layernorm/19_two_axes"]) is None


def test_a_rate_without_its_counters_was_not_measured() -> None:
    rate = sources.reference("profile | attention/02_five_kernels:query_key | bytes_per_s", "f32", "b4t64")
    assert rate.value([profile({}, bytes_per_s=0.0)]) is None
    assert rate.value([profile({}, bytes_per_s=7.0, dram_read=1.0)]) == 7.0


def test_a_text_of_one_batch_is_no_evidence_of_another() -> None:
    place = figure("Peak memory at 512 tokens", "version 12, four texts")
    options = {"study": "attention, kernels", "new_tokens": 512}

    def row(part: str, peak: float, **more: int) -> Row:
        one = Row(kind="climb", what="gpt2", part=part, dtype="float32", options={**options, **more})
        return one.with_metrics(peak_bytes=peak, tokens=512)

    alone = [row("37_sixty_four_square", 300.0), row("naive torch", 600.0)]
    assert place.beside(alone) is None
    assert place.command == "rung climb --study attention --batch 4"
    together = [row("37_sixty_four_square", 300.0, batch=4), row("naive torch", 600.0, batch=4)]
    assert place.beside(together) == 0.5


def test_the_time_of_a_text_that_its_limit_ended_is_not_that_of_the_whole() -> None:
    place = figure("512 tokens from", "version 1: flash attention")
    options = {"study": "attention", "new_tokens": 512}
    for tokens, expected in ((512, 5.0), (278, None)):
        row = Row(kind="climb", what="gpt2", part="13_flash", dtype="float32", options=options)
        assert place.beside([row.with_metrics(seconds=5.0, tokens=tokens)]) == expected


def profile(options: dict[str, str], **figures: float) -> Row:
    kernels = [
        {"kernel": "permute", "figures": {"seconds": 1.0}, "opcodes": {}},
        {"kernel": "query_key", "figures": figures, "opcodes": {"BRA": 7.0}},
    ]
    return Row(kind="profile", what="attention/02_five_kernels", dtype="f32", shape="b4t64", options=options,
               detail={"kernels": kernels})  # fmt: skip


def test_a_counter_is_that_of_the_named_kernel_of_a_profile_without_a_tuning_of_its_own() -> None:
    place = figure("The baseline's one block", "preattention: achieved occupancy, %")
    assert place.beside([profile({}, achieved_occupancy=8.0)]) == 8.0
    assert place.beside([profile({"tuning": "given"}, achieved_occupancy=8.0)]) is None
    branches = sources.reference("profile | attention/02_five_kernels:query_key | opcode BRA", "f32", "b4t64")
    assert branches.value([profile({})]) == 7.0
    tuned = sources.reference("profile | attention/02_five_kernels:query_key UNROLL=1 | opcode BRA", "f32", "b4t64")
    assert tuned.tuning == {"UNROLL": 1} and tuned.value([profile({})]) is None
    assert place.command == "rung profile attention/02_five_kernels --dtype f32 --shape b4t64"


def test_a_launch_of_several_of_one_name_is_told_apart() -> None:
    """Weights that are transposed and converted are not told with the conversion of the activations."""
    kernels = [{"kernel": name, "figures": {"seconds": s}} for name, s in (("transpose", 4.0), ("convert", 2.0), ("convert", 1.0), ("matmul", 9.0))]
    row = Row(kind="profile", what="matmul/10_wmma_f16", dtype="tf32", shape="lm head", detail={"kernels": kernels})
    read = lambda text: sources.reference(text, "tf32", "lm head").value([row])  # noqa: E731
    assert read("profile | matmul/10_wmma_f16:transpose+convert#1 | seconds") == 6.0
    assert read("profile | matmul/10_wmma_f16:convert#2 | seconds") == 1.0
    assert read("profile | matmul/10_wmma_f16:convert | seconds") == 3.0


def test_a_cell_of_a_study_is_found_by_its_row_and_column() -> None:
    detail = {"columns": ["N", "implementation", "softmax ms"],
              "rows": [[256, "CUDA, flash", ""], [256, "CUDA, tree softmax", "0.002"]]}  # fmt: skip
    study = Row(kind="study", what="attention", detail=detail)
    assert figure("Softmax inside attention", "N = 256: tree").beside([study]) == pytest.approx(0.002)
    assert figure("Softmax inside attention", "N = 256: linear").beside([study]) is None


def test_what_cannot_be_answered_says_why_and_a_wrong_place_is_refused() -> None:
    assert all(f.ours or f.reason for f in FIGURES)
    with pytest.raises(RungError, match="does not begin with a kind of row"):
        sources.reference("bnech | a/b | cold_us", "f32", "b4t64")


def test_the_command_shows_every_figure_its_command_and_what_differs(capsys: pytest.CaptureFixture[str]) -> None:
    code = rung("reproduce", "--json")
    output = json.loads(capsys.readouterr().out)
    assert code == 0 and {e["document"] for e in output} == {*sources.documents()}
    experiments = [e for document in output for e in document["experiments"]]
    lines = [line for e in experiments for line in e["figures"]]
    assert len(lines) == len(FIGURES) and all(line["command"] for line in lines)
    assert all(e["differs"].endswith(".") for e in experiments)


def test_missing_prints_a_command_for_every_empty_place(capsys: pytest.CaptureFixture[str]) -> None:
    rung("reproduce", "milestone2", "--missing")
    commands = capsys.readouterr().out.splitlines()
    assert all(line.startswith("rung ") for line in commands if line) and len(set(commands)) == len(commands)


def test_the_sweep_and_the_studies_read_the_sources_figures_from_the_one_file() -> None:
    assert sources.softmax()[256] == [0.135, 0.027, 5.07]
    assert sources.latencies()["shared memory"] == 23
    assert sources.course("layernorm/05_tree")[256] == pytest.approx(180.449)


def test_a_counter_is_shown_as_the_emulator_counts_it_and_a_time_is_not() -> None:
    """Of a row that counts the same launch, in the document's unit; a figure of another kind has none."""
    counted = Row(
        kind="count", what="matmul/01_naive", dtype="f32", shape="b4t64 qkv",
        detail={"kernels": [{"kernel": "matmul", "figures": {"global_loads": 2e6, "global_stores": 1e6}}]},
    )  # fmt: skip
    references = [sources.reference("profile | matmul/01_naive | global_loads + global_stores", "f32", "b4t64 qkv")]
    accesses = sources.Figure("global accesses", 28.33, "M", tuple(references), "")
    assert accesses.emulated([counted]) == 3.0
    assert accesses.beside([counted]) is None
    bench = sources.reference("bench | matmul/01_naive | cold_us", "f32", "b4t64 qkv")
    timed = sources.Figure("time", 1.0, "ms", (bench,), "")
    assert timed.emulated([counted]) is None


def test_a_gpu_is_named_where_the_document_names_it() -> None:
    """The lecture names an A100 for its waves alone; another table of it is of a paper."""
    named = {e.title: e.gpu for e in sources.experiments() if e.document.name == "lecture" and "A100" in e.gpu}
    assert sources.documents()["lecture"].gpu == "not named" and len(named) == 2
    assert any("1792" in title for title in named)


def test_three_changes_are_a_figure_of_their_own() -> None:
    place = figure("One shared buffer", "by its three changes one after the other (rungs 43, 44 and 45): times as fast")
    first, last = bench("attention/25_flash2", 30.0), bench("attention/45_flash2_fused_division", 20.0)
    assert place.value == 1.66 and place.beside([first, last]) == 1.5 and place.unit == ""


def test_a_launch_is_read_from_its_rung_and_a_count_from_its_row() -> None:
    rows = [row for row in store.published() if row.kind == "count" and codes.current(row)]
    read = lambda text: sources.reference(text, "f32", "b8t1024").value(rows)  # noqa: E731
    assert read("launch | attention/22_register_tile | BR") == 64
    assert read("launch | attention/22_register_tile:flash | block_y") == 32
    assert read("launch | attention/37_sixty_four_square:flash | shared") == 4 * 64 * 64 * 4
    steps = [read(f"count | reduce/03_sequential BLOCK={n} | barriers @f32 B=64,N={n}") or 0 for n in (256, 1024)]
    assert [at / (64 * n / 32) for at, n in zip(steps, (256, 1024), strict=True)] == [8, 10]  # of each warp
    assert sources.reference("launch | attention/22_register_tile | BR", "f32", "b8t1024").value([]) is None


def test_what_fits_a_multiprocessor_follows_from_the_architecture_alone() -> None:
    """The third milestone's chart: blocks of 128 leave as many warps as others or more, whatever a thread's registers."""
    rows = [store.published()[0]]
    warps = {
        (threads, n): sources.reference(f"fits | sm_86 | threads={threads} | registers={n} | warps", "f32", "b4t64").value(rows)
        for threads in (64, 128, 256)
        for n in range(16, 129, 4)
    }
    assert warps[64, 16] == 32 and warps[128, 16] == 48  # its 66.67 and 100 % of 48 warps
    assert all((warps[128, n] or 0) >= (warps[threads, n] or 0) for threads, n in warps)


def test_a_count_is_shown_as_emulated_and_not_as_measured() -> None:
    rows = store.published()
    counts = [row for row in rows if row.kind == "count" and codes.current(row)]
    (steps,) = (e for e in sources.experiments() if e.title.startswith("Steps") and e.document.name == "milestone")
    assert [f.emulated(counts) for f in steps.figures] == [f.value for f in steps.figures]
    assert all(f.beside([row for row in rows if row.kind != "count"]) is None for f in steps.figures)


def test_a_run_over_several_gpus_is_read_by_its_options() -> None:
    rows = [row for row in store.published() if row.kind == "parallel"]
    read = lambda text: sources.reference(text, "f32", "b4t64").value(rows) or 0  # noqa: E731
    two, four = (read(f"parallel | attention/ring | gpus={n} | n=131072 | causal=False | vs_one_gpu") for n in (2, 4))
    assert 1.5 < two < 2 < four < 4


def test_a_chart_without_numbers_has_no_column_of_theirs() -> None:
    ours = {"ours": lambda figure: "1"}
    by_title = {form.experiment.title: form.heads for form in forms.forms("milestone3", ours)}
    charts = next(heads for title, heads in by_title.items() if title.startswith("What moves in the memory charts"))
    assert len(charts) > 4 and not any("theirs" in head for head in charts)
    assert any("theirs" in head for head in by_title["Throughput before and after the reduction"])
