"""`rung check` of a kernel in a cubin, by itself."""

from __future__ import annotations

from pathlib import Path

from rung.cli import console
from rung.profile.cubins import Launch, read


def check(path: Path, launch: Launch, *, json: bool) -> int:
    """Runs the kernel in several orders; prints what is wrong. The exit code."""
    from gpuless import cubins, session
    from rung.show import document

    of, kernel, given = read(path, launch)
    found = cubins.try_orders(of, kernel, launch.config(path), given)
    repeat = ["check", path, *launch.words()]
    if json:
        findings = [document.finding(**one, repeat=repeat) for one in found]
        notes = [] if found else ["no results were compared: there is no reference"]
        console.print_json(document.document("check", int(bool(found)), [], findings, notes))
    else:
        for one in found:
            print(f"{one['kind']}: {one['text']}")
        if not found:
            print(f"{path}, kernel '{kernel}': no fault in {len(session.ORDERS)} orders; results were not compared.")
    return int(bool(found))
