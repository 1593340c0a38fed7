"""The whole page: the model's climb, the ladders, the studies, the machine; report.html.j2 is its template."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from rung.dtypes import DTYPES
from rung.profile.resources import Compiled
from rung.results.current import Figures, percent
from rung.results.row import Row
from rung.rungs import catalogue
from rung.rungs.base import Rung
from rung.show import charts, colours, drawings, model_chart, predictions, row_text
from rung.show.report import ladder, plots
from rung.show.report.markup import prose, unit

HERE = Path(__file__).parent
SECTIONS = (
    ("model", "The whole model"), ("studies", "Studies"), ("machine", "The machine"),
)  # fmt: skip
LISTS = (("generate", "Text"), ("profile", "Profiles"), ("parallel", "Over streams and GPUs"))


def build(
    found: Figures | None,
    resources: Mapping[str, list[Compiled]] | None = None,
    *,
    drawn: Iterable[Row] = (),
    other_gpus: tuple[str, ...] = (),
    progress: Callable[[str], None] = lambda name: None,
) -> str:
    """The report as one HTML document, with what was drawn and predicted among the rows `drawn`; `other_gpus` also have
    results."""
    names = list(catalogue.operations())
    stored = list(drawn)
    shown, predicted = drawings.stored(stored), predictions.stored(stored)
    ladders = []
    for name in names:
        progress(name)
        ladders.append(ladder.context(name, names, found, resources or {}, shown, predicted))
    library = (HERE / "chart.umd.min.js").read_text(encoding="utf-8").partition("\n//# sourceMappingURL")[0]
    scripts = [library, (HERE / "report.js").read_text(encoding="utf-8")]
    digests = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    environment.policies["json.dumps_function"] = lambda value, **_: json.dumps(_rounded(value), separators=(",", ":"))
    environment.filters["prose"] = lambda value: Markup(prose(str(value)))
    return (
        environment.get_template("report.html.j2")
        .render(
            policy=f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {digests}",
            style=_scheme_css() + (HERE / "report.css").read_text(encoding="utf-8"),
            scripts=scripts,
            packed=_packed(ladders),
            sections=SECTIONS,
            ladders=ladders,
            climbs=_climbs(found) if found else [],
            lists=[(title, rows) for kind, title in LISTS if found and (rows := _list(found.of_kind(kind)))],
            studies=[_study(row) for row in (found.of_kind("study") if found else ()) if "title" in row.detail],
            measured=bool(found and found.results),
            gpu=found.gpu or "a CPU" if found else "",
            machine=_machine(found) if found else [],
            ceilings=_ceilings(found) if found else [],
            others=other_gpus,
        )
        .lstrip()
    )


def _rounded(value: Any) -> Any:
    """Data of a plot with five digits of each number: more are not seen."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {name: _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value


def _packed(ladders: Iterable[Mapping[str, Any]]) -> str:
    """Every source, difference and drawing, compressed: as they are they would be nine tenths of the page."""
    rungs = [r for of in ladders for r in of["rungs"]]
    code = [{r["id"]: r[part] for r in rungs} for part in ("changes", "source", "drawn")]  # like beside like: smaller
    return base64.b64encode(zlib.compress(json.dumps(code).encode(), 9)).decode()


def _scheme_css() -> str:
    def rules(scheme: str) -> str:
        every = colours.COLOURS[scheme] | charts.SCHEMES[scheme]
        return "".join(f"--{name}:{colour};" for name, colour in every.items())

    dark = "@media (prefers-color-scheme: dark)"
    return f":root{{{rules('light')}}}\n{dark}{{:root{{{rules('dark')}}}}}\n" + colours.RULES


def _climbs(found: Figures) -> list[dict[str, Any]]:
    """Tokens per second of each model, step by step, the model with most steps first."""
    climbed = [r for r in found.of_kind("climb") if "study" not in r.options]
    names = dict.fromkeys(r.what for r in climbed)
    sections = []
    for name in names:
        steps, rows, before = model_chart.steps(climbed, name), [], dict[str, float]()
        for row in steps:
            m, rate = row.metrics, model_chart.rate(row)
            gain = f"{rate / before[row.dtype]:.2f}×" if row.dtype in before else ""
            before[row.dtype] = rate
            share = percent(m["of_bandwidth"]) if m.get("of_bandwidth") else ""
            idea = Markup("{}<small>{}</small>").format(row.part.replace("_", " "), Markup(prose(row.detail["idea"])))
            loss = f"{m['kl_nats']:.1e}" if "kl_nats" in m else ""
            rows.append([idea, row.dtype, f"{rate:,.0f}", gain, share, loss])
        if steps:
            summary, weights = model_chart.summary(steps), steps[0].weights
            plot = plots.model(steps)
            sections.append({"name": name, "summary": summary, "weights": weights, "plot": plot, "rows": rows})
    return sorted(sections, key=lambda climb: -len(climb["rows"]))


def _list(rows: Iterable[Row]) -> list[list[str]]:
    """Rows without a page of their own, each with its figure."""
    shown = []
    for row in rows:
        how = ", ".join(f"{n} {v}" for n, v in row.options.items())
        shown.append([f"{row.what} {row.part}".strip(), row.dtype, how, row_text.headline(row), row_text.remark(row)])
    return shown


def _study(row: Row) -> dict[str, Any]:
    found = row.detail
    return {
        "id": f"{row.what}-{row.part}" if row.part else row.what,
        "title": found["title"],
        "finding": found["finding"],
        "marks": row_text.marks(row),
        "plot": plots.study(found),
        "columns": [unit(str(c)) for c in found["columns"]],
        "rows": [[f"{v:.4g}" if isinstance(v, float) else v for v in line] for line in found["rows"]],
    }


MACHINE_FACTS = {
    "gpu": "GPU", "sms": "multiprocessors", "capability": "compute capability", "memory_bytes": "memory",
    "l2_bytes": "L2 cache", "driver": "driver", "cuda": "CUDA", "torch": "torch", "triton": "Triton",
    "cuda_core": "cuda.core", "python": "Python", "cpu": "CPU", "cores": "CPU cores",
}  # fmt: skip
STATE_FACTS = {"sm_mhz": "SM clock, MHz", "memory_mhz": "memory clock, MHz", "celsius": "temperature, °C",
               "watts": "power, W"}  # fmt: skip


def _machine(found: Figures) -> list[list[str]]:
    rows = [[label, _fact(key, found.machine[key])] for key, label in MACHINE_FACTS.items() if found.machine.get(key)]
    newest = max(found.results, key=lambda r: r.time, default=None)
    state = newest.state if newest else {}
    rows += [[f"{label} (afterwards)", str(state[key])] for key, label in STATE_FACTS.items() if state.get(key)]
    times = sorted(r.time for r in found.results if r.time)
    commits = sorted({r.commit[:8] for r in found.results if r.commit})
    rows.append(["results", f"{len(found.results):,}"])
    rows += [["measured", f"{times[0]} to {times[-1]}"]] if times else []
    return rows + ([["commits", ", ".join(commits)]] if commits else [])


def _ceilings(found: Figures) -> list[list[str]]:
    limits = found.limits
    memory = (limits.bytes, limits.sheet.get("bytes", 0.0))
    rows = [["memory, TB/s", *(f"{x / 1e12:.2f}" if x else "" for x in memory)]]
    for dtype in DTYPES:
        both = (limits.flops.get(dtype, 0.0), limits.sheet.get(dtype, 0.0))
        if any(both):
            rows.append([f"{dtype}, TFLOP/s", *(f"{x / 1e12:,.0f}" if x else "" for x in both)])
    return rows


def _fact(key: str, value: object) -> str:
    if key == "memory_bytes" and isinstance(value, int):
        return f"{value / 2**30:.0f} GiB"
    if key == "l2_bytes" and isinstance(value, int):
        return f"{value / 2**20:.0f} MiB"
    return str(value)


def resources_of(rungs: list[Rung], arch: str, progress: Callable[[str], None]) -> dict[str, list[Compiled]]:
    """The compiler's report on each rung."""
    from rung.profile import inspect

    made: dict[str, list[Compiled]] = {}
    for rung in rungs:
        progress(rung.full_name)
        if rung.kind in ("cuda", "triton"):
            made[rung.full_name] = list(inspect.inspect([rung], [arch], mix=False))
    return made
