"""What the documents found: verdicts come from the rows that are shown, and reasons from facts that rows bear out."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gpuless.facts import limits
from rung.results import codes, current, store
from rung.results.current import Figures
from rung.results.row import Row
from rung.rungs import catalogue
from rung_reproduce import findings, sources
from rung_reproduce.findings import Finding
from rung_reproduce.show import page
from verbs import rung

# What a reason names of code must be a fact, beside the reason.
NAMED = re.compile(r"wgmma|HMMA|cutlass|sm_\d+|copies a tile|tensor map|machine code is the same|to the unit|to the instruction|to the (five )?digits", re.I)
# A figure outside its row: a number with a decimal point, a unit or "times" behind it; sizes of launches and models are none.
LOOSE = re.compile(r"\d+\.\d+|\d[\d,.]* ?(?:%|ms\b|us\b|µs\b|cycles|times|GB|million)")


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    stored = store.published()
    counts = [row for row in stored if row.kind == "count"]
    found = current.of_gpu(stored, findings.written_for())
    return [row for row in (*found.results, *counts) if codes.current(row)]


def test_each_reason_explains_the_verdict_of_the_rows_it_was_written_for(rows: list[Row]) -> None:
    judged = {f.says: (f.explained, f.judged(rows)) for f in findings.findings()}
    assert {says: pair for says, pair in judged.items() if pair[0] != pair[1]} == {}


def test_rows_bear_out_every_fact_beside_a_reason(rows: list[Row]) -> None:
    wrong = [
        (f.says, fact)
        for f in findings.findings()
        for fact in f.facts
        if f.judged(rows) != "otherwise"
        if not f.holds(fact, rows)
    ]
    assert wrong == []


@pytest.mark.parametrize("name", list(sources.documents()))
def test_rows_bear_out_what_a_takeaway_says(name: str, rows: list[Row]) -> None:
    reader, facts = findings.of_document(name)[0], findings.told(name, "facts")
    assert facts and [fact for fact in facts if not reader.holds(fact, rows)] == []


def test_a_reason_has_no_figure_of_its_own(rows: list[Row]) -> None:
    loose = {f.says: LOOSE.findall(re.sub(r"\{[^{}]*\}", "", f.why)) for f in findings.findings()}
    assert {says: found for says, found in loose.items() if found} == {}
    assert all(f.reason(rows) or not f.why or not f.judged(rows) for f in findings.findings())


def test_a_reason_that_names_an_instruction_or_a_kernel_has_facts() -> None:
    told = [f for f in findings.findings() if NAMED.search(re.sub(r"\{[^{}]*\}", "", f.why)) and not f.facts]
    assert [f.says for f in told if "resumably" not in f.why] == []


def test_each_document_has_findings_and_ten_headlines_with_the_reversed_first(rows: list[Row]) -> None:
    for name in sources.documents():
        chosen = findings.headlines(name, rows)
        assert 9 <= len(chosen) <= 10 and len({f.says for f in findings.of_document(name)}) == len(findings.of_document(name))
        verdicts = [f.judged(rows) for f in chosen]
        assert "reversed" not in verdicts[verdicts.count("reversed") :]


def test_no_page_has_a_step_of_the_model_in_less_than_its_weights_take(rows: list[Row]) -> None:
    """GPT-2's weights in float32 are half a gigabyte: a cell of 0.002 ms is no step."""
    (cache,) = (r for r in rows if (r.kind, r.what, r.part) == ("study", "cache", ""))
    hidden, reason = sources.left_out("cache")
    for i, column in enumerate(cache.detail["columns"]):
        if column.endswith(", ms") and column not in hidden:
            assert all(float(line[i]) > 0.1 for line in cache.detail["rows"]), column
    assert set(hidden) <= set(cache.detail["columns"]) and reason in page.every("milestone3", page.Shown("", rows, {}, []))


def test_a_study_of_seconds_by_the_clock_is_judged_by_the_clock_as_well() -> None:
    """The study times whole texts; kernels alone would answer another question."""
    for f in findings.of_document("flash"):
        kinds = {r.kind for figure in f.figures for r in figure.ours}
        assert "kernels" not in kinds or "text" in kinds, f.says


def test_a_page_says_how_many_findings_its_first_page_has(rows: list[Row]) -> None:
    words = {9: "nine", 10: "ten"}
    for name in sources.documents():
        text = (store.ROOT / f"docs/reproduce/{name}-all.md").read_text(encoding="utf-8")
        assert f"with {words[len(findings.headlines(name, rows))]} of the findings" in text


def test_the_host_that_a_page_names_is_that_of_the_rows(rows: list[Row]) -> None:
    (cores,) = {row.machine["cores"] for row in rows if (row.kind, row.what, row.part) == ("study", "attention", "")}
    assert f"The host has {cores} processors" in (store.ROOT / "docs/beyond.md").read_text(encoding="utf-8")


def test_a_finding_can_be_read_alone() -> None:
    openings = ("And ", "Nor ", "So does", "As above", "It ", "Its ", "They ", "In the same")
    assert [f.says for f in findings.findings() if f.says.startswith(openings)] == []
    assert [f.says for f in findings.findings() if "s above" in f.why] == []
    assert [f.says for f in findings.findings() if not f.figures and not f.why] == []  # neither numbers nor a reason
    assert [f.says for f in findings.findings() if re.search(r"^[^,]*\b(it is|they are|beside them)\b", f.says)] == []


def test_a_headline_says_what_its_figures_are() -> None:
    """A first page has no reasons and no tables: 0.355 beside "the gain falls" is nobody's number."""
    measured = re.compile(r"\d|: |twice|double|third|quarter|half")
    shown = [f.says for name in sources.documents() for f in findings.headlines(name, [])]
    assert [says for says in shown if not measured.search(says)] == []


def test_on_another_gpu_verdicts_are_its_own_and_reasons_are_silent(rows: list[Row]) -> None:
    other = [r for r in store.published() if r.gpu and "H100" in r.gpu and codes.current(r)]
    for f in findings.findings():
        if f.figures and f.ours(other) is None:
            assert f.judged(other) == "" and f.line(other)[1:3] == (findings.VERDICTS[""], "")
        elif f.figures:
            assert f.reason(other) == ""
    restated = [replace(r, machine={**r.machine, "gpu": "NVIDIA X1"}) for r in rows]
    assert all(f.reason(restated) == "" for f in findings.findings() if f.figures)
    judged = [f for f in findings.findings() if (f.figures or f.facts) and findings.UNSEEN not in f.by]
    assert all(f.line([])[1] == findings.VERDICTS[""] for f in judged)


@dataclass(frozen=True)
class _Measured(sources.Figure):
    found: float = 1.0

    def beside(self, rows: object) -> float:
        return self.found


def _with(one: Finding, ours: float) -> Finding:
    figure = _Measured("speed", one.theirs(), "", (), "", than=one.than(), found=ours)
    return replace(one, figures=(figure,), by=tuple(word for word in one.by if word not in (findings.EACH, findings.PAIRS)))


def _one(rows: list[Row]) -> Finding:
    small = (f for f in findings.findings() if len(f.figures) == 2 and 2 < (f.theirs() or 0) < 4)
    return next(f for f in small if f.judged(rows) == "same")


@pytest.mark.parametrize(
    ("power", "verdict"), [(-1, "reversed"), (0.005, "lost"), (0.3, "smaller"), (0.7, "same"), (1.4, "same"), (1.6, "larger")]
)
def test_a_verdict_follows_from_the_size_of_the_effect(power: float, verdict: str, rows: list[Row]) -> None:
    one = _one(rows)
    assert _with(one, (one.theirs() or 1) ** power).judged([]) == verdict


@pytest.mark.parametrize(
    ("ours", "verdict"), [(57.0, "same"), (128.8, "larger"), (20.0, "same"), (15.0, "smaller")]
)
def test_a_figure_beyond_twice_or_below_half_of_theirs_is_not_the_same(ours: float, verdict: str, rows: list[Row]) -> None:
    one = replace(_one(rows), figures=(_Measured("speed", 36.5, "", (), "", found=ours),))
    assert one.judged([]) == verdict
    theirs = _Measured("share", 1 / 36.5, "", (), "", found=1 / ours)
    assert replace(one, figures=(theirs,)).judged([]) == verdict


@pytest.mark.parametrize(("ours", "verdict"), [(4.9, "otherwise"), (0.17, "otherwise"), (5.1, "lost"), (9.0, "same")])
def test_a_bound_that_is_not_met_is_no_reversal(ours: float, verdict: str, rows: list[Row]) -> None:
    figure = _Measured("cycles", None, "", (), "", than="more", found=ours)
    assert replace(_one(rows), figures=(figure,), neutral=5.0).judged([]) == verdict


@pytest.mark.parametrize(("ours", "verdict"), [(0.94, "lost"), (0.92, "reversed"), (1.02, "lost"), (1.05, "smaller")])
def test_a_few_per_cent_the_other_way_are_no_reversal(ours: float, verdict: str, rows: list[Row]) -> None:
    one = _one(rows)
    assert _with(one, ours).judged([]) == verdict
    more = replace(one, figures=(replace(one.figures[0], value=None, than="more"),))
    assert _with(more, ours).judged([]) == ("same" if verdict == "smaller" else verdict)


@pytest.mark.parametrize(
    ("found", "verdict", "told"),
    [
        ((2.0, 2.1), "the same", "2 to 2.1"),
        ((2.0, 0.5), "in some cases only (1 of 2)", "0.5 to 2"),
        ((2.0, 1.2), "in each case, in different sizes", "1.2 to 2"),
        ((1.0, 0.5), "not so here", "0.5 to 1"),
        ((0.5, 0.5), "reversed", "0.5"),
    ],
)
def test_a_finding_of_several_cases_is_judged_by_each(
    found: tuple[float, float], verdict: str, told: str, rows: list[Row]
) -> None:
    figures = tuple(_Measured("speed", 2.0, "", (), "", found=value) for value in found)
    each = replace(_one(rows), figures=figures, by=(findings.EACH,))
    assert (each.verdict([]), *each.cells([])) == (verdict, "2", told)


def test_why_no_row_shows_a_finding_is_told_where_its_facts_hold(rows: list[Row]) -> None:
    (routed,) = (f for f in findings.findings() if f.says.startswith("A tensor core routes"))
    assert routed.facts and routed.judged([]) == "unseen" and routed.reason(rows) and routed.reason([]) == ""
    assert replace(routed, facts=("1 above 2",)).reason(rows) == ""


def test_a_fact_compares_ratios(rows: list[Row]) -> None:
    one = _one(rows)
    assert one.holds("6 divided by 2 equals 3", []) and one.holds("1 divided by 2 below 1", [])
    assert one.holds("bench | matmul/01_naive | cold_us divided by 2 above 1", []) is None


def test_a_plan_is_no_finding_and_what_is_ours_is_none_of_theirs() -> None:
    assert [f.says for f in findings.findings() if re.match(r"Ours|Future work|.*\bMPI\b", f.says)] == []
    assert {f.says for f in findings.findings() if f.says.startswith("Plan: ")} == {
        "Plan: pipelining over heads hides transfers"
    }


def test_the_documents_own_format_is_judged_beside_another() -> None:
    """A report that calls cuBLAS in single precision is not answered in tf32 alone."""
    (bound,) = (f for f in findings.findings() if f.says.startswith("In attention cuBLAS is bound by computing"))
    assert {r.dtype for figure in bound.figures for r in figure.ours} == {"f32", "tf32"}
    for f in findings.of_document("milestone2"):
        formats = {
            r.dtype for figure in f.figures for r in figure.ours if r.what == "matmul/torch" and r.kind == "bench"
        }
        assert formats in (set(), {"f32"}) or "tf32" in f.says, f.says


def test_a_gain_of_the_launch_is_not_told_as_one_of_what_came_after(rows: list[Row]) -> None:
    for name in (
        "A reduction makes the queries' product",
        "A reduction makes the values' product",
        "Local attention is 106 times",
    ):
        (f,) = (f for f in findings.findings() if f.says.startswith(name))
        assert "attention/03" in f.reason(rows) and any("attention/03_launch" in fact for fact in f.facts), f.says


def test_the_products_under_more_than_ten_times_are_the_fastest_of_their_kind(rows: list[Row]) -> None:
    figure = findings.figure("lecture", "What each trick gains > tensor cores over other arithmetic (")
    raced = {
        r.what: r.metrics["cold_us"]
        for r in rows
        if (r.kind, r.dtype, r.shape) == ("bench", "bf16", "b8t1024") and r.what.startswith("matmul/")
    }
    rungs = {what: us for what, us in raced.items() if what.partition("/")[2][:2].isdigit()}
    assert figure.ours[1].what == min(rungs, key=lambda what: rungs[what])
    plain = catalogue.find(figure.ours[0].what)
    assert plain.dtypes and "mma" not in plain.path.read_text() and "plain" in figure.what  # type: ignore[union-attr]


def test_a_number_of_theirs_where_there_is_no_effect_claims_none(rows: list[Row]) -> None:
    one = _one(rows)
    level = replace(one, figures=(replace(one.figures[0], value=1.0),), by=(), neutral=1.0)
    assert _with(level, 2.0).judged([]) == "effect" and _with(level, 1.0).judged([]) == "none"


def test_small_effects_are_told_with_sign_and_size(rows: list[Row]) -> None:
    vectors = next(f for f in findings.findings() if f.says.startswith("A register tile of 2 x 2"))
    assert vectors.verdict(rows) == "small in both (+3.4 % there, +2.6 and +1.1 % here)"
    nothing = next(f for f in findings.findings() if f.by == (findings.NOTHING,))
    assert _with(nothing, 1.5).judged([]) == "effect" and _with(nothing, 1.05).verdict([]).endswith("+5.0 % here)")


def test_a_profile_of_several_kernels_is_read_from_the_one_that_is_named(rows: list[Row]) -> None:
    kernels = [{"kernel": name, "figures": {"sm_throughput": share, "hmma": 1.0}} for name, share in (("gemm_tn", 4.0), ("copy", 31.0))]
    row = Row(kind="profile", what="attention/11_cublas", dtype="f32", shape="b4t64", verdict="ok", detail={"kernels": kernels})
    read = lambda text: sources.reference(text, "f32", "b4t64").value([row])  # noqa: E731
    assert read("profile | attention/11_cublas:*_tn | sm_throughput") == 4.0
    assert read("profile | attention/11_cublas | sm_throughput") is None  # the longest is nobody's choice
    assert read("profile | attention/11_cublas:* | sm_throughput") is None and read("profile | attention/11_cublas:* | hmma") == 2.0


def test_every_profile_that_a_figure_names_has_that_kernel(rows: list[Row]) -> None:
    lost = {
        (r.what, r.kernels)
        for r in sources.references("profile")
        for row in rows
        if row.kind == "profile" and r.fits(row) and r.figure not in row.metrics and not r.chosen(row)
    }
    assert lost == set()


def test_the_command_line_tells_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert rung("reproduce", "flash", "--findings", "--json") == 0
    (flash,) = json.loads(capsys.readouterr().out)
    assert flash["document"] == "flash" and len(flash["findings"]) > 10
    assert {"they found", "theirs", "ours", "verdict", "why"} == {*flash["findings"][0]}


def test_a_comparison_that_holds_by_a_few_per_cent_is_little(rows: list[Row]) -> None:
    one = replace(_one(rows), by=(findings.FACTS,), facts=("2 above 1",))
    assert _with(one, 1.02).judged([]) == "lost" and _with(one, 1.5).judged([]) == "same"
    near = [
        f.says
        for f in findings.findings()
        if f.figures and f.judged(rows) == "same" and not {findings.LEVEL, findings.BEST} & {*f.by}
        for ours, theirs, _ in f._numbers(rows)
        if ours and theirs and abs(findings.effect(ours, f.neutral)) < findings.SMALL
    ]
    assert near == []


def test_the_largest_block_is_compared_with_the_best_one_of_its_table(rows: list[Row]) -> None:
    (never,) = (f for f in findings.findings() if findings.BEHIND in f.by)
    theirs = [theirs for _, theirs, _ in never._numbers(rows)]
    assert theirs[0] == pytest.approx(177.024 / 132.672) and theirs[-1] == pytest.approx(9.504 / 7.136)
    assert all(ours and ours > 1 for ours, *_ in never._numbers(rows))


def test_one_block_has_the_warps_of_the_report_on_a_larger_multiprocessor(rows: list[Row]) -> None:
    (block,) = (f for f in findings.findings() if f.says.startswith("The baseline's one block occupies"))
    assert block.ours(rows) == pytest.approx(4, rel=0.01) and block.judged(rows) == "same"


def test_a_ratio_by_the_clock_is_judged_by_the_clock_as_well() -> None:
    """The report times texts; the kernels' time alone would answer another question, and says so."""
    for f in findings.of_document("milestone3"):
        told = [r.figure for figure in f.figures for r in figure.ours if r.kind == "course"]
        alone = "kernel_ms" in told and "tokens_per_s" not in told
        assert not alone or any(figure.than for figure in f.figures) or "ours by kernels" in f.says, f.says


def test_a_ratio_of_two_formats_names_them() -> None:
    for f in findings.findings():
        formats = {r.dtype for figure in f.figures for r in figure.ours if r.kind in ("bench", "profile")}
        told = " ".join((f.says, f.why, *(figure.what for figure in f.figures)))
        assert len(formats) < 2 or re.search(r"float|tf32|bf16|format", told), f.says


def test_a_figure_of_theirs_in_float16_is_not_shown_beside_ours_in_float32() -> None:
    (paper,) = (e for e in sources.experiments() if e.title.startswith("Standard attention against flash"))
    beside = {r.dtype for f in paper.figures if f.value and f.unit for r in f.ours}
    assert beside == {"f16"} and [f.what for f in paper.figures if f.reason and not f.value] == []


def test_the_same_is_said_by_one_rule(rows: list[Row]) -> None:
    """Half to one and a half times their effect; of a level a quarter; without a number their direction."""
    told = [f for f in findings.findings() if f.figures and f.judged(rows) == "same" and findings.BEST not in f.by]
    assert len(told) > 80
    for f in told:
        for ours, theirs, than in f._numbers(rows):
            assert ours is not None, f.says
            if theirs is None:
                assert (ours > f.neutral) == (than == "more") and abs(math.log(ours / f.neutral)) > 0.034, f.says
            elif findings.LEVEL in f.by:
                assert theirs / 1.26 < ours < theirs * 1.26, f.says
            elif theirs != f.neutral and findings.FACTS not in f.by:
                assert 0.499 < math.log(ours / f.neutral) / math.log(theirs / f.neutral) < 1.501, f.says
                assert 0.5 <= ours / theirs <= 2, f.says
    assert "0.5 to 1.5 times" in findings.RULE and findings.RULE in page.every("flash", page.Shown("", [], {}, []))


def test_a_level_that_is_not_theirs_does_not_bear_a_finding_out(rows: list[Row]) -> None:
    one = replace(_one(rows), by=(findings.LEVEL, findings.EACH))
    some = tuple(_Measured("share", 70.0, "", (), "", found=value) for value in (72.0, 40.0))
    assert replace(one, figures=some).judged([]) == "varies"
    little = replace(_one(rows), by=(findings.LITTLE,))
    assert [
        replace(little, figures=(_Measured("speed", None, "", (), "", than="more", found=v),)).judged([]) for v in (1.05, 1.23, 1.0)
    ] == ["same", "larger", "lost"]


def test_a_time_in_a_reason_is_told_in_its_unit() -> None:
    """A cell of a column of microseconds is a number of seconds until a unit is asked for."""
    bare = [
        (f.says, name)
        for f in findings.findings()
        for name in re.findall(r"\{([^{}]+)\}", f.why)
        if re.search(r"\| [^|]*\b(us|ms)$", name) and " in " not in name and " divided by " not in name
    ]
    assert bare == []


def test_throughputs_below_forty_per_cent_are_all_named(rows: list[Row]) -> None:
    (all_eight,) = (f for f in findings.findings() if f.says.startswith("After the reduction all eight"))
    shares = [all_eight.value(fact.partition(" above ")[0], rows) for fact in all_eight.facts]
    low = [sources.number(share) for share in shares if share and share < 40]
    assert len(shares) == 8 and low and all(share in all_eight.reason(rows) for share in low)


def test_blocks_of_128_leave_the_most_warps_at_every_count_of_registers() -> None:
    for registers in range(1, 129):
        warps = {n: limits.occupancy("sm_86", n, registers, 0).warps for n in (64, 128, 256)}
        assert warps[128] == max(warps.values()), registers


def test_a_picture_without_their_numbers_is_not_said_to_have_them() -> None:
    for e in sources.experiments():
        if e.drawn and not any(f.value is not None for f in e.figures):
            assert "theirs" not in page.titles()[f"reproduce-{page._name(e)}"], e.drawn
    assert "host" in page.titles()["reproduce-twelve-versions-of"]


def test_ranks_are_drawn_beside_cuda(rows: list[Row]) -> None:
    (drawn,) = page._ranks(Figures("NVIDIA H200", rows), rows).values()
    assert "ring, full, forecast" in drawn and "CUDA, flash, causal" in drawn
    assert page._ranks(Figures("", []), []) == {}


@pytest.mark.parametrize("path", [store.ROOT / "docs/reproduce.md", *sorted((store.ROOT / "docs/reproduce").glob("*.md"))], ids=str)
def test_every_anchor_that_a_page_links_to_exists(path: Path) -> None:
    def anchors(page: Path) -> set[str]:
        text = page.read_text(encoding="utf-8")
        heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        return {*re.findall(r'id="([^"]+)"', text), *(re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in heads)}

    linked = re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", path.read_text(encoding="utf-8"))
    assert [(to, anchor) for to, anchor in linked if anchor not in anchors(path.parent / to if to else path)] == []
