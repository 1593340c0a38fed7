"""Texts of tokens without an engine's thread, and logits along given texts: for comparisons and measurements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from rung.errors import RungError
from rung.models.batching.text import Backend, Request, Text
from rung.models.gpu.batched_prefill import FirstTokens, Reader, bucket
from rung.models.gpu.device_copy import sent
from rung.models.gpu.engine import GpuSteps
from rung.models.gpu.row_transfer import RowTransfer, record
from rung.models.gpu.session import Session
from rung.models.gpu.token_sampler import Draw
from rung.models.options import Options, Prompt
from rung.models.sampling import Sampling


def write_texts(
    backend: Backend,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    *,
    stop_tokens: Sequence[int] = (),
    sampling: Sampling | None = None,
    seed: int = 0,
) -> Iterator[list[int]]:
    """Texts of tokens, without an engine's thread: for each step the tokens of all texts, -1 where one has ended."""
    made: list[list[int]] = [[] for _ in prompts]
    reach = max(len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True))
    texts, sampling = [], sampling or Sampling(temperature=0)
    options = {n: Options(sampling=sampling, max_new_tokens=n, stop_tokens=tuple(stop_tokens)) for n in set(limits)}
    for row, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
        asked = Request(Prompt("", tuple(prompt)), options[limit], seed, row, rows=len(prompts), reach=reach)
        texts.append(Text(asked, None))
        backend.begin(row, texts[-1])
    running, shown = dict(enumerate(texts)), 0
    while running or any(len(tokens) > shown for tokens in made):
        while running and any(len(made[row]) <= shown for row in running):
            for new in backend.turn():
                if new.slot not in running:
                    continue
                if new.error is not None:
                    raise RungError(new.error)
                text = running[new.slot]
                for token in new.tokens:
                    if text.reason is None:
                        made[new.slot].append(token)  # a stop token, too
                        text.accept((token,))
                if text.reason is not None or new.full:
                    backend.end(new.slot)
                    del running[new.slot]
        if any(len(tokens) > shown for tokens in made):
            yield [tokens[shown] if len(tokens) > shown else -1 for tokens in made]
            shown += 1


def read_into(engine: GpuSteps, session: Session, prompts: Sequence[Sequence[int]]) -> None:
    """The prompts' keys, values and likeliest next tokens in the first rows of an open session."""
    c, draw, transfer = engine.config, Draw(Sampling(temperature=0), 0, 0), RowTransfer(session)
    length, first = bucket(max(map(len, prompts)), c.context), FirstTokens(engine, 1)
    flat = torch.zeros(2, c.layers * length * c.C, dtype=engine.real.torch, device=session.where)
    reader = Reader(engine, 1, length, flat.unbind())
    for row, prompt in enumerate(prompts):
        reader.read([prompt])
        state = first.follow(reader, [0], [(draw, 0)], [record(0, row, len(prompt), 1 << 30, 0, ())])
        first.choice.run(picked=False)
        transfer.bring(state, first.records)


def logits_after(engine: GpuSteps, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]]) -> torch.Tensor:
    """Logits (rows, T, V) that follow each token of `texts`, which are read token by token after the prompts."""
    session = engine.open(len(prompts), max(len(p) + len(t) for p, t in zip(prompts, texts, strict=True)))
    read_into(engine, session, prompts)
    found, t = [], session.tensors
    for at, tokens in enumerate(zip(*texts, strict=True)):
        sent(tokens, t["tokens"])
        for row, prompt in enumerate(prompts):
            t["history"][row, len(prompt) + at] = tokens[row]  # rungs without a cache read it there again
        sent([len(prompt) + at for prompt in prompts], t["lengths"])
        t["done"].zero_()
        session.step(logits=True)
        found.append(t["logits"].clone())
    return torch.stack(found, 1)
