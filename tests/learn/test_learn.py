"""The course through the command line: what is begun, told and solved. answers.toml has what learners write."""

import json
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuless.base.expressions import evaluate
from rung import learn
from rung.dtypes import dtype
from rung.learn import BLANK, KINDS, RECORD, Exercise, Progress, by_name, chapters, exercises, operations, stars_of
from rung.learn.grading import constant
from rung.rungs import catalogue
from verbs import rung

EVERY = exercises()
ANSWERS = tomllib.loads(Path(__file__).with_name("answers.toml").read_text())
CASES = [(name, answer) for name, answers in ANSWERS.items() for answer in answers]
FAST = 4  # every so many of the answers are tried by the fast tests


@pytest.fixture(autouse=True)
def own_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNG_RESULTS", str(tmp_path / "results.jsonl"))
    monkeypatch.chdir(tmp_path)


def graded(which: str, capfd: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    """What `rung learn WHICH --json` prints; its exit code agrees."""
    capfd.readouterr()
    ended = rung("learn", which, "--json", *more)
    out, log = capfd.readouterr()
    found: dict[str, Any] = json.loads(out)
    assert ended == (found["state"] not in ("begun", "solved")), out + log
    return found


def test_a_chapter_has_exercises_of_known_kinds() -> None:
    assert [e.number for e in EVERY] == list(range(1, len(EVERY) + 1))
    assert all(chapter.exercises for chapter in chapters())
    assert {e.kind for e in EVERY} == set(KINDS) and len(EVERY) >= 40


@pytest.mark.parametrize("exercise", EVERY, ids=lambda e: e.name)
def test_an_exercise_is_whole(exercise: Exercise) -> None:
    assert sorted(set(BLANK.findall(exercise.source))) == sorted(exercise.solution)
    assert exercise.skill and exercise.hints and operations.operation(exercise.operation)
    assert all(catalogue.find(name) for name in exercise.story)
    assert exercise.source != exercise.solved
    assert not re.search(r"Exercise \d", exercise.source)


def test_hints_open_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    for count in (1, 2, 3, 3):
        assert rung("learn", "coalesced", "--hint") == 0
        out = capsys.readouterr().out
        assert [hint in out for hint in by_name("coalesced").hints] == [i < count for i in range(3)]


def test_an_exercise_is_written_once_and_its_blanks_are_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    exercise = by_name("transpose")
    assert graded(str(exercise.number), capfd, "--folder", "new/er")["state"] == "begun"
    path = tmp_path / "new" / "er" / exercise.file
    assert path.read_text() == exercise.source
    for left in (["BLANK_1", "BLANK_2"], ["BLANK_2"]):
        found = graded("transpose", capfd, "--folder", "new/er")
        assert (found["state"], found["blanks"]) == ("blank", left)
        path.write_text(path.read_text().replace("BLANK_1", exercise.solution["BLANK_1"]))


def test_next_is_the_first_that_is_not_solved(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert graded("next", capfd)["number"] == 1
    (tmp_path / EVERY[0].file).write_text(EVERY[0].solved)
    assert graded("next", capfd)["state"] == "solved"
    assert graded("next", capfd)["number"] == 2
    assert rung("learn", "--json") == 0
    assert [row["number"] for row in json.loads(capfd.readouterr().out) if row["solved"]] == [1]


def test_an_unchanged_file_is_not_run_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / EVERY[0].file).write_text(EVERY[0].solved)
    first = graded("1", capfd)
    monkeypatch.setattr("rung.learn.grading.grade", None)
    assert graded("1", capfd) == first


def test_a_file_that_is_watched_is_graded_at_each_save(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / EVERY[0].file
    path.write_text(EVERY[0].source)
    saves = [EVERY[0].filled({**EVERY[0].solution, "BLANK_1": "threadIdx.x"}), EVERY[0].solved]

    def wait(_: float) -> None:
        if not saves:
            raise KeyboardInterrupt
        path.write_text(saves.pop(0))
        os.utime(path, ns=(len(saves), len(saves)))

    monkeypatch.setattr("rung.cli.learn.time", SimpleNamespace(sleep=wait))  # others sleep, too
    rung("learn", "1", "--watch")
    assert [line.split()[0] for line in capfd.readouterr().out.splitlines() if "Not yet" in line or "Solved" in line] == ["Not", "Not", "★★★"]


def test_an_exercise_that_is_not_there_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert rung("learn", str(len(EVERY) + 1)) == 2


def test_the_blocks_that_needs_leaves_out_are_no_way_round(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = EVERY[0].filled({**EVERY[0].solution, "BLANK_2": "B * T * C // BLOCK"})
    (tmp_path / EVERY[0].file).write_text(text.replace("[tune]", 'needs = "C > 100000"\n[tune]'))
    assert graded("1", capfd)["state"] == "wrong"


@pytest.mark.parametrize(
    "exercise",
    [pytest.param(e, marks=[] if n % FAST == 0 else pytest.mark.slow, id=e.name) for n, e in enumerate(EVERY)],
)
def test_the_solution_is_solved_and_has_the_reference_s_counts(
    exercise: Exercise, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / exercise.file).write_text(exercise.solved)
    found = graded(exercise.name, capfd)
    assert found["state"] == "solved" and found["stars"] >= 2 and not found["symptoms"], found["says"]
    assert found["work"] == exercise.par
    if exercise.kind != "predict":
        assert found["times"]["best"] == found["times"]["mine"] == pytest.approx(found["times"]["reference"], rel=0.01)


TIMED = next(e for e in EVERY if e.name == "write_transpose")
FASTER = TIMED.solution["BLANK_1"]


@pytest.mark.parametrize(
    ("answer", "state", "stars", "kind"),
    [
        (FASTER.replace("__syncthreads();", "for (int k = 0; k < 8; k++) __syncthreads();"), "slow", 0, "time"),
        (FASTER.replace("[32][33]", "[32][65]"), "solved", 2, ""),
    ],
)
def test_an_aim_may_be_a_predicted_time(
    answer: str, state: str, stars: int, kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / TIMED.file).write_text(TIMED.filled({"BLANK_1": answer}))
    found = graded(TIMED.name, capfd)
    assert (found["state"], found["stars"]) == (state, stars), found["says"]
    assert "predicted" in found["goal"] and [s["kind"] for s in found["symptoms"]] == [kind] * bool(kind)
    if kind:
        facts = found["symptoms"][0]["facts"]
        assert facts["predicted_us"] > 1.3 * facts["reference_us"] > 1


BUGS = [e for e in EVERY if e.kind == "bug"]


@pytest.mark.parametrize(
    ("exercise", "kind"),
    [*zip(BUGS, ["bounds", "race", "barrier", "unset", "race", "race", "values", *["race"] * 3, "values", "rows", "deadlock", "values"], strict=True)],
    ids=lambda e: e.name if isinstance(e, Exercise) else "",
)
def test_a_bug_is_seen_for_what_it_is(exercise: Exercise, kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / exercise.file
    path.write_text(exercise.source)
    found = graded(exercise.name, capfd)
    assert (found["state"], [s["kind"] for s in found["symptoms"]]) == ("blank", ["unmarked"])
    path.write_text(exercise.source + f"\n{exercise.comment} changed\n")
    found = graded(exercise.name, capfd)
    assert (found["state"], found["symptoms"][0]["kind"]) == ("wrong", kind), found["says"]


def test_a_triton_exercise_is_judged_on_the_code_that_triton_compiles(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    exercise = by_name("write_triton_product")
    path = tmp_path / exercise.file
    answer = exercise.solution["BLANK_1"].replace("sum = tl.dot(a, b, sum)", "sum += tl.sum(a[:, :, None].to(tl.float32) * b[None, :, :], axis=1)")
    path.write_text(exercise.filled({"BLANK_1": answer}))
    found = graded(exercise.name, capfd)
    assert (found["state"], found["symptoms"][0]["kind"]) == ("slow", "unused"), found["says"]
    path.write_text(exercise.filled({"BLANK_1": "tl.store(out, "}))
    found = graded(exercise.name, capfd)
    assert found["state"] == "wrong" and found["symptoms"][0]["lines"] == [11], found["says"]
    exercise = by_name("triton_add")
    (tmp_path / exercise.file).write_text(exercise.filled({**exercise.solution, "BLANK_2": "i <= count"}))
    (fault,) = graded("triton_add", capfd)["symptoms"]
    assert fault["kind"] == "bounds" and fault["lines"] == [13] and "program 1 in line 13" in fault["says"]


def test_every_line_that_is_explained_is_in_the_solution() -> None:
    for exercise in EVERY:
        said = {note for _, note in exercise.worked if note}
        assert said, exercise.name
        assert said >= {note.partition(" => ")[2] for note in exercise.notes}, exercise.name


def marked(text: str, *lines: int) -> str:
    return "".join(f"{one}  // here\n" if n in lines else f"{one}\n" for n, one in enumerate(text.splitlines(), 1))


def test_the_third_star_of_a_hunt_is_for_marking_the_lines_first(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    exercise = by_name("bug_tree")
    path = tmp_path / exercise.file
    lines = exercise.source.splitlines()
    (comment,) = (n for n, line in enumerate(lines, 1) if "extern" in line)
    add, last = (next(n for n, line in enumerate(lines, 1) if word in line) for word in ("] += part", "half >= 32"))
    for wrong in (False, True):
        if wrong:
            path.write_text(marked(exercise.source, comment))
            assert [s["kind"] for s in graded("bug_tree", capfd)["symptoms"]] == ["not here"]
        path.write_text(marked(exercise.source, add, last))
        found = graded("bug_tree", capfd)
        assert [s["kind"] for s in found["symptoms"]] == ["found", "race"] and found["state"] == "wrong"
        path.write_text(exercise.solved)
        assert graded("bug_tree", capfd)["stars"] == 3 - wrong
        (tmp_path / RECORD).unlink()
    other = by_name("bug_tile")  # mended at once
    (tmp_path / other.file).write_text(other.solved)
    assert graded("bug_tile", capfd)["stars"] == 2


def test_the_third_star_is_for_no_hint_or_a_first_right_prediction(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name, wrong in (("predict_stride", {"BLANK_1": "4"}), ("stride", {})):
        exercise = by_name(name)
        path = tmp_path / exercise.file
        path.write_text(exercise.solved)
        assert graded(name, capfd)["stars"] == 3
        (tmp_path / RECORD).unlink()
        if wrong:
            path.write_text(exercise.filled(wrong))
            assert graded(name, capfd)["state"] == "wrong"
            path.write_text(exercise.solved)
        else:
            rung("learn", name, "--hint")
        assert graded(name, capfd)["stars"] == 2
        (tmp_path / RECORD).unlink()


def test_the_kernel_of_a_prediction_is_frozen(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    exercise = by_name("predict_stride")
    (tmp_path / exercise.file).write_text(exercise.filled({"BLANK_1": "4"}).replace("2 *", "1 *"))
    assert [s["kind"] for s in graded("predict_stride", capfd)["symptoms"]] == ["changed"]


def test_wrong_numbers_come_with_scalars_elements_a_map_and_a_likeness(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    exercise = by_name("matmul_tile")
    (tmp_path / exercise.file).write_text(exercise.filled({**exercise.solution, "BLANK_1": "m < T && c < C"}))
    (wrong,) = graded("matmul_tile", capfd)["symptoms"]
    facts = wrong["facts"]
    assert wrong["kind"] == "like" and facts["where"] == "b = 1" and "B = 2" in wrong["says"]
    assert len(facts["pairs"]) == 8 and facts["pairs"][0]["index"] == [1, 0, 0]
    assert {row[0] for row in facts["map"]["rows"]} == {".", "#"}
    exercise = by_name("three_passes")
    (tmp_path / exercise.file).write_text(exercise.filled({**exercise.solution, "BLANK_1": "t + 1"}))
    found = graded("three_passes", capfd)
    assert found["case"]["causal"] == 1 and "causal = 1" in found["says"]
    (tmp_path / exercise.file).write_text(exercise.filled({**exercise.solution, "BLANK_2": "0.0f"}))
    found = graded("three_passes", capfd)
    assert 0 < found["symptoms"][0]["facts"]["expected"] < 1e-45 and "should be 0 and is" in found["says"]


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        pytest.param(name, answer, marks=[] if n % FAST == 0 else pytest.mark.slow, id=f"{name}-{n}")
        for n, (name, answer) in enumerate(CASES)
    ],
)
def test_an_answer_gets_its_state_and_the_kind_of_what_was_seen(
    name: str, answer: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    exercise = by_name(name)
    old, new = answer.get("swap", ("", ""))
    (tmp_path / exercise.file).write_text(exercise.filled({**exercise.solution, **answer}).replace(old, new))
    found = graded(name, capfd)
    kinds = [s["kind"] for s in found["symptoms"]]
    assert found["state"] == answer["state"], found["says"]
    assert answer.get("kind", "") in (*kinds, ""), found["says"]
    assert found["stars"] == answer.get("stars", found["stars"])
    assert all(s["when"] == found["state"] for s in found["symptoms"]), found["symptoms"]
    if found["state"] == "wrong":
        assert kinds, "a wrong answer is told what is wrong"
    length = len((tmp_path / exercise.file).read_text().splitlines())
    assert all(0 < line <= length for s in found["symptoms"] for line in s["lines"])


SLIPS = [(e, slip) for e in EVERY for slip in e.slips]


@pytest.mark.parametrize(
    ("exercise", "slip"),
    [
        pytest.param(e, slip, marks=[] if n % FAST == 0 else pytest.mark.slow, id=f"{e.name}-{n}")
        for n, (e, slip) in enumerate(SLIPS)
    ],
)
def test_a_typical_slip_is_not_solved(
    exercise: Exercise, slip: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / exercise.file).write_text(exercise.filled({**exercise.solution, **slip}))
    found = graded(exercise.name, capfd)
    assert found["state"] in ("wrong", "slow") and found["symptoms"]


def test_every_exercise_with_blanks_has_wrong_answers_that_are_tried() -> None:
    for exercise in (e for e in EVERY if e.kind == "fill"):
        wrong = [a for a in ANSWERS.get(exercise.name, []) if a["state"] != "solved"]
        assert len(wrong) + len(exercise.slips) >= 2, exercise.name


def test_every_exercise_is_tried_with_two_texts_and_at_more_than_one_size() -> None:
    for exercise in EVERY:
        of = operations.operation(exercise.operation)
        tried = operations.cases(of, dtype(exercise.dtype))
        assert len(tried) >= 3, exercise.name
        if {"B", "T"} <= {*of.dims}:
            assert any(c.values["B"] > 1 < c.values["T"] for c in tried), exercise.name


def test_numbers_that_json_lacks_are_text(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    exercise = by_name("shuffle")
    answer = {"BLANK_1": "__int_as_float(0x7fffffff)"}
    (tmp_path / exercise.file).write_text(exercise.filled({**exercise.solution, **answer}))
    assert graded("shuffle", capfd)["symptoms"][0]["facts"]["got"] == "nan"
    json.loads((tmp_path / RECORD).read_text(), parse_constant=lambda name: pytest.fail(name))


def test_another_folder_has_its_own_stars_and_hints(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    exercise = by_name("coalesced")
    (tmp_path / exercise.file).write_text(exercise.solved)
    assert graded("coalesced", capfd)["state"] == "solved"
    rung("learn", "coalesced", "--hint")
    for folder, solved in ((".", True), ("other", False)):
        capfd.readouterr()
        rung("learn", "--json", "--folder", folder)
        found = json.loads(capfd.readouterr().out)
        assert any(e["solved"] for e in found) is solved
    assert Progress.read(tmp_path / "other").hints == {}


ADVICE = [  # a word of each repair: barriers in one of four places, another statement, an atomic, another index
    ("bug_overwrite", {}, "at the end of the round, after line 21"),
    ("bug_tree", {}, "at the start of each round"),
    ("bug_barrier", {"swap": ("        __syncthreads();\n", "")}, "under an `if`."),
    ("bug_reuse", {}, "before line 16"),
    ("bug_tile", {}, "`__syncthreads()` between them."),
    ("bug_lost", {}, "`atomicAdd` reads, adds and writes"),
    ("shared_histogram", {"BLANK_1": ""}, "`__syncthreads()` between them."),
    ("matmul_tile", {"swap": ("        __syncthreads();\n", "")}, "and another one after line 20"),
    ("scan", {"swap": ("const float before = n >= apart ? sums[n - apart] : 0.0f;\n        __syncthreads();\n        sums[n] += before;", "if (n >= apart) sums[n] += sums[n - apart];")}, "read into a variable"),
    ("write_wmma", {"swap": ("sum);\n        __syncwarp();", "sum);")}, "put `__syncwarp()` before line 28."),
    ("stride", {"BLANK_2": "1"}, "index, a stride or a bound is wrong."),
    ("write_add", {"BLANK_1": "const int i = threadIdx.x; if (i < B * T * C) out[i] = a[i] + b[i] + blockIdx.x;"}, "the index does not depend on `blockIdx.x`"),
    ("grid_sum", {"BLANK_3": "out[blockIdx.y] = sum"}, "are to be added, use `atomicAdd`"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "answer", "advice"), ADVICE)
def test_a_race_quotes_a_line_once_and_its_advice_mends_it(
    name: str, answer: dict[str, Any], advice: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    exercise = by_name(name)
    text = exercise.source if exercise.of else exercise.filled({**exercise.solution, **answer})
    text = text.replace(*answer.get("swap", ("", "")))
    marked = [line + "  // here" * (n in exercise.bug_lines and bool(exercise.of)) for n, line in enumerate(text.splitlines(), 1)]
    (tmp_path / exercise.file).write_text("\n".join(marked) + "\n")
    (race,) = (s for s in graded(name, capfd)["symptoms"] if s["kind"] != "found")
    assert race["kind"] == "race"
    assert advice in race["says"] and ("atomic" in race["says"].partition("separates them")[2]) == ("atomic" in advice)
    for line in set(race["lines"]):
        assert race["says"].count(text.splitlines()[line - 1].strip()) == 1


INSTEAD = [  # what wrong numbers or a fault are told to be, by a word of it
    ("two_stage", {"BLANK_2": "sums[lane]"}, "'sums', element 8 (its last is 7)"),
    ("matmul_tile", {"BLANK_2": "xs[threadIdx.y][k] * ws[k][threadIdx.x]"}, "32 x 32 tile of weight transposed"),
    ("write_sum", {"swap": ("out[blockIdx.x] =", "out[blockIdx.x] +=")}, "set to 0 first"),
    ("scan_blocks", {"BLANK_2": "before + own"}, "the same throughout each row"),
    ("scan_blocks", {"BLANK_1": "blockIdx.x"}, "does not depend on `blockIdx.y`"),
    ("triton_softmax", {"BLANK_2": "tl.max(score, axis=3)"}, "76_triton_softmax.py, line 15"),
    ("parity", {"BLANK_1": "turn % 2"}, "parity 1 of `full[1]` is for its round 1,"),
    ("bulk_copy", {"BLANK_1": "4 * C + 4"}, "`arrived` is for its round 0, counted from 0, and there 4 bytes are missing"),
    ("double_buffer", {"BLANK_3": "(tile + 1) % 2"}, "Is `xs[(tile + 1) % 2]` the buffer that this round fills?"),
    ("double_buffer", {"BLANK_3": "(tile + 1) % 2"}, "`xs[1][31][0]`"),
    ("stride", {"BLANK_2": "blockDim.x"}, "two blocks reach this one"),
    ("write_triton_product", {"swap": (" & (columns[None, :] < OC)\n", "\n")}, "program (0, 2)"),
    ("write_triton_product", {"swap": (" & (columns[None, :] < OC)\n", "\n")}, "use `tl.atomic_add`"),
    ("bug_barrier", {}, "Threads leave in line 20"),
]


@pytest.mark.parametrize(("name", "answer", "words"), INSTEAD)
def test_what_is_there_instead_is_told(
    name: str, answer: dict[str, Any], words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    exercise = by_name(name)
    text = exercise.source if exercise.of else exercise.filled({**exercise.solution, **answer})
    (tmp_path / exercise.file).write_text(text.replace(*answer.get("swap", ("", ""))) + f"\n{exercise.comment} changed\n")
    assert words in graded(name, capfd)["says"]


@pytest.mark.parametrize(
    ("name", "swap", "barrier"),
    [
        ("bug_barrier", ("        __syncthreads();\n", ""), "__syncthreads()"),  # its two threads are of one warp
        ("parity", ("        __syncwarp();  // all", "        ;  // all"), "__syncwarp()"),
    ],
)
def test_the_barrier_of_a_race_is_that_of_the_warps_concerned(
    name: str, swap: tuple[str, str], barrier: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    exercise = by_name(name)
    text = exercise.source if exercise.of else exercise.solved
    assert swap[0] in text
    (tmp_path / exercise.file).write_text(text.replace(*swap))
    (race,) = graded(exercise.name, capfd)["symptoms"]
    assert race["kind"] == "race" and {*re.findall(r"__sync\w+\(\)", race["says"])} == {barrier}
    assert name != "parity" or "Threads leave" not in race["says"]  # the only `return` is a lambda's


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2 * 1024 * sizeof(float)", 8192), ("1e3f + 24", 1024), ("sizeof(double) / 3", 2), ("0x40u + 1'000 /* one */", 1064),
        ("7 / 2", 3), ("7 / 2.0f", 3.5), ("1 << 10", 1024), ("4096", 4096), ("(32 + 1) * 2ul", 66), ("sizeof(float4)", 16),
    ],
)  # fmt: skip
def test_a_prediction_is_any_constant_expression(text: str, number: float) -> None:
    assert evaluate(constant(text), {}) == number


def test_one_wrong_element_is_not_like_anything(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    exercise = by_name("online_argmax")
    (tmp_path / exercise.file).write_text(exercise.filled({**exercise.solution, "BLANK_1": "row[n] >= best"}))
    wrong, *_ = graded(exercise.name, capfd)["symptoms"]
    assert (wrong["kind"], wrong["facts"]["wrong"], wrong["facts"]["sentences"]) == ("values", 1, [])


def test_the_solution_read_before_solving_costs_the_third_star(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("predict_stride", "stride"):
        exercise = by_name(name)
        assert rung("learn", name, "--solution") == 0
        (tmp_path / exercise.file).write_text(exercise.solved)
        assert graded(name, capfd)["stars"] == 2
        (tmp_path / RECORD).unlink()
        assert graded(name, capfd)["stars"] == 3  # what is read after that costs nothing
        (tmp_path / exercise.file).write_text(exercise.solved + "\n")
        assert rung("learn", name, "--solution") == 0 and graded(name, capfd)["stars"] == 3


def test_warps_that_ask_for_nothing_are_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    exercise = by_name("write_sum")
    one_warp = """float sum = 0.0f;
    if (threadIdx.x >= 32) return;
    for (int n = threadIdx.x; n < N; n += 32) sum += x[int64_t(blockIdx.x) * N + n];
    sum = warp_sum(sum);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;"""
    (tmp_path / exercise.file).write_text(exercise.filled({"BLANK_1": one_warp}))
    found = graded("write_sum", capfd)
    assert found["state"] == "slow" or [s["facts"]["idle"] for s in found["symptoms"] if s["kind"] == "idle"] == [96]


@pytest.mark.parametrize("exercise", [e for e in EVERY if e.kind == "predict"], ids=lambda e: e.name)
def test_the_second_wrong_prediction_is_told_what_was_counted(exercise: Exercise, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for number, kinds in (("1", {"prediction"}), ("3", {"prediction", "counted"})):
        (tmp_path / exercise.file).write_text(exercise.filled(dict.fromkeys(exercise.solution, number)))
        symptoms = graded(exercise.name, capfd)["symptoms"]
        assert {s["kind"] for s in symptoms} == kinds
    told = [s for s in symptoms if s["kind"] == "counted"]
    numbers = {float(n.replace(",", "")) for s in told for n in re.findall(r"\d[\d,]*(?:\.\d+)?", s["says"])}
    assert exercise.name == "predict_occupancy" or all(s["lines"] for s in told)
    if len(told) == 1:
        assert min(abs(n / float(exercise.solution["BLANK_1"]) - 1) for n in numbers) < 0.02


def test_what_stars_are_for_is_said_before_the_first_try(capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("bug_tree", "predict_banks", "write_sum", "stride"):
        rung("learn", name)
        said = capfd.readouterr().out
        assert all(what in said for what in stars_of(by_name(name)))


def test_a_chapter_is_read_in_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    for chapter in chapters():
        assert rung("learn", chapter.exercises[-1].name, "--chapter") == 0
        said = capfd.readouterr().out
        assert said.startswith(f"# {chapter.title}") and "{draw" not in said


def test_a_star_that_cannot_be_won_any_more_is_not_offered() -> None:
    offered = {name: [bool(learn.next_star(by_name(name), n)) for n in (1, 2, 3)] for name in ("predict_banks", "bug_tree", "tree", "write_sum", "write_softmax")}
    never, first, every = [False] * 3, [True, False, False], [True, True, False]
    assert offered == {"predict_banks": never, "bug_tree": first, "tree": first, "write_sum": every, "write_softmax": every}


def test_a_class_is_a_table(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for learner, text in (("ada", EVERY[0].solved), ("bob", EVERY[0].source)):
        (tmp_path / "class" / learner).mkdir(parents=True)
        (tmp_path / "class" / learner / EVERY[0].file).write_text(text)
    assert rung("learn", "--class", "class", "--json") == 0
    rows = json.loads(capfd.readouterr().out)
    assert [(r["learner"], r["exercise"], r["state"]) for r in rows] == [("ada", 1, "solved"), ("bob", 1, "blank")]


def test_a_folder_of_own_exercises_is_taken(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "double.cu").write_text(by_name("index").source)
    (own / "exercises.toml").write_text(
        '[[chapters]]\ntitle = "Mine"\nexercises = ["double"]\n[double]\noperation = "residual"\ntask = "Add."\nhints = ["None."]\nshape = "B=1,T=4,C=64"\n'
        'solution = { BLANK_1 = "int64_t(blockIdx.x) * BLOCK + threadIdx.x", BLANK_2 = "ceil_div(B * T * C, BLOCK)" }\n'
    )
    assert graded("1", capfd, "--from", "own")["name"] == "double"
    path = tmp_path / "01_double.cu"
    path.write_text(
        path.read_text()
        .replace("BLANK_1", "blockIdx.x * BLOCK + threadIdx.x")
        .replace("BLANK_2", "ceil_div(B * T * C, BLOCK)")
    )
    assert graded("double", capfd, "--from", "own")["state"] == "solved"


def test_a_race_of_blocks_in_two_dimensions_names_two_blocks() -> None:
    from rung.errors import EmulatorFault
    from rung.learn.symptoms import of_fault

    places = [{"line": 1, "block": [0, y, 0], "thread": [127, 0, 0]} for y in (0, 1)]
    record = {"memory": "global", "operand": "element 0 of out", "how": "writes", "other_how": "writes"}
    says = of_fault(EmulatorFault("race", "", places[0], places[1:], record), (128, 1, 1), "out[0] = 1;").says
    assert "block (0, 1)" in says and "block 0 " not in says


STARTED = """
import sys
from gpuless.compile import nvrtc
from rung.cli import main
fresh, compiled = nvrtc.compile_fresh, []
nvrtc.compile_fresh = lambda build, *more: compiled.append(build.origin) or fresh(build, *more)
try:
    main(["learn", "write_sum"])
finally:
    print(len(compiled), *sys.modules, file=sys.stderr)
"""


def test_a_grading_by_command_imports_and_compiles_only_what_it_needs(tmp_path: Path) -> None:
    """Most of its time is spent before and besides the kernel: a second process compiles the learner's text alone."""
    exercise = by_name("write_sum")
    path = tmp_path / exercise.file
    for turn in ("first", "second"):
        path.write_text(f"{exercise.solved}// {turn} {time.time_ns()}\n")
        done = subprocess.run([sys.executable, "-c", STARTED], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    count, *modules = done.stderr.split()
    assert count == "1"
    unneeded = {"torch", "triton", "cuda.core", "rich.console", "rung.rungs.catalogue", "rung.profile.ncu"}
    assert not unneeded & set(modules)
