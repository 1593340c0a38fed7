"""The processors and GPUs that this process may use."""

import os
import time
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def processors() -> int:
    """Their number; fewer than the machine has if an affinity mask or a container's quota restricts the process.

    A quota is rounded down: threads that wait for each other by spinning would use it up while one of them is stopped.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, int(min((q for q in map(_quota, _groups()) if q), default=allowed))))


def available_memory() -> int:
    """Bytes that this process can still allocate, with those that the kernel can free, within a container's limit."""
    fields = dict(line.split(":", 1) for line in _lines(Path("/proc/meminfo")) if ":" in line)
    free = int(fields["MemAvailable"].split()[0]) << 10 if "MemAvailable" in fields else _free_pages()
    return max(0, min([free, *(left for left in map(_left, _groups()) if left is not None)]))


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process; OSError once it has ended, or where the system does not tell."""
    return time.clock_gettime(~pid << 3 | 2)  # as clock_getcpuclockid(3) makes it


def _free_pages() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _groups() -> list[Path]:
    """This process's control group and those above it, in the hierarchy of version 2, and version 1's as mounted."""
    found = [CGROUP]
    for line in _lines(Path("/proc/self/cgroup")):  # number:controllers:path; version 2 names no controllers
        _, controllers, path = line.split(":", 2)
        folder = CGROUP / controllers / path.strip("/")
        found += [folder, *(above for above in folder.parents if above.is_relative_to(CGROUP))]
    return found


def _quota(group: Path) -> float | None:
    """Processors' worth of time per period."""
    if (words := " ".join(_lines(group / "cpu.max")).split()) and words[0] != "max":
        return int(words[0]) / int(words[1])
    quota, period = (_number(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return quota / period if quota and period and quota > 0 else None


def _left(group: Path) -> int | None:
    """Bytes below a group's limit; pages of files are counted as free, since the kernel gives them back."""
    for limit, usage, pages in (("memory.max", "memory.current", "inactive_file"),
                                ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")):  # fmt: skip
        most, used = _number(group / limit), _number(group / usage)
        if most is not None and used is not None:
            files = next((int(w[1]) for w in map(str.split, _lines(group / "memory.stat")) if w[0] == pages), 0)
            return most - used + files
    return None


def _number(file: Path) -> int | None:
    text = "".join(_lines(file)).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return []


def gpu_named(index: int) -> str:
    """The name of this process's GPU with that index, for a child's CUDA_VISIBLE_DEVICES."""
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return visible[index] if index < len(visible) else str(index)
