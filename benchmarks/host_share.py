"""The host's share of a step: many texts through the engine, with a backend whose tokens cost nothing.

    PYTHONPATH=src python benchmarks/host_share.py [--texts 256] [--tokens 128] [--calls 50]

Prints microseconds of CPU time per step (a token for each text), the median, 99th percentile and worst of the calls,
and how many objects per token Python's collector still tracks when a call ends with its results alive.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time

from rung.models.batching.engine import BatchEngine
from rung.models.batching.text import Backend, NewTokens, Text
from rung.models.generate import Run
from rung.models.load import load
from rung.models.options import Options, Prompt

TOGETHER = 8  # tokens of a text in a turn, as a graph of a GPU gives them


class Free(Backend):
    """Gives each text tokens at once."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        self.slots, self.context, self._texts = slots, 1024, dict[int, Text]()

    @property
    def free_slots(self) -> int:
        return self.slots - len(self._texts)

    def begin(self, slot: int, text: Text) -> None:
        self._texts[slot] = text

    def end(self, slot: int) -> None:
        del self._texts[slot]

    def turn(self) -> list[NewTokens]:
        return [NewTokens(slot, list(range(300 + slot, 300 + slot + TOGETHER))) for slot in self._texts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("texts", 256), ("tokens", 128), ("calls", 50)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    model = load(device="cpu")
    engine = BatchEngine(lambda: Free(given.texts), model.tokenizer)
    prompts = [Prompt("", (1, 2, 3))] * given.texts
    seconds, tracked = [], []
    gc.collect()
    for call in range(given.calls):
        before, began = len(gc.get_objects()) if call == 1 else 0, time.process_time()
        options = Options(max_new_tokens=given.tokens, stop_tokens=(0,))
        run = Run(model.transformer, model.tokenizer, prompts, options, engine)
        for _ in run:
            pass
        seconds.append(time.process_time() - began)
        if call == 1:
            tracked.append((len(gc.get_objects()) - before) / (given.texts * given.tokens))
    ordered = sorted(seconds)
    steps = given.tokens
    print(f"{1e6 * statistics.median(seconds) / steps:.0f} us of CPU per step of {given.texts} texts")
    print(f"median {1e3 * statistics.median(seconds):.1f} ms, 99th {1e3 * ordered[int(0.99 * len(ordered))]:.1f} ms, "
          f"worst {1e3 * ordered[-1]:.1f} ms")  # fmt: skip
    print(f"{tracked[0]:.3f} tracked objects per token; collections {[s['collections'] for s in gc.get_stats()]}")


if __name__ == "__main__":
    main()
