"""With many processes on a GPU each query is slow: a run's comparison makes one, and fewer where they gain nothing."""

import math
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpuless.base.processors import processors
from rung.check import sandbox
from rung.check.compare import Measured
from rung.check.judge import check
from rung.check.report import ALONE, LADDER, SLOW, CheckRequest, Effort, Failure, Report
from rung.check.runner import LocalRunner
from rung.check.sandbox import Sandbox
from rung.check.schedule import Procedure
from rung.check.trial import Trial, Trials
from rung.dtypes import dtype
from rung.operation import Case
from rung.rungs import catalogue

BROKEN = Path(__file__).parents[1] / "broken"


class Queries(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Operators whose result the host waits for."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("_local_scalar_dense", "nonzero", "equal", "masked_select"):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_a_comparison_waits_for_nothing(name: str) -> None:
    real = dtype(name)
    truth = torch.randn(1000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with Queries() as queries:
        measured = Measured("out", truth.to(real.torch), truth.to(real.torch).double(), real, 1e-4)
        moved = Measured("out", truth, truth, real, 1e-4, exact=True)
    assert not queries.found
    assert measured.deviation(measured.facts.tolist()).ok and moved.deviation(moved.facts.tolist()).ok


@pytest.mark.parametrize(("seconds", "slow", "runs"), [(0.5, 0.25, 1), (0.1, 0.25, 2), (0.5, math.inf, 2)])
def test_what_takes_long_is_run_once(seconds: float, slow: float, runs: int) -> None:
    trial, found = cast(Any, object.__new__(Trial)), []

    def once(*_: object, **__: object) -> dict[str, torch.Tensor]:
        found.append(seconds)
        trial.seconds = seconds
        return {}

    trial._once = trial.once = once
    trial.moved = []
    trial.of = SimpleNamespace(next_order=lambda: "forward")
    trial.twice(slow)
    assert len(found) == runs


@pytest.mark.parametrize(("effort", "patient"), [(LADDER, False), (ALONE, True)])
def test_a_ladders_slow_kernels_leave_their_longest_cases_to_a_check_alone(
    effort: Effort, patient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rung = catalogue.find("attention/2")
    names = ("gpt2", "gpt2, prime", "gpt2-xl, full context")
    cases = [(c, rung.operation.complete(c.values)) for c in rung.operation.cases if c.name in names]
    report = Report(rung.full_name, "f32", "cuda")
    asked = CheckRequest(rung.full_name, "f32", "cuda")
    trials = Trials(rung, dtype("f32"), "cuda", report, LocalRunner("emulator"), asked)
    of = Procedure(trials, 0, replace(effort, alone=False, later_runs=0))
    flops = {case.name: rung.operation.cost(values, 4).flops for case, values in cases}
    pace = 3.0 / flops[names[-1]]  # the longest would take three seconds
    ran = []

    def trial(case: Case, *_: object, **__: object) -> SimpleNamespace:
        ran.append(case.name)
        return SimpleNamespace(seconds=max(0.06, pace * flops[case.name]), twice=lambda _: None)

    monkeypatch.setattr(trials, "at", trial)
    monkeypatch.setattr(of, "_full_checks_at", lambda *_: None)
    monkeypatch.setattr(of, "_numbers", lambda *_: None)
    monkeypatch.setattr(of, "_without_nullable", lambda *_: None)
    of.follow(cases)
    assert ran == [n for n in names if patient or n != names[-1]]
    assert patient or "would take" in report.left_out[names[-1]]


@pytest.mark.parametrize(
    "name",
    [
        "residual/01_naive",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("cached_projection/02_tiles", "reduce/08_last_block")),
    ],
)
def test_small_cases_in_the_host_memory_are_as_right(name: str) -> None:
    rung = catalogue.find(name)
    found = [check(rung, "f32", device="emulator", effort=LADDER, host=LocalRunner("emulator", mirrored=m)) for m in (0, 1)]
    assert [report.verdict for report in found] == ["ok", "ok"]
    assert found[0].cases == found[1].cases  # a case that takes long is run once, so that runs may differ


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("mutated_input.cu", "changed its input a"),
        ("writes_before.cu", "before the start of out"),
        ("stray_copy.cu", "past the end"),
        ("partial_work.cu", "never written"),
        ("unwritten_buffer.cu", "values are off"),
        ("stale_output.py", "never written"),
    ],
)
def test_and_mistakes_are_found_there(name: str, told: str) -> None:
    rung = catalogue.rung_from_file(catalogue.operation("residual"), BROKEN / name)
    report = check(rung, "f32", device="emulator", effort=LADDER, host=LocalRunner("emulator", mirrored=True))
    assert report.verdict == "failed" and told in report.reason


def test_processors_that_are_kept_from_this_process_do_not_count() -> None:
    mine = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, [min(mine)])
        assert processors() == 1
    finally:
        os.sched_setaffinity(0, mine)


def test_a_rank_is_held_to_what_rounding_may_have_made_of_it() -> None:
    of = catalogue.operation("token_logprob")
    t = {
        "x": torch.ones(1, 1, 1, dtype=torch.float64),
        "weight": torch.tensor([[1.0], [2.0], [2.0 + 1e-9], [3.0]], dtype=torch.float64),
        "targets": torch.tensor([[1]]),
    }
    values = of.complete({"B": 1, "T": 1, "C": 1, "V": 4})
    found = of.reference(t, values)
    for given, right in ((0, 1), (1, 1), (2, 2), (3, 2)):
        expected = of.expected(found, {"rank": torch.tensor([[given]], dtype=torch.int32)}, values)
        assert int(expected["rank"]) == right


def test_a_process_that_was_too_slow_is_replaced_whatever_was_asked_of_it_since(monkeypatch: pytest.MonkeyPatch) -> None:
    host, ends = cast(Any, object.__new__(Sandbox)), iter([Failure("too slow", SLOW), Failure("ended by SIGKILL")])

    def ask(*_: object) -> dict[str, Any]:
        raise next(ends)

    of = ("emulator", "softmax", "mine.py", False)
    host._slow, host._child = False, SimpleNamespace(ask=ask, of=of)
    for _ in range(2):
        with pytest.raises(Failure):
            host.ask({"do": "run"}, 1.0)
    replaced = []
    monkeypatch.setattr(sandbox, "taken", lambda *wanted: replaced.append(wanted) or SimpleNamespace(bound=0))
    with pytest.raises(AttributeError):  # there are no operands
        host.bind(None, None, None, None)
    assert replaced == [of]
