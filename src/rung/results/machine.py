"""Which machine a figure was taken on: stored with every result."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from typing import Any

from gpuless.facts import gpus
from rung.lazy import has_gpu, torch


def datasheet() -> Mapping[str, float]:
    """The vendor's ceilings of the present GPU; empty if it is not in the table."""
    return gpus.rates(torch.cuda.get_device_name()) if has_gpu() else {}


def rate(rates: Mapping[str, float], dtype: str, products: str = "") -> float | None:
    """The rate of products in this format: twice the dtype's if two of every four factors are zero."""
    if products == "2:4":
        return 2 * rates[dtype] if dtype in rates else None
    return rates.get(products or dtype)


def rate_limit(sheet: Mapping[str, float], dtype: str, products: str = "") -> float | None:
    """FLOP/s that no kernel can exceed. A float32 product can also be three of tf32 or halves on tensor cores."""
    if products:
        return rate(sheet, dtype, products)
    own = sheet.get(dtype)
    if own is None or dtype != "f32":
        return own
    return max(own, *(sheet.get(kind, 0.0) / 3 for kind in ("tf32", "f16")))


@cache
def facts() -> dict[str, Any]:
    """Facts that do not change during a process: hardware and versions."""
    found: dict[str, Any] = {
        "host": platform.machine(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
    for package in ("torch", "triton", "cuda-core", "transformers"):
        found[package.replace("-", "_")] = _version(package)
    if has_gpu():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        found |= {
            "gpu": properties.name,
            "sms": properties.multi_processor_count,
            "l2_bytes": properties.L2_cache_size,
            "memory_bytes": properties.total_memory,
            "capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
            "driver": _smi("driver_version"),
        }
    return found


def state() -> dict[str, Any]:
    """Facts that may change while measuring: clocks, temperature, and throttling."""
    if not has_gpu():
        return {}
    names = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "clocks_throttle_reasons.active")
    values = _smi(",".join(names)).split(", ")
    return dict(zip(("sm_mhz", "memory_mhz", "celsius", "watts", "throttle"), values, strict=False))


def _smi(query: str) -> str:
    if not shutil.which("nvidia-smi"):
        return ""
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", "-i", _uuid()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else ""


def _uuid() -> str:
    """Of the GPU that this process uses, which need not be the machine's first."""
    return f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123
            return next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), "")
    except OSError:
        return platform.processor()
