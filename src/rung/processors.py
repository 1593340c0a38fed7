"""The processors and GPUs that this process may use."""

import os


def processors() -> int:
    """Their number; fewer than the machine has if an affinity mask restricts the process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpu_named(index: int) -> str:
    """The name of this process's GPU with that index, for a child's CUDA_VISIBLE_DEVICES."""
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return visible[index] if index < len(visible) else str(index)
