"""The store loses nothing: torn lines, two writers, full disks, files of others; and what is read out of it."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from result_rows import MACHINE, document, row
from rung.errors import RungError
from rung.results import query
from rung.results import store as results
from rung.rungs import catalogue

SOURCES = str(catalogue.LADDERS.parents[1])


def bench(rung: str, us: float, **other: Any) -> dict[str, Any]:
    return {**row(rung, us, **other), "kind": "bench", "rung_kind": "cuda", "machine": MACHINE}


def python(code: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *words],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": SOURCES},
    )  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


def test_what_is_appended_is_read_back_with_key_and_time(store: Path) -> None:
    first = results.append(bench("gelu/naive", 80.0), store)
    results.append(bench("gelu/naive", 81.0), store)
    found = list(results.read(store))
    assert [r["cold_us"] for r in found] == [80.0, 81.0]
    assert found[0] == first and first["time"].endswith("Z")
    assert found[0]["key"] == found[1]["key"] == results.key_of(bench("gelu/naive", 99.0))
    assert results.key_of(bench("gelu/naive", 80.0, tuning={"BLOCK": 64})) != first["key"]


def test_a_line_cut_short_is_skipped_with_a_warning_and_harms_no_other(store: Path) -> None:
    results.append(bench("gelu/naive", 80.0), store)
    results.append(bench("gelu/naive", 81.0), store)
    whole = store.read_bytes()
    store.write_bytes(whole[:-50])  # the power went
    results.append(bench("gelu/naive", 82.0), store)
    with pytest.warns(UserWarning, match="line 2 is cut short"):
        found = list(results.read(store))
    assert [r["cold_us"] for r in found] == [80.0, 82.0]


WRITER = """
import sys
from pathlib import Path
from rung.results import store as results
for i in range(int(sys.argv[3])):
    results.append({"kind": "bench", "rung": sys.argv[2], "i": i, "cold_samples_us": [i * 0.125] * 2000}, Path(sys.argv[1]))
"""


def test_two_processes_append_at_once_and_every_line_is_whole(store: Path) -> None:
    writers = [python(WRITER, str(store), name, "60") for name in ("a", "b")]
    for writer in writers:
        assert writer.wait(60) == 0, writer.communicate()[1]
    found = list(results.read(store))
    for name in ("a", "b"):
        assert [r["i"] for r in found if r["rung"] == name] == list(range(60))


def test_a_writer_killed_half_way_leaves_whole_lines(store: Path) -> None:
    writer = python(WRITER, str(store), "a", "100000")
    while not store.exists() or store.stat().st_size < 200_000:
        assert writer.poll() is None
    writer.kill()
    writer.communicate()
    kept = [r["i"] for r in results.read(store)]
    assert kept == list(range(len(kept))) and len(kept) > 10
    results.append(bench("gelu/naive", 80.0), store)
    assert list(results.read(store))[-1]["cold_us"] == 80.0


def test_a_full_device_is_one_sentence() -> None:
    with pytest.raises(RungError, match=r"/dev/full cannot be written: No space left on device; RUNG_RESULTS"):
        results.append(bench("gelu/naive", 80.0), Path("/dev/full"))


FILLER = """
import resource, sys
from pathlib import Path
from rung.errors import RungError
from rung.results import store as results
if sys.argv[2] != "0":
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
done = 0
try:
    for i in range(10000):
        results.append({"kind": "bench", "i": i, "cold_samples_us": [i * 0.5] * 100}, Path(sys.argv[1]))
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
    kept = [r["i"] for r in results.read(path)]
    assert kept == list(range(int(done)))
    assert path.read_bytes().endswith(b"\n")
    return kept


def test_a_disk_that_fills_up_in_the_middle_of_a_line_keeps_the_lines_before(store: Path) -> None:
    kept = filled(store, 20_000)
    assert len(kept) > 5
    results.append(bench("gelu/naive", 80.0), store)  # there is room again
    assert list(results.read(store))[-1]["cold_us"] == 80.0


def test_a_tiny_disk_keeps_the_lines_before(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root may mount a tiny disk, and not in every container")
    try:
        kept = tmp_path / "page"
        kept.write_text("as it was")
        assert len(filled(tmp_path / "results.jsonl", 0)) > 5
        with pytest.raises(RungError, match="No space left"):
            results.write_whole(kept, "x" * 100_000)
        assert kept.read_text() == "as it was" and list(tmp_path.glob(".*")) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize(
    "content",
    [b'{"some": "json"}\n', b"[1, 2]\n", b"time,rung\n1,2\n3,4\n", b"\x89PNG\r\n\x1a\n\x00\x00\n\xff\n"],
)
@pytest.mark.filterwarnings("ignore:.*cut short")
def test_files_of_others_are_refused_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(RungError, match=r"is not a file of rung's results") as caught:
        results.load(path)
    assert "\n" not in str(caught.value)


def test_both_formats_are_read_alike(tmp_path: Path, store: Path) -> None:
    results.append(bench("gelu/naive", 80.0), store)
    path = document(tmp_path / "bench.json", [row("gelu/naive", 80.0)])
    (one,), (other,) = results.load(store), results.load(path)
    for name in ("kind", "rung", "cold_us", "digest", "machine"):
        assert one[name] == other[name]
    assert other["rung_kind"] == "cuda" and other["commit"] == "abc"
    assert {r["cold_us"] for r in results.load(tmp_path)} == {80.0}


def test_documents_of_another_kind_may_lie_in_a_folder_of_results(tmp_path: Path) -> None:
    document(tmp_path / "bench.json", [row("gelu/naive", 80.0)])
    (tmp_path / "check.json").write_text('{"device": "a GPU", "reports": []}')
    (tmp_path / "other.json").write_text(json.dumps({"machine": MACHINE, "rows": [{"section": "decode"}]}))
    (tmp_path / "climb.json").write_text(json.dumps({"model": "gpt2", "new_tokens": 8, "machine": MACHINE, "rows": []}))
    results.append({"kind": "study", "study": "waves", "columns": ["N"], "rows": [[1]]}, tmp_path / "one.jsonl")
    assert [r["kind"] for r in results.load(tmp_path)] == ["bench", "climb", "study"]
    with pytest.raises(RungError, match=r"other.json is not a file of rung's results"):
        results.load(tmp_path / "other.json")


def rung(*words: str, store: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": SOURCES, "RUNG_RESULTS": str(store)}
    return subprocess.run(
        [sys.executable, "-m", "rung", "results", *words],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """The same kernels on two machines, at two commits."""
    a = document(
        tmp_path / "a.json",
        [row("gelu/naive", 80.0), row("gelu/vector", 60.0), row("layernorm/tree", 50.0)],
        commit="aaaa1111",
    )
    b = document(
        tmp_path / "b.json",
        [row("gelu/naive", 80.1), row("gelu/vector", 30.0), row("gelu/triton", 30.0)],
        commit="bbbb2222", machine={**MACHINE, "gpu": "NVIDIA A100"}, time="2026-02-02T00:00:00Z",
    )  # fmt: skip
    return a, b


def test_listing_and_filtering(two: tuple[Path, Path], store: Path) -> None:
    files = [str(p) for p in two]
    done = rung(*files, store=store)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 7
    done = rung(*files, "--op", "gelu", "--gpu", "a100", "--rung", "02_vector", "--json", store=store)
    (found,) = json.loads(done.stdout)
    assert found["cold_us"] == 30.0
    done = rung(*files, "--op", "gelu", "--dtype", "bf16", store=store)
    assert done.returncode == 2 and done.stderr.startswith("rung: there are no results with --op gelu --dtype bf16")


def test_only_the_newest_is_listed_unless_all_are_wanted(tmp_path: Path, store: Path) -> None:
    for us, day in ((80.0, "01"), (70.0, "03"), (75.0, "02")):
        document(tmp_path / f"{day}.json", [row("gelu/naive", us)], time=f"2026-01-{day}T00:00:00Z")
    shown = json.loads(rung(str(tmp_path), "--json", store=store).stdout)
    assert [r["cold_us"] for r in shown] == [70.0]
    assert len(json.loads(rung(str(tmp_path), "--all", "--json", store=store).stdout)) == 3


@pytest.mark.parametrize("names", [("a.json", "b.json"), ("aaaa", "bbbb2222"), ("H200", "A100")])
def test_two_files_commits_or_machines_are_compared(
    two: tuple[Path, Path], store: Path, names: tuple[str, str]
) -> None:
    files = [str(p) for p in two]
    given = [str(two[0].parent / n) if n.endswith("json") else n for n in names]
    told = json.loads(rung(*files, "--compare", *given, "--json", store=store).stdout)
    assert [(t["rung"], round(t["ratio"], 2), t["verdict"]) for t in told] == [
        ("gelu/01_naive", 1.0, "tie"),
        ("gelu/02_vector", 2.0, "faster"),
    ]
    text = rung(*files, "--compare", *given, store=store).stdout
    assert "B is faster 1 times, slower 0, a tie 1." in text


def test_what_cannot_be_compared_is_named(two: tuple[Path, Path], store: Path) -> None:
    done = rung(*map(str, two), "--compare", "H200", "V100", store=store)
    assert done.returncode == 2
    assert done.stderr == (
        "rung: 'V100' is no results file, commit (aaaa1111, bbbb2222) or GPU (NVIDIA A100, NVIDIA H200) "
        "of these results.\n"
    )


def test_csv_has_a_column_for_every_dim_and_tunable(two: tuple[Path, Path], store: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    done = rung(*map(str, two), "--csv", str(path), store=store)
    assert done.returncode == 0, done.stderr
    lines = list(csv.DictReader(io.StringIO(path.read_text())))
    assert len(lines) == 6
    tree = next(x for x in lines if x["rung"] == "layernorm/05_tree")
    assert (tree["cold_us"], tree["dim:C"], tree["tune:BLOCK"], tree["gpu"]) == ("50.0", "768", "256", "NVIDIA H200")
    assert rung(*map(str, two), "--csv", "/dev/full", store=store).returncode == 2


def test_a_torn_line_is_told_in_a_sentence_not_in_a_traceback(store: Path) -> None:
    results.append(bench("gelu/naive", 80.0), store)
    store.write_bytes(store.read_bytes() + b'{"format": "rung-res')
    done = rung("--op", "gelu", "--all", store=store)
    assert done.returncode == 0 and "80.0" in done.stdout
    assert done.stderr == f"warning: {store}, line 2 is cut short and was skipped.\n"


def test_the_verdict_needs_more_than_half_a_percent() -> None:
    slow = bench("gelu/naive", 100.0, cold_samples_us=None)
    for us, verdict in ((99.8, "tie"), (90.0, "faster"), (110.0, "slower")):
        (pair,) = query.compare([slow], [bench("gelu/naive", us, cold_samples_us=None)])
        assert pair.verdict == verdict
