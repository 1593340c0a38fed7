"""Starts a job of several processes on this machine, and reports a failure in one sentence."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from rung.errors import RungError

INSTALL = "pip install 'rung-reproduce[mpi] @ git+https://github.com/rung-gpu/rung#subdirectory=reproduce'"
IN_A_JOB = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS")


def inside_a_job() -> bool:
    """Whether mpiexec or Slurm's srun has started this process."""
    if int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        return True
    return any(name in os.environ for name in IN_A_JOB)


def mpiexec() -> str:
    """The launcher that belongs to this Python's MPI library; else the one on the PATH."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec") or shutil.which("mpirun")
    if found is None:
        raise RungError(f"mpiexec was not found; `{INSTALL}` installs it (or apt install openmpi-bin).")
    return found


def available() -> str | None:
    """None if ranks can be launched, else the reason and the fix."""
    import importlib.util

    if importlib.util.find_spec("mpi4py") is None:
        return f"mpi4py is not installed; `{INSTALL}` installs it and an MPI library."
    try:
        mpiexec()
    except RungError as error:
        return str(error)
    return None


def run(program: Sequence[str], ranks: int, *, limit: float, host_options: Sequence[str] = ()) -> str:
    """Run a Python program (`-m`, name, arguments) on this many ranks; returns its standard output, or raises a
    RungError."""
    launcher = mpiexec()
    kind = subprocess.run([launcher, "--version"], capture_output=True, text=True, check=False).stdout
    environment = {**os.environ, "RUNG_RANKS": str(ranks), "OMP_NUM_THREADS": "1"}
    options: list[str] = []
    if "Open MPI" in kind or "OpenRTE" in kind:
        options = ["--oversubscribe", "--bind-to", "none"]  # ranks share cores, so threads are not bound to one
        if os.geteuid() == 0:  # a container has no other users
            environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = [launcher, *options, *host_options, "-n", str(ranks), sys.executable, *program]
    return _one_sentence(command, environment, limit, ranks, "MPI")


def torchrun(module: str, arguments: Sequence[str], processes: int, *, limit: float) -> str:
    """The same for processes that meet through torch.distributed on this machine."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    return _one_sentence([*command, "-m", module, *arguments], environment, limit, processes, "torchrun")


def _one_sentence(command: list[str], environment: dict[str, str], limit: float, ranks: int, kind: str) -> str:
    with tempfile.TemporaryDirectory(prefix="rung-job-") as folder:
        words = Path(folder) / "failure"
        code, out, err = _run(command, {**environment, FILE: str(words)}, limit, ranks, kind)
        if code == 0:
            return out
        if words.exists():
            raise RungError(words.read_text(encoding="utf-8"))
    raise RungError(complaint(err + out, ranks, code, kind))


def _run(command: list[str], environment: dict[str, str], limit: float, ranks: int, kind: str) -> tuple[int, str, str]:
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=limit)
    except BaseException as error:
        _end(process)
        if isinstance(error, subprocess.TimeoutExpired):
            raise RungError(
                f"the {kind} job of {ranks} ranks did not end within {limit:g} s and was stopped."
            ) from None
        raise
    return process.returncode, out, err


def _end(process: subprocess.Popen[str]) -> None:
    """mpiexec ends its ranks on request; remaining processes are killed with its process group."""
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def complaint(text: str, ranks: int, code: int, kind: str = "MPI") -> str:
    """The error sentence in a failed job's output."""
    for line in text.splitlines():
        if line.startswith("rung: "):
            return line.removeprefix("rung: ")
    # Open MPI: "process rank 1 with PID 7 on node x exited on signal 9 (Killed)"
    found = re.search(r"rank\s+(\d+)\b.*?signal:?\s+(\d+)", text, re.IGNORECASE | re.DOTALL)
    if found:
        rank, number = int(found[1]), int(found[2])
        return f"rank {rank} of {ranks} died of signal {number} ({_signal_name(number)}), which ended the job."
    signalled = re.search(r"EXIT CODE:\s+(\d+)", text)
    if signalled and int(signalled[1]) in range(1, 65) and "BAD TERMINATION" in text:
        number = int(signalled[1])
        return f"a rank of {ranks} died of signal {number} ({_signal_name(number)}), which ended the job."
    last = next((line.strip() for line in reversed(text.splitlines()) if line.strip(" -=\t")), "it printed nothing")
    return f"the {kind} job of {ranks} ranks failed with exit code {code}: {last[:200]}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


FILE = "RUNG_FAILURE_FILE"  # environment variable: a file for the first failing process's message


def report(error: BaseException, who: str) -> None:
    """Write the error to standard error and to the launcher's file, since forwarded output may be lost when the job
    ends."""
    words = str(error) if isinstance(error, RungError) else f"{who}: {error!r}"
    words = " ".join(words.split())
    if FILE in os.environ:
        with contextlib.suppress(OSError), Path(os.environ[FILE]).open("x", encoding="utf-8") as file:
            file.write(words)
    print(f"rung: {words}", file=sys.stderr, flush=True)
    if os.environ.get("RUNG_TRACEBACK"):
        traceback.print_exception(error)
