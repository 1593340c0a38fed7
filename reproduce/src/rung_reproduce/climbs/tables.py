"""A climb as it is printed: a line for each step, and a table."""

from __future__ import annotations

from collections.abc import Sequence

from rung.results.row import Row
from rung.show.verb_tables import Table
from rung_reproduce.climbs.model import Climb, Climbed
from rung_reproduce.show.attention_text_chart import result


def line(row: Climbed) -> str:
    if row.verdict != "ok":
        return f"{row.dtype} {row.name}: {row.verdict}: {row.reason}"
    speed = "right" if row.tokens_per_second is None else f"{row.tokens_per_second:,.0f} tokens/s"
    return f"{row.dtype} {row.name}: {speed}"


def climbed(result: Climb) -> Table:
    columns = (
        "step", "dtype", "tokens/s", "vs before", "kernels, ms", "first, ms", "peak, MB", "of bandwidth", "KL", "same",
        "tokens", "",
    )  # fmt: skip
    shown = []
    for row in result.rows:
        known = row.tokens_per_second is not None
        shown.append(
            (
                row.name,
                row.dtype,
                f"{row.tokens_per_second:,.0f}" if known else "",
                f"{row.gain:.2f}x" if row.gain else "",
                f"{row.kernel_seconds * 1e3:.3g}" if row.kernel_seconds else "",
                f"{row.first_seconds * 1e3:.1f}" if row.first_seconds else "",
                f"{row.peak_bytes / 1e6:,.0f}" if row.peak_bytes else "",
                f"{row.of_bandwidth:.1%}" if row.of_bandwidth else "",
                f"{row.divergence:.1e}" if row.divergence is not None else "",
                f"{row.identical}" if row.identical is not None else "",
                row.tokens or "",
                row.reason or ("" if row.verdict == "ok" else row.verdict),
            )
        )
    return Table(columns, shown, columns[2:11], ("tokens", "kernels, ms", "peak, MB", "same", "first, ms", "KL"))


def attention_study(rows: Sequence[Row]) -> Table:
    columns = ("attention", "time", "against naive torch at the same length", "same tokens", "")
    shown = [
        (
            row.part,
            result(row) if row.verdict == "ok" else "",
            f"{row.metrics['vs_naive']:.2f}x" if row.verdict == "ok" else "",
            f"{row.metrics['same_tokens']:.0f}" if "same_tokens" in row.metrics else "",
            row.reason,
        )
        for row in rows
    ]
    return Table(columns, shown, columns[1:4])
