"""Wave quantisation: blocks run in waves, and a last wave of few blocks costs as much as a full one."""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rung.rungs import catalogue, identity
from rung_reproduce.show import charts
from rung_reproduce.show.charts import Found
from rung_reproduce.studies.common import Runner, need_gpu, shown

RUNG, LIBRARY = "matmul/14_mma_pipeline", "matmul/torch"
K = 1024


def run(runner: Runner) -> Found:
    """A product whose rows grow tile by tile, with columns such that full waves occur at whole numbers of tiles."""
    need_gpu(runner, "waves")
    tune = catalogue.find(RUNG).tuned(None)
    across = _divisor(runner.sms)
    columns = across * tune["BN"]
    sizes = row_counts(runner.sms // across, tune["BM"], runner.quick)
    points = []
    for rows in sizes:
        race = runner.race((RUNG, LIBRARY), {"B": 1, "T": rows, "C": K, "OC": columns}, "bf16", seconds=0.1)
        tiles = -(-rows // tune["BM"]) * across
        points.append((rows, tiles, -(-tiles // runner.sms), race[RUNG].us, race[LIBRARY].us))
    whole = found(points, columns, runner.sms)
    whole.more["limited"] = limited(runner)
    whole.more["squares"] = squares([(n, *square(runner, n)) for n in square_sizes(runner.quick)], runner.sms, tune)
    return whole


A100 = 108  # multiprocessors of the GPU in the lecture
PERSISTENT = "matmul/16_persistent"  # blocks of 128 x 256 that loop over tiles, as many as the grid has


def limited(runner: Runner) -> Found:
    """The lecture's pair on as many blocks as an A100 has SMs, at sizes that divide by 8: only the tiles change."""
    rung = catalogue.find(PERSISTENT)
    assert rung.path is not None
    text = rung.path.read_text(encoding="utf-8")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "limited.cu"
        path.write_text(text.replace("min(BLOCKS * sms,", f"min({A100},"), encoding="utf-8")
        one = catalogue.rung_from_file(rung.operation, path)
        for n in (1792, 1856):
            time = runner.race([one], {"B": 1, "T": n, "C": n, "OC": n}, "bf16")[one.full_name]
            tiles = -(-n // 128) * -(-n // 256)
            rows.append((n, tiles, -(-tiles // A100), shown(time.us)))
    found = Found(
        f"N x N x N in bf16 on {A100} blocks, tiles of 128 x 256: a second wave for twelve tiles",
        ("N", "tiles", "waves", "us"),
        rows,
        f"1792 has 98 tiles and 1856 has 120: one wave of {A100} blocks, and two.",
    )
    found.texts = {rung.full_name: identity.text(rung)}
    return found


SQUARES = (1792, 2048)  # sizes around which a tile of 256 x 128 adds a wave on an A100, and a power of two


def square_sizes(quick: bool) -> list[int]:
    """Square products as plotted in the lecture: multiples of 128 and of 32, and the neighbours of some."""
    if quick:
        return [1024, 1536, *(n + d for n in SQUARES for d in (0, 1))]
    sizes = set(range(512, 4097, 128)) | set(range(1472, 2081, 32))  # multiples of 128 and of 32
    sizes |= {n + d for n in (1024, *SQUARES, 3072) for d in (-8, -1, 0, 1, 2, 8)}
    return sorted(sizes)


def square(runner: Runner, n: int) -> tuple[float | None, float | None]:
    """Microseconds of N x N x N by our kernel and by cuBLAS."""
    race = runner.race((RUNG, LIBRARY), {"B": 1, "T": n, "C": n, "OC": n}, "bf16", seconds=0.02)
    return race[RUNG].us, race[LIBRARY].us


def band(n: int) -> int:
    """The largest power of two up to 128 that divides the size: the bands of the plot."""
    return min(n & -n, 128)


def squares(points: Sequence[tuple[int, float | None, float | None]], sms: int, tune: Mapping[str, int]) -> Found:
    """Rates over the size, a curve for each band of divisibility."""
    rows = []
    for n, ours, theirs in points:
        tiles = -(-n // tune["BM"]) * -(-n // tune["BN"])
        lecture = -(-n // 256) * -(-n // 128)
        rates = (_rate(n**3, ours), _rate(n**3, theirs))
        rows.append((n, band(n), tiles, -(-tiles // sms), lecture, shown(ours), shown(theirs),
                     *("" if r is None else f"{r:.0f}" for r in rates)))  # fmt: skip
    bands = sorted({band(n) for n, _, _ in points}, reverse=True)
    series = [
        charts.Series(
            f"cuBLAS, multiples of {b}" if b > 1 else "cuBLAS, odd sizes",
            [(float(n), _rate(n**3, us)) for n, _, us in points if band(n) == b],
            ("library", *charts.SERIES)[i % (1 + len(charts.SERIES))],
        )
        for i, b in enumerate(bands)
    ]
    return Found(
        "N x N x N in bf16: bands by N's largest divisor, steps where a wave begins",
        ("N", "divisible by", "tiles", "waves", "tiles of 256 x 128", "us", "cuBLAS us", "TFLOP/s", "cuBLAS TFLOP/s"),
        rows,
        square_sentence(points),
        series,
        "N",
        "TFLOP/s, cold",
        log_x=False,
        log_y=False,
    )


def _rate(pairs: int, us: float | None) -> float | None:
    """TFLOP/s of so many multiplications and as many additions."""
    return 2 * pairs / us / 1e6 if us else None


def square_sentence(points: Sequence[tuple[int, float | None, float | None]]) -> str:
    """The cost of one more row and column at the lecture's example, and the median cost of odd sizes."""
    theirs = {n: us for n, _, us in points if us}
    parts = []
    if 1792 in theirs and 1793 in theirs:
        parts.append(f"1793 takes cuBLAS {theirs[1793] / theirs[1792]:.2f} times as long as 1792")
    odd = [theirs[n] / theirs[n - 1] for n in theirs if n % 2 and n - 1 in theirs]
    if odd:
        parts.append(f"one more than a multiple of 128 costs {statistics.median(odd) - 1:+.0%} in the median")
    return "; ".join(parts) + "." if parts else "Nothing could be compared here."


def _divisor(sms: int) -> int:
    """The divisor of `sms` nearest to 11: it makes waves of about a dozen rows of tiles."""
    return min((d for d in range(1, sms + 1) if sms % d == 0), key=lambda d: (abs(d - 11), d))


def row_counts(tiles_a_wave: int, tile: int, quick: bool) -> list[int]:
    """Rows up to three waves: full waves, one row more, and sizes between."""
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
    """The table, and the sawtooth that a constant time per wave predicts."""
    wave_us = statistics.median([us / waves for _, _, waves, us, _ in points if us] or [0.0])
    work = columns * K
    rows = [
        (m, tiles, waves, f"{tiles / (waves * sms):.0%}", shown(ours), shown(wave_us * waves),
         *("" if us is None else f"{_rate(m * work, us):.0f}" for us in (ours, theirs)))
        for m, tiles, waves, ours, theirs in points
    ]  # fmt: skip
    name = RUNG.partition("/")[2]
    series = [
        charts.Series(name, [(float(m), _rate(m * work, us)) for m, _, _, us, _ in points], "f32"),
        charts.Series(
            "predicted", [(float(m), _rate(m * work, wave_us * w)) for m, _, w, _, _ in points], "limit", dashed=True
        ),
        charts.Series("cuBLAS", [(float(m), _rate(m * work, us)) for m, _, _, _, us in points], "library"),
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
        return "No pair of sizes on both sides of a wave boundary could be timed."
    m, more, seen, predicted = max(steps, key=lambda s: s[2])
    return (
        f"One row more than a whole number of waves ({m} to {more}) costs {seen:+.0%} of the time for "
        f"{1 / m:.1%} more work; a constant time per wave predicts {predicted:+.0%}."
    )
