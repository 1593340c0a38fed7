"""What the machine code of a file's kernels says that no run shows: a clock or a processor's number decides results."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpuless.compile.sass import Instruction

# Of the special registers those that belong to a call; all others differ from run to run, or from GPU to GPU. So does
# a launch's number, which the driver puts before the parameters of sm_90.
_CALLS = r"TID(?:\.[XYZ])?|N?CTAID(?:\.[XYZ])?|NTID\w*|CgaCtaId|CGA_CTAID\.[XYZ]|CgaSize|LANEID|[EGL][QTE]MASK"
_CALLS += r"|[SL]WIN\w+|LMEMHIOFF|SMEMSZ|DYN\w*_S\w+"
_OTHERS = re.compile(rf"\bSR_(?!(?:{_CALLS})\b)(\w+)|c\[0x0\]\[(0x3[04]|0x19[04])\]")
NAMES = {"CLOCK": "a clock", "GLOBALTIMER": "a clock", "VIRTUALSMID": "the number of a multiprocessor"}
NAMES |= {"VIRT": "a warp's number", "0x3": "the launch's number", "": "what belongs to no call"}
_OPERAND = re.compile(r"\b(U?R|U?P)(\d+)(?:\.64)?\b")
_STORES = ("ST", "STG", "STS", "STL", "RED", "ATOM", "ATOMG", "ATOMS", "UBLKCP")
_PAIRS = re.compile(r"\.(?:64|WIDE)\b|^CS2R|^DADD|^DMUL|^DFMA|^IMAD\.WIDE")


def clocks(instructions: Sequence[Instruction]) -> Iterator[tuple[Instruction, str]]:
    """The first store or branch that depends on such a register, and what that is. A value is followed from instruction
    to instruction in the order of the text, twice, for loops; one that overwrites a register ends what was known of
    it."""
    if not any(_OTHERS.search(one.text) for one in instructions):
        return
    tainted: dict[str, str] = {}
    for _ in range(2):
        for n, one in enumerate(instructions):
            outputs, inputs = _operands(one)
            known = next((tainted[name] for name in inputs if name in tainted), "")
            if found := _OTHERS.search(one.text):
                known = next(text for name, text in NAMES.items() if (found[1] or found[2]).startswith(name))
            guarded = one.text.startswith("@") and any(name in tainted for name in inputs[:1])
            ends = one.name == "EXIT" and any(later.name in _STORES for later in instructions[n:])  # else only a trap
            if known and (one.name in _STORES or (guarded and (ends or one.name in ("BRA", "BRX")))):
                yield one, known
                return
            for name in outputs:
                if known:
                    tainted[name] = known
                elif not one.text.startswith("@"):
                    tainted.pop(name, None)


def _operands(one: Instruction) -> tuple[list[str], list[str]]:
    """The registers and predicates that an instruction writes, and those that it reads, its own predicate first."""
    text = one.text
    guard = ""
    if text.startswith("@"):
        guard, _, text = text.partition(" ")
    opcode, _, rest = text.partition(" ")
    parts = [part.strip() for part in rest.split(",")]
    named = [[f"{m[1]}{m[2]}" for m in _OPERAND.finditer(part)] for part in parts]
    stores = one.name in (*_STORES, "BRA", "EXIT", "BRX", "BAR", "BSYNC", "BSSY", "WARPSYNC")
    count = 0 if stores else 2 if len(parts) > 1 and re.fullmatch(r"U?P[T\d]\d?", parts[0]) else 1
    count = 2 if one.name in ("ISETP", "FSETP", "UISETP", "PLOP3", "HSETP2", "DSETP") else count
    outputs = [name for part in named[:count] for name in part]
    if _PAIRS.search(opcode) and outputs and outputs[0].startswith(("R", "UR")):
        front, number = re.match(r"(U?R)(\d+)", outputs[0]).groups()  # type: ignore[union-attr]
        outputs.append(f"{front}{int(number) + 1}")
    inputs = [f"{m[1]}{m[2]}" for m in _OPERAND.finditer(guard)]
    return outputs, inputs + [name for part in named[count:] for name in part]
