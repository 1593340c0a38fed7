"""`rung climb --study attention`: slow ways are cut off honestly, wrong ones get no time, and nothing measured is lost."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import gpuless
from rung.errors import RungError
from rung.models.family import Config
from rung.models.folders import INNER
from rung.models.load import load
from rung.models.transformer import Transformer
from rung.models.weights import Linear, Weights, converted, read_weights
from rung.results import store
from rung.results.row import Row
from rung_reproduce.climbs import attention as study
from rung_reproduce.climbs.attention import NaivePlan, Variant
from rung_reproduce.show import attention_text_chart
from verbs import rung

pytestmark = pytest.mark.slow

PROMPT = "Once upon a time there was a"
Inner = tuple[Config, Weights, list[int]]
Cost = Callable[[int], float]  # which token of those that a way writes in both passes -> seconds
emulated = pytest.mark.skipif(gpuless.available() is not None, reason="the emulator needs g++")


@pytest.fixture(scope="module")
def inner() -> Inner:
    model = load("inner", dtype="float32", device="cpu")
    weights = read_weights(INNER, model.config, lambda w: Linear(w.float().contiguous()), lambda v: v.float())
    return model.config, weights, list(model.tokenizer.encode(PROMPT))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Time that passes only where a way says so."""
    found = SimpleNamespace(now=0.0)
    monkeypatch.setattr(study, "time", SimpleNamespace(perf_counter=lambda: found.now))
    return found


class Paced(NaivePlan):
    """Naive attention at a pace of its own; `wrong` says at which tokens it forgets what was before."""

    def __init__(self, clock: SimpleNamespace, cost: Cost, wrong: Callable[[int], bool]) -> None:
        super().__init__(torch.device("cpu"), torch.float32, torch.float32)
        self.clock, self.cost, self.wrong, self.count = clock, cost, wrong, 0

    def embedding(self, *given: Any) -> torch.Tensor:
        self.count += 1
        self.clock.now += self.cost(self.count)
        return super().embedding(*given)

    def attention(self, *given: Any) -> torch.Tensor:
        y = super().attention(*given)
        return -y if self.wrong(self.count) else y


def paced(
    clock: SimpleNamespace, name: str, cost: float | Cost, wrong: Callable[[int], bool] = lambda count: False
) -> Variant:
    return Variant(name, lambda: Paced(clock, cost if callable(cost) else lambda count: cost, wrong))


def measured(inner: Inner, chosen: Sequence[Variant], tokens: int = 12, seconds: float = 12.0) -> list[dict[str, Any]]:
    """What the rows say, flat; metrics by their short names."""
    return [flat(row) for row in study.run(*inner, tokens, chosen, seconds=seconds)]


def flat(row: Row) -> dict[str, Any]:
    names = {"written": "tokens", "seconds": "seconds", "same": "same_tokens", "against_naive": "vs_naive"}
    figures = {name: row.metrics[metric] for name, metric in names.items() if metric in row.metrics}
    curves = {name: row.detail[name] for name in ("at", "curve") if name in row.detail}
    verdict = row.reason or row.verdict
    return {
        "name": row.part,
        "verdict": verdict,
        "told": attention_text_chart.result(row),
        "seconds": None,
        **figures,
        **curves,
    }


def test_a_slow_method_is_cut_off_and_reports_its_progress(inner: Inner, clock: SimpleNamespace) -> None:
    naive, slow = measured(inner, [paced(clock, "naive torch", 0.5), paced(clock, "slow", lambda n: 5.0)])
    assert (naive["written"], naive["seconds"], naive["told"]) == (12, 6.0, "6.00 s")
    # The first token is on no clock; two more take 10 s, and the third of them passes 12.
    assert (slow["written"], slow["same"], slow["verdict"]) == (4, 4, "ok")
    assert slow["told"] == "4 of 12 tokens in 20.00 s"
    assert slow["against_naive"] == pytest.approx(4 * 0.5 / 20.0)  # and not of naive torch's 6 s
    start = len(inner[2])
    assert slow["curve"] == [(start, 0.0), *((start + n, 5.0 * n) for n in (1, 2, 3, 4))]


def test_what_compiles_at_the_first_token_is_not_cut_off_for_it(inner: Inner, clock: SimpleNamespace) -> None:
    compiles = paced(clock, "compiles", lambda count: 100.0 if count == 1 else 0.25)
    _, row = measured(inner, [paced(clock, "naive torch", 0.5), compiles])
    assert (row["written"], row["seconds"], row["against_naive"]) == (12, 3.0, 2.0)


def test_nobody_writes_further_than_the_text_that_it_is_held_against(inner: Inner, clock: SimpleNamespace) -> None:
    naive, fast = measured(inner, [paced(clock, "naive torch", 5.0), paced(clock, "fast", 1.0)])
    assert (naive["written"], fast["written"]) == (4, 4)
    assert fast["told"] == "4 of 12 tokens in 4.00 s" and fast["against_naive"] == 5.0


def test_the_time_is_given_at_marks_within_the_written_text(
    inner: Inner, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = len(inner[2])
    monkeypatch.setattr(study, "MARKS", (start, start + 1, start + 4, start + 5))
    _, slow = measured(inner, [paced(clock, "naive torch", 0.5), paced(clock, "slow", 5.0)])
    assert slow["at"] == {str(start + 1): 5.0, str(start + 4): 20.0}


def test_a_long_curve_is_thinned_but_keeps_both_ends() -> None:
    found = study._curve(8, [0.5 * n for n in range(1, 514)])  # 513 = 64 * 8 + 1
    assert found[:3] == [(8, 0.0), (16, 4.0), (24, 8.0)] and found[-2:] == [(520, 256.0), (521, 256.5)]
    assert len(found) == 66


def test_a_wrong_method_gets_no_time(inner: Inner, clock: SimpleNamespace) -> None:
    made: list[Paced] = []

    def make() -> Paced:
        made.append(Paced(clock, lambda count: 1.0, lambda count: count >= 5))
        return made[0]

    _, wrong, right = measured(
        inner, [paced(clock, "naive torch", 0.5), Variant("wrong", make), paced(clock, "right", 0.25)]
    )
    assert 4 <= wrong["same"] < 12  # one wrong step may still give the right token
    assert wrong["told"] == f"its text differs from naive torch's at token {wrong['same'] + 1:.0f}"
    assert wrong["seconds"] is None and not {"curve", "at", "against_naive"} & wrong.keys()
    assert made[0].count == 12  # it did not write again
    assert right["seconds"] == 3.0


def test_a_method_whose_second_text_is_wrong_gets_no_time(inner: Inner, clock: SimpleNamespace) -> None:
    again = paced(clock, "again", 1.0, wrong=lambda count: count > 12)
    _, row = measured(inner, [paced(clock, "naive torch", 0.5), again])
    assert row["seconds"] is None and "curve" not in row and row["verdict"].startswith("its text differs")


def test_in_16_bits_all_variants_read_one_text_and_logits_decide(inner: Inner, clock: SimpleNamespace) -> None:
    near = paced(clock, "near", 0.25, wrong=lambda count: count > 1)  # its logits after the prompt are right
    wrong = paced(clock, "wrong", 0.25, wrong=lambda count: True)
    chosen = [paced(clock, "naive torch", 0.5), near, wrong]
    rows = [flat(row) for row in study.run(*inner, 12, chosen, dtype="bfloat16")]
    assert [row["seconds"] for row in rows] == [6.0, 3.0, None]
    assert rows[1]["same"] < 12 and "logits" in rows[2]["verdict"]


def test_a_text_may_differ_behind_the_gate(
    inner: Inner, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = paced(clock, "late", 0.5, wrong=lambda count: (count - 1) % 12 >= 6)
    variants = [paced(clock, "naive torch", 0.5), late]
    assert measured(inner, variants)[1]["seconds"] is None
    monkeypatch.setattr(study, "IDENTICAL", 6)
    row = measured(inner, variants)[1]
    assert row["verdict"] == "ok" and row["seconds"] == 6.0 and 6 <= row["same"] < 12


def test_a_method_that_fails_is_a_row_and_the_next_runs(inner: Inner, clock: SimpleNamespace) -> None:
    def refuse() -> Paced:
        raise RungError("no room.\nA second line.")

    naive, right = paced(clock, "naive torch", 0.5), paced(clock, "right", 0.5)
    rows = measured(inner, [naive, Variant("refused", refuse), right])
    assert [(row["verdict"], row["seconds"]) for row in rows] == [("ok", 6.0), ("no room.", None), ("ok", 6.0)]
    # Nothing can be held against a text that is not there.
    assert [row["verdict"] for row in measured(inner, [Variant("naive torch", refuse), right])] == ["no room."]


def test_a_text_longer_than_the_context_is_refused(inner: Inner) -> None:
    with pytest.raises(RungError, match="more than the context of 512"):
        measured(inner, [], tokens=512)


def test_variants_know_which_rungs_are_flash_attention() -> None:
    variants = study.variants("emulator")
    assert [variant.kind for variant in variants[:3]] == [
        "torch",
        "torch",
        "python",
    ]  # the host's own loop is no kernel
    numbers = {int(variant.name[:2]) for variant in variants if variant.flash}
    assert numbers == {*range(13, 27), 29, 35, 37, 38, 39, 43, 44, 45}
    assert [variant.name for variant in study.variants("emulator", ["3", "flash"])[2:]] == ["03_launch", "13_flash"]


# ---- the picture ----------------------------------------------------------------------------------------------------


def row(name: str, seconds: float | None, *, kind: str = "cuda", flash: bool = False, written: int = 20) -> Row:
    """Rows of 20 tokens after a prompt of 8; naive torch takes 2 s."""
    detail = {"step": 0, "idea": "", "language": kind, "flash": flash}
    options = {"study": "attention", "new_tokens": 20}
    made = Row(kind="climb", what="gpt2", part=name, dtype="float32", options=options, detail=detail)
    if seconds is None:
        reason = "its text differs from naive torch's at token 3"
        return replace(made, verdict="failed", reason=reason, metrics={"same_tokens": 2.0})
    curve = [(8 + n, seconds * n / written) for n in range(written + 1)]
    figures = {"tokens": written, "same_tokens": written, "seconds": seconds, "vs_naive": written * 0.1 / seconds}
    return replace(made, metrics=figures, detail={**detail, "curve": curve, "at": {}})


ROWS = [
    row("naive torch", 2.0, kind="torch"),
    row("torch SDPA", 1.5, kind="torch"),
    row("01_host", 5.0, kind="python"),
    row("02_first", 12.0, written=4),
    row("03_wrong", None),
    row("04_plain", 3.0),
    row("05_best_plain", 1.9),
    row("06_flash", 4.0, flash=True),
    row("07_flash", 1.7, flash=True),
    row("08_flash", 1.2, flash=True),
]
TELLING = ["naive torch", "torch SDPA", "02_first", "05_best_plain", "06_flash", "08_flash"]


def test_the_curves_are_chosen_by_what_was_measured() -> None:
    assert [r.part for r in attention_text_chart.telling(ROWS)] == TELLING
    without = [r for r in ROWS if r.part not in ("02_first", "06_flash")]
    # 04 is now the first kernel, 07 the slowest flash attention.
    assert [r.part for r in attention_text_chart.telling(without)][2:] == [
        "04_plain",
        "05_best_plain",
        "07_flash",
        "08_flash",
    ]
    assert [r.part for r in attention_text_chart.telling(ROWS[:4])] == ["naive torch", "torch SDPA", "02_first"]


def contents(svg: str) -> tuple[dict[str, list[tuple[float, float]]], list[str], int]:
    """Curves by their names, all texts, and how many bars there are."""
    tree = ET.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    curves = {
        str(path.findtext(f"{space}title")): [
            (float(x), float(y)) for x, y in (point.split() for point in path.attrib["d"][1:].split(" L"))
        ]
        for path in tree.iter(f"{space}path")
    }
    return curves, [str(text.text) for text in tree.iter(f"{space}text")], len(list(tree.iter(f"{space}rect")))


def test_the_picture_has_the_curves_and_a_bar_for_each_whole_text() -> None:
    curves, texts, bars = contents(attention_text_chart.chart("gpt2", ROWS))
    cut = "02 first: 4 of 20 tokens in 12.00 s"
    assert list(curves) == ["naive torch", "torch SDPA", cut, "05 best plain", "06 flash", "08 flash"]
    assert {*curves} <= {*texts} and "seconds" in texts and "tokens of text" in texts
    naive, slow = curves["naive torch"], curves["06 flash"]
    assert len(naive) == 21 and slow[-1][0] == naive[-1][0] and slow[-1][1] < naive[-1][1]  # y grows downwards
    # What was cut off leaves the picture above the slowest whole text, before its third token.
    assert len(curves[cut]) == 3 and curves[cut][-1][1] < slow[-1][1]
    assert bars == 8 and "4 of 20 tokens in 12.00 s" in texts and texts.count("no time") == 1
    assert "0.03×" in texts  # 0.4 s of naive torch's for those 4 tokens


def test_the_picture_without_a_whole_text_has_curves_only() -> None:
    rows = [row("naive torch", 12.0, kind="torch", written=4), row("02_first", 3.0, written=4), row("03_wrong", None)]
    curves, _, bars = contents(attention_text_chart.chart("gpt2", rows))
    assert [len(points) for points in curves.values()] == [5, 5] and bars == 0


# ---- the verb -------------------------------------------------------------------------------------------------------


def climb(*words: str) -> int:
    return rung("climb", "--device", "emulator", "--model", "inner", "--study", "attention", *words)


@emulated
def test_rungs_write_what_torch_writes_and_every_row_is_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, svg = tmp_path / "study.jsonl", tmp_path / "study.svg"
    words = ("-n", "5", "--rung", "1", "--rung", "3", "--rung", "27")
    assert climb(*words, "--prompt", PROMPT, "-o", str(output), "--svg", str(svg), "--json") == 0
    captured = capsys.readouterr()
    rows = list(store.read(output))
    assert [Row.of_json(r) for r in json.loads(captured.out)] == rows
    assert {(r.kind, r.what, r.options["study"]) for r in rows} == {("climb", "inner", "attention")}
    assert [r.part for r in rows] == ["naive torch", "torch SDPA", "01_sequential", "03_launch", "27_tensor_cores"]
    assert [r.metrics.get("same_tokens") for r in rows] == [5, 5, 5, 5, None]
    assert "has no f32 version" in rows[-1].reason and list(rows[3].texts) == ["attention/03_launch"]
    assert all(r.metrics["seconds"] > 0 and len(r.detail["curve"]) == 6 for r in rows[:4])
    assert "var(--" not in svg.read_text() and set(contents(svg.read_text())[0]) == {
        "naive torch", "torch SDPA", "03 launch",
    }  # fmt: skip


def test_the_file_is_written_after_each_row_and_outlives_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "study.jsonl"

    def interrupted(*given: Any, **options: Any) -> Iterator[Row]:
        for count, each in enumerate(ROWS[:3], start=1):
            yield each
            assert [r.part for r in store.read(output)] == [r.part for r in ROWS[:count]]
        raise KeyboardInterrupt

    monkeypatch.setattr(study, "run", interrupted)
    assert climb("-o", str(output)) == 130
    assert len(list(store.read(output))) == 3
    assert "01_host: 5.00 s" in capsys.readouterr().err


def test_the_table_gives_no_speed_to_what_was_cut_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options: dict[str, Any] = {}

    def run(*given: Any, **more: Any) -> Iterator[Row]:
        options.update(more)
        yield from ROWS

    monkeypatch.setattr(study, "run", run)
    assert climb("--seconds", "3") == 0 and options["seconds"] == 3.0
    head, *lines = capsys.readouterr().out.splitlines()
    assert "against naive torch at the same length" in head
    by_name = {r.part: line.removeprefix(r.part).split() for r, line in zip(ROWS, lines, strict=True)}
    assert by_name["06_flash"] == ["4.00", "s", "0.50x", "20"]
    assert by_name["02_first"] == ["4", "of", "20", "tokens", "in", "12.00", "s", "0.03x", "4"]
    assert by_name["03_wrong"] == ["2", "its", "text", "differs", "from", "naive", "torch's", "at", "token", "3"]


def test_without_a_time_nothing_is_drawn_and_that_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(study, "run", lambda *given, **options: iter([row("naive torch", None, kind="torch")]))
    svg = tmp_path / "study.svg"
    assert climb("--svg", str(svg)) == 0 and not svg.exists()
    assert "study.svg was not drawn" in capsys.readouterr().err


@emulated
def test_a_rung_reads_the_packed_product_where_it_lies(inner: Inner) -> None:
    config, weights, prompt = inner
    plan = study.RungPlan("emulator", {"attention": "23_strided"})
    model = Transformer(config, converted(weights, plan.matrix, plan.vector), plan)
    with torch.inference_mode():
        x = model.hidden(torch.tensor([prompt]))
        truth = NaivePlan(torch.device("cpu"), torch.float32, torch.float32)
        expected = Transformer(config, converted(weights, truth.matrix, truth.vector), truth).hidden(
            torch.tensor([prompt])
        )
    torch.testing.assert_close(x, expected)
    operations = {operation for operation, _, _ in plan._outputs}
    assert {"qkv", "attention"} <= operations and not any(
        name.startswith("attention ") for name in operations
    )  # no copies


@emulated
def test_several_texts_at_once_are_the_same_text_and_shown_beside_one(inner: Inner) -> None:
    config, weights, prompt = inner
    variants = study.variants("emulator", ["03_launch"])
    one, two = (list(study.run(config, weights, prompt, 3, variants, batch=batch)) for batch in (1, 2))
    assert [r.metrics["same_tokens"] for r in two] == [3, 3, 3]
    assert [r.options.get("batch") for r in (*one, *two)] == [None] * 3 + [2] * 3
    assert attention_text_chart.steps([*one, *two]) == one
    columns, lines = attention_text_chart.batches([*one, *two])
    assert columns[1:] == ["1 text: time", "1 text: peak", "2 texts: time", "2 texts: peak"]
    assert [line[0] for line in lines] == ["naive torch", "torch SDPA", "03 launch"]
    assert attention_text_chart.batches(one) == ([], [])


def test_a_batch_whose_rows_differ_gets_no_time(inner: Inner) -> None:
    config, weights, prompt = inner

    class OneRowWrong(NaivePlan):
        def matmul(self, x: torch.Tensor, linear: Linear) -> torch.Tensor:
            y = super().matmul(x, linear)
            if y.shape[-1] == config.vocabulary and len(y) > 1:
                y[1] = -y[1]
            return y

    variant = Variant("wrong", lambda: OneRowWrong(torch.device("cpu"), torch.float32, torch.float32))
    right = study.variants("emulator", [])[0]
    rows = list(study.run(config, weights, prompt, 3, [right, variant], batch=2))
    assert [r.verdict for r in rows] == ["ok", "failed"] and "differs from naive torch's at token 1" in rows[1].reason


@emulated
def test_texts_of_all_lengths_share_their_memory(inner: Inner) -> None:
    config, weights, prompt = inner
    plan = study.RungPlan("emulator", {"attention": "3"})  # with scratch of its own
    first = copy(weights)
    first.layers = weights.layers[:1]
    model = Transformer(replace(config, layers=1), first, plan)

    def kept() -> int:
        return sum(t.untyped_storage().nbytes() for t in plan._memory.values())

    first = model.logits(torch.tensor([prompt]))
    one = kept()
    for length in range(1, len(prompt)):
        model.logits(torch.tensor([prompt[:length]]))
    assert kept() == one > 0
    assert torch.equal(model.logits(torch.tensor([prompt])), first)


def test_rows_of_another_format_are_not_drawn_among_the_studys() -> None:
    half = [replace(row, dtype="bfloat16") for row in ROWS]
    assert attention_text_chart.steps([*half, *ROWS, *half]) == attention_text_chart.steps(ROWS)
    assert {row.dtype for row in attention_text_chart.steps(half)} == {"bfloat16"}


def test_the_studys_last_version_is_drawn_where_it_was_measured() -> None:
    last = replace(ROWS[-1], part=attention_text_chart.LAST)
    assert attention_text_chart.telling([*ROWS[:-1], last])[-1].part == attention_text_chart.LAST
