"""The processors that this process may use."""

import os


def processors() -> int:
    """How many: fewer than the machine has where an affinity mask says so."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
