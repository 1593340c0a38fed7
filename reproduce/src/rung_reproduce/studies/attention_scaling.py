"""Attention over growing contexts: with all scores in memory, within a window, and tile by tile."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rung_reproduce.show import charts
from rung_reproduce.show.charts import Found
from rung_reproduce.studies.common import Runner, need_gpu, shown, times

B, C, NH = 1, 768, 12
NAIVE, FLASH = "attention/09_joint_tiles", "attention/24_output_in_registers"
TENSOR, LIBRARY = "attention/27_tensor_cores", "attention/sdpa_flash"
LOCAL = "local_attention/03_tiles"
# label -> (rung, dtype)
CURVES = {
    "five kernels, f32": (NAIVE, "f32"),
    "windowed (128), f32": (LOCAL, "f32"),
    "flash, f32": (FLASH, "f32"),
    "flash, bf16 tensor cores": (TENSOR, "bf16"),
    "torch's flash, bf16": (LIBRARY, "bf16"),
}


def run(runner: Runner) -> Found:
    """GPT-2's twelve heads of 64, one sequence."""
    need_gpu(runner, "attention-scaling")
    sizes = [256, 1024, 4096] if runner.quick else [256, 512, 1024, 2048, 4096, 8192]
    us: dict[str, dict[int, float]] = {label: {} for label in CURVES}
    peak: dict[str, dict[int, int]] = {label: {} for label in CURVES}
    for n in sizes:
        values = {"B": B, "T": n, "C": C, "NH": NH}
        for label, (rung, dtype) in CURVES.items():
            time = runner.race((rung,), values, dtype)[rung].us
            if time is not None:
                us[label][n] = time
                extra = runner.peak(rung, values, dtype)
                if extra is not None:
                    peak[label][n] = extra
    rows = [(n, *(f"{shown(us[label].get(n))} / {_bytes(peak[label].get(n))}" for label in CURVES)) for n in sizes]
    series = [
        charts.Series(label, [(float(n), us[label].get(n)) for n in sizes], charts.SERIES[i])
        for i, label in enumerate(CURVES)
    ]
    return Found(
        "Causal attention, twelve heads of 64: time and memory beside the operands, over the context",
        ("N", *CURVES),
        rows,
        sentence(us, peak),
        series,
        "N (tokens)",
        "us, cold",
    )


def _bytes(size: int | None) -> str:
    if size is None:
        return ""
    return f"{size / 1e6:.1f} MB" if size < 1e9 else f"{size / 1e9:.2f} GB"


def growth(us: Mapping[int, float]) -> float | None:
    """The exponent with which the time grew over the last two sizes."""
    last = sorted(us)[-2:]
    if len(last) < 2:
        return None
    return math.log(us[last[1]] / us[last[0]]) / math.log(last[1] / last[0])


def sentence(us: Mapping[str, Mapping[int, float]], peak: Mapping[str, Mapping[int, int]]) -> str:
    """How the kinds of attention compare at the longest context that all of them ran at."""
    naive, windowed, flash = (list(CURVES)[i] for i in (0, 1, 2))
    common = sorted(set(us.get(naive, {})) & set(us.get(flash, {})))
    if not common:
        return "Nothing could be compared here."
    n = common[-1]
    text = f"At {n} tokens tiles are {times(us[naive][n] / us[flash][n])} as fast as five kernels"
    a, b = peak.get(naive, {}).get(n), peak.get(flash, {}).get(n)
    if a is not None and b is not None:
        text += f" and need {_bytes(b)} instead of {_bytes(a)} beside the operands"
    power = growth(us.get(windowed, {}))
    if power is not None:
        text += f"; the window's time grows with N to the {power:.1f}, the tiles' to the {growth(us[flash]):.1f}"
    return text + "."
