"""Text generation on one GPU: rung against transformers (eager, and static cache + compile), in one run.

    PYTHONPATH=src python benchmarks/gpu_generate.py --output out.json [--sections checks,agree,single,...]

Weights are random (drawn as transformers draws them), the same for both sides. Each section stands for
itself: one that fails is reported with its reason, and the others go on. A table comes last.

Sections: checks (decode rungs against float64), parts (time of each kernel), tune (a descent over the
launch parameters), agree (logits and greedy text against transformers in float32), single (batch 1),
context (speed at 50 and at 1000 tokens), batch (64 and 256), sampling (what choosing costs), prefill, peers
(transformers on the same work).
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rung import catalogue
from rung.dtypes import dtype as named_dtype
from rung.gpt2.config import Config
from rung.gpt2.gpu.engine import DTYPES, Engine
from rung.gpt2.gpu.operands import dims
from rung.gpt2.sampling import Sampling
from rung.gpt2.weights import Layer, Linear, Norm, Weights
from rung.lab import check as lab_check
from rung.lab import machine

PROMPT = 8
NEW = 512
BANDWIDTH = 4.3e12
SIZES = {
    "gpt2": (12, 768, 12),
    "gpt2-medium": (24, 1024, 16),
    "gpt2-large": (36, 1280, 20),
    "gpt2-xl": (48, 1600, 25),
}
TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16}
Row = dict[str, Any]


def config_of(name: str) -> Config:
    layers, C, NH = SIZES[name]
    return Config(50257, 1024, C, NH, layers, 4 * C, "gelu_tanh", 1e-5, True, False, True, (50256,))


def random_weights(config: Config, seed: int = 0) -> Weights:
    """float32 on the GPU, spread as in a trained model: logits differ enough for greedy text to be defined."""
    generator = torch.Generator(device="cuda").manual_seed(seed)

    def draw(*shape: int, std: float = 0.02) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device="cuda") * std

    def norm() -> Norm:
        return Norm(1 + draw(config.C, std=0.1), draw(config.C))

    C, F = config.C, config.F
    inner = 0.02 / (2 * config.layers) ** 0.5
    wte = Linear(draw(config.vocabulary, C, std=0.05))
    layers = [
        Layer(
            ln_1=norm(),
            qkv=Linear(draw(3 * C, C), draw(3 * C)),
            attn_proj=Linear(draw(C, C, std=inner), draw(C)),
            ln_2=norm(),
            fc=Linear(draw(F, C), draw(F)),
            mlp_proj=Linear(draw(C, F, std=inner), draw(C)),
        )
        for _ in range(config.layers)
    ]
    return Weights(wte, draw(config.context, C, std=0.02), layers, norm(), wte)


def transformers_model(config: Config, weights: Weights, dtype: torch.dtype) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(
        GPT2Config(
            n_layer=config.layers, n_embd=config.C, n_head=config.NH, bos_token_id=0, eos_token_id=None
        )
    )
    state = {"transformer.wte.weight": weights.wte.weight, "transformer.wpe.weight": weights.wpe}
    state |= {"transformer.ln_f.weight": weights.ln_f.weight, "transformer.ln_f.bias": weights.ln_f.bias}
    state["lm_head.weight"] = weights.wte.weight
    for i, layer in enumerate(weights.layers):
        for name, norm in (("ln_1", layer.ln_1), ("ln_2", layer.ln_2)):
            state[f"transformer.h.{i}.{name}.weight"] = norm.weight
            state[f"transformer.h.{i}.{name}.bias"] = norm.bias
        for name, linear in (
            ("attn.c_attn", layer.qkv),
            ("attn.c_proj", layer.attn_proj),
            ("mlp.c_fc", layer.fc),
            ("mlp.c_proj", layer.mlp_proj),
        ):
            state[f"transformer.h.{i}.{name}.weight"] = linear.weight.t()
            state[f"transformer.h.{i}.{name}.bias"] = linear.bias
    missing = model.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys, missing
    return model.to("cuda", dtype).eval()


@functools.cache
def weights_of(name: str) -> Weights:
    return random_weights(config_of(name))


class Bench:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.rows = arguments, []
        self.tunings: dict[str, dict[str, int]] = {}
        if arguments.tunings is not None:
            self.tunings = json.loads(arguments.tunings.read_text())

    rows: list[Row]

    def note(self, section: str, what: str, value: float | str, unit: str, **more: Any) -> None:
        row = {"section": section, "what": what, "value": value, "unit": unit, **more}
        self.rows.append(row)
        shown = f"{value:.4g}" if isinstance(value, float) else value
        print(f"[{time.perf_counter() - BEGAN:6.1f} s] {section}: {what}: {shown} {unit}", flush=True)

    def engine(self, name: str, dtype: str, **more: Any) -> Engine:
        tuning = self.tunings.get(f"{name} {dtype}", {})
        return Engine(config_of(name), weights_of(name), dtype, **{"tuning": tuning, **more})

    # ---- sections -----------------------------------------------------------------------------------------------

    def checks(self) -> None:
        """Every decode rung against float64, at GPT-2's widths."""
        for rung in catalogue.rungs("decode", libraries=False):
            for dtype in rung.dtypes:
                if dtype not in ("f32", "bf16"):
                    continue
                try:
                    report = lab_check.check(rung, dtype, device="cuda")
                    verdict, reason = report.verdict, f"{report.case} {report.reason}".strip()
                    extra = {"norm": report.norm, "cases": report.cases}
                except Exception as error:
                    verdict, reason, extra = "error", str(error).splitlines()[0], {}
                self.note("checks", f"{rung.full_name} {dtype}", verdict, reason, **extra)

    def step_time(
        self, engine: Engine, rows: int, length: int, tuning: dict[str, int] | None = None
    ) -> float:
        """Seconds a step, from graphs of eight steps; lengths are put back so that all steps see the same context."""
        capacity = engine.config.context if length > 500 else 512
        if tuning is not None:
            engine._tuning, engine._sessions = tuning, {}
        session = engine.session(rows, capacity)
        session._choice.greedy = True
        lengths = session.tensors["lengths"]
        session.tensors["limits"].fill_(1 << 30)
        graph = session.graph(8)
        times = []
        for trial in range(8):
            lengths.fill_(length)
            session.tensors["done"].zero_()
            session.tensors["steps"].zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(3):
                graph.replay()
            end.record()
            end.synchronize()
            if trial > 1:
                times.append(begin.elapsed_time(end) / 24e3)
        return statistics.median(times)

    def tune(self) -> None:
        """One parameter after the other, for the models and formats asked for."""
        found = {}
        for name, dtype in (
            ("gpt2", "bfloat16"),
            ("gpt2", "float32"),
            ("gpt2", "int8"),
            ("gpt2-xl", "bfloat16"),
        ):
            key = f"{name} {dtype}"
            if self.arguments.only and key not in self.arguments.only.split(","):
                continue
            deadline = time.perf_counter() + self.arguments.tune_seconds
            engine = self.engine(name, dtype)
            rung = engine.rung(dims(engine.config, 1, 512))
            best: dict[str, int] = {k: v for k, v in self.tunings.get(key, {}).items() if k in rung.tune}
            time_of = functools.cache(lambda items, e=engine: self._try(e, dict(items)))
            least = first = time_of(tuple(sorted(best.items())))
            log = []
            for name_of, choices in rung.tune.items():
                for value in choices:
                    if time.perf_counter() > deadline:
                        break
                    trial = {**best, name_of: value}
                    took = time_of(tuple(sorted(trial.items())))
                    log.append({"tuning": trial, "us": took * 1e6})
                    print(f"    {key} {name_of}={value}: {took * 1e6:.1f} us", flush=True)
                    if took < least * 0.998:
                        least, best = took, trial
            found[key] = best
            self.tunings[key] = best
            self.note("tune", key, least * 1e6, "us a step", before=first * 1e6, tuning=best, log=log)
            del engine
            gc.collect()
            torch.cuda.empty_cache()
        print("tunings", json.dumps(self.tunings))

    def _try(self, engine: Engine, tuning: dict[str, int]) -> float:
        try:
            return self.step_time(engine, 1, 200, tuning)
        except Exception as error:
            print(f"    {tuning}: {str(error).splitlines()[0][:150]}")
            torch.cuda.synchronize()
            return float("inf")

    def parts(self) -> None:
        """Each kernel of a step by itself: a graph of one launch a layer, weights cold."""
        for name, dtype in (
            ("gpt2", "bfloat16"),
            ("gpt2", "float32"),
            ("gpt2", "int8"),
            ("gpt2-xl", "bfloat16"),
        ):
            engine = self.engine(name, dtype)
            session = engine.session(1, 512)
            for length in (50, 500):
                session.tensors["lengths"].fill_(length)
                self._parts_of(session, f"{name} {dtype} at {length}")
            del engine, session
            torch.cuda.empty_cache()

    def _parts_of(self, session: Any, label: str) -> None:
        from rung.kernel import CudaRung

        rung = session.work.rung
        if not isinstance(rung, CudaRung):
            return
        bound = {o.name for o in rung.operation.operands}
        values = rung.operation.complete(dims(session.config, session.rows, session.capacity))
        tensors = {n: t for n, t in session.tensors.items() if n in bound}
        for kernel in dict.fromkeys(entry.kernel for entry in rung.header.launches):
            alone = type(rung)(rung.operation, rung.path)
            kept = tuple(e for e in rung.header.launches if e.kernel == kernel)
            object.__setattr__(alone.header, "launches", kept)
            prepared = alone.prepare(
                tensors, values, session._real, device="cuda", tuning=session.work.tuning
            )
            count = len(prepared.launches)
            repeat = 4 if count > 1 else 24
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                for _ in range(repeat):
                    prepared.run()
            took = self._replay_time(graph) / (repeat * count)
            self.note("parts", f"{label} {kernel} {prepared.launches[0][1].grid}", took * 1e6, "us")

    def _replay_time(self, graph: torch.cuda.CUDAGraph, times: int = 9) -> float:
        found = []
        for trial in range(times + 2):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if trial > 1:
                found.append(begin.elapsed_time(end) / 1e3)
        return statistics.median(found)

    def agree(self) -> None:
        """Greedy text and logits against transformers float32 (64 tokens behind an 8-token prompt)."""
        config, weights = config_of("gpt2"), weights_of("gpt2")
        model = transformers_model(config, weights, torch.float32)
        prompt = self.prompts(1, PROMPT)[0]
        with torch.inference_mode():
            ids = torch.tensor([prompt], device="cuda")
            text = model.generate(ids, max_new_tokens=64, do_sample=False, use_cache=True)[0].tolist()
            truth = model(torch.tensor([text], device="cuda")).logits[0].double().log_softmax(-1)
        for dtype in ("float32", "bfloat16", "int8"):
            engine = self.engine("gpt2", dtype)
            ours = [step[0] for step in engine.write([prompt], [64])]
            same = next((i for i, (a, b) in enumerate(zip(ours, text[PROMPT:], strict=True)) if a != b), 64)
            kl, likeliest = self._forced(engine, text, truth)
            self.note("agree", f"gpt2 {dtype}", same, "greedy tokens of 64 as in transformers float32", kl=kl,
                      likeliest=likeliest)  # fmt: skip

    def _forced(self, engine: Engine, text: list[int], truth: torch.Tensor) -> tuple[float, float]:
        """KL divergence per token and share of equal likeliest tokens, both models reading the same text."""
        session = engine.session(1, len(text))
        session.begin([text[:PROMPT]], [10**6], (), Sampling(temperature=0), 0, [0])
        kls, hits = [], []
        for at in range(PROMPT, len(text)):
            session.tensors["tokens"][0] = text[at]
            session.tensors["done"].zero_()
            session.step()
            torch.cuda.synchronize()
            p = session.tensors["logits"][0].double().log_softmax(-1)
            kls.append(float((truth[at].exp() * (truth[at] - p)).sum()))
            hits.append(int(p.argmax()) == int(truth[at].argmax()))
        return statistics.mean(kls), statistics.mean(hits)

    def prompts(self, rows: int, length: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(7)
        drawn: list[list[int]] = torch.randint(0, 50000, (rows, length), generator=generator).tolist()
        return drawn

    def write(self, engine: Engine, rows: int, length: int, new: int, **how: Any) -> tuple[float, float]:
        """(tokens a second in all, seconds to the first) of the median of three runs after one to warm up."""
        found = []
        for trial in range(4):
            torch.cuda.synchronize()
            began, first, count = time.perf_counter(), 0.0, 0
            for step in engine.write(self.prompts(rows, length), [new] * rows, **how):
                count += len(step)
                first = first or time.perf_counter() - began
            if trial:
                found.append((count / (time.perf_counter() - began), first))
        return sorted(found)[1]

    def single(self) -> None:
        """Batch 1, 8-token prompt, 512 new tokens."""
        for name, dtype in (("gpt2", "bfloat16"), ("gpt2", "float32"), ("gpt2", "int8"), ("gpt2-xl", "bfloat16"),
                            ("gpt2-xl", "int8")):  # fmt: skip
            engine = self.engine(name, dtype)
            rate, first = self.write(engine, 1, PROMPT, NEW)
            step = self.step_time(engine, 1, 200)
            self.note("single", f"{name} {dtype}", rate, "tokens/s", first_ms=first * 1e3, step_us=step * 1e6,
                      share_of_bandwidth=self.floor(name, dtype) / step)  # fmt: skip
            del engine
            torch.cuda.empty_cache()

    def floor(self, name: str, dtype: str) -> float:
        """Seconds that reading the weights once takes."""
        layers, C, _ = SIZES[name]
        size = {"float32": 4, "bfloat16": 2, "int8": 1}[dtype]
        return float(size * (layers * 12 * C * C + 50257 * C) / BANDWIDTH)

    def rungs(self) -> None:
        """Batch 1 with each rung of the ladder, launch by launch and as a graph."""
        for dtype in ("float32", "bfloat16"):
            for rung in catalogue.rungs("decode", libraries=False):
                if DTYPES[dtype] not in rung.dtypes or "qkv_q" in rung.binds:
                    continue
                number = rung.number or 0
                try:
                    engine = self.engine("gpt2", dtype, rung=rung.name, graph=number >= 5, tuning={},
                                         steps=8 if number >= 7 else 1)  # fmt: skip
                    new = 24 if number < 3 else 200
                    rate, first = self.write(engine, 1, PROMPT, new)
                    self.note("rungs", f"{rung.name} {dtype}", rate, "tokens/s", first_ms=first * 1e3)
                except Exception as error:
                    self.note("rungs", f"{rung.name} {dtype}", "failed", str(error).splitlines()[0][:200])

    def context(self) -> None:
        """Does the speed stay flat?"""
        for name, dtype in (("gpt2", "bfloat16"), ("gpt2", "float32")):
            engine = self.engine(name, dtype)
            short, long = (
                self.step_time(engine, 1, n, self.tunings.get(f"{name} {dtype}", {})) for n in (50, 976)
            )
            self.note("context", f"{name} {dtype}", short / long, "speed at 1000 / at 50", short_us=short * 1e6,
                      long_us=long * 1e6)  # fmt: skip

    def batch(self) -> None:
        """Prompts of 128, 128 new tokens."""
        engine = self.engine("gpt2", "bfloat16", tuning={})
        for rows in (8, 64, 256):
            rate, first = self.write(engine, rows, 128, 128)
            step = self.step_time(engine, rows, 192)
            self.note("batch", f"gpt2 bfloat16 x {rows}", rate, "tokens/s", first_ms=first * 1e3,
                      step_us=step * 1e6)  # fmt: skip
            torch.cuda.empty_cache()

    def sampling(self) -> None:
        """What choosing costs."""
        engine = self.engine("gpt2", "bfloat16")
        for label, how in (
            ("greedy", Sampling(temperature=0)),
            ("temperature", Sampling(temperature=0.8)),
            ("top-k 50", Sampling(temperature=0.8, top_k=50)),
            ("top-p 0.95", Sampling(temperature=0.8, top_p=0.95)),
            ("all", Sampling(0.8, 50, 0.95, 0.01, 1.1, 0.1, 0.1)),
        ):
            rate, _ = self.write(engine, 1, PROMPT, NEW, sampling=how, seed=1)
            self.note("sampling", label, rate, "tokens/s")

    def prefill(self) -> None:
        """Time to the first token."""
        for dtype in ("bfloat16", "float32"):
            engine = self.engine("gpt2", dtype)
            for length in (64, 512, 1024):
                session = engine.session(1, 1024)
                prompts = self.prompts(1, length)
                session._prefill.run(prompts)
                bucket = min(b for b in session._prefill._graphs if b >= length)
                took = self._replay_time(session._prefill._graphs[bucket])
                self.note("prefill", f"gpt2 {dtype} {length}", took * 1e3, "ms")

    def peers(self) -> None:
        """transformers on the same work."""
        todo = [
            ("gpt2", d, b)
            for d in ("bfloat16", "float32")
            for b in ((1, 64, 256) if d == "bfloat16" else (1,))
        ]
        todo += [("gpt2-xl", "bfloat16", 1)]
        for name, dtype, rows in todo:
            model = transformers_model(config_of(name), weights_of(name), TORCH[dtype])
            length, new = (PROMPT, NEW) if rows == 1 else (128, 128)
            for label, more in (("eager", {}), ("static + compile", {"cache_implementation": "static"})):
                if label not in self.arguments.peers.split(","):
                    continue
                try:
                    rate = self._peer(model, rows, length, new, more)
                    self.note("peers", f"transformers {name} {dtype} x {rows} {label}", rate, "tokens/s")
                except Exception as error:
                    self.note("peers", f"transformers {name} {dtype} x {rows} {label}", "failed",
                              str(error).splitlines()[0][:200])  # fmt: skip
            del model
            torch.cuda.empty_cache()

    def _peer(self, model: Any, rows: int, length: int, new: int, more: dict[str, str]) -> float:
        ids = torch.tensor(self.prompts(rows, length), device="cuda")
        mask = torch.ones_like(ids)
        found = []
        with torch.inference_mode():
            for trial in range(3 if more else 2):
                torch.cuda.synchronize()
                began = time.perf_counter()
                out = model.generate(ids, attention_mask=mask, max_new_tokens=new, do_sample=False, pad_token_id=0,
                                     **more)  # fmt: skip
                torch.cuda.synchronize()
                if trial:
                    found.append((out.shape[1] - length) * rows / (time.perf_counter() - began))
        return max(found)


SECTIONS: tuple[str, ...] = (
    "checks", "agree", "parts", "tune", "single", "context", "sampling", "prefill", "rungs", "batch", "peers",
)  # fmt: skip
BEGAN = time.perf_counter()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sections", default=",".join(SECTIONS))
    parser.add_argument("--output", type=Path, default=Path("gpu_generate.json"))
    parser.add_argument("--tunings", type=Path, help="JSON of an earlier run's tunings")
    parser.add_argument("--tune-seconds", type=float, default=45)
    parser.add_argument("--only", default="", help='which to tune, as in "gpt2 bfloat16,gpt2 int8"')
    parser.add_argument("--peers", default="eager,static + compile")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("there is no CUDA device here; nothing is measured without one.", file=sys.stderr)
        return 2
    bench = Bench(arguments)
    chosen: list[str] = arguments.sections.split(",")
    unknown = [name for name in chosen if name not in SECTIONS]
    if unknown:
        parser.error(f"there is no section {unknown[0]!r}; there are {', '.join(SECTIONS)}")
    for name in chosen:
        run: Callable[[], None] = getattr(bench, name)
        began = time.perf_counter()
        try:
            run()
        except Exception as error:
            traceback.print_exc()
            bench.note(
                name, "failed", type(error).__name__, str(error).splitlines()[0][:300] if str(error) else ""
            )
        print(f"-- {name} took {time.perf_counter() - began:.1f} s", flush=True)
        gc.collect()
        torch.cuda.empty_cache()
        write(arguments.output, bench)
    table(bench.rows)
    return 0


def write(path: Path, bench: Bench) -> None:
    path.write_text(
        json.dumps(
            {
                "machine": machine.facts(),
                "state": machine.state(),
                "tunings": bench.tunings,
                "rows": bench.rows,
            },
            indent=1,
        )
    )


def table(rows: list[Row]) -> None:
    print("\n== results")
    for row in rows:
        value = f"{row['value']:.5g}" if isinstance(row["value"], float) else str(row["value"])
        more = "  ".join(
            f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}"
            for k, v in row.items()
            if k not in ("section", "what", "value", "unit", "log", "before")
        )
        print(f"{row['section']:<9} {row['what']:<46} {value:>10} {row['unit']}  {more}"[:230])


if __name__ == "__main__":
    sys.exit(main())
