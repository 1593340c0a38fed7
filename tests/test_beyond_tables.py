"""What docs/beyond.md says in figures is what the published measurements hold."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rung.parallel import nccl, placement
from rung.show import parallel_tables

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "beyond.md").read_text(encoding="utf-8")
WORDS = " ".join(PAGE.split())
H200 = ROOT / "results" / "h200"


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def part(name: str) -> list[list[str]]:
    """The cells of a table of the page, without its head."""
    body = PAGE.partition(f"<!-- {name} -->")[2].partition(f"<!-- /{name} -->")[0]
    lines = [x for x in body.splitlines() if x.startswith("| ")]
    assert len(lines) > 2, f"the page has no table {name}"
    return [[c.strip() for c in x.strip("|").split("|")] for x in lines[2:]]


def means(cell: str, value: float) -> bool:
    """The cell is the value, as far as it has digits."""
    digits = cell.rstrip("x%")
    value = value * 100 if cell.endswith("%") else value
    half = 0.5 * 10.0 ** -len(digits.partition(".")[2])
    return abs(float(digits) - value) <= half * 1.02


def test_the_ring_table_is_that_of_the_files() -> None:
    rows = part("beyond:ring")
    assert len(rows) == 10
    for mask, n, ones, *cells, error in rows:
        for i, gpus in enumerate((2, 4)):
            r = next(r for r in read(H200 / f"ring-{gpus}-{mask}.json")["rows"] if r["n"] == int(n))
            seconds, gain, passing = cells[3 * i : 3 * i + 3]
            assert means(ones.split(" / ")[i], r["one_seconds"] * 1e3)
            assert means(seconds, r["seconds"] * 1e3)
            assert means(gain, r["one_seconds"] / r["seconds"])
            assert means(passing, r["passing_seconds"] * 1e3)
            assert float(error) >= round(r["error"], 4)


def test_the_pipeline_table_is_that_of_the_file() -> None:
    cases = read(H200 / "pipeline.json")["cases"]
    rows = part("beyond:pipeline")
    assert len(rows) == len(cases)
    for (_, whole, parts, best, gain, bound, most, reached), runs in zip(rows, cases.values(), strict=True):
        quickest = sorted(runs[1:], key=lambda r: r["seconds"])[0]
        o = runs[0]["overlap"]
        assert means(whole, runs[0]["seconds"] * 1e3) and means(best.split()[0], quickest["seconds"] * 1e3)
        assert best.split(" ", 1)[1] == f"({quickest['chunk']}, {quickest['streams']})"
        times = [o[k] * 1e3 for k in ("copying_in", "computing", "copying_out")]
        assert all(means(c, t) for c, t in zip(parts.split(" + "), times, strict=True))
        assert means(gain, runs[0]["seconds"] / quickest["seconds"])
        assert means(bound, max(times)) and means(most, runs[0]["seconds"] * 1e3 / max(times))
        o = quickest["overlap"]
        times = [o[k] for k in ("copying_in", "computing", "copying_out")]
        assert means(reached, (sum(times) - o["wall"]) / (sum(times) - max(times)))


def test_the_split_table_is_that_of_the_files() -> None:
    rows = part("beyond:split")
    assert len(rows) == 6
    for model, gpus, prompt, faster, token, slower, per_sum, error, same in rows:
        name, dtype, shape = model.split(", ")
        r = read(H200 / f"split-{gpus}-{name}-{dtype}-{shape.split()[0]}.json")
        sums = {"gpt2": 24, "gpt2-xl": 96}[name]
        for cell, what in ((prompt, "prompt"), (token, "token")):
            alone, split = cell.split(" → ")
            assert means(alone, r[f"alone_{what}_seconds"] * 1e3) and means(split, r[f"split_{what}_seconds"] * 1e3)
        assert means(faster, r["alone_prompt_seconds"] / r["split_prompt_seconds"])
        assert means(slower, r["alone_token_seconds"] / r["split_token_seconds"])
        assert means(per_sum, (r["split_token_seconds"] - r["alone_token_seconds"]) / sums * 1e6)
        assert error == f"{r['error']:.1e}" and (same == "the same") is r["same_greedy_tokens"]


@pytest.mark.parametrize(
    ("name", "file", "columns"),
    [
        ("beyond:study", H200 / "study-attention.json", (*parallel_tables.HOST, *parallel_tables.GPU)),
        (
            "beyond:mpi",
            ROOT / "results" / "cpu_attention_study.json",
            ("sequential C++", "vectorised C++, 1 thread", "vectorised C++, 2 threads", *parallel_tables.RANKS),
        ),
    ],
)
def test_the_tables_of_the_studies_are_those_of_the_files(name: str, file: Path, columns: tuple[str, ...]) -> None:
    totals = {s["label"]: dict(map(tuple, s["points"])) for s in read(file)["series"]}
    computing = {(r[0], r[1]): float(r[2]) for r in read(file)["rows"]}
    rows = part(name)
    assert [int(n) for n, *_ in rows] == [256, 512, 1024, 2048, 4096, 8192]
    for n, *cells in rows:
        for column, cell in zip(columns, cells, strict=True):
            # Rounded twice: the study's own table has microseconds.
            assert float(cell.split(" / ")[-1]) == pytest.approx(totals[column][float(n)], rel=6e-3, abs=6e-4)
            if " / " in cell:
                assert float(cell.split(" / ")[0]) == pytest.approx(computing[int(n), column], rel=6e-3)


def test_the_softmax_stands_beside_the_source() -> None:
    gains = read(H200 / "study-attention.json")["more"]["softmax"]["series"][0]["points"]
    rows = part("beyond:softmax")
    assert all(means(row[3], gain) and int(row[0]) == n for row, (n, gain) in zip(rows, gains, strict=True))
    assert [row[6] for row in rows] == ["5.07x", "3.56x", "3.40x", "3.02x", "2.27x", "1.80x"]
    for row in rows:
        assert float(row[4]) / float(row[5]) == pytest.approx(float(row[6][:-1]), rel=0.02)


@pytest.mark.parametrize(("gpus", "n"), [(2, 512), (4, 512), (4, 4096)])
@pytest.mark.parametrize("causal", [False, True])
def test_the_blocks_of_a_ring_are_its_busiest_ranks_pairs(gpus: int, n: int, causal: bool) -> None:
    """Where a pair costs the same everywhere, so does a rank of `placement`."""
    side = n // gpus
    found = {(gpus, False, side): {"one_seconds": side**2}, (gpus, True, side): {"one_seconds": side * (side + 1) / 2}}
    pairs = placement.pairs(placement.zigzag(n, gpus), causal).sum(axis=1)
    blocks = parallel_tables.blocks(found, gpus, causal, n)
    assert blocks == pytest.approx(float(np.max(pairs)), rel=1e-2)
    assert parallel_tables.blocks({}, gpus, causal, n) is None


class Bytes(TorchDispatchMode):
    """Counts what operations read and write of tensors of one size."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.numel, self.total = numel, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view and "attention" not in str(func):
            tensors = [t for t in (*args, result) if isinstance(t, torch.Tensor) and t.numel() == self.numel]
            self.total += sum(t.numel() * t.element_size() for t in tensors)
        return result


def test_a_merge_moves_as_many_bytes_as_the_estimate_says() -> None:
    q, k, v = torch.randn(3, 4, 128, 64, dtype=torch.bfloat16)
    into = (torch.zeros(4, 128, 64), torch.full((4, 128), -torch.inf))
    with torch.no_grad(), Bytes(q.numel()) as count:
        nccl.merge(into, nccl.attend(q, k, v, causal=False))
    assert count.total / q.numel() == parallel_tables.MERGE_BYTES


def ring(gpus: int, mask: str, n: int) -> dict[str, Any]:
    return next(r for r in read(H200 / f"ring-{gpus}-{mask}.json")["rows"] if r["n"] == n)


def test_what_the_page_says_in_words_follows_from_the_files() -> None:
    steps = [
        (r["seconds"] - r["one_seconds"] / gpus) / gpus * 1e3
        for gpus in (2, 4)
        for mask in ("full", "causal")
        for r in [ring(gpus, mask, 8192)]
    ]
    assert f"{min(steps):.2f} to {max(steps):.2f} ms a step" in WORDS
    rates = [
        r["bytes_a_step"] * (r["processes"] - 1) / r["passing_seconds"] / 1e9
        for r in (ring(2, "causal", 131072), ring(4, "causal", 131072))
    ]
    assert f"at {rates[0]:.0f} GB/s with two GPUs and at {rates[1]:.0f} with four" in WORDS
    splits = [read(p) for p in sorted(H200.glob("split-*.json"))]
    slower = [r["token_speed_up"] for r in splits]
    assert f"{min(slower):.2f}x to {max(slower):.2f}x" in WORDS
    study = {(r[0], r[1]): r for r in read(H200 / "study-attention.json")["rows"]}
    tree = float(study[8192, "CUDA, tree softmax"][4])
    assert f"in {tree} ms {2 * 4 * 8192**2 / tree / 1e9:.1f} TB/s" in WORDS
    assert f"in the source's 2.071 ms are {2 * 4 * 8192**2 / 2.071 / 1e9:.2f} TB/s" in WORDS
    whole = [float(study[8192, f"CUDA, {x} softmax"][2]) for x in ("linear", "tree")]
    assert f"worth {whole[0] / whole[1]:.2f}x at 8192" in WORDS
    blocks = read(ROOT / "results" / "cpu_attention_study.json")["two_blocks"]
    beside = [t for pair in blocks["beside_another"] for t in pair]
    assert (
        f"take {min(beside):.0f} to {max(beside):.0f} ms a call where one alone takes {blocks['alone'][1]:.0f}" in WORDS
    )
    rate = re.search(r"(\d+) M of d = 64", WORDS)
    strong = read(ROOT / "results" / "cpu_attention_study.json")["more"]["strong"]
    assert rate and f"{rate[1]} M pairs a second" in strong["finding"]


def test_every_published_file_of_this_page_says_when_and_where() -> None:
    files = [*H200.glob("ring-*.json"), *H200.glob("split-*.json"), H200 / "pipeline.json"]
    files += [H200 / "study-attention.json", ROOT / "results" / "cpu_attention_study.json"]
    assert len(files) == 13
    for file in files:
        found = read(file)
        assert found["time"].startswith("2026-11-21T") and found["commit"] and found["machine"], file.name
        assert not re.search(r"/(work|tmp|root|home)\b", file.read_text(encoding="utf-8")), file.name
