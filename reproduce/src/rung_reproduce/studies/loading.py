"""Loading a model, from its file to the first logits: step by step, and overlapped."""

from __future__ import annotations

import dataclasses
import gc
import os
import re
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from rung.models import family
from rung.models.family import Config
from rung.models.gpu.device_copy import Mark, transport_to
from rung.models.gpu.loading import Arrival, Span, pieces
from rung.models.gpu.prompt_pass import PromptPass
from rung.models.plan import TorchPlan
from rung.models.tensors import open_tensors
from rung.models.weights import Weights, empty_operands, in_file, read_weights, stack, tensor_reader, weights_of
from rung.operation import Tensors
from rung_reproduce.show.charts import Found
from rung_reproduce.show.timeline import Lane, Timeline
from rung_reproduce.studies.common import Runner, need_gpu, times

PROMPT = 512
SERIAL, PIPELINED, PLAIN = "one after the other", "pipelined", "tensor by tensor, then stacked"
KINDS = ("read", "copy", "compute")


@dataclass(frozen=True)
class Run:
    """One loading: the time line in seconds since its start, and when the logits were ready."""

    spans: tuple[Span, ...]
    total: float
    from_disk: int | None = None  # bytes; None where the system does not say

    def busy(self, kind: str) -> float:
        return sum(s.end - s.begin for s in self.spans if s.what == kind)

    @property
    def first_layer(self) -> float:
        return min(s.begin for s in self.spans if s.what == "compute" and s.name == "layer 0")


def run(runner: Runner) -> Found:
    """gpt2 in float32 on disk, bfloat16 on the GPU, a prompt of 512 tokens."""
    need_gpu(runner, "loading")
    config = family.config_of("gpt2")
    if runner.quick:
        config = dataclasses.replace(config, layers=4, vocabulary=8192)
    with tempfile.TemporaryDirectory(prefix="rung-loading-") as folder:
        size = write(Path(folder), config)
        found, plain = measure(Path(folder), config, torch.device("cuda"), torch.bfloat16, 2 if runner.quick else 5)
    return report(found, plain, size)


def write(folder: Path, config: Config) -> int:
    """Random weights as a safetensors file with GPT-2's names; its size in bytes."""
    from safetensors.torch import save_file

    file = folder / "model.safetensors"
    save_file(in_file(weights_of(config, "cpu")), file)
    return file.stat().st_size


def measure(
    folder: Path, config: Config, device: torch.device, dtype: torch.dtype, rounds: int
) -> tuple[dict[str, Run], float]:
    """The run of median length for each variant, and the seconds of plain loading; variants alternate."""
    runs: dict[str, list[Run]] = {SERIAL: [], PIPELINED: []}
    plain = []
    for number in range(rounds + 1):
        for method in runs:
            one = _once(folder, config, device, dtype, overlapped=method == PIPELINED)
            if number:  # the first round compiles kernels
                runs[method].append(one)
        seconds = _plainly(folder, config, device, dtype)
        if number:
            plain.append(seconds)
    return {method: _median(found) for method, found in runs.items()}, statistics.median(plain)


def _median(runs: Sequence[Run]) -> Run:
    return sorted(runs, key=lambda one: one.total)[len(runs) // 2]


def _once(folder: Path, config: Config, device: torch.device, dtype: torch.dtype, *, overlapped: bool) -> Run:
    operands = empty_operands(config, dtype, device)
    groups = pieces(tensor_reader(open_tensors(folder), config), config, operands)
    arrival = Arrival(operands, groups, transport_to(device))
    prompt = _pass(config, operands)
    computed: list[tuple[str, Mark, Mark]] = []
    begun: list[tuple[str, Mark]] = []

    def close() -> None:
        if begun:
            name, mark = begun.pop()
            computed.append((name, mark, arrival.transport.reached()))

    def before(group: int) -> None:
        close()
        arrival.wait(group)
        name = "embeddings" if group == 0 else "logits" if group > config.layers else f"layer {group - 1}"
        begun.append((name, arrival.transport.reached()))

    _synchronize(device)
    disk = _bytes_from_disk()
    arrival.start(overlapped=overlapped)
    with torch.inference_mode():
        prompt.run(before)
    close()
    clock = arrival.transport.seconds
    total = clock(computed[-1][2])
    arrival.finish()
    now = _bytes_from_disk()
    spans = [*arrival.timeline, *(Span("compute", name, clock(begin), clock(end)) for name, begin, end in computed)]
    return Run(tuple(spans), total, None if disk is None or now is None else now - disk)


def _plainly(folder: Path, config: Config, device: torch.device, dtype: torch.dtype) -> float:
    """Weights are loaded as for other devices, then stacked; building the pass is left out, as above."""
    plan = TorchPlan(device, dtype, dtype)
    _synchronize(device)
    began = time.perf_counter()
    weights: Weights = read_weights(folder, config, plan.matrix, plan.vector)
    operands = stack(weights, dtype, device)
    _synchronize(device, collect=False)
    took = time.perf_counter() - began
    prompt = _pass(config, operands)
    _synchronize(device)
    began = time.perf_counter()
    with torch.inference_mode():
        prompt.run()
    _synchronize(device, collect=False)
    return took + time.perf_counter() - began


def _synchronize(device: torch.device, *, collect: bool = True) -> None:
    if collect:
        gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize()


def _pass(config: Config, operands: Tensors) -> PromptPass:
    where, T = operands["wte"].device, min(PROMPT, config.context)
    cache = (config.layers, 1, config.NH, T, config.HS)
    state = {
        "history": torch.arange(T, dtype=torch.int32, device=where).remainder(config.vocabulary).view(1, T),
        "lengths": torch.full((1,), T, dtype=torch.int32, device=where),
        "logits": torch.empty(1, config.vocabulary, device=where),
        "k_cache": torch.empty(cache, dtype=operands["wte"].dtype, device=where),
        "v_cache": torch.empty(cache, dtype=operands["wte"].dtype, device=where),
    }
    return PromptPass(config, {**operands, **state, "wpe": operands["wpe"][:T]}, 1, T, T)


def _bytes_from_disk() -> int | None:
    """Bytes read from disk for this process so far, which is less than it reads if files are cached."""
    try:
        counters = Path(f"/proc/{os.getpid()}/io").read_text(encoding="ascii")
    except OSError:
        return None
    found = re.search(r"^read_bytes: (\d+)$", counters, re.MULTILINE)
    return int(found[1]) if found else None


# ---- results ----------------------------------------------------------------------------------------------------


def report(found: dict[str, Run], plain: float, size: int) -> Found:
    """Table, time line and sentence."""
    rows: list[tuple[object, ...]] = []
    for method, one in found.items():
        parts = (_ms(one.busy(kind)) for kind in KINDS)
        overlap = f"{reached(found):.0%}" if method == PIPELINED else ""
        rows.append((method, _ms(one.total), *parts, _ms(one.first_layer), overlap))
    rows.append((PLAIN, _ms(plain), "", "", "", "", ""))
    lanes = [
        Lane(f"{method}: {kind}", kind, tuple((s.begin * 1e3, s.end * 1e3) for s in one.spans if s.what == kind))
        for method, one in found.items()
        for kind in KINDS
    ]
    return Timeline.of(
        f"From file to the first logits: {size / 1e6:.0f} MB of float32, a prompt of {PROMPT} tokens",
        ("way", "total ms", "read ms", "copy ms", "compute ms", "first layer at ms", "overlap"),
        rows,
        sentence(found, plain),
        lanes,
        "ms since the start",
    )


def bound(found: dict[str, Run]) -> tuple[float, str]:
    """The longest of the three parts, the lower bound of any overlap, and its name."""
    return max((found[SERIAL].busy(kind), kind) for kind in KINDS)


def reached(found: dict[str, Run]) -> float:
    """The pipeline's position between one after the other (0) and the bound (1)."""
    serial, least = found[SERIAL].total, bound(found)[0]
    return max(0.0, serial - found[PIPELINED].total) / (serial - least) if serial > least else 0.0


def sentence(found: dict[str, Run], plain: float) -> str:
    """The gain, its bound, and where the file came from."""
    serial, pipelined = found[SERIAL], found[PIPELINED]
    least, kind = bound(found)
    last = max(s.end for s in pipelined.spans if s.what == "read")
    text = (
        f"Pipelined, a prompt's logits are there after {_ms(pipelined.total)} ms, one after the other after "
        f"{_ms(serial.total)} ms ({times(serial.total / pipelined.total)}), loaded plainly after {_ms(plain)} ms"
    )
    if pipelined.total < serial.total:
        text += f": {reached(found):.0%} of the way to the {_ms(least)} ms of the longest part alone ({kind})"
    text += (
        f". The first layer computes after {_ms(pipelined.first_layer)} ms, the last tensor is read after "
        f"{_ms(last)} ms."
    )
    disk = [one.from_disk for one in found.values()]
    if None in disk:
        return f"{text} The system does not report whether the file came from a disk or from the page cache."
    read = sum(d for d in disk if d is not None) / len(disk)
    if read < 1e6:
        return f"{text} The file came from the page cache: reading it from a disk would take longer."
    return f"{text} {read / 1e6:.0f} MB per run came from a disk, the rest from the page cache."


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 0.9995 else f"{seconds * 1e3:.0f}"
