"""Text and scores on the CPU: rung against transformers and llama.cpp, in one interleaved run, as rows of results.

    python benchmarks/cpu_generate.py --output results/cpu/generate.jsonl [--model smollm2-135m]
        [--sections score prompt] [--texts 8] [--new 16] [--llama-cpp PATH] [--avx2]

Random weights (GPT-2 124M, if no other model is named), a prompt of 8 tokens, 64 new ones, greedy; prefill of
512 tokens; log-probabilities of a text of 512 tokens; the accuracy lost by smaller weights; seconds from the command to
the first token of the bundled model. On a shared machine `--cpu-time` takes the CPU time of one thread for all
contenders. `--avx2` keeps both to the vectors that most laptops have.
llama.cpp is built from its sources (`cmake -B build -DGGML_NATIVE=ON`, `cmake --build build -t llama-batched-bench`);
the source package of llama-cpp-python has them in `vendor/llama.cpp`.
Contenders take turns, so that other load affects all of them; ratios are taken within a round.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import pty
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

import rung
from generate import transformers_config
from gpuless.base.processors import processors
from rung.models.cpu import build
from rung.models.load import Model
from rung.results import store
from rung.results.machine import facts as machine_facts
from rung.results.row import Row

PROMPT, PREFILL = 8, 512
SECTIONS = ("text", "prompt", "score", "accuracy", "first token")
# The figure of transformers that each of ours is compared with; int8, which it does not have here, with its fastest
# format.
AGAINST = {"rung float32": "transformers float32", "rung bfloat16": "transformers bfloat16", "rung int8": ""}
Clock = Callable[[], float]


def timed(work: Callable[[], Any], clock: Clock) -> float:
    """The time that the work reports, or the time of the call."""
    began = clock()
    result = work()
    return result if isinstance(result, float) else clock() - began


def spread(samples: list[float]) -> dict[str, Any]:
    """Median, 20th and 80th percentile, and everything that was measured."""
    ordered = sorted(samples)
    n = len(ordered)
    return {
        "median": statistics.median(ordered),
        "p20": ordered[int(0.2 * (n - 1))],
        "p80": ordered[math.ceil(0.8 * (n - 1))],
        "samples": samples,
    }


def interleaved(contenders: dict[str, Callable[[], Any]], rounds: int, clock: Clock) -> dict[str, list[float]]:
    """Seconds of each, one after the other in every round, after a warm-up round."""
    for work in contenders.values():
        work()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, work in contenders.items():
            seconds[name].append(timed(work, clock))
    return seconds


def compared(seconds: dict[str, list[float]], tokens: int) -> dict[str, Any]:
    """Tokens per second of each, and each of ours against its rival."""
    result: dict[str, Any] = {
        name: {"tokens_per_s": spread([tokens / s for s in samples])} for name, samples in seconds.items()
    }
    fastest = min((n for n in seconds if n.startswith("transformers")), key=lambda n: statistics.median(seconds[n]))

    def ratio(name: str, rival: str) -> dict[str, Any]:
        return spread([theirs / ours for ours, theirs in zip(seconds[name], seconds[rival], strict=True)])

    for name, named in AGAINST.items():
        result[name] |= {"against": named or fastest, "ratio": ratio(name, named or fastest)}
        llama = f"llama.cpp {name.split()[1]}"
        if llama in seconds:
            result[name]["llama_ratio"] = ratio(name, llama)
    return result


def decode_logits(model: Model, ids: list[int]) -> torch.Tensor:
    """Logits (T, V) as in generation: token by token through the cache."""
    cache = model.transformer.new_cache(1, len(ids))
    cache.begin(1)
    return torch.cat([model.transformer.advance([[token]], cache) for token in ids])


def accuracy(models: dict[str, Model], reference: Any, ids: list[int]) -> dict[str, Any]:
    """How far logits are from transformers' in float32, and the bundled model's loss in perplexity."""
    with torch.inference_mode():
        right = reference(torch.tensor([ids])).logits[0].float()
    found: dict[str, Any] = {}
    text = rung.load("inner", dtype="float32", device="cpu").generate(
        "Once upon a time", temperature=1.0, top_p=1.0, seed=0, max_new_tokens=500, num_samples=8
    )
    assert isinstance(text, list)
    exact = None
    for name, model in models.items():
        logits = decode_logits(model, ids)
        kl = (right.softmax(-1) * (right.log_softmax(-1) - logits.log_softmax(-1))).sum(-1)
        inner = rung.load("inner", dtype=model.plan.dtype, device="cpu")
        losses = []
        for completion in text:
            tokens = torch.tensor([*inner.tokenizer.encode(completion.prompt), *completion.tokens])
            logits_inner = decode_logits(inner, tokens[:-1].tolist())
            losses.append(torch.nn.functional.cross_entropy(logits_inner, tokens[1:], reduction="none"))
        perplexity = math.exp(float(torch.cat(losses).double().mean()))
        exact = exact or perplexity
        found[name] = {
            "logits_max_abs_error": float((logits - right).abs().max()),
            "logits_rms": float(right.square().mean().sqrt()),
            "kl_divergence_per_token": float(kl.mean()),
            "greedy_agreement": float((logits.argmax(-1) == right.argmax(-1)).float().mean()),
            "inner_perplexity": perplexity,
            "inner_perplexity_change_percent": 100 * (perplexity / exact - 1),
        }
    return found


def first_token(repeats: int) -> list[float]:
    """Seconds from the command to the first token, of a new process each time; the kernels are compiled."""
    command = [sys.executable, "-m", "rung", "generate", "Once upon a time", "--no-echo", "-n", "8"]
    samples = []
    for _ in range(repeats):
        ours, theirs = pty.openpty()
        began = time.perf_counter()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs)
        os.read(ours, 1)
        samples.append(time.perf_counter() - began)
        os.close(theirs)
        process.wait()
        os.close(ours)
    return samples


# The format of llama.cpp that is nearest to each of rung's.
FORMATS = {"float32": "F32", "bfloat16": "BF16", "int8": "Q8_0"}
_GPT2 = {
    "wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "ln_1": "attn_norm", "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output", "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
}  # fmt: skip
_LLAMA = {
    "embed_tokens": "token_embd", "norm": "output_norm", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", **{f"self_attn.{x}_proj": f"attn_{x}" for x in "qkv"},
    "self_attn.o_proj": "attn_output", **{f"mlp.{x}_proj": f"ffn_{x}" for x in ("gate", "up", "down")},
}  # fmt: skip


def write_gguf(model: Any, kind: str, path: Path) -> None:
    """The weights of a GPT2LMHeadModel or a tied LlamaForCausalLM, for speed: llama.cpp expects another order of the
    rows of Llama's queries and keys. Matrices in the format `kind`, all else in float32."""
    import gguf
    from gguf.quants import quantize

    c = model.config
    names = _GPT2 if c.model_type == "gpt2" else _LLAMA
    writer = gguf.GGUFWriter(path, c.model_type)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_head_count(c.num_attention_heads)
    writer.add_vocab_size(c.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    if names is _GPT2:
        writer.add_feed_forward_length(4 * c.n_embd)
        writer.add_layer_norm_eps(c.layer_norm_epsilon)
    else:
        writer.add_feed_forward_length(c.intermediate_size)
        writer.add_head_count_kv(c.num_key_value_heads)
        writer.add_layer_norm_rms_eps(c.rms_norm_eps)
        writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    for name, tensor in model.base_model.named_parameters():
        module, _, part = name.rpartition(".")
        layered = re.fullmatch(r"(?:h|layers)\.(\d+)\.(.+)", module)
        place = f"blk.{layered[1]}.{names[layered[2]]}.{part}" if layered else f"{names[module]}.{part}"
        transposed = ".c_" in module and tensor.dim() == 2  # Conv1D keeps (inputs, outputs)
        data = (tensor.T if transposed else tensor).detach().float().contiguous().numpy()
        if tensor.dim() == 2 and module != "wpe":
            to = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(place, quantize(data, to), raw_dtype=to)
        else:
            writer.add_tensor(place, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama_cpp_seconds(
    program: Path, model: Path, threads: int, prompt: int, new: int, texts: int, *, cpu: bool
) -> float:  # fmt: skip
    """Of reading prompts and writing new tokens after them, if any: wall time as the program reports it, or `cpu`, the
    process's CPU time less that of a run that does next to nothing."""

    def run(prompt: int, new: int) -> tuple[float, float]:
        command = [str(program), "-m", str(model), "-t", str(threads), "-tb", str(threads), "--output-format", "jsonl"]
        sizes = {"-npp": prompt, "-ntg": new, "-npl": texts, "-c": max(512, texts * (prompt + new + 64))}
        words = [str(word) for pair in sizes.items() for word in pair]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        output = subprocess.run([*command, *words], check=True, capture_output=True, text=True).stdout
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        lines = [line for line in output.splitlines() if line.startswith("{")]
        if not lines and not cpu:  # the program sometimes ends before its log is written
            return run(prompt, new)
        found = json.loads(lines[0]) if lines else {"t_pp": 0.0, "t_tg": 0.0}
        return found["t_pp"] + (found["t_tg"] if new > 1 else 0.0), used

    # The run for comparison has two steps, one for its prompt: with as many more nothing but loading is taken off.
    wall, used = run(prompt, new + 2 if new and cpu else max(1, new))
    return used - run(1, 1)[1] if cpu else wall


def machine() -> dict[str, Any]:
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), model)
    return {
        "processor": model,
        "processors": processors(),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def measure(
    model: str, rounds: int, sections: Sequence[str], threads: int | None, clock: Clock, program: Path | None,
    files: Path, texts: int, new: int,
) -> dict[str, Any]:  # fmt: skip
    facts = machine()
    torch.manual_seed(0)
    fields = {"model_type": "gpt2"} if model == "gpt2" else transformers_config(model)
    kind = transformers.AutoConfig.for_model(**fields)
    ids = torch.randint(0, kind.vocab_size, (1, PREFILL + new))
    prompt, long = ids[:, :PROMPT].repeat(texts, 1), ids[:, :PREFILL]
    with tempfile.TemporaryDirectory() as folder:
        transformers.AutoModelForCausalLM.from_config(kind).save_pretrained(folder)
        theirs = {
            f"transformers {name}": transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=getattr(torch, name)
            ).eval()
            for name in ("float32", "bfloat16")
        }
        ours = {name: rung.load(folder, dtype=name.split()[1], threads=threads, device="cpu") for name in AGAINST}

    if program is not None:
        for dtype, kind in FORMATS.items():
            write_gguf(theirs["transformers float32"], kind, files / f"{dtype}.gguf")

    def of_llama_cpp(section: str) -> dict[str, Callable[[], Any]]:
        if program is None or section == "score":
            return {}
        length = (threads or processors(), *((PROMPT, new, texts) if section == "text" else (PREFILL, 0, 1)))
        cpu = clock is time.process_time
        return {
            f"llama.cpp {dtype}": partial(llama_cpp_seconds, program, files / f"{dtype}.gguf", *length, cpu=cpu)
            for dtype in FORMATS
        }

    def their_text(model: Any) -> Callable[[], Any]:
        keywords = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}
        mask = torch.ones_like(prompt)
        return lambda: model.generate(prompt, attention_mask=mask, **keywords)

    def our_text(model: Model) -> Callable[[], Any]:
        tokens = prompt.tolist()
        return lambda: model.generate(tokens, max_new_tokens=new, temperature=0, stop_tokens=())

    def their_prefill(model: Any) -> Callable[[], Any]:
        return lambda: model(long, use_cache=True, logits_to_keep=1)

    def our_prefill(model: Model) -> Callable[[], Any]:
        def prefill() -> torch.Tensor:
            cache = model.transformer.new_cache(1, PREFILL)
            cache.begin(1)
            return model.transformer.advance(long.tolist(), cache)

        return prefill

    def their_score(model: Any) -> Callable[[], Any]:
        return lambda: model(long).logits[0, :-1].float().log_softmax(-1).gather(1, long[0, 1:, None])

    def our_score(model: Model) -> Callable[[], Any]:
        return lambda: model.score(long.tolist())

    numbers = torch.ones(64 << 20)
    result: dict[str, Any] = {"machine": facts, "texts": texts, "new": new}
    work = {"text": (their_text, our_text), "prompt": (their_prefill, our_prefill), "score": (their_score, our_score)}
    for section in (name for name in sections if name in work):
        them, us = work[section]
        contenders = {n: them(m) for n, m in theirs.items()} | of_llama_cpp(section)
        contenders |= {n: us(m) for n, m in ours.items()}
        with torch.inference_mode():
            seconds = interleaved({"read": numbers.sum} | contenders, rounds, clock)
        # A token takes at least as long as reading the weights.
        facts["read_gb_per_s"] = numbers.nbytes / 1e9 / min(seconds.pop("read"))
        result[section] = compared(seconds, new * texts if section == "text" else PREFILL)
    for name, figures in result.get("text", {}).items():
        if name in ours:
            weights = ours[name].transformer.weights
            # All weights once per token, except the positions and an embedding that is not the head as well.
            apart = [weights.wpe] if hasattr(weights, "wpe") else []
            apart += [] if weights.wte is weights.head else [weights.wte.weight]
            read = weights.nbytes() - sum(tensor.nbytes for tensor in apart)
            figures |= {"weights_mb": read / 1e6, "limit_tokens_per_s": facts["read_gb_per_s"] * 1e9 / read}
    if "accuracy" in sections:
        result["accuracy"] = accuracy(ours, theirs["transformers float32"], ids[0, : PROMPT + new].tolist())
    if "first token" in sections:
        result["first_token_s"] = spread(first_token(5))
    return result


def rows(model: str, found: dict[str, Any], how: dict[str, Any]) -> list[Row]:
    """The figures as the results store keeps them."""
    facts: dict[str, Any] = {**machine_facts(), "gpu": ""}
    state = {name: found["machine"][name] for name in ("load_average", "read_gb_per_s") if name in found["machine"]}
    made: list[Row] = []
    peers: dict[str, dict[str, Any]] = {
        "text": {"texts": found["texts"], "new_tokens": found["new"], "prompt_tokens": PROMPT},
        "prompt": {"prompt_tokens": PREFILL},
        "score": {"texts": 1, "tokens": PREFILL},
    }
    for part, options in peers.items():
        for name, figures in found.get(part, {}).items():
            by, dtype = name.split(" ")
            rate, ratio, llama = figures["tokens_per_s"], figures.get("ratio", {}), figures.get("llama_ratio", {})
            loss = found.get("accuracy", {}).get(name, {}).get("kl_divergence_per_token") if part == "text" else None
            detail = {"peer": figures["against"]} if ratio else {}
            if by == "llama.cpp":
                detail["format"] = FORMATS[dtype]
            row = Row(
                kind="generate", what=model, part=part, dtype=dtype, weights="random", machine=facts, state=state,
                options={"by": by, **options, **how},
                detail=detail,
                samples={"tokens_per_s": rate["samples"]},
            )  # fmt: skip
            figure = {
                "tokens_per_s": rate["median"],
                "vs_peer": ratio.get("median"),
                "vs_llama": llama.get("median"),
                "kl_nats": loss,
            }
            made.append(row.with_metrics(**figure))
    if "first_token_s" not in found:
        return made
    first = found["first_token_s"]
    inner = Row(
        kind="generate", what="the model inside", part="first token", weights="trained", options={"by": "rung"},
        metrics={"seconds": first["median"]}, samples={"seconds": first["samples"]}, machine=facts,
    )  # fmt: skip
    return [*made, inner]


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU generation: rung against transformers.")
    parser.add_argument("--output", type=Path, help="the file of rows (default: your store of results)")
    parser.add_argument("--model", default="gpt2", help="gpt2 (the default), or a tied model of rung's random: sizes")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--llama-cpp", type=Path, metavar="PATH", help="llama-batched-bench, as another peer")
    parser.add_argument("--new", type=int, default=64, help="tokens of a text")
    parser.add_argument("--texts", type=int, default=1, help="how many are written at once")
    parser.add_argument("--avx2", action="store_true", help="no wider vectors than AVX2's, here and there")
    parser.add_argument("--cpu-time", action="store_true", help="CPU time of one thread instead of wall time")
    arguments = parser.parse_args()
    if arguments.avx2:
        if os.environ.get("ATEN_CPU_CAPABILITY") != "avx2":  # libraries look when they are loaded
            limits = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
            os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | limits)
        build.FLAGS[:] = [flag.replace("native", "x86-64-v3") for flag in build.FLAGS]
    transformers.logging.set_verbosity_error()
    threads, clock = (1, time.process_time) if arguments.cpu_time else (None, time.perf_counter)
    torch.set_num_threads(threads or processors())
    with tempfile.TemporaryDirectory() as files:
        result = measure(
            arguments.model, arguments.rounds, arguments.sections, threads, clock, arguments.llama_cpp, Path(files),
            arguments.texts, arguments.new,
        )  # fmt: skip
    how = {"clock": "cpu", "threads": 1} if arguments.cpu_time else {}
    how |= {"vectors": "AVX2"} if arguments.avx2 else {}
    for row in rows(arguments.model, result, how):
        store.append(row, arguments.output)
    for part in ("text", "prompt", "score"):
        for name, figures in result.get(part, {}).items():
            ratio = f"   {figures['ratio']['median']:.2f}x {figures['against']}" if "ratio" in figures else ""
            ratio += f", {figures['llama_ratio']['median']:.2f}x llama.cpp" if "llama_ratio" in figures else ""
            print(f"{part:10} {name:22} {figures['tokens_per_s']['median']:8.1f} tokens/s{ratio}")
    for name, figures in result.get("accuracy", {}).items():
        print(f"{name:22} " + "  ".join(f"{k} {v:.3g}" for k, v in figures.items()))
    if "first_token_s" in result:
        print(f"first token after {result['first_token_s']['median']:.2f} s")


if __name__ == "__main__":
    main()
