"""Text to tokens and back, by the tokenizers library; bytes of single tokens for streaming."""

from __future__ import annotations

import codecs
import contextlib
import json
import math
import os
import re
import threading
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from rung.errors import RungError

LARGEST = 1 << 28  # bytes of a tokenizer's file
LONGEST = 3 << 20  # characters of one text; each takes up to 240 bytes while it is divided into tokens
GROWTH = 64  # how many times longer a normalizer may make a text
FILES = ("tokenizer.json", "vocab.json", "merges.txt")


_standard_error = threading.Lock()  # two threads would put back each other's


@contextlib.contextmanager
def _panics_unsaid() -> Iterator[None]:
    """The library writes a stack of calls to standard error before it raises."""
    with _standard_error:
        before, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)
            os.close(nowhere)


def _pass_on(error: BaseException) -> None:
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
        raise error


def byte_alphabet() -> dict[str, int]:
    """The character that GPT-2's vocabulary writes for each byte.

    Printable bytes of Latin-1 are written as themselves; the others, in order, as the characters from U+0100 on.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


class _Bytes(dict[int, bytes]):
    def __missing__(self, id: int) -> bytes:
        return b""


class Tokenizer:
    """Byte-level BPE as GPT-2's, or SentencePiece's pieces, as the file has it."""

    def __init__(self, tokenizer: Any, origin: str, growth: int = 1) -> None:
        self._tokenizer = tokenizer
        self.origin = origin
        self._longest = LONGEST // growth
        parts = (tokenizer.normalizer, tokenizer.pre_tokenizer)
        # Expressions of the file's own, which may exceed the library's limit on their steps.
        self._may_panic = any(part is not None and b"Regex" in part.__getstate__() for part in parts)

    @property
    def size(self) -> int:
        """How many tokens there are, special ones included."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    @property
    def shrinks(self) -> int:
        """How many times shorter a normalizer may make a text; without one, once."""
        return 1 if self._tokenizer.normalizer is None else LONGEST

    def encode(self, text: str, *, begin: bool = False) -> list[int]:
        """The tokens of a text; special tokens spelled out in it are recognised. With `begin` also those that the file
        puts around a text, such as Llama's first.
        """
        if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
            raise RungError("the text is not UTF-8; convert it, with iconv for example.")
        if len(text) > self._longest:
            most = f"texts of at most {self._longest:,}"
            raise RungError(f"one text has {len(text):,} characters; divide it into {most}.")
        try:
            with _panics_unsaid() if self._may_panic else contextlib.nullcontext():
                # A batch of one: a text by itself is divided under the interpreter's lock, and all threads wait.
                ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=begin)[0].ids
        except BaseException as error:
            _pass_on(error)
            raise RungError(f"{self.origin} cannot be applied to this text; fetch it again.") from None
        return ids

    def token(self, text: str) -> int | None:
        """The token with exactly this text, if there is one."""
        found: int | None = self._tokenizer.token_to_id(text)
        return found

    @property
    def unknown(self) -> str | None:
        """The token for what the vocabulary has not, if there is one."""
        found: str | None = getattr(self._tokenizer.model, "unk_token", None)
        return found

    @cached_property
    def added(self) -> frozenset[int]:
        """Special tokens, and others that are taken as they are spelled."""
        return frozenset(self._tokenizer.get_added_tokens_decoder())

    @cached_property
    def _bytes(self) -> _Bytes:
        alphabet, added = byte_alphabet(), self.added
        decoder = self._tokenizer.decoder
        pieces = decoder is not None and b"ByteFallback" in decoder.__getstate__()  # SentencePiece's
        table = _Bytes()
        for token, id in self._tokenizer.get_vocab(with_added_tokens=True).items():
            if id not in added and pieces:
                byte = re.fullmatch("<0x([0-9A-F]{2})>", token)
                table[id] = bytes.fromhex(byte[1]) if byte else token.replace("\u2581", " ").encode()
            elif id in added or not all(c in alphabet for c in token):
                table[id] = token.encode()
            else:
                table[id] = bytes(alphabet[c] for c in token)
        return table

    def bytes(self, id: int) -> bytes:
        """The bytes that a token adds to the text; tokens that only pad the vocabulary add nothing."""
        return self._bytes[id]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self._bytes.__getitem__, ids)).decode("utf-8", errors="replace")


class Detokenizer:
    """Turns tokens into text as they arrive, holding back incomplete characters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._bytes = tokenizer._bytes.__getitem__
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: Sequence[int]) -> str:
        """The text that is final once these tokens are known."""
        return self._decoder.decode(b"".join(map(self._bytes, ids)))

    def flush(self) -> str:
        """Returns what was held back, at the end of the tokens."""
        return self._decoder.decode(b"", final=True)


def _plain(tokenizer: Any, origin: str) -> Tokenizer:
    """The tokenizer without settings by which tokens would not be those of the text: padding, truncation, and merges
    that are left out by chance."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if getattr(tokenizer.model, "dropout", None) is not None:
        tokenizer.model.dropout = None
    growth = 1 if tokenizer.normalizer is None else _growth(json.loads(tokenizer.normalizer.__getstate__()))
    if growth > GROWTH:
        raise RungError(f"{origin} has a normalizer that makes texts more than {GROWTH} times longer; fetch it again.")
    return Tokenizer(tokenizer, origin, growth)


def _growth(normalizer: Any) -> int:
    """The most characters that a normalizer makes of one."""
    added = max(len(str(normalizer.get(name) or "")) for name in ("content", "prepend"))
    return (1 + added) * math.prod(map(_growth, normalizer.get("normalizers") or []))


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in a model's folder: tokenizer.json, or vocab.json with merges.txt."""
    import tokenizers

    whole, vocab, merges = (folder / name for name in FILES)
    for file in (whole, vocab, merges):
        if file.is_file() and file.stat().st_size > LARGEST:
            raise RungError(f"{file} has more than {LARGEST >> 20} MB, too many for a tokenizer; fetch it again.")
    try:
        if whole.is_file():
            return _plain(tokenizers.Tokenizer.from_file(str(whole)), str(whole))
        if vocab.is_file() and merges.is_file():
            bpe = tokenizers.models.BPE.from_file(str(vocab), str(merges))
            tokenizer = tokenizers.Tokenizer(bpe)
            tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
            tokenizer.decoder = tokenizers.decoders.ByteLevel()
            if tokenizer.token_to_id("<|endoftext|>") is not None:
                tokenizer.add_special_tokens(["<|endoftext|>"])
            return Tokenizer(tokenizer, str(vocab))
    except RungError:
        raise
    except BaseException as error:  # the library raises bare Exceptions, and panics that are not Exceptions
        _pass_on(error)
        origin, problem = whole if whole.is_file() else vocab, " ".join(str(error).split())[:200]
        raise RungError(f"{origin} cannot be read as a tokenizer ({problem}); fetch it again.") from None
    home = (folder / "config.json").resolve().parent  # of an adapter's base model
    raise RungError(f"{home} has no tokenizer: put tokenizer.json there, or vocab.json and merges.txt.")
