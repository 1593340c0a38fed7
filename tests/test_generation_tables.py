"""What docs/generation.md says of speed is what the published run holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rung.show import generation_tables

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "generation.md").read_text(encoding="utf-8")
WORDS = " ".join(PAGE.split())
COMPARED = ("gpt2 bfloat16", "gpt2 float32", "gpt2-xl bfloat16")
ROWS: list[dict[str, Any]] = json.loads((ROOT / generation_tables.MEASURED).read_text(encoding="utf-8"))["rows"]


def part(name: str) -> list[list[str]]:
    """The cells of a table of the page, without its head."""
    body = PAGE.partition(f"<!-- {name} -->")[2].partition(f"<!-- /{name} -->")[0]
    lines = [x for x in body.splitlines() if x.startswith("| ")]
    return [[c.strip() for c in x.strip("|").split("|")] for x in lines[2:]]


def row(section: str, what: str) -> dict[str, Any]:
    (found,) = [r for r in ROWS if r["section"] == section and r["what"] == what]
    return found


def means(cell: str, value: float) -> bool:
    """The cell is the value, as far as it has digits."""
    digits = cell.rstrip("x%").replace(",", "")
    value = value * 100 if cell.endswith("%") else value
    return abs(float(digits) - value) <= 0.5 * 10.0 ** -len(digits.partition(".")[2]) * 1.02


def beside_transformers(what: str, ours: float, peer: str, gain: str) -> bool:
    """Transformers' speed and the gain over it are those of the file; False where neither has them."""
    found = [r["value"] for r in ROWS if r["what"] == f"transformers {what} static + compile"]
    if not found:
        assert peer == gain == ""
        return False
    assert means(peer, found[0])
    assert means(gain, ours / found[0])
    return True


def test_one_sequence_is_that_of_the_file() -> None:
    cells = part("speed:single")
    assert [c[0] for c in cells] == [r["what"] for r in ROWS if r["section"] == "single"]
    for what, rung, rate, step, share, late, peer, gain in cells:
        measured = row("single", what)
        assert rung == measured["rung"]
        assert means(rate, measured["value"])
        assert means(step, measured["step_us"])
        assert means(share, measured["share_of_bandwidth"])
        assert beside_transformers(f"{what} x 1", measured["value"], peer, gain) == (what in COMPARED)
        if late:
            context = row("context", what)
            assert means(late, context["short_us"] / context["long_us"])
    assert sum(bool(c[5]) for c in cells) == 4


def test_batches_are_those_of_the_file() -> None:
    cells = part("speed:batch")
    assert [c[0] for c in cells] == [f"gpt2 bfloat16 x {n}" for n in (8, 64, 256)]
    for what, rate, step, first, peer, gain in cells:
        measured = row("batch", what)
        assert means(rate, measured["value"])
        assert means(step, measured["step_us"])
        assert means(first, measured["first_ms"])
        assert beside_transformers(what, measured["value"], peer, gain) == (not what.endswith("x 8"))


def test_prompts_are_those_of_the_file() -> None:
    cells = part("speed:prompts")
    assert len(cells) == 6
    for what, *speeds, gain in cells:
        dtype, length = what.split(", ")
        ways = ("ladder", "torch", "transformers, compiled")
        measured = [row("prefill", f"gpt2 {dtype} {length} {way}")["value"] for way in ways]
        assert all(means(cell, value) for cell, value in zip(speeds, measured, strict=True))
        assert means(gain, measured[2] / measured[0])


def test_what_is_said_between_the_tables_has_the_figures_of_the_file() -> None:
    for name in ("gpt2 bfloat16", "gpt2-xl bfloat16"):
        late = row("context", name)
        share = f"{late['short_us'] / late['long_us'] * 100:.0f} %"
        assert (f"bfloat16 has {share} of the speed at 50" if name.startswith("gpt2 ") else f"gpt2-xl {share}") in WORDS
    assert f"At 256 sequences 490 of some {row('batch', 'gpt2 bfloat16 x 256')['step_us']:.0f}"[:-1] in WORDS
    drawn, every, greedy = (row("sampling", name)["value"] for name in ("top-p 0.95", "all", "greedy"))
    assert (
        f"{drawn:,.0f} tokens/s with top-p, {every:,.0f} with everything at once, beside a greedy {greedy:,.0f}"
        in WORDS
    )
    climbed = json.loads((ROOT / "results/h200/climb.json").read_text(encoding="utf-8"))["rows"]
    rates = {r["name"]: r["tokens_per_second"] for r in climbed if r["dtype"] == "float32"}
    plain, whole = (f"{rates[f'decode {name}']:,.0f}" for name in ("10_streamed", "15_one_kernel_f32"))
    assert f"wrote {plain} tokens/s where rung 15 wrote {whole}" in WORDS


def test_where_a_token_goes_is_what_the_profiles_hold() -> None:
    small, large = (
        json.loads((ROOT / f"results/h200/profile-generate-{name}.json").read_text(encoding="utf-8"))
        for name in ("gpt2", "gpt2-xl")
    )

    def us(seconds: float, digits: int = 0) -> str:
        return f"{seconds * 1e6:.{digits}f}"

    def share(profile: Any) -> str:
        step = next(s["seconds"] for s in profile["shares"] if s["name"] == "step")
        return f"{step / profile['seconds'] * 100:.1f} % of"

    token, gaps = ([us(profile[n], 1) for profile in (small, large)] for n in ("seconds", "gap"))
    memory = [us(profile["floor"]["seconds"]) for profile in (small, large)]
    assert f"{share(small)} a token's {token[0]} µs, of which {memory[0]} are memory's" in WORDS
    assert f"{share(large)} {token[1]}, {memory[1]} of them memory's" in WORDS
    between = next(s["seconds"] for s in small["shares"] if s["name"] == "advance")
    assert f"the token, {us(between, 1)} µs, and gaps, {gaps[0]} and {gaps[1]}." in WORDS
    for name, profile in (("gpt2", small), ("gpt2-xl", large)):
        inside = profile["inside"]
        *threads, copies = (dict(zip(inside["columns"], spent, strict=True)) for spent in inside["spent"])
        mail, products, sending, norm, weights = (
            us(sum(row[column] for row in threads)) for column in ("mail", "products", "sending", "norm", "weights")
        )
        assert f"Of {name}'s {us(inside['timed_seconds'])} µs" in WORDS
        assert f"waited {mail} for other blocks' numbers, {us(threads[1]['mail'])} of them for attention's" in WORDS
        assert (
            f"multiplied for {products}, sent for {sending}, normed for {norm} and waited for weights for {weights}"
            in WORDS
        )
    assert f"the copying thread was at work for {us(copies['sending'])}," in WORDS


def test_without_the_file_a_part_is_empty(tmp_path: Path) -> None:
    assert {make() for make in generation_tables.makers(tmp_path).values()} == {""}
