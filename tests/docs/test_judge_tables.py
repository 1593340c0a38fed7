"""Tables of what the checker catches."""

import judge_tables
from rung.results.row import Row


def test_the_newest_table_of_the_judge_is_shown() -> None:
    rows = [
        Row(kind="study", what="judging", part="seconds", detail={"columns": ["file", "s"], "rows": [[name, count]]})
        for name, count in [("a.cu", 1), ("b | c.cu", 2)]
    ]
    assert judge_tables.judging(rows).split("\n")[1:4:2] == ["| file | s |", r"| b \| c.cu | 2 |"]
    assert "Not measured" in judge_tables.judging([])


def test_the_corpus_shows_each_way_and_what_a_sanitizer_reports() -> None:
    kernels = [
        ["races", "a.cu", "", "1", {"rung": True, "rung --thorough": True, "GPU MODE": False}, "t.cu", "9", {"rung": False}],
        ["races", "b.cu", "", "2", {"rung": False, "rung --thorough": True}, "t.cu", "9", {"rung": False}],
    ]
    rows = [
        Row(kind="study", what="corpus", part="kernels", detail={"rows": kernels}),
        Row(kind="study", what="corpus", part="compute-sanitizer", detail={"rows": [["1", False, True], ["9", False, False]]}),
    ]
    heads, _, races, *_ = judge_tables.corpus(rows, "classes").strip().splitlines()
    shown = dict(zip(heads.split(" | "), races.split(" | "), strict=True))
    assert (shown["refused by rung"], shown["refused by rung --thorough"]) == ("1 of 2", "2 of 2")
    assert (shown["refused by GPU MODE"], shown["refused by compute-sanitizer"]) == ("0 of 1", "1 of 1")
    assert shown["twins: rung"] == "0 of 1"
