"""Counts and times in Prometheus' format, under vLLM's names."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from rung.models.batching.text import Piece

SHORT = (0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 40.0)
LONG = (0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 600.0)
COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
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
        self._each = histogram("request_time_per_output_token_seconds", "A text's seconds per token.", BETWEEN)
        self._prompts = histogram("request_prompt_tokens", "Tokens of a prompt.", COUNTS)
        self._written = histogram("request_generation_tokens", "Tokens of a text.", COUNTS)
        self.deaths = self._plain("rung:worker_deaths", "Engines' processes that died.")
        self.restarts = self._plain("rung:worker_restarts", "Engines' processes that were started again.")
        self.failures = self._plain("rung:engine_failures", "Failures of engines that ended running texts.")
        self.shared = self._plain("rung:shared_prompt_tokens", "Tokens of prompts that were found in memory, not read.")
        self.set_back = self._plain("rung:preemptions", "Times that a text gave its memory back, to be read again.")
        self._refusals = Counter(
            "rung:http_errors", "Answers with an error.", ["model_name", "status"], registry=self._registry
        )
        self._errors = Counter(
            "rung:text_errors", "Texts that ended with an error.", ["model_name"], registry=self._registry
        ).labels(model)
        self._success = Counter(
            "vllm:request_success", "Texts that came to their end.", ["model_name", "finished_reason"],
            registry=self._registry,
        )  # fmt: skip
        for reason in ("stop", "length", "abort"):
            self._success.labels(model, reason)

    def _plain(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, ["model_name"], registry=self._registry).labels(self._model)

    def refused(self, status: int) -> None:
        """A request was answered with an error."""
        self._refusals.labels(self._model, str(status)).inc()

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
        self._first: float | None = None
        self._last = self._began
        self._tokens = 0

    def see(self, piece: Piece) -> None:
        m, now, count = self._metrics, time.monotonic(), len(piece.tokens)
        if piece.queued is not None:
            m._queue.observe(piece.queued)
            m.prompt_tokens.inc(self._prompt_tokens)
        if count:
            m.new_tokens.inc(count)
            if self._first is None:
                m._first.observe(now - self._began)
                self._first = now
            else:
                for _ in range(count):  # tokens that came together share the time since those before
                    m._between.observe((now - self._last) / count)
            self._last, self._tokens = now, self._tokens + count
        if piece.error is not None:
            m._errors.inc()
        if piece.reason is not None:
            m.ended(piece.reason)
            if piece.reason != "interrupted":
                m._whole.observe(now - self._began)
                m._prompts.observe(self._prompt_tokens)
                m._written.observe(self._tokens)
                if self._first is not None and self._tokens > 1:
                    m._each.observe((now - self._first) / (self._tokens - 1))
