"""What a program hands to the driver as code: cubins, fat binaries, PTX, relocatable code. Each becomes one cubin."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuless.compile import elf

FATBIN = 0xBA55ED50
_PTX, _ELF, _LTO = 1, 2, 8  # kinds of an entry
_LZ4, _ZSTD = 0x2000, 0x8000  # flags of one
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_RELOCATABLE = 1  # type of an ELF file

# The driver's errors
NO_BINARY, INVALID_PTX, INVALID_IMAGE, UNSUPPORTED_PTX, COMPILER_NOT_FOUND, INVALID_SOURCE = (
    209,
    218,
    200,
    222,
    221,
    300,
)


class NotLoaded(Exception):
    """An image that a GPU would not load either; `code` is the driver's error."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Entry:
    """One piece of code of a fat binary."""

    kind: int
    arch: int
    data: bytes


def is_relocatable(data: bytes) -> bool:
    (kind,) = struct.unpack_from("<H", data, 16)
    return bool(kind == _RELOCATABLE)


def entries(data: bytes) -> Iterator[Entry]:
    """The pieces of a fat binary, unpacked; several of them may follow each other."""
    at = 0
    while at + 16 <= len(data):
        magic, _, head, size = struct.unpack_from("<IHHQ", data, at)
        if magic != FATBIN:
            return
        piece, end = at + head, at + head + size
        while piece + _ENTRY.size <= end:
            kind, _, length, stored, packed, _, _, _, arch, _, _, flags, _, whole = _ENTRY.unpack_from(data, piece)
            body = data[piece + length : piece + length + stored]
            if flags & _LZ4:
                body = _unpacked_lz4(body[:packed] if packed else body, whole)
            elif flags & _ZSTD:
                body = _unpacked_zstd(body[:packed] if packed else body, whole)
            yield Entry(kind, arch, body)
            piece += length + stored
        at = end


def _unpacked_lz4(data: bytes, whole: int) -> bytes:
    """A block of LZ4."""
    out, at = bytearray(), 0

    def length(first: int) -> int:
        nonlocal at
        if first == 15:
            while True:
                more = data[at]
                at += 1
                first += more
                if more != 255:
                    break
        return first

    while at < len(data) and len(out) < whole:
        token = data[at]
        at += 1
        count = length(token >> 4)
        out += data[at : at + count]
        at += count
        if at + 2 > len(data) or len(out) >= whole:
            break
        distance = data[at] | data[at + 1] << 8
        at += 2
        count = length(token & 15) + 4
        start = len(out) - distance
        if distance >= count:
            out += out[start : start + count]
        else:
            part = bytes(out[start:])
            out += (part * (count // distance + 1))[:count]
    return bytes(out[:whole])


def _unpacked_zstd(data: bytes, whole: int) -> bytes:
    try:
        import zstandard  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        text = "the image is packed by zstd: pip install zstandard, or compile with -no-compress"
        raise NotLoaded(INVALID_IMAGE, text) from None
    return bytes(zstandard.ZstdDecompressor().decompress(data, max_output_size=whole))


def fits(arch: int, gpu: int) -> bool:
    """Whether machine code of an architecture runs on a GPU: of one generation, and not newer."""
    return arch // 10 == gpu // 10 and arch <= gpu


_OLD = re.compile(rb"\.version\s+[\d.]+(\s+)\.target\s+sm_([1-6]\d)\b[^\n]*")


def _renewed(text: bytes) -> bytes:
    """PTX of an architecture that today's compilers no longer know, and a GPU's driver still takes."""
    found = _OLD.search(text)
    if found and found[2].startswith(b"1"):  # its multiply-add had no rounding to choose
        text = re.sub(rb"\bmad\.f32\b", b"mad.rn.f32", text)
    return _OLD.sub(rb".version 6.3\1.target sm_75", text, count=1)


def cubin_of(data: bytes, gpu: int, options: Sequence[str] = ()) -> bytes:
    """The machine code of an image for a GPU of this compute capability."""
    if data[:4] == b"\x7fELF":
        if is_relocatable(data):
            return linked([("object", data)], gpu, options)
        arch = int(elf.arch(data).removeprefix("sm_"))
        if not fits(arch, gpu):
            raise NotLoaded(NO_BINARY, f"the image has code of sm_{arch}, and the GPU is an sm_{gpu}")
        return data
    if len(data) >= 16 and struct.unpack_from("<I", data)[0] == FATBIN:
        return _of_fatbin(data, gpu, options)
    text = data.split(b"\0")[0]
    if b".version" in text and b".target" in text:
        return linked([("ptx", _renewed(text))], gpu, options)
    raise NotLoaded(INVALID_IMAGE, "the image is neither a cubin, a fat binary nor PTX")


def _of_fatbin(data: bytes, gpu: int, options: Sequence[str]) -> bytes:
    pieces = [*entries(data)]
    ready = [one for one in pieces if one.kind == _ELF and fits(one.arch, gpu)]
    if ready:
        best = max(ready, key=lambda one: one.arch).data
        return linked([("object", best)], gpu, options) if is_relocatable(best) else best
    texts = [one for one in pieces if one.kind == _PTX and one.arch <= gpu]
    if texts:
        return linked([("ptx", max(texts, key=lambda one: one.arch).data.split(b"\0")[0])], gpu, options)
    if lto := [one for one in pieces if one.kind == _LTO]:
        return linked([("ltoir", one.data) for one in lto], gpu, options)
    have = ", ".join(sorted({f"sm_{one.arch}" for one in pieces})) or "no code"
    raise NotLoaded(NO_BINARY, f"the image has {have}, and the GPU is an sm_{gpu}")


def linked(pieces: Sequence[tuple[str, bytes]], gpu: int, options: Sequence[str] = ()) -> bytes:
    """PTX, relocatable cubins and intermediate code, by nvJitLink, as one cubin with lines."""
    try:
        from cuda.bindings import nvjitlink
    except ImportError:
        raise NotLoaded(COMPILER_NOT_FOUND, "PTX is compiled by nvJitLink: pip install nvidia-nvjitlink") from None
    kinds = {
        "ptx": nvjitlink.InputType.PTX,
        "object": nvjitlink.InputType.CUBIN,
        "cubin": nvjitlink.InputType.CUBIN,
        "ltoir": nvjitlink.InputType.LTOIR,
        "fatbin": nvjitlink.InputType.FATBIN,
        "library": nvjitlink.InputType.LIBRARY,
    }
    special = any(kind == "ptx" and f".target sm_{gpu}a".encode() in data for kind, data in pieces)
    wanted = [f"-arch=sm_{gpu}{'a' if special else ''}", "-lineinfo", *options]
    wanted += ["-lto"] if any(kind == "ltoir" for kind, _ in pieces) else []
    handle = nvjitlink.create(len(wanted), wanted)
    try:
        for number, (kind, data) in enumerate(pieces):
            nvjitlink.add_data(handle, kinds[kind], data, len(data), f"piece {number}")
        nvjitlink.complete(handle)
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
        return bytes(cubin)
    except nvjitlink.nvJitLinkError as problem:
        log = bytearray(nvjitlink.get_error_log_size(handle))
        nvjitlink.get_error_log(handle, log)
        text = log.rstrip(b"\0").decode(errors="replace").strip() or str(problem)
        raise NotLoaded(INVALID_PTX if any(kind == "ptx" for kind, _ in pieces) else INVALID_SOURCE, text) from None
    finally:
        nvjitlink.destroy(handle)
