"""Tokens to text and back, against the tokenizers library."""

import threading
import time
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from rung.models.folders import INNER
from rung.models.tokenizer import read_tokenizer

TEXTS = ("Once upon a time", "naïve café", "tab\tand line\nend", "日本", "🙂!")


def pieces(folder: Path) -> Tokenizer:
    """A tokenizer in SentencePiece's form, as Llama 2's and Mistral's: pieces with U+2581 for a blank, and bytes."""
    known = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *"Onceuptimavtbdlr!"]
    model = models.BPE({piece: i for i, piece in enumerate(known)}, [], unk_token="<unk>", byte_fallback=True)
    made = Tokenizer(model)
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.add_special_tokens([AddedToken("<s>"), AddedToken("<unk>")])
    made.save(str(folder / "tokenizer.json"))
    return made


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_and_their_bytes_are_the_librarys_text(tmp_path: Path, text: str) -> None:
    theirs, ours = pieces(tmp_path), read_tokenizer(tmp_path)
    ids = ours.encode(text)
    assert ids == theirs.encode(text, add_special_tokens=False).ids
    assert ours.decode(ids) == " " + theirs.decode(ids)  # a continuation keeps the blank before its first word


def test_other_threads_go_on_while_a_long_text_is_divided() -> None:
    ours, text = read_tokenizer(INNER), "a " * 300_000
    longest, last = 0.0, time.perf_counter()
    thread = threading.Thread(target=ours.encode, args=(text,))
    began = time.perf_counter()
    thread.start()
    while thread.is_alive():
        time.sleep(0.001)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    assert longest < (last - began) / 2
