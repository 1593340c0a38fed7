"""A configuration that a rung's rules admit must compile and fit the GPU: draws legal ones and checks them without a
GPU.

A configuration that no rule refuses but that cannot run becomes a failure in a sweep, and for a user of `--tune` an
error of the compiler or the driver instead of a rule of the rung.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from gpuless.base.expressions import evaluate_int
from gpuless.facts import gpus
from rung.dtypes import DTYPES, element
from rung.errors import RungError
from rung.lazy import torch
from rung.operation import Values
from rung.profile import inspect
from rung.rungs.base import Rung, Subject, emulated_multiprocessors
from rung.rungs.cuda import CudaRung
from rung.sweep.sweep import Tuning, configurations, illegal

FEW = 40  # configurations that are checked per rung


@dataclass(frozen=True)
class Configuration:
    """A rung at a shape and in a dtype, with values of its tunables that its rules admit."""

    subject: Subject
    tuning: Tuning

    def __str__(self) -> str:
        words = " ".join(f"{name}={value}" for name, value in self.tuning.items())
        one = self.subject
        return f"{one.rung.full_name} {one.dtype.name} at {one.shape}{': ' if words else ''}{words}"


def admitted(rung: Rung, arch: str = "sm_90", most: int = FEW, seed: int = 0) -> list[Configuration]:
    """Configurations that the rung's rules admit at usual shapes: all of them, or `most` drawn at random."""
    subjects = [Subject(rung, s, v, DTYPES[d]) for s, v in _usual_shapes(rung).items() for d in rung.dtypes]
    found: list[Configuration] = []
    with emulated_multiprocessors(gpus.usual().multiprocessors):
        for subject in subjects:

            def legal(tuning: Tuning, subject: Subject = subject) -> bool:
                there = inspect.refusal(rung, arch, subject.dtype, subject.values, tuning)
                return there is None and illegal(subject, tuning, "emulator", arch) is None

            tunings = configurations(rung, sample=most, seed=seed, legal=legal) if rung.tune else [{}]
            found += [Configuration(subject, t) for t in tunings if legal(t)]
    return found if len(found) <= most else random.Random(seed).sample(found, most)


def fault(one: Configuration, arch: str = "sm_90") -> str:
    """Why this configuration does not run, though its rules admit it; empty if the compiler finds no reason."""
    rung, values, dtype = one.subject.rung, one.subject.values, one.subject.dtype
    if not isinstance(rung, CudaRung):
        return ""
    try:
        with emulated_multiprocessors(gpus.usual().multiprocessors):
            rung.maps(_without_memory(one), rung.names(values, dtype, one.tuning), dtype)
            return rung.unfit(values, dtype, one.tuning, arch) or ""
    except RungError as error:
        return str(error)


def faults(rung: Rung, arch: str = "sm_90", most: int = FEW, seed: int = 0) -> Iterator[tuple[Configuration, str]]:
    """Each checked configuration with its error, which is empty if it is legal."""
    for one in admitted(rung, arch, most, seed):
        yield one, fault(one, arch)


def _usual_shapes(rung: Rung) -> dict[str, Values]:
    """The operation's first shape, its last, and the one between."""
    shapes = rung.operation.shapes
    names = list(shapes)
    chosen = dict.fromkeys((names[0], names[-1], names[len(names) // 2]))
    return {name: rung.operation.complete(shapes[name]) for name in chosen}


def _without_memory(one: Configuration) -> dict[str, torch.Tensor]:
    """Operands and buffers of the right sizes."""
    rung, values, dtype = one.subject.rung, one.subject.values, one.subject.dtype
    names = rung.names(values, dtype, one.tuning)
    sizes = {o.name: (o.size(values), o.dtype) for o in rung.operation.operands if o.view_of is None}
    for name, buffer in rung.header.buffers.items():
        sizes[name] = (tuple(evaluate_int(s, names, f"the size of {name}") for s in buffer.shape), buffer.dtype)
    made = {n: torch.empty(size, dtype=element(kind, dtype), device="meta") for n, (size, kind) in sizes.items()}
    views = {o.name: o.view(made[o.view_of], values) for o in rung.operation.operands if o.view_of and o.view}
    return {**made, **views}
