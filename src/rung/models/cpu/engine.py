"""decode.cpp and passes.cpp as a Python object."""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np

from rung.errors import RungError
from rung.models.batching.pages import PagedCache
from rung.models.cache import SHORT_PROMPT, Cache, Column, Run
from rung.models.cpu import build
from rung.models.cpu.build import Compilation
from rung.models.cpu.prepared import arrays_of
from rung.models.family import Config
from rung.models.plan import place_of, shorter
from rung.models.weights import Weights

# Prompts up to SHORT_PROMPT tokens go through the step, whose products are memory-bound; longer ones through passes of
# blocked products, of so many tokens, which share one read of the weights, and whose activations stay in caches.
TOKENS_AT_ONCE = 512
# In the order of shared.h. Norms of heads, and those behind the products (_post), may be missing.
MATRICES = ("qkv", "attn_proj", "fc", "mlp_proj", "wte", "head")
LAYER = (
    "ln_1", "qkv", "q_norm", "k_norm", "attn_proj", "ln_1_post",
    "ln_2", "fc", "mlp_proj", "ln_2_post",
)  # fmt: skip


class Shape(ctypes.Structure):
    """As in decode.cpp."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("activation", "threads")),
        *((name, ctypes.c_int32) for name in ("L", "C", "NH", "NKV", "HS", "F", "V", "tables", "positions")),
        ("eps", ctypes.c_float),
    )


class Memory(ctypes.Structure):
    """As in shared.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("k", "v", "table")),
        *((name, ctypes.c_int64) for name in ("reach", "page", "between_layers", "between_pages")),
    )


@dataclass(frozen=True)
class Code:
    """What is compiled for a format of weights: steps, and passes, which are waited for when they are first used."""

    steps: ctypes.CDLL
    passes: Callable[[], Compilation | None]

    def passes_of(self) -> object:
        """The function that makes them."""
        compiled = self.passes()
        path = compiled.wait() if compiled else None
        try:
            return None if path is None else ctypes.CDLL(str(path)).rung_passes
        except OSError:
            return None


def available(dtype: str) -> Code | None:
    """The compiled code for weights of this dtype, waiting for the compiler if it runs; None without a compiler."""
    compilation = build.begin(dtype)
    library = compilation.wait() if compilation else None
    steps = _bind(library) if library else None
    return Code(steps, partial(build.begin, dtype, build.PASSES)) if steps else None


@cache
def _bind(path: Path) -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(str(path))
    except OSError:
        return None
    library.rung_new.restype = ctypes.c_void_p
    library.rung_new.argtypes = [ctypes.POINTER(Shape), ctypes.POINTER(ctypes.c_void_p)]
    library.rung_join.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.rung_free.argtypes = [ctypes.c_void_p]
    for function in (library.rung_step, library.rung_read, library.rung_mean):
        function.argtypes = [ctypes.c_void_p, ctypes.c_int32, *[ctypes.c_void_p] * 4]
    library.rung_rate.argtypes = [ctypes.c_void_p, ctypes.c_int32, *[ctypes.c_void_p] * 3, ctypes.c_int32,
                                  ctypes.c_void_p]  # fmt: skip
    return library


class CpuSteps:
    """A model ready for steps. Keeps the weights alive, and its own threads between steps."""

    cache: Cache | None = None  # it accepts any cache

    def __init__(
        self, code: Code, config: Config, weights: Weights, threads: int, window: int | None = None
    ) -> None:
        self._code, self._library = code, code.steps
        self._config = config
        self._weights = weights
        self.columns_at_once: int = self._library.rung_max_columns()
        arrays = self._arrays = arrays_of(weights)
        tensors: list[np.ndarray | None] = []
        of_layers = (f"{i}.{role}" for i in range(config.layers) for role in LAYER)
        for place in (*of_layers, "ln_f", "wte" if config.tied else "head"):
            tensors += [arrays.get(f"{place}.weight"), arrays.get(f"{place}.bias")]
            if place.rpartition(".")[2] in MATRICES:
                tensors.append(arrays.get(f"{place}.weight.scale"))
        layers, context = range(config.layers), config.context
        windows = [shorter(window, config.attention(i).window) or context for i in layers]
        ropes = list(dict.fromkeys(rope for i in layers if (rope := config.rope_of(i))))
        tensors.append(np.array([config.attention_scale(i) for i in layers], np.float32))
        tensors.append(np.array([min(n, context) for n in windows], np.int32))
        tensors.append(np.array([ropes.index(rope) if (rope := config.rope_of(i)) else 0 for i in layers], np.int32))
        turns = [rope.turns(config.HS, context) for rope in ropes]
        tensors += map(np.stack, zip(*turns, strict=True)) if turns else (None, None)
        assert all(t is None or t.flags.c_contiguous for t in tensors)
        self._tensors = tensors
        shape = Shape(
            place_of(config.activation), threads,
            config.layers, config.C, config.NH, config.NKV, config.HS, config.F, config.vocabulary,
            len(ropes), context, config.eps,
        )  # fmt: skip
        self._shape = shape
        self._begin()

    def _begin(self) -> None:
        places = (None if t is None else t.ctypes.data for t in self._tensors)
        pointers = (ctypes.c_void_p * len(self._tensors))(*places)
        self._lock = threading.Lock()  # one step or pass at a time
        self._handle: int | None = self._library.rung_new(ctypes.byref(self._shape), pointers)
        self._pid = os.getpid()
        self._joined = False

    def prepare(self) -> None:
        """Wait for the code of passes."""
        if self._joined:
            return
        passes = self._code.passes_of()
        if passes is None:
            raise RungError(
                "the kernels for long prompts could not be compiled; name another compiler in RUNG_CXX, or another "
                "folder in RUNG_CACHE."
            )
        self._library.rung_join(self._handle, passes)
        self._joined = True

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:  # `os` is already unloaded when Python ends
        if getattr(self, "_handle", None) and self._pid == getpid():
            self._library.rung_free(self._handle)

    def step(self, columns: Sequence[Column], cache: Cache, outputs: int) -> np.ndarray:
        """Logits (outputs, V) of the columns that request them; keys and values go to the cache."""
        logits = np.empty((outputs, self._config.vocabulary), np.float32)
        x = self._embed([c.token for c in columns], [c.position for c in columns])
        places = [(c.row, c.position, c.output) for c in columns]
        self._call(self._library.rung_step, False, places, x.ctypes.data, _memory(cache), logits.ctypes.data)
        return logits

    def follow(self, tokens: Sequence[Sequence[int]], cache: Cache) -> np.ndarray:
        """Logits (rows, V) after these tokens of each row; advancing the cache is left to the caller."""
        found = []
        for row, ids in enumerate(tokens):
            past, last = cache.lengths[row], len(ids) - 1
            if last < SHORT_PROMPT:
                columns = [Column(t, row, past + i, 0 if i == last else -1) for i, t in enumerate(ids)]
                found.append(self.step(columns, cache, 1)[0])
                continue
            for at in range(0, len(ids), TOKENS_AT_ONCE):
                logits = self.read([Run(ids[at : at + TOKENS_AT_ONCE], row, past + at)], cache)
            found.append(logits[0])
        return np.stack(found)

    def read(self, runs: Sequence[Run], cache: Cache) -> np.ndarray:
        """Logits (runs, V) after the last token of each run; keys and values go to the cache."""
        logits = np.empty((len(runs), self._config.vocabulary), np.float32)
        x = self._embed_runs(runs)
        places = [(r.row, r.position, len(r.tokens)) for r in runs]
        self._call(self._library.rung_read, True, places, x.ctypes.data, _memory(cache), logits.ctypes.data)
        return logits

    def rate(self, windows: Sequence[Sequence[int]], whole: bool) -> list[np.ndarray]:
        """For each window (T - 1, 3): log-probability of its tokens after the first; if `whole`, rank and entropy."""
        x, places = self._alone([ids[:-1] for ids in windows])
        targets = np.array([token for ids in windows for token in ids[1:]], np.int64)
        figures = np.empty((len(targets), 3), np.float32)
        rest = (x.ctypes.data, targets.ctypes.data, whole, figures.ctypes.data)
        self._call(self._library.rung_rate, True, places, *rest)
        return np.split(figures, [begin for _, begin, _ in places[1:]])

    def means(self, texts: Sequence[Sequence[int]]) -> np.ndarray:
        """The mean of each text's last hidden states, (texts, C)."""
        x, places = self._alone(texts)
        means = np.empty((len(texts), self._config.C), np.float32)
        self._call(self._library.rung_mean, True, places, x.ctypes.data, None, means.ctypes.data)
        return means

    def mean(self, ids: Sequence[int], part: int) -> Iterator[np.ndarray | None]:
        """The same of a text that is read in parts of so many tokens: None after each part, then the mean."""
        c, count = self._config, len(ids)
        kind = "float32" if self._arrays["wte.weight"].dtype == np.float32 else "bfloat16"
        cache = PagedCache((c.layers, c.NKV, c.HS), 1, count, count, kind)
        cache.fit(0, count)
        total, means = np.zeros(c.C, np.float64), np.empty(c.C, np.float32)
        for at in range(0, count, part):
            run = Run(ids[at : at + part], 0, at)
            x, rest = self._embed_runs([run]), (_memory(cache), means.ctypes.data)
            self._call(self._library.rung_mean, True, [(0, at, len(run.tokens))], x.ctypes.data, *rest)
            total += len(run.tokens) * means.astype(np.float64)
            yield None
        yield (total / count).astype(np.float32)

    def _alone(self, texts: Sequence[Sequence[int]]) -> tuple[np.ndarray, list[tuple[int, int, int]]]:
        """Texts that are read by themselves: their vectors, and their places one after the other."""
        counts = list(map(len, texts))
        places = [(0, end - count, count) for end, count in zip(itertools.accumulate(counts), counts, strict=True)]
        return self._embed_runs([Run(ids, 0, 0) for ids in texts]), places

    def _call(
        self, function: Callable[..., None], passes: bool, places: Sequence[tuple[int, int, int]], *rest: object
    ) -> None:
        if os.getpid() != self._pid:
            self._begin()  # after a fork, in which the earlier object's threads do not exist
        numbers = (ctypes.c_int64 * (3 * len(places)))(*itertools.chain.from_iterable(places))
        with self._lock:
            if passes:
                self.prepare()
            function(self._handle, len(places), ctypes.addressof(numbers), *rest)

    def _embed_runs(self, runs: Sequence[Run]) -> np.ndarray:
        return self._embed(
            [token for run in runs for token in run.tokens],
            [run.position + i for run in runs for i in range(len(run.tokens))],
        )

    def _embed(self, tokens: Sequence[int], positions: Sequence[int]) -> np.ndarray:
        found, scale = self._arrays["wte.weight"][tokens], self._arrays.get("wte.weight.scale")
        of_bits = found.dtype == np.int16  # bfloat16, the upper half of float32
        x = (found.astype(np.int32) << 16).view(np.float32) if of_bits else found.astype(np.float32)
        if scale is not None:
            x *= scale[tokens, None]
        if (factor := self._config.embedding_scale) != 1:
            x *= factor
        if not self._config.rotary:
            x += self._arrays["wpe"][positions]
        return x


def _memory(cache: Cache) -> object:
    return ctypes.byref(Memory(*cache.memory()))
