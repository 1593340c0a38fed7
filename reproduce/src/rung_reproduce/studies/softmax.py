"""Rows of 256 to 8192: one thread that loops along a row, against a tree over a block."""

from __future__ import annotations

from rung_reproduce import sources
from rung_reproduce.show import charts
from rung_reproduce.show.charts import Found
from rung_reproduce.studies.common import Runner, need_gpu, shown, times

LINEAR, TREE = "softmax/01_naive", "softmax/02_tree"
OTHERS = ("softmax/05_warp", "softmax/08_split", "softmax/torch")


def run(runner: Runner) -> Found:
    """N rows of N columns, as attention's scores are."""
    need_gpu(runner, "softmax")
    sizes = [256, 1024, 4096] if runner.quick else list(sources.softmax())
    names = (LINEAR, TREE, *OTHERS)
    found = {n: runner.race(names, {"B": 1, "NH": 1, "T": n, "S": n, "causal": 0, "scale": 1.0}, "f32") for n in sizes}
    rows, gains = [], {}
    for n in sizes:
        linear, tree = found[n][LINEAR].us, found[n][TREE].us
        gain = linear / tree if linear and tree else None
        if gain:
            gains[n] = gain
        cells = [shown(found[n][name].us) for name in names]
        rows.append((n, *cells, f"{gain:.2f}x" if gain else "", f"{sources.softmax()[n][2]:.2f}x"))
    series = [
        charts.Series(name.partition("/")[2], [(float(n), found[n][name].us) for n in sizes], charts.SERIES[i])
        for i, name in enumerate(names)
    ]
    columns = ("N", *(n.partition("/")[2] for n in names), "tree gains", "source's tree gains")
    return Found(
        "Softmax over N rows of N: one thread per row against a tree",
        columns,
        rows,
        sentence(gains),
        series,
        "N (rows and columns, f32)",
        "us, cold",
    )


def sentence(gains: dict[int, float]) -> str:
    """A summary of the gains over N."""
    if not gains:
        return "Neither kernel could be timed here."
    most = max(gains, key=lambda n: gains[n])
    least = min(gains, key=lambda n: gains[n])
    first, last = min(gains), max(gains)
    trend = "less and less" if gains[first] > 1.2 * gains[last] else "more and more"
    if max(gains[first], gains[last]) < 1.2 * min(gains[first], gains[last]):
        trend = "about as much at both ends"
    return (
        f"The tree gains {times(gains[most])} at N = {most} and {times(gains[least])} at N = {least}: "
        f"{trend} as rows grow; the source saw 5.1x at 256 fall to 1.8x at 8192."
    )
