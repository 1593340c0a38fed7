"""Wave quantisation: blocks run in rounds, and a last round of few blocks costs as much as a whole one."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

from rung.rungs import catalogue
from rung.show import charts
from rung.show.found import Found
from rung.study.common import Lab, need_gpu, shown

RUNG, LIBRARY = "matmul/14_mma_pipeline", "matmul/torch"
K = 1024


def run(lab: Lab) -> Found:
    """A product whose rows grow tile by tile, its columns such that whole rounds come at whole numbers of tiles."""
    need_gpu(lab, "waves")
    tune = catalogue.find(RUNG).tuned(None)
    across = _divisor(lab.sms)
    columns = across * tune["BN"]
    sizes = row_counts(lab.sms // across, tune["BM"], lab.quick)
    points = []
    for rows in sizes:
        race = lab.race((RUNG, LIBRARY), {"B": 1, "T": rows, "C": K, "OC": columns}, "bf16", seconds=0.1)
        tiles = -(-rows // tune["BM"]) * across
        points.append((rows, tiles, -(-tiles // lab.sms), race[RUNG].us, race[LIBRARY].us))
    return found(points, columns, lab.sms)


def _divisor(sms: int) -> int:
    """The divisor of `sms` nearest to 11: it makes waves of about a dozen rows of tiles."""
    return min((d for d in range(1, sms + 1) if sms % d == 0), key=lambda d: (abs(d - 11), d))


def row_counts(tiles_a_wave: int, tile: int, quick: bool) -> list[int]:
    """Rows up to three waves: whole waves, one row more, and places between."""
    sizes = set()
    for wave in (1, 2) if quick else (1, 2, 3):
        edge = wave * tiles_a_wave * tile
        sizes |= {edge, edge + 1, edge + tile, edge - tiles_a_wave * tile // 2}
        if not quick:
            step = max(1, tiles_a_wave // 4) * tile
            sizes |= set(range(edge - tiles_a_wave * tile + step, edge, step))
    return sorted(s for s in sizes if s > 0)


Points = Sequence[tuple[int, int, int, float | None, float | None]]  # rows, tiles, waves, ours us, cuBLAS us


def found(points: Points, columns: int, sms: int) -> Found:
    """The table, and the saw-tooth that a constant time a wave predicts."""
    wave_us = statistics.median([us / waves for _, _, waves, us, _ in points if us] or [0.0])

    def rate(rows: int, us: float | None) -> float | None:
        return 2 * rows * columns * K / us / 1e6 if us else None

    rows = [
        (
            m,
            tiles,
            waves,
            f"{tiles / (waves * sms):.0%}",
            shown(ours),
            shown(wave_us * waves),
            "" if ours is None else f"{rate(m, ours):.0f}",
            "" if theirs is None else f"{rate(m, theirs):.0f}",
        )
        for m, tiles, waves, ours, theirs in points
    ]
    name = RUNG.partition("/")[2]
    series = [
        charts.Series(name, [(float(m), rate(m, us)) for m, _, _, us, _ in points], "f32"),
        charts.Series(
            "predicted", [(float(m), rate(m, wave_us * w)) for m, _, w, _, _ in points], "limit", dashed=True
        ),
        charts.Series("cuBLAS", [(float(m), rate(m, us)) for m, _, _, _, us in points], "library"),
    ]
    return Found(
        f"M x {K} times {K} x {columns} in bf16: what the last wave costs",
        ("M", "tiles", "waves", "filled", "us", "predicted us", "TFLOP/s", "cuBLAS TFLOP/s"),
        rows,
        sentence(points),
        series,
        "M (rows of the result)",
        "TFLOP/s, cold",
        log_x=False,
        log_y=False,
    )


def sentence(points: Points) -> str:
    """The cost of one row beyond a whole number of waves."""
    steps = [
        (a[0], b[0], b[3] / a[3] - 1, b[2] / a[2] - 1)
        for a, b in itertools.pairwise(points)
        if b[0] == a[0] + 1 and b[2] > a[2] and a[3] and b[3]
    ]
    if not steps:
        return "No pair on both sides of a wave's edge could be timed."
    m, more, seen, predicted = max(steps, key=lambda s: s[2])
    return (
        f"One row more than a whole number of waves ({m} to {more}) costs {seen:+.0%} of the time for "
        f"{1 / m:.1%} more work; a constant time a wave predicts {predicted:+.0%}."
    )
