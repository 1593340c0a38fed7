"""The step over library products in two halves: what each writes, in whichever order two streams take them."""

from __future__ import annotations

import contextlib
import importlib.util
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from rung import catalogue
from rung.cuda import emulator
from rung.dtypes import dtype as named
from rung.gpt2.gpu.engine import Engine
from rung.gpt2.load import INNER, load
from rung.gpt2.weights import Linear, read_weights
from rung.operation import Tensors, Values

RUNG = catalogue.find("decode/12")
DECODE = RUNG.operation
REAL = named("f16")
HALVES = {"HALVES": 2, "HEAD_PARTS": 2, "HEAD_CHUNKS": 4}
WHOLE = {**HALVES, "HALVES": 1}


def dims(B: int, C: int = 48, NH: int = 3, V: int = 140, MAXT: int = 40, L: int = 2) -> Values:
    return DECODE.complete({"B": B, "L": L, "C": C, "NH": NH, "F": 2 * C, "V": V, "MAXT": MAXT})


def inputs(values: Values) -> Tensors:
    names = [o.name for o in DECODE.operands if o.name in RUNG.binds]
    drawn = DECODE.inputs(values, REAL, 3, names=names, empty=lambda _, shape, kind: torch.zeros(shape, dtype=kind))
    # Each has a length of its own, the ends of a cache among them.
    drawn["lengths"] = (torch.arange(int(values["B"]), dtype=torch.int32) * 7 - 1) % int(values["MAXT"])
    for name in ("logits", "next"):
        drawn[name].fill_(-7)
    return drawn


def taken(tensors: Tensors, values: Values, tuning: Mapping[str, int]) -> Tensors:
    """What a step leaves, on tensors of its own."""
    own = {name: t.clone() for name, t in tensors.items()}
    RUNG.prepare(own, values, REAL, device="emulator", tuning=tuning).run()
    return own


def exact(tensors: Tensors, values: Values) -> Tensors:
    wide = {n: t.double() if t.is_floating_point() else t.long() for n, t in tensors.items()}
    return DECODE.reference(wide, values)


def module() -> ModuleType:
    return RUNG.load("emulator")  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("rows", [16, 17, 23, 24, 40])
def test_halves_leave_what_the_whole_leaves(rows: int) -> None:
    values = dims(rows)
    tensors = inputs(values)
    wanted, whole, found = exact(tensors, values), taken(tensors, values, WHOLE), taken(tensors, values, HALVES)
    for b in range(rows):  # one wrong sequence is lost in the norm of all
        assert torch.allclose(found["logits"][b].double(), wanted["logits"][b], rtol=0.01, atol=0.01), b
    assert found["next"].tolist() == found["logits"].argmax(1).tolist()
    # The CPU's products may add up in another order for another number of rows.
    assert torch.allclose(found["logits"], whole["logits"], rtol=1e-3, atol=2e-3)
    written = torch.zeros(rows, int(values["MAXT"]), dtype=torch.bool)
    written[torch.arange(rows), tensors["lengths"].long()] = True
    for name in ("k_cache", "v_cache"):
        assert torch.allclose(found[name].double(), wanted[name], rtol=0.01, atol=0.01)
        ours, before = (t[name].transpose(2, 3) for t in (found, tensors))  # (L, B, MAXT, NH, HS)
        assert torch.equal(ours[:, ~written], before[:, ~written])
        assert not torch.equal(ours[:, written], before[:, written])


def test_every_sequence_is_in_one_half_and_few_are_not_cut() -> None:
    parts = module()._parts
    for rows in range(1, 300):
        covered = [b for part in parts(rows, 2) for b in range(rows)[part]]
        assert covered == list(range(rows))
        assert len(parts(rows, 1)) == 1
        assert len(parts(rows, 2)) == (1 if rows < 16 else 2)
        if rows >= 16:
            first, second = (len(range(rows)[part]) for part in parts(rows, 2))
            assert first % 8 == 0 and 0 <= first - second < 16


# ---- two streams ----------------------------------------------------------------------------------------------------


class Stream:
    """A queue; what is in it runs in order, but not before the places in others that it waits for."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.queue: list[Callable[[], None] | tuple[Stream, int]] = []
        self.done = 0

    def wait_stream(self, other: Stream) -> None:
        self.queue.append((other, len(other.queue)))

    def advance(self) -> bool:
        """One item further, where that is possible."""
        if self.done == len(self.queue):
            return False
        item = self.queue[self.done]
        if isinstance(item, tuple):
            if item[0].done < item[1]:
                return False
        else:
            item()
        self.done += 1
        return True


class TwoStreams:
    """In place of CUDA's: launches are queued on the current one, and run afterwards in an order that is chosen."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.main, self.side = Stream(), Stream()
        self.current = self.main
        self.launches: list[tuple[str, Any]] = []
        rung = module()
        patch.setattr(rung, "_steps", OrderedDict())
        patch.setattr(rung, "_side", lambda device, priority: self.side)
        patch.setattr(rung, "_module", lambda build, device: self.recorded(emulator.load(build)))
        for name in ("multiply_on_cpu", "affine_on_cpu"):
            patch.setattr(rung, name, self.later(getattr(rung, name)))
        patch.setattr(torch.cuda, "current_stream", lambda device=None: self.current)
        patch.setattr(torch.cuda, "stream", self.on)

    @contextlib.contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def later(self, call: Callable[..., None]) -> Callable[..., None]:
        return lambda *given: self.current.queue.append(lambda: call(*given))

    def recorded(self, loaded: Any) -> Any:
        bind = loaded.bind

        def bound(kernel: str, config: Any, args: Any) -> Callable[..., None]:
            self.launches.append((kernel, config))
            return self.later(bind(kernel, config, args))

        loaded.bind = bound
        return loaded

    def run(self, order: str) -> None:
        if order == "in turns":
            while any([self.main.advance(), self.side.advance()]):
                pass
        else:
            ahead, behind = (self.main, self.side) if order == "main ahead" else (self.side, self.main)
            while ahead.advance() or behind.advance():
                pass
        assert [s.done for s in (self.main, self.side)] == [len(s.queue) for s in (self.main, self.side)]


@pytest.mark.parametrize("order", ["main ahead", "side ahead", "in turns"])
def test_no_order_of_two_streams_changes_a_bit(monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    values = dims(23)
    tensors = inputs(values)
    wanted = taken(tensors, values, HALVES)
    own = {**tensors, **{n: tensors[n].clone() for n in ("logits", "next", "k_cache", "v_cache", "tokens")}}
    own["tokens"].zero_()
    streams = TwoStreams(monkeypatch)
    streams.main.queue.append(lambda: own["tokens"].copy_(tensors["tokens"]))  # late, as a step's tokens are
    found = {}
    RUNG.prepare(own, values, REAL, device="emulator", tuning=HALVES).run()
    streams.main.queue.append(lambda: found.update({n: own[n].clone() for n in ("logits", "next")}))
    assert len(streams.side.queue) > 10
    streams.run(order)
    for name in ("logits", "next"):
        assert torch.equal(found[name], wanted[name]), name  # complete when the main stream went on
    for name in ("k_cache", "v_cache"):
        assert torch.equal(own[name], wanted[name]), name


def test_kernels_behind_both_streams_wait_for_all_and_grids_count_their_half(monkeypatch: pytest.MonkeyPatch) -> None:
    values = dims(23)
    streams = TwoStreams(monkeypatch)
    taken(inputs(values), values, HALVES)
    half = len(streams.launches) // 2
    late = [i for i, (_, config) in enumerate(streams.launches) if not config.pdl]
    assert [streams.launches[i][0] for i in late] == ["pick", "embed"]
    assert late == [half - 1, half]
    for part, rows in ((streams.launches[:half], 16), (streams.launches[half:], 7)):
        for kernel, config in part:
            assert config.grid["xyz".index("y" if kernel in ("attend", "gather") else "x")] == rows, kernel
    streams.launches.clear()
    taken(inputs(values), values, WHOLE)
    assert streams.launches and all(config.pdl for _, config in streams.launches)


# ---- the search -----------------------------------------------------------------------------------------------------


def test_whatever_can_be_set_is_searched_in_some_group() -> None:
    path = Path(__file__).parents[1] / "benchmarks" / "decode_tune.py"
    spec = importlib.util.spec_from_file_location("decode_tune", path)
    assert spec and spec.loader
    search = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(search)
    searched = {name for names in search.GROUPS.values() for name in names}
    for number in (10, 11, 12):
        assert set(catalogue.find(f"decode/{number}").tune) <= searched, number


# ---- on a GPU -------------------------------------------------------------------------------------------------------

gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


class Text:
    """Three steps of growing texts, tokens given: copies in front of each and behind it, on the current stream."""

    def __init__(self, tensors: Tensors, values: Values, tuning: Mapping[str, int]) -> None:
        self.begin = {name: t.cuda() for name, t in tensors.items()}
        self.own = {name: t.clone() for name, t in self.begin.items()}
        generator = torch.Generator().manual_seed(5)
        drawn = torch.randint(int(values["V"]), (3, int(values["B"])), generator=generator, dtype=torch.int32)
        self.tokens = drawn.cuda()
        self.logits = torch.empty(3, *self.own["logits"].shape, device="cuda")
        self.next = torch.empty(3, int(values["B"]), dtype=torch.int32, device="cuda")
        self.step = RUNG.prepare(self.own, values, REAL, device="cuda", tuning=tuning).run

    def reset(self) -> None:
        for name in ("lengths", "k_cache", "v_cache"):
            self.own[name].copy_(self.begin[name])
        for tensor in (self.logits, self.next, self.own["logits"], self.own["next"]):
            tensor.fill_(-7)

    def write(self) -> None:
        for i in range(3):
            self.own["tokens"].copy_(self.tokens[i])
            self.step()
            self.logits[i].copy_(self.own["logits"])
            self.next[i].copy_(self.own["next"])
            self.own["lengths"].add_(1)


@pytest.mark.parametrize("priority", [pytest.param(p, marks=gpu) for p in (0, 1)])
@pytest.mark.parametrize("rows", [24, 41])
def test_a_graph_of_two_streams_writes_what_one_stream_writes(rows: int, priority: int) -> None:
    values = dims(rows, C=768, NH=12, V=5003, MAXT=200)
    tensors = inputs(values)
    tensors["lengths"].clamp_(max=int(values["MAXT"]) - 3)
    whole = Text(tensors, values, {"HALVES": 1})
    halves = Text(tensors, values, {"HALVES": 2, "PRIORITY": priority})
    for text in (whole, halves):
        text.reset()
        text.write()
        torch.cuda.synchronize()
    eager = halves.logits.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        halves.write()
    for _ in range(3):
        halves.reset()
        graph.replay()
        torch.cuda.synchronize()
        for logits in (halves.logits, eager):
            assert (logits - whole.logits).norm() < 2 * REAL.norm_cap * whole.logits.norm()
            assert torch.allclose(logits, whole.logits, rtol=0.02, atol=0.02)
        assert torch.equal(halves.next, halves.logits.argmax(2).int())
        for name in ("k_cache", "v_cache"):
            assert torch.allclose(halves.own[name].float(), whole.own[name].float(), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("halves", [pytest.param(2, marks=gpu)])
def test_texts_by_the_engines_graphs_are_those_of_one_stream(halves: int) -> None:
    model = load("inner", dtype="float32")
    weights = read_weights(INNER, model.config, lambda w: Linear(w.float().contiguous()), lambda v: v.float())
    words = ("Once upon a time", "The king", "A fox", "There was", "In the wood", "One day", "She said", "Two birds")
    prompts = [list(model.tokenizer.encode(f"{word}{end}")) for word in words for end in ("", " and", " the", ",")]
    texts = []
    for count in (1, halves):
        engine = Engine(model.config, weights, "float16", rung="12", tuning={"HALVES": count})
        steps = list(engine.write(prompts, [32] * len(prompts)))
        texts.append([tuple(step[row] for step in steps) for row in range(len(prompts))])
    # Another kernel of the library's rounds otherwise, and a tie may fall the other way; a half is 16 texts.
    assert sum(a == b for a, b in zip(*texts, strict=True)) >= 26
