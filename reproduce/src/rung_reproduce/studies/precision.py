"""f32, tf32, f16 and bf16 compared: the time of each ladder's fastest rung, and its error."""

from __future__ import annotations

import torch

from gpuless.base.expressions import Number
from rung_reproduce.show import charts
from rung_reproduce.show.charts import Found
from rung_reproduce.studies.common import Runner, Time, shown, times

DTYPES = ("f32", "tf32", "f16", "bf16")
GPT2: dict[str, Number] = {"B": 8, "T": 1024, "C": 768}
# operation -> (shape, rungs to choose the fastest from)
ASKED: dict[str, tuple[dict[str, Number], tuple[str, ...]]] = {
    "gelu": ({**GPT2, "C": 3072}, ("gelu/02_vector", "gelu/04_in_flight")),
    "layernorm": (GPT2, ("layernorm/08_registers", "layernorm/09_split")),
    "softmax": ({"B": 1, "NH": 12, "T": 1024, "S": 1024}, ("softmax/07_registers", "softmax/05_warp")),
    "matmul": ({**GPT2, "OC": 3072}, ("matmul/14_mma_pipeline", "matmul/08_double_buffer", "matmul/02_coalesced")),
    "attention": (
        {**GPT2, "NH": 12},
        ("attention/27_tensor_cores", "attention/24_output_in_registers", "attention/29_triton"),
    ),
}


def run(runner: Runner) -> Found:
    """On a GPU, times and errors; without one, only the errors, from the emulator."""
    best: dict[tuple[str, str], tuple[str, Time]] = {}
    for operation, (values, rungs) in ASKED.items():
        for dtype in DTYPES:
            right = {n: t for n, t in runner.race(rungs, values, dtype).items() if not t.reason}
            if right:
                name = min(right, key=lambda n: (right[n].us or 0.0, rungs.index(n)))
                best[operation, dtype] = (name, right[name])
    rows = []
    for (operation, dtype), (name, time) in best.items():
        base = best.get((operation, "f32"))
        gain = base[1].us / time.us if base and base[1].us and time.us else None
        cells = (shown(time.us), "" if gain is None else f"{gain:.2f}x", f"{time.norm:.1e}")
        rows.append((operation, dtype, name.partition("/")[2], *cells))
    series = [
        charts.Series(
            dtype,
            [(float(i), best[o, dtype][1].us if (o, dtype) in best else None) for i, o in enumerate(ASKED, 1)],
            dtype,
        )
        for dtype in DTYPES
    ]
    where = "GPT-2 at 8 x 1024 tokens" if runner.gpu else "each operation's cases on the emulator, no times"
    whole = Found(
        f"Time and error of each number format: {where}",
        ("operation", "dtype", "fastest rung", "us", "against f32", "relative error"),
        rows,
        sentence(best),
        series,
        "row of operations: " + ", ".join(ASKED),
        "us, cold",
        log_x=False,
    )
    whole.more["bits and range"] = bits_and_range()
    return whole


def bits_and_range() -> Found:
    """What the lecture says of 16 bits: a sum needs more bits than its terms, exp more range than float16."""
    ones = torch.full((8192,), 0.1)
    score = torch.tensor([12.0, 11.0, 3.0])
    exact = ones.double().sum().item()
    rows: list[tuple[object, ...]] = []
    for name, kind in (("f16", torch.float16), ("bf16", torch.bfloat16), ("f32", torch.float32)):
        total = torch.zeros((), dtype=kind)
        for x in ones.to(kind):
            total = total + x
        error = abs(total.item() / exact - 1)
        rows.append((f"sum of {len(ones)} times 0.1", name, f"{total.item():.6g}", f"{error:.1e}"))
    truth = score.double().softmax(0)
    for name, kind in (("f16", torch.float16), ("bf16", torch.bfloat16), ("f32", torch.float32)):
        for how, shift in (("as it is", 0.0), ("less the maximum", float(score.max()))):
            powers = (score.to(kind) - shift).exp()
            error = (powers.float() / powers.float().sum() - truth).abs().max().item()
            rows.append((f"softmax of 12, 11, 3: exp {how}", name, f"{powers[0].item():.6g}",
                         "overflows" if error != error else f"{error:.1e}"))  # fmt: skip
    return Found(
        "Sums that lose their terms, and exponentials that overflow",
        ("case", "dtype", "result", "error"),
        rows,
        "A sum in 16 bits stops growing when a term is less than half a unit of its last place; exp(12) is beyond "
        "float16's 65504 and within bfloat16's range. Kernels therefore sum in float and subtract the maximum.",
    )


def sentence(best: dict[tuple[str, str], tuple[str, Time]]) -> str:
    """The gain and the error of bf16, where it gains most."""
    gains = {
        o: best[o, "f32"][1].us / best[o, "bf16"][1].us  # type: ignore[operator]
        for o in ASKED
        if all((o, d) in best and best[o, d][1].us for d in ("f32", "bf16"))
    }
    errors = {d: max((t.norm for (_, e), (_, t) in best.items() if e == d), default=0.0) for d in DTYPES}
    lost = ", ".join(f"{error:.0e} in {dtype}" for dtype, error in errors.items() if error)
    if not gains:
        return f"The largest relative errors are {lost}; no time was measured."
    most, least = max(gains, key=lambda o: gains[o]), min(gains, key=lambda o: gains[o])
    return (
        f"From f32 to bf16 {most} becomes {times(gains[most])} as fast and {least} {times(gains[least])}; "
        f"the largest relative errors are {lost}."
    )
