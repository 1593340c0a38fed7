"""The tables of measured speed in docs/generation.md and README.md, made of a published run of gpu_generate.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rung.show import attention_text_chart
from rung.show.parallel_tables import read, table, times

MEASURED = "results/h200/generate-2026-11-22.json"
STUDIED = "results/h200/climb-attention.json"
LENGTHS = (64, 512, 1024)
PEER = ("transformers, static + compile", "gain over it")
Rows = Mapping[tuple[str, str], Mapping[str, Any]]


def makers(root: Path) -> dict[str, Callable[[], str]]:
    """By the name of the part; without the measurements a part stays empty."""
    parts = {"speed:single": single, "speed:batch": batch, "speed:prompts": prompts, "gpu": summary}
    return {name: partial(_if_there, make, root / MEASURED) for name, make in parts.items()}


def pictures(root: Path) -> dict[str, str]:
    """Text written with one rung of attention after the other, if that was measured."""
    path = root / STUDIED
    if not path.is_file():
        return {}
    study = read(path)
    return {"attention-rung-by-rung": attention_text_chart.chart(study["model"], study["rows"])}


def _if_there(make: Callable[[Rows], str], path: Path) -> str:
    if not path.is_file():
        return ""
    return make({(row["section"], row["what"]): row for row in read(path)["rows"]})


def single(rows: Rows) -> str:
    """One sequence, by model and dtype; speed late in the context over speed early in it."""
    lines = []
    for (section, what), row in rows.items():
        if section == "single":
            late = rows.get(("context", what))
            lines.append(
                [
                    what,
                    row["rung"],
                    f"{row['value']:,.0f}",
                    f"{row['step_us']:,.0f}",
                    f"{row['share_of_bandwidth']:.0%}",
                    f"{late['value']:.2f}" if late else "",
                    *_beside_transformers(rows, f"{what} x 1", row["value"]),
                ]
            )
    heads = ("model", "rung", "tokens/s", "step, µs", "of bandwidth", "at 1000 tokens / at 50", *PEER)
    return table(heads, lines, words=2)


def _beside_transformers(rows: Rows, what: str, ours: float) -> tuple[str, str]:
    """Tokens a second of transformers on the same work, and the gain over it; empty where it was not measured."""
    row = rows.get(("peers", f"transformers {what} static + compile"))
    return (f"{row['value']:,.0f}", times(ours / row["value"])) if row else ("", "")


def batch(rows: Rows) -> str:
    """Several sequences at once."""
    lines = [
        [
            what,
            f"{row['value']:,.0f}",
            f"{row['step_us']:,.0f}",
            f"{row['first_ms']:.1f}",
            *_beside_transformers(rows, what, row["value"]),
        ]
        for (section, what), row in rows.items()
        if section == "batch"
    ]
    return table(("sequences", "tokens/s", "step, µs", "first token, ms", *PEER), lines)


def prompts(rows: Rows) -> str:
    """Reading one prompt: the ladders, torch's operations one by one, and transformers compiled."""
    lines = []
    for dtype in ("bfloat16", "float32"):
        for length in LENGTHS:
            ways = ("ladder", "torch", "transformers, compiled")
            ours, torch, peer = (float(rows["prefill", f"gpt2 {dtype} {length} {way}"]["value"]) for way in ways)
            lines.append([f"{dtype}, {length}", *(f"{x:.3f}" for x in (ours, torch, peer)), times(peer / ours)])
    return table(("gpt2, tokens", "`best`, ms", "torch, ms", "transformers compiled, ms", "gain over it"), lines)


def summary(rows: Rows) -> str:
    """Ours beside transformers on the same work, where it was measured in the same run."""
    lines = []
    for (section, what), row in rows.items():
        if section not in ("single", "batch"):
            continue
        size, _, count = what.partition(" x ")
        peer = rows.get(("peers", f"transformers {size} x {count or 1} static + compile"))
        theirs = float(peer["value"]) if peer else None
        lines.append(
            [
                f"{size}, {count} texts" if count else f"{size}, one text",
                f"{row['value']:,.0f}",
                f"{theirs:,.0f}" if theirs else "",
                times(row["value"] / theirs) if theirs else "",
            ]
        )
    return table(("", "tokens/s", "transformers, static cache + compile", "gain"), lines)
