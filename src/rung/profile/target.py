"""The program that runs under ncu: rungs, each checked at its shape, then launched once after a marker.

Called as `python -m rung.profile.target '[{"rung": ..., "values": ..., ...}, ...]'`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from rung.check.operands import Operands
from rung.dtypes import dtype as dtype_named
from rung.errors import RungError
from rung.rungs import catalogue
from rung.rungs.base import Prepared, Rung


def find(task: dict[str, Any]) -> Rung:
    """The rung of the task: in a ladder, or in a user's file."""
    if task["file"]:
        of, _, name = task["rung"].partition("/")
        return catalogue.rung_from_file(catalogue.operation(of), Path(task["file"]), name)
    return catalogue.find(task["rung"])


def prepared(rung: Rung, task: dict[str, Any]) -> Prepared:
    """The rung bound to fresh operands; a RungError if its result is wrong."""
    real, values = dtype_named(task["dtype"]), rung.operation.complete(task["values"])
    operands = Operands(rung.operation, values, real, rung.operand_names, 1, device="cuda")
    reference = operands.reference()
    call = rung.prepare(operands.tensors, values, real, device="cuda", tuning=task["tuning"])
    call.run()
    torch.cuda.synchronize()
    for deviation in operands.deviations(reference):
        if not deviation.ok:
            raise RungError(f"{rung.full_name} is wrong at this shape: {deviation.problem}.")
    return call


def main(word: str) -> None:
    """Run the tasks one after another; one that cannot be prepared is reported, and leaves a marker without a
    launch."""
    tasks, failed = json.loads(word), 0
    for task in tasks:
        call = None
        try:
            call = prepared(find(task), task)
            call.run()
        except (RungError, torch.cuda.OutOfMemoryError) as error:
            failed += 1
            print(f"rung: {error}", file=sys.stderr)
            if len(tasks) == 1:
                break
        torch.cuda.synchronize()
        torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
        torch.cuda._sleep(1)  # type: ignore[no-untyped-call]  # the marker
        if call is not None:
            call.run()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
        del call
        torch.cuda.empty_cache()
    sys.exit(2 if failed else 0)


if __name__ == "__main__":
    main(sys.argv[1])
