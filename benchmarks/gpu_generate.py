"""Text generation on one GPU: rung against transformers (eager, and static cache + compile), in one run.

    PYTHONPATH=src python benchmarks/gpu_generate.py --output out.json [--sections checks,agree,single,...]

Weights are random (drawn as transformers draws them), the same for both sides. Each section stands for
itself: one that fails is reported with its reason, and the others go on. A table comes last.

Sections: race (which rung is best, with the tunings that decode_tune.py has left), checks (against float64),
parts (time of each kernel), rungs (the whole ladder), agree (logits and greedy text against transformers in
float32), single (batch 1), context (speed at 50 and at 1000 tokens), batch (64 and 256), sampling (what
choosing costs), prefill, peers (transformers on the same work).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
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

from rung.check import trial as lab_check
from rung.gpt2 import random_model
from rung.gpt2.config import Config
from rung.gpt2.gpu.engine import DTYPES, Engine
from rung.gpt2.gpu.operands import dims
from rung.gpt2.gpu.prefill import Prefill
from rung.gpt2.random_model import SIZES, config_of
from rung.gpt2.rungs import THREE_PRODUCTS, prefill_rungs
from rung.gpt2.sampling import Sampling
from rung.gpt2.weights import Weights
from rung.results import machine
from rung.rungs import catalogue

PROMPT = 8
NEW = 512
BANDWIDTH = 4.3e12
TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Which rungs may serve which number format, and few sequences or many.
CANDIDATES = {"int8": ("8", "11", "14"), "float32": ("6", "10", "15"), "bfloat16": ("6", "10", "13")}
SINGLE = (("gpt2", "bfloat16"), ("gpt2", "float32"), ("gpt2", "int8"), ("gpt2-xl", "bfloat16"), ("gpt2-xl", "int8"))
CHECKS = {
    "decode/10": ("bf16", "f32"),
    "decode/11": ("bf16",),
    "decode/9": ("bf16",),
    "decode/5": ("bf16",),
    "decode/7": ("bf16",),
    "decode/3": ("bf16",),
    "sample/1": ("f32",),
    "sample/2": ("f32",),
}
# Rungs of the prompts' operations that may be faster than those of the table, one at a time.
PREFILL_VARIANTS: dict[str, dict[str, tuple[str, ...]]] = {
    "bfloat16": {
        "attention": ("27", "29", "sdpa_cudnn", "sdpa_flash"),
        "matmul": ("torch", "14", "15", "17"),
        "matmul_gelu": ("3", "4"),
        "matmul_residual": ("3", "4", "cublas_accumulate"),
        "layernorm": ("8", "12"),
    },
    "float32": {
        "attention": ("24", "29", "sdpa_efficient"),
        "matmul": ("torch", "7", "8"),
        "matmul_gelu": ("2", "torch"),
        "matmul_residual": ("2", "cublas_accumulate"),
        "layernorm": ("8", "12"),
    },
}
Row = dict[str, Any]


def transformers_model(config: Config, weights: Weights, dtype: torch.dtype) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(
        GPT2Config(n_layer=config.layers, n_embd=config.C, n_head=config.NH, bos_token_id=0, eos_token_id=None)
    )
    state: dict[str, Any] = {"transformer.wte.weight": weights.wte.weight, "transformer.wpe.weight": weights.wpe}
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
    return random_model.weights_of(config_of(name), "cuda")


class Bench:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.rows: list[Row] = []
        # "gpt2 bfloat16 x 1" -> {"rung": ..., "tuning": {...}}
        self.chosen: dict[str, dict[str, Any]] = {}
        if arguments.chosen is not None:
            self.chosen = json.loads(arguments.chosen.read_text())["chosen"]

    def note(self, section: str, what: str, value: float | str, unit: str, **more: Any) -> None:
        row = {"section": section, "what": what, "value": value, "unit": unit, **more}
        self.rows.append(row)
        shown = f"{value:.4g}" if isinstance(value, float) else value
        print(f"[{time.perf_counter() - BEGAN:6.1f} s] {section}: {what}: {shown} {unit}", flush=True)

    def failed(self, section: str, what: str, error: Exception) -> None:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        self.note(section, what, "failed", reason)
        with contextlib.suppress(Exception):
            torch.cuda.synchronize()

    def late(self) -> bool:
        return bool(time.perf_counter() - BEGAN > self.arguments.limit)

    def engine(self, name: str, dtype: str, rows: int = 1, **more: Any) -> Engine:
        best = self.chosen.get(f"{name} {dtype} x {rows}", {})
        return Engine(config_of(name), weights_of(name), dtype, **{**best, **more})

    # ---- sections -----------------------------------------------------------------------------------------------

    def checks(self) -> None:
        """Decode and sample rungs against float64, at GPT-2's widths."""
        cases = {"decode/9": "64 sequences", "sample/1": "gpt2", "sample/2": "gpt2"}
        for name, dtypes in CHECKS.items():
            for dtype in dtypes:
                if self.late():
                    return
                try:
                    rung = catalogue.find(name)
                    report = lab_check.check(rung, dtype, device="cuda", case=cases.get(name, "gpt2, two layers"))
                    reason = f"{report.case} {report.reason}".strip()
                    self.note("checks", f"{rung.full_name} {dtype}", str(report.verdict), reason, norm=report.norm)
                except Exception as error:
                    self.failed("checks", f"{name} {dtype}", error)

    def step_time(self, engine: Engine, rows: int, length: int) -> float:
        """Seconds a step, from graphs of eight; lengths are put back, so that all see about the same context."""
        session = engine.session(rows, engine.config.context if length > 400 else 512)
        session.choice.greedy = True
        lengths = session.tensors["lengths"]
        session.tensors["limits"].fill_(1 << 30)
        lengths.fill_(length)
        graph = session.graph(8)
        times = []
        for trial in range(7):
            lengths.fill_(length)
            session.tensors["done"].zero_()
            session.tensors["steps"].zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            for _ in range(3):
                graph.replay()
            end.record()
            end.synchronize()
            if trial > 1:
                times.append(begin.elapsed_time(end) / 24e3)
        return float(statistics.median(times))

    def race(self) -> None:
        """Which rung of decode is best for what: step times with the tunings that are known here."""
        for name, dtype in SINGLE:
            for rung in CANDIDATES[dtype]:
                self._race(name, dtype, 1, rung)
        for rows in (2, 8):
            for rung in ("6", "10", "9"):
                self._race("gpt2", "bfloat16", rows, rung)
        for rows in (64, 256):
            for rung in ("9", "12"):
                self._race("gpt2", "bfloat16", rows, rung)

    def _race(self, name: str, dtype: str, rows: int, rung: str) -> None:
        if self.late():
            return
        key = f"{name} {dtype} x {rows}"
        full = catalogue.find(f"decode/{rung}").name
        try:
            engine = Engine(config_of(name), weights_of(name), dtype, rung=full)
            took = self.step_time(engine, rows, 200)
        except Exception as error:
            self.failed("race", f"{key} {full}", error)
            return
        finally:
            gc.collect()
            torch.cuda.empty_cache()
        self.note("race", f"{key} {full}", took * 1e6, "us a step")
        before = [r for r in self.rows if r["section"] == "race" and r["what"].startswith(key + " ")]
        if took * 1e6 <= min(r["value"] for r in before if isinstance(r["value"], float)):
            self.chosen[key] = {"rung": full}

    def parts(self) -> None:
        """Each kernel of a step by itself: a graph of one launch a layer, weights cold."""
        for name, dtype, rows in (
            *((n, d, 1) for n, d in SINGLE[:4]),
            ("gpt2", "bfloat16", 64),
            ("gpt2", "bfloat16", 256),
        ):
            if self.late():
                return
            engine = self.engine(name, dtype, rows)
            session = engine.session(rows, 512)
            session.tensors["lengths"].fill_(200)
            try:
                self._parts_of(session, f"{name} {dtype} x {rows}")
            except Exception as error:
                self.failed("parts", f"{name} {dtype} x {rows}", error)
            del engine, session
            gc.collect()
            torch.cuda.empty_cache()

    def _parts_of(self, session: Any, label: str) -> None:
        from rung.rungs.cuda import CudaRung

        rung = session.work.rung
        if not isinstance(rung, CudaRung):
            return
        bound = {o.name for o in rung.operation.operands}
        values = rung.operation.complete(dims(session.config, session.rows, session.capacity))
        tensors = {n: t for n, t in session.tensors.items() if n in bound}
        for kernel in dict.fromkeys(entry.kernel for entry in rung.header.launches):
            assert rung.path is not None
            alone = CudaRung(rung.operation, rung.path)
            kept = tuple(e for e in rung.header.launches if e.kernel == kernel)
            own = {parameter.name for parameter in rung.parameters[kernel]}
            bind = {name: target for name, target in rung.header.bind.items() if name in own}
            alone.header = dataclasses.replace(rung.header, launches=kept, bind=bind)
            prepared = alone.prepare(tensors, values, session._real, device="cuda", tuning=session.work.tuning)
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
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if trial > 1:
                found.append(begin.elapsed_time(end) / 1e3)
        return float(statistics.median(found))

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
        found, prompts = [], self.prompts(rows, length)
        for trial in range(4):
            torch.cuda.synchronize()
            began, first, count = time.perf_counter(), 0.0, 0
            for step in engine.write(prompts, [new] * rows, **how):
                count += len(step)
                first = first or time.perf_counter() - began
            if trial:
                found.append((count / (time.perf_counter() - began), first))
        return sorted(found)[1]

    def single(self) -> None:
        """Batch 1, 8-token prompt, 512 new tokens."""
        for name, dtype in SINGLE:
            if self.late():
                return
            try:
                engine = self.engine(name, dtype)
                rate, first = self.write(engine, 1, PROMPT, NEW)
                step = self.step_time(engine, 1, 200)
                self.note("single", f"{name} {dtype}", rate, "tokens/s", first_ms=first * 1e3, step_us=step * 1e6,
                          share_of_bandwidth=self.floor(name, dtype) / step,
                          rung=engine.rung(dims(engine.config, 1, 512)).name)  # fmt: skip
            except Exception as error:
                self.failed("single", f"{name} {dtype}", error)
            gc.collect()
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
        for name, dtype in (("gpt2", "bfloat16"), ("gpt2", "float32"), ("gpt2", "int8"), ("gpt2-xl", "bfloat16")):
            if self.late():
                return
            try:
                engine = self.engine(name, dtype)
                engine.reserve = engine.config.context
                short, long = (self.step_time(engine, 1, n) for n in (50, 976))
                self.note("context", f"{name} {dtype}", short / long, "speed at 1000 / at 50", short_us=short * 1e6,
                          long_us=long * 1e6)  # fmt: skip
            except Exception as error:
                self.failed("context", f"{name} {dtype}", error)

    def batch(self) -> None:
        """Prompts of 128, 128 new tokens."""
        for rows in (8, 64, 256):
            if self.late():
                return
            try:
                engine = self.engine("gpt2", "bfloat16", rows)
                rate, first = self.write(engine, rows, 128, 128)
                step = self.step_time(engine, rows, 192)
                self.note("batch", f"gpt2 bfloat16 x {rows}", rate, "tokens/s", first_ms=first * 1e3,
                          step_us=step * 1e6)  # fmt: skip
            except Exception as error:
                self.failed("batch", f"gpt2 bfloat16 x {rows}", error)
            gc.collect()
            torch.cuda.empty_cache()

    def sampling(self) -> None:
        """What choosing costs."""
        engine = self.engine("gpt2", "bfloat16")
        for label, how in (
            ("greedy", Sampling(temperature=0)),
            ("temperature", Sampling(temperature=0.8, top_p=1.0)),
            ("top-k 50", Sampling(temperature=0.8, top_k=50, top_p=1.0)),
            ("top-p 0.95", Sampling(temperature=0.8, top_p=0.95)),
            ("all", Sampling(0.8, 50, 0.95, 0.01, 1.1, 0.1, 0.1)),
        ):
            try:
                rate, _ = self.write(engine, 1, PROMPT, NEW, sampling=how, seed=1)
                self.note("sampling", label, rate, "tokens/s")
            except Exception as error:
                self.failed("sampling", label, error)

    def prefill(self) -> None:
        """Prompts of 64, 512 and 1024 tokens: by the ladders, variants of their table, torch and transformers."""
        for dtype in ("bfloat16", "float32"):
            engine = self.engine("gpt2", dtype)
            session = engine.session(1, 1024)
            for length in (64, 512, 1024):
                prompts, real = self.prompts(1, length), engine.real.name
                table = prefill_rungs("cuda", real, length)
                ways: dict[str, dict[str, Any]] = {"ladder": {"way": "ladder"}, "torch": {"way": "torch"}}
                if dtype == "float32":
                    ways["ladder, three products"] = {"way": "ladder", "rungs": {**table, **THREE_PRODUCTS}}
                ways |= {
                    f"ladder, {operation}={name}": {"way": "ladder", "rungs": {**table, operation: (name,)}}
                    for operation, names in PREFILL_VARIANTS[dtype].items()
                    for name in names
                    if name != table.get(operation, ("",))[0]
                }
                for label, how in ways.items():
                    if self.late():
                        return
                    try:
                        reader = Prefill(engine.config, session.tensors, 1, session.capacity, **how)
                        reader.run(prompts)
                        took = self._replay_time(reader._graphs[length], 25)
                        used = getattr(reader.passes[length], "rungs_in_use", {})
                        self.note("prefill", f"gpt2 {dtype} {length} {label}", took * 1e3, "ms", rungs=used)
                    except Exception as error:
                        self.failed("prefill", f"gpt2 {dtype} {length} {label}", error)
            self._compiled_prefill(dtype)
            del engine, session
            gc.collect()
            torch.cuda.empty_cache()

    def _compiled_prefill(self, dtype: str) -> None:
        """transformers' forward over a prompt, compiled into a CUDA graph: keys and values, and the last logits."""
        if "compile" not in self.arguments.peers:
            return
        model = transformers_model(config_of("gpt2"), weights_of("gpt2"), TORCH[dtype])
        for length in (64, 512, 1024):
            ids = torch.tensor(self.prompts(1, length), device="cuda")

            def forward(ids: torch.Tensor = ids, model: Any = model) -> Any:
                out = model(ids, use_cache=True, logits_to_keep=1)
                cached = [(layer.keys, layer.values) for layer in out.past_key_values.layers]
                return out.logits, cached

            try:
                torch._dynamo.reset()
                compiled = torch.compile(forward, mode="reduce-overhead")
                with torch.inference_mode():
                    took = self._call_time(compiled)
                self.note("prefill", f"gpt2 {dtype} {length} transformers, compiled", took * 1e3, "ms")
            except Exception as error:
                self.failed("prefill", f"gpt2 {dtype} {length} transformers, compiled", error)
        del model
        torch.cuda.empty_cache()

    def _call_time(self, call: Callable[[], Any], times: int = 25) -> float:
        """Seconds on the GPU, launches queued behind one another so that the host's part does not count."""
        for _ in range(5):
            call()
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        for _ in range(times):
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end) / 1e3 / times)

    def peers(self) -> None:
        """transformers on the same work."""
        todo = [("gpt2", d, b) for d in ("bfloat16", "float32") for b in ((1, 64, 256) if d == "bfloat16" else (1,))]
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
        return float(max(found))


SECTIONS: tuple[str, ...] = (
    "race", "single", "context", "batch", "sampling", "prefill", "agree", "parts", "checks", "rungs", "peers",
)  # fmt: skip
BEGAN = time.perf_counter()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", default=",".join(SECTIONS))
    parser.add_argument("--output", type=Path, default=Path("gpu_generate.json"))
    parser.add_argument("--chosen", type=Path, help="JSON of an earlier run, whose rungs and tunings are used")
    parser.add_argument("--limit", type=float, default=1e9, help="begin nothing new after so many seconds")
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
        if bench.late():
            print(f"-- {name} is left out: the time is up")
            continue
        run: Callable[[], None] = getattr(bench, name)
        began = time.perf_counter()
        try:
            run()
        except Exception as error:
            traceback.print_exc()
            bench.note(name, "failed", type(error).__name__, str(error).splitlines()[0][:300] if str(error) else "")
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
                "chosen": bench.chosen,
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
