"""The processes of a torchrun job: NCCL between GPUs, gloo between CPUs."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from rung.errors import RungError
from rung_reproduce.parallel import launch


@dataclass(frozen=True)
class Group:
    """This process's rank and device."""

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        return self.rank == 0

    def meet(self) -> None:
        """Waits for all processes and all their GPUs' work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        flag = torch.zeros(1, device=self.device)
        dist.all_reduce(flag)
        flag.item()

    def slowest(self, seconds: float) -> float:
        """The largest of all processes' figures."""
        worst = torch.tensor([seconds], device=self.device)
        dist.all_reduce(worst, dist.ReduceOp.MAX)
        return float(worst.item())

    def timed(self, work: Callable[[], object], repeats: int = 5) -> float:
        """The median of the slowest process's seconds, after one warm-up run."""
        times = []
        for attempt in range(repeats + 1):
            self.meet()
            start = time.perf_counter()
            work()
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            if attempt:
                times.append(self.slowest(time.perf_counter() - start))
        return statistics.median(times)

    def report(self, measured: object, output: Path | None) -> None:
        """Writes the measurements as JSON, from one process: to standard output and a file."""
        if self.first:
            text = json.dumps(measured, indent=1)
            if output:
                output.write_text(text, encoding="utf-8")
            print(text)


@contextlib.contextmanager
def joined(device: str | None = None, patience: float = 120.0) -> Iterator[Group]:
    """Join the job that torchrun has started; a failure is reported in one sentence and ends the process."""
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    try:
        yield _join(rank, size, device, timedelta(seconds=patience))
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:
            raise
        launch.report(error, f"process {rank} of {size}")
        sys.stderr.flush()
        os._exit(2)  # a process that waits for others in its clean-up would never end
    dist.destroy_process_group()


def _join(rank: int, size: int, device: str | None, patience: timedelta) -> Group:
    if "RANK" not in os.environ:
        raise RungError("start this with torchrun: `torchrun --standalone --nproc-per-node N -m ...`.")
    here = int(os.environ.get("LOCAL_RANK", rank))
    on_this_host = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cpu":
        dist.init_process_group("gloo", timeout=patience)
        return Group(rank, size, torch.device("cpu"))
    if torch.cuda.device_count() < on_this_host:
        raise RungError(
            f"{on_this_host} processes need as many GPUs, but there are {torch.cuda.device_count()}; "
            "start fewer, or use --device cpu."
        )
    torch.cuda.set_device(here)
    where = torch.device("cuda", here)
    dist.init_process_group("nccl", timeout=patience, device_id=where)
    return Group(rank, size, where)
