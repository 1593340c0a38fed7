"""The store loses nothing: torn lines, two writers, full disks, files of others; and what is read out of it."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import textwrap
from dataclasses import fields, replace
from pathlib import Path

import pytest

from result_rows import MACHINE, TIME, document, of_other_code, row
from rung.cli import main
from rung.errors import RungError
from rung.operation import LADDERS
from rung.results import query, tree
from rung.results import store as results
from rung.results.row import Row

SOURCES = str(LADDERS.parents[1])


bench = row


def python(code: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *words],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ},
    )  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


def test_what_is_appended_is_read_back_with_key_and_time(store: Path) -> None:
    first = results.append(bench("gelu/naive", 80.0), store)
    results.append(bench("gelu/naive", 81.0), store)
    found = list(results.read(store))
    assert [r.cold_us for r in found] == [80.0, 81.0]
    assert found[0] == first and first.time.endswith("Z")
    assert found[0].key == found[1].key == bench("gelu/naive", 99.0).key
    assert bench("gelu/naive", 80.0, tuning={"BLOCK": 64}).key != first.key


def test_a_reason_names_no_folder_of_the_machine(store: Path) -> None:
    failed = bench("gelu/naive", None, verdict="failed", reason=f"{results.ROOT}/src/rung/x.cu does not compile")
    assert results.append(failed, store).reason == "src/rung/x.cu does not compile"
    assert str(results.ROOT) not in store.read_text(encoding="utf-8")


def test_every_field_survives_the_file(store: Path) -> None:
    whole = bench(
        "gelu/naive", 80.0, part="a", options={"n": 1}, code="c", verdict="failed", reason="r", notes=["n"],
        weights="random", quick=True, state={"sm_mhz": "1980"},
    )  # fmt: skip
    assert all(getattr(whole, f.name) for f in fields(whole)), "a field that is empty here proves nothing"
    assert results.append(whole, store) == whole
    assert list(results.read(store)) == [whole]


def test_a_field_that_a_later_version_adds_is_passed_over(store: Path) -> None:
    read_back = bench("gelu/naive", 80.0).as_json()
    store.write_text(json.dumps({**read_back, "invented_later": 1}) + "\n")
    assert list(results.read(store)) == [bench("gelu/naive", 80.0)]


def test_publishing_keeps_the_newest_answer_and_no_failure_in_its_place(tmp_path: Path) -> None:
    old, new = (bench("gelu/naive", us, time=f"2026-01-0{day}T00:00:00Z") for us, day in ((80.0, 1), (70.0, 2)))
    failed = bench("gelu/naive", None, verdict="failed", time="2026-01-03T00:00:00Z")
    other = bench("gelu/vector", None, verdict="failed")
    assert results.publish([old, other], tmp_path) == {"bench": 2}
    results.publish([new, failed], tmp_path)
    assert [r.cold_us for r in results.load(tmp_path)] == [70.0, None]
    assert results.publish([new, failed], tmp_path) == {"bench": 2}  # publishing twice changes nothing
    how = Row(kind="measure", what="bench", verdict="failed", reason="out of time")
    assert results.publish([how], tmp_path) == {"bench": 2}  # how measuring went is no figure


def test_a_line_cut_short_is_skipped_with_a_warning_and_harms_no_other(store: Path) -> None:
    results.append(bench("gelu/naive", 80.0), store)
    results.append(bench("gelu/naive", 81.0), store)
    whole = store.read_bytes()
    store.write_bytes(whole[:-50])  # the power went
    results.append(bench("gelu/naive", 82.0), store)
    with pytest.warns(UserWarning, match="line 2 is cut short"):
        found = list(results.read(store))
    assert [r.cold_us for r in found] == [80.0, 82.0]


WRITER = """
import sys
from pathlib import Path
from rung.results import store
from rung.results.row import Row
for i in range(int(sys.argv[3])):
    row = Row(kind="bench", what=sys.argv[2], metrics={"i": i}, samples={"cold_us": [i * 0.125] * 2000}, commit="x")
    store.append(row, Path(sys.argv[1]))
"""


def test_two_processes_append_at_once_and_every_line_is_whole(store: Path) -> None:
    writers = [python(WRITER, str(store), name, "60") for name in ("a", "b")]
    for writer in writers:
        assert writer.wait(60) == 0, writer.communicate()[1]
    found = list(results.read(store))
    for name in ("a", "b"):
        assert [r.metrics["i"] for r in found if r.what == name] == list(range(60))


def test_a_writer_killed_half_way_leaves_whole_lines(store: Path) -> None:
    writer = python(WRITER, str(store), "a", "100000")
    while not store.exists() or store.stat().st_size < 200_000:
        assert writer.poll() is None
    writer.kill()
    writer.communicate()
    read_back = [r.metrics["i"] for r in results.read(store)]
    assert read_back == list(range(len(read_back))) and len(read_back) > 10
    results.append(bench("gelu/naive", 80.0), store)
    assert list(results.read(store))[-1].cold_us == 80.0


def test_a_full_device_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RungError, match=r"^/dev/full cannot be written: No space left on device\.$"):
        results.append(bench("gelu/naive", 80.0), Path("/dev/full"))
    monkeypatch.setenv("RUNG_RESULTS", "/dev/full")
    with pytest.raises(RungError, match=r"/dev/full cannot be written: No space left on device; set RUNG_RESULTS"):
        results.append(bench("gelu/naive", 80.0))


FILLER = """
import resource, sys
from pathlib import Path
from rung.cli import main
from rung.errors import RungError
from rung.results import store
from rung.results.row import Row
if sys.argv[2] != "0":
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
done = 0
try:
    for i in range(10000):
        row = Row(kind="bench", what="a/b", metrics={"i": i}, samples={"cold_us": [i * 0.5] * 100}, commit="x")
        store.append(row, Path(sys.argv[1]))
        done += 1
except RungError as error:
    print(done, error)
"""


def filled(path: Path, limit: int) -> list[int]:
    """Append until there is no more room; everything that was said to be kept must be there, and no torn line."""
    filler = python(FILLER, str(path), str(limit))
    out, err = filler.communicate(timeout=60)
    assert filler.returncode == 0, err
    done, _, sentence = out.partition(" ")
    assert "cannot be written" in sentence and sentence.count("\n") == 1
    read_back = [r.metrics["i"] for r in results.read(path)]
    assert read_back == list(range(int(done)))
    assert path.read_bytes().endswith(b"\n")
    return read_back


def test_a_disk_that_fills_up_in_the_middle_of_a_line_keeps_the_lines_before(store: Path) -> None:
    read_back = filled(store, 20_000)
    assert len(read_back) > 5
    results.append(bench("gelu/naive", 80.0), store)  # there is room again
    assert list(results.read(store))[-1].cold_us == 80.0


def test_a_tiny_disk_keeps_the_lines_before(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root may mount a tiny disk, and not in every container")
    try:
        read_back = tmp_path / "page"
        read_back.write_text("as it was")
        assert len(filled(tmp_path / "results.jsonl", 0)) > 5
        with pytest.raises(RungError, match="No space left"):
            results.write_whole(read_back, "x" * 100_000)
        assert read_back.read_text() == "as it was" and list(tmp_path.glob(".*")) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize(
    "content", [b'{"some": "json"}\n', b"[1, 2]\n", b"time,rung\n1,2\n3,4\n", b"\x89PNG\r\n\x1a\n\x00\x00\n\xff\n"]
)
def test_files_of_others_are_refused_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(RungError, match=r"is not a file of rung's results") as caught:
        results.load(path)
    assert "\n" not in str(caught.value)


def rung(*words: str, store: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "RUNG_RESULTS": str(store)}
    return subprocess.run(
        [sys.executable, "-m", "rung", "results", *words],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """The same kernels on two machines, at two commits."""
    a = document(
        tmp_path / "a.jsonl",
        [
            row(name, us, commit="aaaa1111")
            for name, us in (("gelu/naive", 80.0), ("gelu/vector", 60.0), ("layernorm/tree", 50.0))
        ],
    )
    b = document(
        tmp_path / "b.jsonl",
        [row(name, us, commit="bbbb2222", machine={**MACHINE, "gpu": "NVIDIA A100"}) for name, us in
         (("gelu/naive", 80.1), ("gelu/vector", 30.0), ("gelu/triton", 30.0))],
        time="2026-02-02T00:00:00Z",
    )  # fmt: skip
    return a, b


@pytest.mark.slow
def test_listing_and_filtering(two: tuple[Path, Path], store: Path) -> None:
    files = [str(p) for p in two]
    done = rung(*files, store=store)
    assert done.returncode == 0 and len(done.stdout.splitlines()) >= 8
    done = rung(
        *files, "--op", "gelu", "--gpu", "a100", "--rung", "02_vector", "--kind", "bench", "--json", store=store
    )
    (found,) = json.loads(done.stdout)
    assert found["metrics"]["cold_us"] == 30.0
    done = rung(*files, "--op", "gelu", "--dtype", "bf16", store=store)
    assert done.returncode == 2 and done.stderr.startswith("rung: no results match --op gelu --dtype bf16")


@pytest.mark.slow
def test_a_ladder_or_a_rung_may_stand_in_the_place_of_a_file(two: tuple[Path, Path], store: Path) -> None:
    shown = {
        word: [r["what"] for r in json.loads(rung(word, *map(str, two), "--json", store=store).stdout)]
        for word in ("layernorm", "gelu/2")
    }
    assert set(shown["gelu/2"]) == {"gelu/02_vector"} and {w.split("/")[0] for w in shown["layernorm"]} == {"layernorm"}


def test_without_a_filter_the_rows_are_counted_not_listed(store: Path) -> None:
    shown = rung(store=store).stdout.splitlines()
    assert len(shown) < 40 and any("bench" in line and "H200" in line for line in shown)


def test_the_bench_without_a_gpu_shows_what_others_measured(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "layernorm/7"])
    assert ended.value.code == 2 and "H200" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["gelu/2", "gelu/vector", "gelu/02_vector", "vector"])
def test_a_rung_is_named_as_everywhere(two: tuple[Path, Path], store: Path, name: str) -> None:
    found = json.loads(rung(str(two[0]), "--rung", name, "--json", store=store).stdout or "[]")
    assert [r["what"] for r in found] == ([] if name == "vector" else ["gelu/02_vector"])


def test_rows_that_differ_in_their_options_are_told_apart(tmp_path: Path, store: Path) -> None:
    one = Row(kind="climb", what="gpt2", part="naive torch", dtype="float32", machine=MACHINE, time=TIME,
              options={"study": "attention", "new_tokens": 512}, metrics={"seconds": 2.0})  # fmt: skip
    results.write(tmp_path / "climb.jsonl", [one, replace(one, options={**one.options, "batch": 4}, metrics={"seconds": 3.0})])
    shown = rung(str(tmp_path), "--kind", "climb", store=store).stdout
    assert "2.00 s  attention, new tokens 512  " in shown and "3.00 s  attention, new tokens 512, batch 4  " in shown


def test_only_the_newest_is_listed_without_all(tmp_path: Path, store: Path) -> None:
    for us, day in ((80.0, "01"), (70.0, "03"), (75.0, "02")):
        document(tmp_path / f"{day}.jsonl", [row("gelu/naive", us)], time=f"2026-01-{day}T00:00:00Z")
    shown = json.loads(rung(str(tmp_path), "--json", store=store).stdout)
    assert [r["metrics"]["cold_us"] for r in shown if r["kind"] == "bench"] == [70.0]
    assert len(json.loads(rung(str(tmp_path), "--all", "--op", "gelu", "--json", store=store).stdout)) == 3


def test_a_figure_of_other_code_is_listed_only_with_all(tmp_path: Path, store: Path) -> None:
    document(tmp_path / "a.jsonl", [of_other_code(row("gelu/naive", 80.0)), row("gelu/vector", 60.0)])
    words = (str(tmp_path), "--op", "gelu", "--json")
    assert [r["what"] for r in json.loads(rung(*words, store=store).stdout)] == ["gelu/02_vector"]
    assert len(json.loads(rung(*words, "--all", store=store).stdout)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("names", [("a.jsonl", "b.jsonl"), ("aaaa", "bbbb2222"), ("H200", "A100")])
def test_two_files_commits_or_machines_are_compared(
    two: tuple[Path, Path], store: Path, names: tuple[str, str]
) -> None:
    files = [str(p) for p in two]
    given = [str(two[0].parent / n) if n.endswith("jsonl") else n for n in names]
    output = json.loads(rung(*files, "--compare", *given, "--json", store=store).stdout)
    assert [(t["rung"], round(t["ratio"], 2), t["verdict"]) for t in output] == [
        ("gelu/01_naive", 1.0, "tie"),
        ("gelu/02_vector", 2.0, "faster"),
    ]
    text = rung(*files, "--compare", *given, store=store).stdout
    assert "B is faster 1 times, slower 0, a tie 1." in text


def test_what_cannot_be_compared_is_named(two: tuple[Path, Path], store: Path) -> None:
    done = rung(*map(str, two), "--compare", "H200", "V100", store=store)
    assert done.returncode == 2
    assert done.stderr == (
        "rung: 'V100' is no results file, commit (aaaa1111, abc, bbbb2222) or GPU (NVIDIA A100, NVIDIA H200) "
        "of these results.\n"
    )


def test_csv_has_a_column_for_every_dim_and_tunable(two: tuple[Path, Path], store: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    done = rung(*map(str, two), "--csv", str(path), store=store)
    assert done.returncode == 0, done.stderr
    lines = list(csv.DictReader(io.StringIO(path.read_text())))
    assert len(lines) == 7
    tree = next(x for x in lines if x["what"] == "layernorm/05_tree")
    assert (tree["cold_us"], tree["dim:C"], tree["tune:BLOCK"], tree["gpu"]) == ("50.0", "768", "256", "NVIDIA H200")
    assert rung(*map(str, two), "--csv", "/dev/full", store=store).returncode == 2


def test_a_torn_line_is_reported_in_a_sentence_without_a_traceback(store: Path) -> None:
    results.append(bench("gelu/naive", 80.0), store)
    store.write_bytes(store.read_bytes() + b'{"format": "rung-res')
    done = rung("--op", "gelu", "--all", store=store)
    assert done.returncode == 0 and "80.0" in done.stdout
    assert done.stderr == f"warning: {store}, line 2 is cut short and was skipped.\n"


def test_the_verdict_needs_more_than_half_a_percent() -> None:
    slow = bench("gelu/naive", 100.0, samples={})
    for us, verdict in ((99.8, "tie"), (90.0, "faster"), (110.0, "slower")):
        (pair,) = query.compare([slow], [bench("gelu/naive", us, samples={})])
        assert pair.verdict == verdict


# ---- of which sources a row is ------------------------------------------------------------------------------------------


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(
        ["git", "-C", folder, *who, *words], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_a_row_names_the_commit_only_if_its_sources_ran(tmp_path: Path) -> None:
    package = tmp_path / "src" / "rung"
    (package / "a" / "deep").mkdir(parents=True)
    for name, text in (("a.py", "1"), ("a/deep/b.cu", "é"), ("a-b", ""), ("a/c", "\r\n")):
        (package / name).write_text(text, encoding="utf-8")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    first = git(tmp_path, "rev-parse", "HEAD")[:12]
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "a.pyc").write_text("")
    assert tree.commit.__wrapped__(package) == first
    (package / "a.py").write_text("2")
    changed = tree.commit.__wrapped__(package)
    assert changed == "tree-" + tree.digest(package)[:12] != "tree-" + git(package, "rev-parse", "HEAD:./")[:12]
    assert tree.known.__wrapped__(changed, package) == changed  # no commit has it yet
    git(tmp_path, "commit", "-qam", "two")
    (package / "a.py").write_text("3")
    assert tree.known.__wrapped__(changed, package) == git(tmp_path, "rev-parse", "HEAD")[:12]
    assert tree.known.__wrapped__("tree-" + git(package, "rev-parse", "HEAD~1:./")[:12], package) == first


def test_a_package_without_a_history_is_known_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    assert tree.commit.__wrapped__(tmp_path) == "tree-" + tree.digest(tmp_path)[:12]


def test_publishing_finds_the_commit_of_a_copied_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "known", {"tree-0123456789ab": "fedcba987654"}.get)
    rows = [replace(row("gelu/naive", 80.0), commit="tree-0123456789ab")]
    results.publish(rows, tmp_path)
    assert [r.commit for r in results.load(tmp_path)] == ["fedcba987654"]
