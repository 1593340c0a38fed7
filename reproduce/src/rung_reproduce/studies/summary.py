"""Where a forward pass of the course's baseline spends its time: by kernel, by copy and by CUDA call, as Nsight Systems
sums them up in the second report; and the same by kernel after its tiles, its tensor cores and cuBLAS.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from rung.models.family import config_of
from rung.models.transformer import Transformer
from rung.models.weights import converted, weights_of
from rung.profile import trace
from rung.profile.trace import Breakdown, Total
from rung.rungs.base import Device
from rung_reproduce.climbs.course import CHANGES, CoursePlan
from rung_reproduce.show.charts import Found
from rung_reproduce.studies.common import Runner, need_gpu

BATCH, TOKENS, PASSES = 4, 64, 3  # as in the reports
STEPS = ("baseline", "milestone 2: joint tiling", "milestone 2: tensor cores", "milestone 2: cuBLAS")


def run(runner: Runner) -> Found:
    """A forward pass of 4 x 64 tokens through GPT-2 (124M) at four steps of the course."""
    need_gpu(runner, "summary")
    return report(measure("cuda"))


def measure(device: Device) -> dict[str, Breakdown]:
    """What a pass spends at each step; the rungs change as in `rung climb --study course`."""
    config = config_of("gpt2")
    weights = weights_of(config, "cuda" if device == "cuda" else "cpu")
    ids = torch.randint(config.vocabulary, (BATCH, TOKENS), generator=torch.Generator().manual_seed(0))
    rungs: dict[str, str] = {}
    found = {}
    for name, change in CHANGES.items():
        rungs = {o: rung for o, rung in {**rungs, **change.rungs}.items() if rung is not None}
        if name not in STEPS:
            continue
        plan = CoursePlan(device, change.dtype, rungs, False, change.tunings)
        model = Transformer(config, converted(weights, plan.matrix, plan.vector), plan)

        def passes(model: Transformer = model) -> int:
            with torch.inference_mode():
                for _ in range(PASSES):
                    model.logits(ids)
            return PASSES

        passes()
        found[name] = trace.record(passes, None)
    return found


def report(found: dict[str, Breakdown]) -> Found:
    """The baseline's kernels; then its copies, its calls, and the kernels of the later steps as tables of their own."""
    tables = {name: _kernels(name, of) for name, of in found.items()}
    first = tables.pop(STEPS[0])
    base = found[STEPS[0]]
    more = {
        "copies": _totals("Copies of the baseline's run", base.copies),
        "calls": _totals("CUDA's functions in the baseline's run", base.calls),
        **{name.removeprefix("milestone 2: "): table for name, table in tables.items()},
    }
    return replace(first, more=more)


def _kernels(name: str, of: Breakdown) -> Found:
    total = sum(share.running for share in of.shares) or 1.0
    shares = sorted(of.shares, key=lambda share: -share.running)
    lines = [(s.name, f"{s.calls:.0f}", f"{1e3 * s.running:.3f}", f"{100 * s.running / total:.1f}") for s in shares]
    most = shares[0].name if shares else "nothing"
    return Found(
        f"Kernels of a forward pass, {name}", ("kernel", "calls", "time, ms", "share, %"), lines,
        f"{most} takes the most of {1e3 * total:.3g} ms of kernels.",
    )  # fmt: skip


def _totals(title: str, of: list[Total]) -> Found:
    lines = [(t.name, t.calls, f"{1e3 * t.seconds:.3f}") for t in sorted(of, key=lambda t: -t.seconds)]
    return Found(title, ("what", "count", "time, ms"), lines, f"{sum(t.calls for t in of)} over {PASSES} passes.")
