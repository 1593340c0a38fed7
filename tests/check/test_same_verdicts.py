"""A verdict is the same, bit for bit, however much else runs and whatever its process has judged before."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from rung import adopt
from rung.check import judge
from rung.check.report import CheckRequest
from rung.exchange import batch

pytestmark = pytest.mark.slow
FOREIGN = Path(__file__).parents[1] / "foreign"
GELU = (FOREIGN / "gelu_thread_per_element.cu").read_text()
SOFTMAX = (FOREIGN / "softmax_online.cu").read_text()


def line(name: str, operation: str, source: str) -> dict[str, Any]:
    return {"id": name, "operation": operation, "source": source}


LINES = [
    line("right", "gelu", GELU),
    line("bounds", "softmax", SOFTMAX.replace("[i]", "[i + 1]", 1)),
    line("endless", "gelu", GELU.replace("if (i < N) {\n        float xi", "while (i == 5) out[4] += 1;\n{\n        float xi")),
    line("race", "transpose", (FOREIGN / "transpose_tiled.cu").read_text().replace("__syncthreads();", "", 1)),
]


@contextmanager
def burning(count: int) -> Iterator[None]:
    """So many processes that always compute."""
    with ExitStack() as stack:
        for _ in range(count):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(process.kill)
        yield


def verdicts(folder: Path, workers: int, lines: list[dict[str, Any]]) -> dict[str, Any]:
    given = folder / "in.jsonl"
    given.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return {row["id"]: row for row in batch.judge(given, folder / f"{workers}.jsonl", workers)}


def test_verdicts_of_a_busy_machine_are_those_of_an_idle_one(tmp_path: Path) -> None:
    idle = verdicts(tmp_path, 1, LINES)
    with burning(2):
        busy = verdicts(tmp_path, 2, LINES[::-1])
    assert json.dumps(idle, sort_keys=True) == json.dumps(busy, sort_keys=True)
    assert idle["right"]["verdict"] == "ok"
    assert {idle[name]["verdict"] for name in ("bounds", "endless", "race")} == {"failed"}


def test_one_processor_judges_as_several_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts of executed instructions, too: further shapes are judged in a copy of the process, or after the rest."""
    found = []
    rungs = adopt.select("softmax", FOREIGN / "softmax_online.cu")
    for count in (2, 1):
        monkeypatch.setattr(judge, "processors", lambda count=count: count)
        (asked,) = judge.requests(rungs, CheckRequest(device="emulator"))
        report = judge.report_on(asked)
        report.seconds = {}
        found.append(report)
    assert found[0] == found[1] and found[0].verdict == "ok" and found[0].fidelity["exact"] > 0
