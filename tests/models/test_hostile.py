"""Files of an enemy: one sentence each, in bounded time and memory, and nothing of theirs is executed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gpt2_models
import hostile
from gpuless.base import files
from gpuless.base.expressions import Names, evaluate
from rung.errors import RungError
from rung.models.text_files import texts_of

ROOT = Path(__file__).parents[2]


def opened(what: str, work: Path) -> list[dict[str, Any]]:
    """The outcome for each file, as reported by the child that opened it."""
    done = subprocess.run(
        [sys.executable, str(Path(hostile.__file__)), what, str(work), str(gpt2_models.saved())],
        capture_output=True, text=True, cwd=work, timeout=600, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(ROOT / "tests")])},
    )  # fmt: skip
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"{rows[-1:]}: {done.stderr[-500:]}"
    assert rows[-1] == {"executed": False}
    return [row for row in rows if "kind" in row]


@pytest.mark.slow
@pytest.mark.parametrize(("what", "accepted"), [("models", {"pickle negative", "pickle float8"}), ("headers", set())])
def test_hostile_files_are_refused_in_a_sentence_in_bounded_time_and_memory(
    what: str, accepted: set[str], tmp_path: Path
) -> None:
    rows = opened(what, tmp_path)
    assert len(rows) >= 270
    assert {row["name"] for row in rows if row["kind"] == "taken"} == accepted
    assert [row for row in rows if row["kind"] == "raised"] == []
    assert [row for row in rows if row["seconds"] > hostile.SECONDS or row["bytes"] > hostile.BYTES] == []
    refused = [row for row in rows if row["kind"] == "refused"]
    assert all(row["said"] and len(row["said"]) < 1200 for row in refused)
    messages = [row["said"] for row in refused if "does not compile" not in row["said"]]
    assert [message for message in messages if "\n" in message] == []
    if what == "models":
        assert [message for message in messages if not message.endswith(".")] == []


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(RungError, match="pipe or a device"):
            files.read_bytes(path)
    (tmp_path / "long").write_bytes(bytes(11))
    assert files.read_bytes(tmp_path / "long", 11) == bytes(11)
    with pytest.raises(RungError, match="more than"):
        files.read_bytes(tmp_path / "long", 10)


def test_named_expressions_are_worked_out_once_and_not_out_of_themselves() -> None:
    let: dict[str, str | int] = {f"L{i}": f"L{i - 1} + L{i - 1}" if i else "N" for i in range(100)}
    assert evaluate("L99", Names({"N": 1}, let)) == 2**99
    with pytest.raises(RungError, match="refers to itself"):
        evaluate("A", Names({}, {"A": "B", "B": "A"}))


@pytest.mark.parametrize("text", ["((9**8)**8)**8", "(1 << 64) << 64", "9" * 60, "int(1e300)", "1 + " * 600 + "1"])
def test_a_number_beyond_any_size_is_refused_during_evaluation(text: str) -> None:
    with pytest.raises(RungError, match=r"exceeds 2\^128|too long"):
        evaluate(text, {})


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_in_transfer_to_a_gpu_must_be_finite(number: float) -> None:
    import torch

    from rung.models.gpu.device_copy import transport_to
    from rung.models.gpu.loading import Arrival, Piece

    source, target = torch.full((4, 4), number), torch.empty(4, 4)
    arrival = Arrival({"w": target}, [[Piece("w", source, target)]], transport_to(torch.device("cpu")))
    arrival.start()
    for _ in range(2):
        with pytest.raises(RungError, match="'w' holds NaN, infinity"):
            arrival.finish()


def test_weights_beyond_half_precision_are_refused_where_they_would_be_rounded_to_infinity() -> None:
    import torch

    from rung.models.weights import require_numbers

    ends = torch.aminmax(torch.tensor([-7e4, 1.0]))
    require_numbers("w", ends)
    with pytest.raises(RungError, match="beyond the number format"):
        require_numbers("w", ends, torch.finfo(torch.float16).max)


def test_texts_from_a_device_that_never_ends_are_refused() -> None:
    with pytest.raises(RungError, match="is a pipe or a device"):
        next(texts_of("/dev/zero", "text", lines=False))
