"""Two kernels or one: the gain if the first one's result does not go to memory."""

from __future__ import annotations

from dataclasses import dataclass

from gpuless.base.expressions import Number
from rung_reproduce.show import charts
from rung_reproduce.show.charts import Found
from rung_reproduce.studies.common import Runner, need_gpu, shown, times

GPT2 = {"B": 8, "T": 1024, "C": 768}


@dataclass(frozen=True)
class Pair:
    """The same result by several kernels and by one; `first` holds calls that add up."""

    what: str
    first: tuple[tuple[str, dict[str, Number]], ...]
    fused: tuple[str, dict[str, Number]]
    dtype: str


PAIRS = (
    Pair(
        "sin² + cos²: five kernels",
        (("pointwise/01_five_kernels", {"N": 1 << 24}),),
        ("pointwise/02_fused", {"N": 1 << 24}),
        "f32",
    ),
    Pair(
        "residual, then layernorm",
        (("residual/02_vector", dict(GPT2)), ("layernorm/09_split", dict(GPT2))),
        ("layernorm/11_fused_residual", dict(GPT2)),
        "f32",
    ),
    Pair(
        "product, then GELU",
        (("matmul/14_mma_pipeline", {**GPT2, "OC": 3072}), ("gelu/04_in_flight", {**GPT2, "C": 3072})),
        ("matmul_gelu/03_tensor_cores", {**GPT2, "OC": 3072}),
        "bf16",
    ),
    Pair(
        "product, then residual",
        (("matmul/14_mma_pipeline", {**GPT2, "C": 3072, "OC": 768}), ("residual/02_vector", dict(GPT2))),
        ("matmul_residual/03_tensor_cores", {**GPT2, "C": 3072, "OC": 768}),
        "bf16",
    ),
    Pair(
        "layernorm, then product",
        (("layernorm/09_split", dict(GPT2)), ("matmul/14_mma_pipeline", {**GPT2, "OC": 2304})),
        ("layernorm_matmul/03_tensor_cores", {**GPT2, "OC": 2304}),
        "bf16",
    ),
    Pair(
        "five attention kernels",
        (("attention/10_wmma_tf32", {"B": 8, "T": 1024, "C": 768, "NH": 12}),),
        ("attention/29_triton", {"B": 8, "T": 1024, "C": 768, "NH": 12}),
        "tf32",
    ),
)


def run(runner: Runner) -> Found:
    """Each pair at GPT-2's shapes, 8 sequences of 1024 tokens."""
    need_gpu(runner, "fusion")
    rows = []
    gains: dict[str, float] = {}
    apart: list[tuple[float, float | None]] = []
    together: list[tuple[float, float | None]] = []
    for number, pair in enumerate(PAIRS, 1):
        parts = [runner.race((name,), values, pair.dtype)[name] for name, values in pair.first]
        name, values = pair.fused
        one = runner.race((name,), values, pair.dtype)[name]
        separate = sum(p.us for p in parts if p.us) if all(p.us for p in parts) else None
        if separate and one.us:
            gains[pair.what] = separate / one.us
        why = next((p.reason for p in (*parts, one) if p.us is None), "")
        gain = f"{gains[pair.what]:.2f}x" if pair.what in gains else ""
        rows.append((number, pair.what, name, pair.dtype, shown(separate), shown(one.us), gain, why))
        apart.append((float(number), separate))
        together.append((float(number), one.us))
    whole = Found(
        "Separate kernels against fused ones, GPT-2 at 8 x 1024 tokens",
        ("", "what", "fused rung", "dtype", "separate us", "fused us", "gain", "remark"),
        rows,
        sentence(gains),
        [charts.Series("separate", apart, "f32"), charts.Series("fused", together, "tf32")],
        "row of the table",
        "us, cold",
        log_x=False,
    )
    whole.more["launches"] = launches(runner)
    return whole


LAUNCHED = {"gelu and bias": ("bias/01_naive", "gelu/01_naive"), "bias_gelu": ("bias_gelu/01_naive",)}


def launches(runner: Runner) -> Found:
    """The host's time to launch GELU and the bias apart, and as one kernel."""
    rows = [(name, len(rungs), shown(runner.host(rungs, "b4t64", "f32"))) for name, rungs in LAUNCHED.items()]
    return Found(
        "The host's time to launch kernels that follow a product, 4 x 64 tokens",
        ("kernels", "launches", "host us"),
        rows,
        f"{rows[0][1]} launches take the host {rows[0][2]} us, one takes {rows[1][2]}.",
    )


def sentence(gains: dict[str, float]) -> str:
    """The largest and the smallest gain by fusion."""
    if not gains:
        return "Nothing could be compared here."
    most, least = max(gains, key=lambda g: gains[g]), min(gains, key=lambda g: gains[g])
    text = f"Fusing gains most for {most!r} ({times(gains[most])})"
    if gains[least] < 1:
        return f"{text}, and loses for {least!r} ({times(gains[least])} as fast)."
    return f"{text} and least for {least!r} ({times(gains[least])})."
