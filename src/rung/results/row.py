"""The one schema of everything that is measured.

A row records what was measured (`kind`, `what`, `shape`, `dtype`, `tuning`, `options`), of which code (`texts`,
`code`), where and when (`machine`, `state`, `time`, `commit`), and the result (`verdict`, `metrics`, `samples`,
`detail`). A metric's name ends in its unit: `cold_us`, `first_ms`, `tokens_per_s`, `peak_bytes`; names that begin with
`of_` are shares of a limit, and those with `vs_` ratios of speeds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

FORMAT = "rung-result-2"
# The last is the outcome of a part of `make measure`.
KINDS = (
    "bench", "ceilings", "sweep", "profile", "climb", "generate", "parallel", "study", "check", "mutate", "sanitize",
    "count", "draw", "measure", "prediction", "probe", "stalls",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement."""

    kind: str  # one of KINDS
    what: str  # a rung as layernorm/07_warp, a study, or a model and what it did
    part: str = ""  # which of several rows of the same thing: single, batch, prompt ...; the chart of a study
    dtype: str = ""
    shape: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    tuning: dict[str, int] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)  # how it was measured
    texts: dict[str, str] = field(default_factory=dict)  # digest of the text of each rung that ran
    code: str = ""  # for a single rung: compiler, architecture and digest of its compiled code
    verdict: str = "ok"  # or failed, refused, illegal, "too slow"
    reason: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)
    detail: dict[str, Any] = field(
        default_factory=dict
    )  # everything except numbers: tables, curves, verdicts against others
    notes: list[str] = field(default_factory=list)
    weights: str = ""  # of a model: random, trained, or its name
    quick: bool = False  # fewer points or shorter timings than usual
    machine: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    time: str = ""
    commit: str = ""

    @property
    def operation(self) -> str:
        """The ladder, for kinds that are of one rung."""
        return self.what.partition("/")[0]

    @property
    def rung(self) -> str:
        """The rung's name without its ladder."""
        return self.what.partition("/")[2]

    @property
    def gpu(self) -> str:
        return str(self.machine.get("gpu", ""))

    @property
    def cold_us(self) -> float | None:
        return self.metrics.get("cold_us")

    @property
    def timed(self) -> bool:
        return self.verdict == "ok" and bool(self.metrics.get("cold_us"))

    @property
    def question(self) -> tuple[Any, ...]:
        """The measured question: rows with equal questions, of any time and code, measure the same thing."""
        own = (self.kind, self.what, self.part, self.dtype, self.gpu)
        return own + tuple(json.dumps(x, sort_keys=True) for x in (self.values, self.tuning, self.options))

    @property
    def key(self) -> str:
        """Content address: the question, the code and the driver, not the result."""
        inputs = (*self.question, sorted(self.texts.items()), self.machine.get("driver"))
        return hashlib.sha256(repr(inputs).encode()).hexdigest()[:20]

    def as_json(self) -> dict[str, Any]:
        """The stored form; empty fields are left out."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {"format": FORMAT, **{name: value for name, value in values.items() if value not in ("", {}, [], False)}}

    @staticmethod
    def of_json(values: Mapping[str, Any]) -> Row:
        """A row of the store; unknown names, which a later version may add, are ignored."""
        return Row(**{name: value for name, value in values.items() if name in _NAMES})

    def with_metrics(self, **metrics: float | None) -> Row:
        """The same with these figures; None is no figure."""
        return replace(self, metrics={**self.metrics, **{n: v for n, v in metrics.items() if v is not None}})


_NAMES = frozenset(f.name for f in fields(Row))  # once: a store has thousands of rows


def newest(rows: Iterable[Row]) -> list[Row]:
    """The newest row of each question, in the order in which the questions first occur."""
    latest: dict[tuple[Any, ...], Row] = {}
    for row in sorted(rows, key=lambda r: r.time):
        latest[row.question] = row
    return list(latest.values())
