"""The course's config_sweep: one job for each six-way tuple of block sizes, over the whole model, each in a folder.

A tuple gives the threads per block of the residual, GELU, the encoder's cube, layernorm, prepareOut and the conversion
to half. A job writes conf.json, profile.json (the time of each kernel in a forward pass of 4 x 64 tokens) and a trace
into its folder; with Slurm it is submitted by itself, with its own script and log.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from gpuless.base.files import whole
from rung.errors import RungError, first_line
from rung.models.family import Config
from rung.models.plan import TorchPlan
from rung.models.transformer import Transformer
from rung.models.weights import Weights, converted
from rung.profile import trace
from rung.rungs.base import Device
from rung_reproduce.climbs.course import CoursePlan
from rung_reproduce.climbs.model import DIVERGENCE
from rung_reproduce.sweeps import slurm

# letter of the folder's name, what its number is for, the operation and the tunable
DIMENSIONS = (
    ("R", "residual", "residual", "BLOCK"),
    ("G", "gelu", "bias_gelu", "BLOCK"),
    ("E", "encoder", "embedding", "EDGE"),
    ("L", "layernorm", "layernorm", "BLOCK"),
    ("P", "prepare out", "bias", "BLOCK"),
    ("F", "conversion to half", "matmul", "CONVERT"),
)
RUNGS = {
    "embedding": "1", "layernorm": "5", "matmul": "11", "attention": "26", "bias": "1", "bias_gelu": "1",
    "residual": "1",
}  # fmt: skip
BATCH, TOKENS, PASSES = 4, 64, 3


@dataclass(frozen=True)
class Job:
    """One tuple."""

    sizes: tuple[int, ...]

    @property
    def name(self) -> str:
        return "_".join(f"{letter}{n}" for (letter, *_), n in zip(DIMENSIONS, self.sizes, strict=True))

    @property
    def tunings(self) -> dict[str, dict[str, int]]:
        return {of: {tunable: n} for (_, _, of, tunable), n in zip(DIMENSIONS, self.sizes, strict=True)}

    @property
    def described(self) -> dict[str, int]:
        return {what: n for (_, what, _, _), n in zip(DIMENSIONS, self.sizes, strict=True)}


def parsed(text: str) -> Job:
    """`32,128,5,128,128,32`"""
    numbers = [n for part in text.split(",") if (n := whole(part.strip())) is not None and n > 0]
    if len(numbers) != len(DIMENSIONS) or text.count(",") != len(DIMENSIONS) - 1:
        wanted = ", ".join(what for _, what, _, _ in DIMENSIONS)
        raise RungError(f"--tuples {text}: a tuple has {len(DIMENSIONS)} numbers: {wanted}.")
    return Job(tuple(numbers))


def run(config: Config, weights: Weights, jobs: Sequence[Job], folder: Path, device: Device) -> list[dict[str, object]]:
    """Each job in turn, its folder written; one that fails is an outcome with its reason."""
    reference = TorchPlan(torch.device("cuda" if device == "cuda" else "cpu"), torch.float32, torch.float32)
    ids = torch.randint(config.vocabulary, (BATCH, TOKENS), generator=torch.Generator().manual_seed(0))
    model = Transformer(config, converted(weights, reference.matrix, reference.vector), reference)
    with torch.inference_mode():
        truth = model.logits(ids).double().log_softmax(-1)
    outcomes: list[dict[str, object]] = []
    for job in jobs:
        place = folder / job.name
        place.mkdir(parents=True, exist_ok=True)
        _write(place / "conf.json", job.described)
        try:
            found = _forward(config, weights, job, ids, truth, place, device)
        except (RungError, RuntimeError) as error:
            found = {"verdict": "failed", "reason": first_line(error, 300)}
        _write(place / "profile.json", found)
        outcomes.append({"tuple": job.name, **found})
    return outcomes


def _forward(
    config: Config, weights: Weights, job: Job, ids: torch.Tensor, truth: torch.Tensor, place: Path, device: Device
) -> dict[str, object]:
    plan = CoursePlan(device, "tf32", RUNGS, swept=False, tunings=job.tunings)
    model = Transformer(config, converted(weights, plan.matrix, plan.vector), plan)
    with torch.inference_mode():
        ours = model.logits(ids).double().log_softmax(-1)
        divergence = float((truth.exp() * (truth - ours)).sum(-1).mean())
        if not divergence <= DIVERGENCE["tf32"]:
            return {"verdict": "failed", "reason": f"diverges from float32 by {divergence:.2g} nats per token"}
        found: dict[str, object] = {"verdict": "ok", "kl_nats": divergence}
        if device != "cuda":
            return found  # an emulator has no times

        def passes() -> int:
            for _ in range(PASSES):
                model.logits(ids)
            return PASSES

        passes()
        shares = trace.record(passes, place / "trace.json").shares
    found["kernels"] = {s.name: {"calls": s.calls, "us": s.running * 1e6} for s in shares}
    found["forward_us"] = sum(s.running for s in shares) * 1e6
    return found


def script(job: Job, place: Path, request: slurm.Request, exports: Mapping[str, str]) -> str:
    """The job's own batch script."""
    lines = [f"--job-name={job.name}", f"--output={place}/verify_output_{job.name}.out", "--ntasks=1"]
    lines += [f"--error={place}/verify_errors_{job.name}.err"]
    lines += [f"--gres=gpu:{request.gpus}"] if request.gpus else []
    lines += [f"--{n}={v}" for n, v in (("partition", request.partition), ("account", request.account)) if v]
    lines += [f"--time={request.time}"] if request.time else []
    lines += [*(["--exclusive"] if request.exclusive else []), *request.options]
    sizes = ",".join(map(str, job.sizes))
    words = [sys.executable, "-m", "rung", "course", "--tuples", sizes, "--folder", str(place.parent)]
    header = "\n".join(f"#SBATCH {line}" for line in lines)
    told = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in exports.items())
    return f"#!/bin/bash\n{header}\n\n{told}exec {shlex.join(words)}\n"


def submitted(jobs: Sequence[Job], folder: Path, request: slurm.Request, exports: Mapping[str, str]) -> dict[str, str]:
    """Each job's number, after its folder and script were written and given to sbatch."""
    numbers = {}
    for job in jobs:
        place = folder / job.name
        place.mkdir(parents=True, exist_ok=True)
        path = place / "verify.slurm"
        path.write_text(script(job, place, request, exports), encoding="utf-8")
        numbers[job.name] = slurm.submit(path)
    return numbers


def _write(path: Path, what: object) -> None:
    path.write_text(json.dumps(what, indent=1) + "\n", encoding="utf-8")
