"""What a run of `rung generate` tells about itself: as JSON, and in sentences."""

from __future__ import annotations

import sys
from typing import Any

from rung.models.generate import Run, Stats
from rung.models.load import Model


def of_run(model: Model, run: Run) -> dict[str, Any]:
    s = run.stats
    return {
        "model": model.name,
        "device": model.plan.on,
        "dtype": model.plan.dtype,
        "load_s": round(model.load_seconds, 3),
        "prompt_tokens": s.prompt_tokens,
        "prefill_ms": round(s.prefill_seconds * 1e3, 2),
        "new_tokens": s.new_tokens,
        "tokens_per_s": round(s.tokens_per_second, 1) if s.tokens_per_second else None,
        "drafts": _drafts(s) if model.transformer.drafting else None,
        "peak_memory_mb": round(_peak_memory() / 1e6, 1),
        "plan": model.plan.name,
        "rungs": model.plan.rungs_in_use,
        "notes": model.plan.notes,
    }


def _drafts(s: Stats) -> dict[str, Any]:
    return {
        "proposed": s.proposed,
        "accepted": s.accepted,
        "steps": s.drafted,
        "tokens_per_step": round(1 + s.accepted / s.drafted, 2) if s.drafted else None,
    }


def _peak_memory() -> int:
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def sentence(f: dict[str, Any]) -> str:
    speed = f" at {f['tokens_per_s']:,} tokens/s" if f["tokens_per_s"] else " (too few to time)"
    rungs = [f"plan {f['plan']}: {', '.join(f['rungs'].values())}"] if f["rungs"] else []
    if f["drafts"]:
        d = f["drafts"]
        share = f", {d['tokens_per_step']} tokens per step where there was a draft" if d["steps"] else ""
        rungs.append(f"drafts: {d['accepted']} of {d['proposed']} tokens accepted in {d['steps']} steps{share}.")
    figures = (
        f"{f['model']}, {f['dtype']} on {f['device']}: loaded in {f['load_s']:.2f} s, "
        f"{f['prompt_tokens']} prompt tokens in {f['prefill_ms']:.1f} ms, "
        f"{f['new_tokens']} new tokens{speed}; {f['peak_memory_mb']:,.0f} MB at most."
    )
    return "\n".join([figures, *rungs, *(f"note: {note}" for note in f["notes"])])
