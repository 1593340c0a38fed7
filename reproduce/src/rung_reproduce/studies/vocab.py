"""The language model's head: GPT-2's 50257 columns against 50304, a multiple of 64."""

from __future__ import annotations

from rung_reproduce.show import charts
from rung_reproduce.show.charts import Found
from rung_reproduce.studies.common import Runner, Time, need_gpu, shown, times

OURS = ("matmul/14_mma_pipeline", "matmul/16_persistent", "matmul/17_triton")
LIBRARY = "matmul/torch"
RAGGED, ROUND = 50257, 50304


def run(runner: Runner) -> Found:
    """256 tokens times the vocabulary, in bf16 and tf32."""
    need_gpu(runner, "vocab")
    rows = []
    gains: dict[tuple[str, str], tuple[float, float]] = {}
    series = []
    for number, dtype in enumerate(("bf16",) if runner.quick else ("bf16", "tf32")):
        both = {
            width: runner.race((*OURS, LIBRARY), {"B": 4, "T": 64, "C": 768, "OC": width}, dtype, seconds=0.25)
            for width in (RAGGED, ROUND)
        }
        for name in (*OURS, LIBRARY):
            ragged, whole = both[RAGGED][name], both[ROUND][name]
            if ragged.us and whole.us:
                gains[dtype, name] = (ragged.us, whole.us)
            rows.append((dtype, name.partition("/")[2], _cell(ragged), _cell(whole), _ratio(ragged, whole)))
        best = [min(both[w][n].us or 1e30 for n in OURS) for w in (RAGGED, ROUND)]
        series += [
            charts.Series(
                f"best of ours, {dtype}",
                [(float(w), b if b < 1e30 else None) for w, b in zip((RAGGED, ROUND), best, strict=True)],
                charts.SERIES[2 * number],
            ),
            charts.Series(
                f"cuBLAS, {dtype}",
                [(float(w), both[w][LIBRARY].us) for w in (RAGGED, ROUND)],
                charts.SERIES[2 * number + 1],
            ),
        ]
    return Found(
        "256 x 768 times a vocabulary of 50257 or 50304",
        ("dtype", "rung", f"{RAGGED}, us", f"{ROUND}, us", "ragged costs"),
        rows,
        sentence(gains),
        series,
        "columns of the vocabulary",
        "us, cold",
        log_x=False,
        log_y=False,
    )


def _cell(time: Time) -> str:
    return shown(time.us) if time.us else time.reason


def _ratio(ragged: Time, whole: Time) -> str:
    return f"{ragged.us / whole.us:.2f}x" if ragged.us and whole.us else ""


def sentence(gains: dict[tuple[str, str], tuple[float, float]]) -> str:
    """The cost of the odd width, and the fastest implementation at it."""
    parts = []
    for dtype in dict.fromkeys(d for d, _ in gains):
        library = gains.get((dtype, LIBRARY))
        ours = {n: g for (d, n), g in gains.items() if d == dtype and n != LIBRARY}
        if not library or not ours:
            continue
        name = min(ours, key=lambda n: ours[n][0])
        ragged, whole = ours[name]
        parts.append(
            f"in {dtype} the ragged vocabulary costs cuBLAS {times(library[0] / library[1])} and "
            f"{name.partition('/')[2]} {times(ragged / whole)}, which at {RAGGED} makes ours "
            f"{times(library[0] / ragged)} as fast as cuBLAS"
        )
    text = "; ".join(parts)
    return text[:1].upper() + text[1:] + "." if text else "Nothing could be compared here."
