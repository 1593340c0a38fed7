"""The tables of measured text generation, in README.md and docs/generation.md."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from rung.results.current import Figures
from rung.results.row import Row
from rung_reproduce.show.markdown import table, times

MODELS = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")  # by size
LLAMA = {"smollm2-135m": "SmolLM2-135M", "qwen3-0.6b": "Qwen3-0.6B", "llama-3.2-1b": "Llama-3.2-1B"}  # by size
STATIC = "transformers, static + compile"
COMPILED = "transformers, compiled"
PEER = ("transformers, static cache + compile", "gain")
PROMPTS = (("best", "`best`, ms"), ("torch", "torch, ms"), (COMPILED, "transformers compiled, ms"))


def part(found: Figures, name: str, by: str | None = None) -> list[Row]:
    """The rows of a part of the generation benchmark, by implementation."""
    return _ordered(found.of_kind("generate"), name, by)


def ours(found: Figures, name: str, by: str | None = "rung") -> list[tuple[Row, str]]:
    """Rows of a part, with the text that replaces their figures if the code has changed since."""
    changed = {id(r): f"code changed since {r.time[:10]}" for r in found.changed("generate")}
    rows = _ordered([*found.of_kind("generate"), *found.changed("generate")], name, by)
    return [(r, changed.get(id(r), "")) for r in rows]


def _ordered(some: Iterable[Row], name: str, by: str | None) -> list[Row]:
    rows = [r for r in some if r.part == name and r.verdict == "ok" and r.what not in LLAMA]
    texts = {id(r): r.options.get("texts", 1) for r in rows}
    models = {name: size for size, name in enumerate(MODELS)}
    order = sorted(rows, key=lambda r: (texts[id(r)] > 1, models.get(r.what, 0), texts[id(r)], r.dtype))
    return [r for r in order if by is None or r.options.get("by") == by]


def comparable(a: Row, b: Row) -> bool:
    """Whether two rows may be compared: measured on the same GPU, of the same code, within an hour."""
    hours = abs((datetime.fromisoformat(a.time) - datetime.fromisoformat(b.time)).total_seconds()) / 3600
    return a.machine.get("gpu") == b.machine.get("gpu") and a.commit == b.commit and hours < 1


def peer(found: Figures, row: Row, by: str = STATIC) -> Row | None:
    """The same work by another implementation, in the same run."""
    options = {**row.options, "by": by}
    same = (r for r in part(found, row.part, by) if r.what == row.what and r.dtype == row.dtype)
    return next((r for r in same if r.options == options and comparable(r, row)), None)


def _beside(found: Figures, row: Row) -> tuple[str, str]:
    theirs = peer(found, row)
    if theirs is None:
        return "", ""
    rate = theirs.metrics["tokens_per_s"]
    return f"{rate:,.0f}", times(row.metrics["tokens_per_s"] / rate)


def _name(row: Row) -> str:
    trained = f", {row.weights} weights" if row.weights else ""
    return f"{row.what} {row.dtype}{trained}"


def single(found: Figures) -> str:
    """One text, by model and dtype; a step at 1000 tokens of context over one at 50."""
    context = {(r.what, r.dtype): r.metrics for r in part(found, "context")}
    lines = []
    for row, instead in ours(found, "text"):
        late = context.get((row.what, row.dtype))
        if instead and row.options["texts"] == 1:
            lines.append([_name(row), row.detail["rung"], instead, "", "", "", "", ""])
        elif row.options["texts"] == 1:
            m = row.metrics
            share = f"{m['of_bandwidth']:.0%}" if "of_bandwidth" in m else ""
            flat = f"{late['short_us'] / late['long_us']:.0%}" if late else ""
            cells = [row.detail["rung"], f"{m['tokens_per_s']:,.0f}", f"{m['step_us']:,.0f}", share, flat]
            lines.append([_name(row), *cells, *_beside(found, row)])
    heads = ("model", "rung", "tokens/s", "step, µs", "of bandwidth", "speed at 1000 tokens, of that at 50", *PEER)
    return table(heads, lines, words=2)


def evenness(found: Figures) -> str:
    """Calls of `generate`: their median, and how far the slowest are from it."""
    lines = []
    for row in part(found, "evenness"):
        m = row.metrics
        seconds = [f"{1e3 * m[name]:,.1f}" for name in ("median_s", "p99_s", "worst_s")]
        even = [f"{m['worst_over_median']:.2f}", f"{m['host_cpu_s'] / m['median_s']:.0%}", f"{m['calls']:.0f}"]
        lines.append([_name(row), f"{row.options['texts']}", f"{m['tokens_per_s']:,.0f}", *seconds, *even])
    heads = ("model", "texts", "tokens/s", "median, ms", "99th", "slowest", "slowest / median", "CPU / time", "calls")
    return table(heads, lines)


def llama(found: Figures) -> str:
    """Models of Llama's layer with random weights: texts and scores beside transformers in the same run."""
    at = {(r.what, r.part, r.options.get("texts"), r.options["by"]): r.metrics for r in _of_llama(found)}

    def rates(model: str, part: str, texts: int) -> list[str]:
        some = [at.get((model, part, texts, by)) for by in ("rung", "transformers")]
        return [f"{m['tokens_per_s']:,.0f}" if m else "" for m in some]

    lines = []
    for model, name in LLAMA.items():
        step = at.get((model, "step", 1, "rung"))
        if step is None:
            continue
        times_ = [f"{step['step_us']:,.0f}", f"{step['launches']:,.0f}", f"{step['bytes_us']:,.0f}"]
        several = [cell for n in (8, 64) for cell in rates(model, "text", n)] + rates(model, "text", 256)[:1]
        texts = [*rates(model, "text", 1), *times_, several[0], *several[2:], *rates(model, "score", 8)]
        lines.append([name, *texts])
    other = "transformers"
    step_heads = ("step, µs", "launches", "bytes, µs")
    several_heads = ("8 texts", "64 texts", other, "256 texts", "score", other)
    return table(("bfloat16, random weights", "one text, tokens/s", other, *step_heads, *several_heads), lines)


def _of_llama(found: Figures, cache: str | None = None) -> list[Row]:
    rows = (r for r in found.of_kind("generate") if r.what in LLAMA and r.verdict == "ok")
    return [r for r in rows if r.options.get("cache") == cache]


def eight_bits(found: Figures) -> str:
    """Many texts with keys and values in 8 bits, beside those in 16."""
    usual = {(r.what, r.part, r.options.get("texts")): r.metrics for r in _of_llama(found)}
    some = {(r.what, r.part, r.options.get("texts")): r.metrics for r in _of_llama(found, "int8")}
    lines, places = [], [*LLAMA]
    measured = {(what, texts) for what, part, texts in some if part == "text"}
    for model, texts in sorted(measured, key=lambda one: (places.index(one[0]), one[1])):
        cells = [
            f"{of[model, part, texts][key]:,.0f}" if (model, part, texts) in of else ""
            for part, key in (("text", "tokens_per_s"), ("step", "step_us")) for of in (some, usual)
        ]  # fmt: skip
        error = some.get((model, "error", texts), {})
        far = [f"{error['kl_nats']:.1e}", f"{error['same_likeliest']:.1%}"] if error else ["", ""]
        lines.append([LLAMA[model], str(texts), *cells, *far])
    beside = "in 16 bits"
    heads = ("cache in 8 bits", "texts", "tokens/s", beside, "step, µs", beside, "divergence, nats", "same likeliest")
    return table(heads, lines)


def beginnings(found: Figures) -> str:
    """Milliseconds until prompts have their first tokens, with one beginning and with nothing in common."""
    rows = {r.what: r for r in _of_llama(found) if r.part == "beginning"}
    lines = []
    for model, row in ((LLAMA[m], rows[m]) for m in LLAMA if m in rows):
        m, given = row.metrics, row.options
        prompts = f"{given['texts']} of {given['common_tokens']:,} + {given['own_tokens']}"
        lines.append([model, prompts, *(f"{m[f'{name}_ms']:.1f}" for name in ("one", "alike", "apart"))])
    return table(("prompts", "tokens", "one, ms", "all, ms", "all with nothing in common, ms"), lines)


def batch(found: Figures) -> str:
    """Several sequences at once."""
    lines = []
    for row, instead in ours(found, "text"):
        if row.options["texts"] > 1:
            m = row.metrics
            cells = [f"{m['tokens_per_s']:,.0f}", f"{m['step_us']:,.0f}", f"{m['first_ms']:.1f}", *_beside(found, row)]
            cells = [instead, "", "", "", ""] if instead else cells
            lines.append([f"{_name(row)}, {row.options['texts']} texts", row.detail["rung"], *cells])
    return table(("sequences", "rung", "tokens/s", "step, µs", "first token, ms", *PEER), lines, words=2)


def prompts(found: Figures) -> str:
    """Reading one prompt: the ladders, torch's operations one by one, and transformers compiled."""
    rows = {(r.what, r.dtype, r.options["prompt_tokens"], r.options["by"]): r for r in part(found, "prompt")}
    lines = []
    for model, dtype, length in dict.fromkeys(key[:3] for key in sorted(rows, key=lambda k: (k[0], k[1], k[2]))):
        here = [rows.get((model, dtype, length, by)) for by, _ in PROMPTS]
        newest = max((r for r in here if r), key=lambda r: r.time)
        spent = [r.metrics["prompt_ms"] if r and comparable(r, newest) else None for r in here]
        gain = times(spent[2] / spent[0]) if spent[0] and spent[2] else ""
        lines.append([f"{model} {dtype}, {length}", *(f"{x:.3f}" if x else "" for x in spent), gain])
    return table(("prompt, tokens", *(head for _, head in PROMPTS), "gain over it"), lines)


def score(found: Figures) -> str:
    """Log-probabilities of given texts."""
    lines = []
    for row, instead in ours(found, "score"):
        m, rest = row.metrics, [peer(found, row, by) for by in (COMPILED, "transformers, eager")]
        cells = [f"{m['tokens_per_s']:,.0f}", f"{m['peak_mb']:,.0f}" if "peak_mb" in m else ""]
        for theirs in rest:
            rate = theirs.metrics["tokens_per_s"] if theirs else None
            cells += [f"{rate:,.0f}", times(m["tokens_per_s"] / rate)] if rate else ["", ""]
        workload = f"{_name(row)}, {row.options['texts']:,} texts of {row.options['tokens']} tokens"
        lines.append([workload, *([instead, *[""] * 5] if instead else cells)])
    heads = ("texts", "tokens/s", "memory beside the weights, MB", "transformers compiled", "gain")
    return table((*heads, "transformers eager", "gain"), lines)


def sampling(found: Figures) -> str:
    """The cost of choosing a token."""
    rows = {r.options["how"]: r.metrics["tokens_per_s"] for r in part(found, "sampling")}
    greedy = rows.get("greedy")
    lines = [[how, f"{rate:,.0f}", f"{rate / greedy:.0%}" if greedy else ""] for how, rate in rows.items()]
    lines += [[row.options["how"], instead, ""] for row, instead in ours(found, "sampling", None) if instead]
    return table(("choice of a token, gpt2 bfloat16", "tokens/s", "of greedy"), lines)


def inside(found: Figures) -> str:
    """Where a token's time goes, in the kernel of the whole step and around it."""
    lines = []
    for row in found.of_kind("profile"):
        if row.part == "generate" and "token_us" in row.metrics:
            m, inside_counts = row.metrics, row.detail.get("inside") or {}
            spent = {
                column: 1e6 * sum(line[i] for line in inside_counts["spent"][:-1])
                for i, column in enumerate(inside_counts.get("columns", ()))
            }
            shown = "; ".join(f"{name} {us:.0f}" for name, us in sorted(spent.items(), key=lambda x: -x[1]) if us >= 1)
            cells = [f"{m['token_us']:.1f}", f"{m['gap_us']:.1f}", f"{m['floor_us']:.1f}", shown]
            lines.append([_name(row), *cells])
    heads = ("model", "token, µs", "gaps", "reading the weights takes", "inside the kernel, µs by cause (timed build)")
    return table(heads, lines)


def summary(found: Figures) -> str:
    """Ours and transformers on the same work, if measured."""
    lines = []
    for row, instead in ours(found, "text"):
        texts = row.options["texts"]
        workload = "one text" if texts == 1 else f"{texts} texts"
        cells = [instead, "", ""] if instead else [f"{row.metrics['tokens_per_s']:,.0f}", *_beside(found, row)]
        lines.append([f"{_name(row)}, {workload}", *cells])
    earlier = "`docs/notes/text-speed-2026-11.md` keeps what earlier code reached.\n\n"
    some = any(instead for _, instead in ours(found, "text"))
    return table(("", "tokens/s", *PEER), lines) + (earlier if some else "")


def on_cpu(rows: Iterable[Row]) -> str:
    """Text generation on a CPU, against transformers and llama.cpp, run in turns."""
    some = [r for r in rows if r.kind == "generate" and not r.gpu and "clock" not in r.options]
    some = [r for r in some if r.what == "gpt2" or r.part == "first token"]
    prompt = {(r.options["by"], r.dtype): r for r in some if r.part == "prompt"}
    lines, shown = [], None
    formats = ("float32", "bfloat16", "int8")
    texts = [r for r in some if r.part == "text"]
    for row in sorted(texts, key=lambda r: (formats.index(r.dtype), r.options["by"] == "rung", r.options["by"])):
        shown = row
        read = prompt.get((row.options["by"], row.dtype))
        cells = [c for one in (row, read) for c in _against(one)]
        loss = row.metrics.get("kl_nats")
        name = f"{row.options['by']} {row.detail.get('format', row.dtype)}"
        lines.append([name, *cells, "" if loss is None else f"{loss:.1e}"])
    if shown is None:
        return ""
    against = ("against transformers", "llama.cpp")
    heads = ("", "tokens/s", *against, "prompt, tokens/s", *against, "KL, nats per token")
    m, o = shown.machine, shown.options
    first = next((f"{r.metrics['seconds']:.1f} s" for r in some if r.part == "first token"), "")
    caption = (
        f"{shown.what}, {shown.weights} weights, one text, {o['prompt_tokens']}-token prompt, {o['new_tokens']} new "
        f"tokens, greedy; {m['cpu']}, {m['cores']} threads, torch {m['torch']}, transformers {m['transformers']}."
    )
    appears = f" The bundled model: first token {first} after launch." if first else ""
    return f"{table(heads, lines)}{caption}{appears}\n\n"


def by_cpu_time(rows: Iterable[Row]) -> str:
    """Tokens per second of one thread's CPU time, for several texts and widths of vectors, and what the peers' are."""
    some = [r for r in rows if r.kind == "generate" and "clock" in r.options and r.part == "text"]
    some = [r for r in some if r.options["by"] == "rung"]
    found: dict[tuple[str, str, int], dict[str, Row]] = {}
    for row in some:
        place = (row.what, row.options.get("vectors", "all"), row.options["texts"])
        found.setdefault(place, {})[row.dtype or ""] = row
    formats, lines = ("float32", "bfloat16", "int8"), []
    for (what, vectors, texts), held in sorted(found.items()):
        cells = ["" if one is None else ", ".join(filter(None, _against(one))) for one in map(held.get, formats)]
        lines.append([what, vectors, str(texts), *cells])
    if not some:
        return ""
    m = some[0].machine
    return table(("model", "vectors", "texts", *formats), lines) + (
        f"Tokens per second of CPU time, against transformers' format that is named, and against llama.cpp's. Random "
        f"weights, one thread, {m['cpu']}, torch {m['torch']}, transformers {m['transformers']}.\n\n"
    )


def _against(row: Row | None) -> tuple[str, str, str]:
    if row is None:
        return "", "", ""
    ratio, llama = row.metrics.get("vs_peer"), row.metrics.get("vs_llama")
    rival = str(row.detail.get("peer", "")).removeprefix("transformers ")
    return (
        f"{row.metrics['tokens_per_s']:,.0f}",
        f"{ratio:.2f}× {rival}" if ratio else "",
        f"{llama:.2f}×" if llama else "",
    )
