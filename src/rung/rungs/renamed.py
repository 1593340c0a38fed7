"""Rungs that have had other names: rows of measurements under these belong to the rung of today. A rung whose idea was
a kind of launch belongs to the rung that it launched."""

from __future__ import annotations

import re

NAMES = {
    "decode": {
        "05_graph": "04_one_row",
        "06_dependent_launch": "05_dependent_launch",
        "07_ahead": "05_dependent_launch",
        "08_int8": "05_dependent_launch_int8",
        "09_batch": "07_batch",
        "10_streamed": "06_streamed",
        "11_streamed_int8": "06_streamed_int8",
        "12_library_products": "08_library_products",
        "13_one_kernel": "14_pacing",
        "14_one_kernel_int8": "14_pacing_int8",
        "15_one_kernel_f32": "14_pacing",
        "16_grid_barriers": "10_grid_barriers",
        "17_epochs": "11_epochs",
        "18_weight_ring": "12_weight_ring",
        "19_tensor_cores": "13_tensor_cores",
        "20_few_rows": "15_few_rows",
        "21_few_rows_int8": "15_few_rows_int8",
        "22_few_rows_f32": "15_few_rows",
        "23_clusters": "16_clusters",
        "24_clusters_int8": "16_clusters_int8",
        "25_eight_bit_cache": "09_eight_bit_cache",
    }
}
STEPS = {"decode 05_graph": "decode 04_one_row, one graph", "decode 07_ahead": "decode 05_dependent_launch, ahead"}

_BARE = {old: new for names in NAMES.values() for old, new in names.items()}
_FULL = {f"{ladder}{mark}{old}": f"{ladder}{mark}{new}" for ladder, names in NAMES.items() for old, new in names.items()
         for mark in "/ "} | STEPS  # fmt: skip
_OLD = re.compile("|".join(rf"\b{old}\b" for old in _FULL) + "|" + "|".join(f'"rung": "{old}"' for old in _BARE))


def renewed(line: bytes) -> bytes:
    """A stored line with the names of today."""
    if not any(ladder.encode() in line for ladder in NAMES):
        return line
    return _OLD.sub(_new, line.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _new(found: re.Match[str]) -> str:
    old = found[0]
    return _FULL[old] if old in _FULL else f'"rung": "{_BARE[old.split(chr(34))[3]]}"'
