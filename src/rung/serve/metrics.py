"""Counts and times in Prometheus' format, under vLLM's names."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from rung.models.batching.text import Piece

SHORT = (0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 40.0)
LONG = (0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 600.0)
BETWEEN = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 1.0, 5.0)


class Metrics:
    """One registry per server."""

    def __init__(self, model: str) -> None:
        self._registry, self._model = CollectorRegistry(), model

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"vllm:{name}", text, ["model_name"], registry=self._registry).labels(model)

        def counter(name: str, text: str) -> Counter:
            return Counter(f"vllm:{name}", text, ["model_name"], registry=self._registry).labels(model)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            made = Histogram(f"vllm:{name}", text, ["model_name"], buckets=buckets, registry=self._registry)
            return made.labels(model)

        self.running = gauge("num_requests_running", "Texts that are being written.")
        self.waiting = gauge("num_requests_waiting", "Texts that wait for a slot.")
        self.usage = gauge("kv_cache_usage_perc", "Share of the cache for keys and values that is in use; 1 is all.")
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts that were read.")
        self.new_tokens = counter("generation_tokens", "Tokens that were written.")
        self._first = histogram("time_to_first_token_seconds", "From a request to its first token.", SHORT)
        self._between = histogram("inter_token_latency_seconds", "From a token to the next of the same text.", BETWEEN)
        self._whole = histogram("e2e_request_latency_seconds", "From a request to its last token.", LONG)
        self._queue = histogram("request_queue_time_seconds", "From a request until it took a slot.", LONG)
        self._success = Counter(
            "vllm:request_success", "Texts that came to their end.", ["model_name", "finished_reason"],
            registry=self._registry,
        )  # fmt: skip
        for reason in ("stop", "length", "abort"):
            self._success.labels(model, reason)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def begin(self, prompt_tokens: int) -> Watch:
        return Watch(self, prompt_tokens)

    def ended(self, reason: str) -> None:
        self._success.labels(self._model, {"interrupted": "abort", "context": "length"}.get(reason, reason)).inc()


class Watch:
    """The times of one text."""

    def __init__(self, metrics: Metrics, prompt_tokens: int) -> None:
        self._metrics, self._prompt_tokens = metrics, prompt_tokens
        self._began = time.monotonic()
        self._last: float | None = None

    def see(self, piece: Piece) -> None:
        m, now = self._metrics, time.monotonic()
        if piece.queued is not None:
            m._queue.observe(piece.queued)
            m.prompt_tokens.inc(self._prompt_tokens)
        if piece.tokens:
            m.new_tokens.inc(len(piece.tokens))
            if self._last is None:
                m._first.observe(now - self._began)
            else:
                m._between.observe(now - self._last)
            self._last = now
        if piece.reason is not None:
            m.ended(piece.reason)
            if piece.reason != "interrupted":
                m._whole.observe(now - self._began)
