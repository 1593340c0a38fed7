"""After a check of a file: its most expensive line, and whether its counts meet goals."""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

from rung.apart import completed
from rung.errors import RungError
from rung.rungs.base import Rung

SECONDS = 60


class Remarks(NamedTuple):
    missed: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def counted(rung: Rung, dtype: str, goals: Sequence[str]) -> Remarks:
    """Counted in a process of its own, with a limit on time. Without goals nothing that goes wrong is told."""
    import gpuless

    if gpuless.available() is not None:
        return Remarks()

    def work() -> int:
        from gpuless.counts.counters_explained import judge_goals, remark
        from rung.lazy import only_this_thread
        from rung.profile import emulated
        from rung.rungs.subjects import subject_of

        signal.alarm(SECONDS)
        only_this_thread()
        try:
            subject = subject_of(rung, None, None, dtype)
            kernels = emulated.count(subject).kernels if goals else emulated.count_small_case(subject)
            judged = judge_goals(goals, kernels)
        except RungError as error:
            json.dump({"error": str(error)}, told)
            told.flush()
            return 2
        said = remark(kernels, {n: v for n, v in subject.values.items() if isinstance(v, int)})
        met = [f"remark: {said}"] * bool(said) + [str(goal) for goal in judged if goal.met]
        json.dump({"missed": [str(goal) for goal in judged if not goal.met], "others": met}, told)
        told.flush()
        return 0

    with tempfile.TemporaryFile("w+") as told:
        problem = ""
        try:
            completed(work, "counting")
        except RungError as error:
            problem = str(error)
        told.seek(0)
        found = json.loads(told.read() or "{}")
    problem = found.pop("error", problem)
    if problem and goals:
        raise RungError(f"{problem} Try `rung count` with a smaller --shape.")
    return Remarks(*(tuple(found.get(name, ())) for name in Remarks._fields))
