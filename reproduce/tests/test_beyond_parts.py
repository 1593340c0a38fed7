"""The parts of attention over ranks, in one process: where rows go, the local block, the data, the model."""

import numpy as np
import pytest

from rung.errors import RungError
from rung_reproduce.parallel import data, launch, local, ring
from rung_reproduce.parallel.ring import pairs, place


@pytest.mark.parametrize("kind", ["zigzag", "contiguous"])
@pytest.mark.parametrize(("n", "ranks"), [(1, 4), (7, 3), (64, 1), (257, 6)])
def test_every_row_has_one_place_in_ascending_order(kind, n, ranks):
    rows = place(kind, n, ranks)
    assert len(rows) == ranks
    assert sorted(np.concatenate(rows)) == list(range(n))
    assert all((np.diff(r) > 0).all() for r in rows)


def test_zigzag_balances_causal_work_and_neighbours_do_not():
    loads = {kind: pairs(place(kind, 4096, 8), causal=True).sum(axis=1) for kind in ("zigzag", "contiguous")}
    assert loads["zigzag"].sum() == loads["contiguous"].sum() == 4096 * 4097 // 2
    assert loads["zigzag"].max() < 1.001 * loads["zigzag"].mean()
    assert loads["contiguous"].max() > 1.8 * loads["contiguous"].mean()


def in_one_process(qkv, ranks, kind, causal, threads):
    """The ring with one rank after another, the blocks handed on by hand."""
    _, heads, n, d = qkv.shape
    rows = place(kind, n, ranks)
    out, lse = np.full((heads, n, d), np.nan, np.float32), np.empty((heads, n), np.float32)
    for r in range(ranks):
        q = np.ascontiguousarray(qkv[0][:, rows[r]])
        o, seen = np.full_like(q, np.nan), np.full(q.shape[:2], -np.inf, np.float32)
        for step in range(ranks):
            owner = (r - step) % ranks
            kv = np.ascontiguousarray(qkv[1:][:, :, rows[owner]])
            local.attend(q, rows[r], kv, rows[owner], o, seen, scale=d**-0.5, causal=causal, threads=threads)
        out[:, rows[r]], lse[:, rows[r]] = o, seen
    return out, lse


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("n", "d", "heads", "ranks"),
    [(1, 64, 1, 1), (65, 64, 2, 1), (130, 7, 1, 3), (257, 80, 2, 2), (5, 33, 1, 8)],
)
def test_blocks_merge_to_the_whole(causal, n, d, heads, ranks):
    qkv = data.generate(n, d, heads, seed=n)
    out, lse = in_one_process(qkv, ranks, "zigzag", causal, threads=2)
    right, right_lse = data.attention(qkv, causal=causal)
    assert data.error(out, right) < 1e-6
    np.testing.assert_allclose(lse, right_lse, rtol=1e-6, atol=1e-5)


def test_scores_of_hundreds_neither_overflow_nor_vanish():
    qkv = data.generate(70, 16, 1, seed=3)
    qkv[:2] *= 20
    out, _ = in_one_process(qkv, 3, "contiguous", True, threads=1)
    right, _ = data.attention(qkv, causal=True)
    np.testing.assert_allclose(out, right, rtol=1e-4, atol=5e-4)


def test_the_number_of_threads_changes_no_bit():
    qkv = data.generate(300, 64, 1, seed=4)
    one, three = (in_one_process(qkv, 1, "zigzag", True, threads)[0] for threads in (1, 3))
    # Fewer rows a unit of work leave every row's own order of keys as it was.
    assert (one == three).all()


def test_a_value_that_is_not_a_number_reaches_only_who_sees_it():
    qkv = data.generate(80, 16, 1, seed=5)
    qkv[2, 0, 70] = np.nan
    out, _ = in_one_process(qkv, 2, "zigzag", True, threads=1)
    assert np.isfinite(out[0, :70]).all()
    assert np.isnan(out[0, 70:]).all()


class Recorder:
    """A link that hands on nothing and remembers what was asked of it."""

    rank, size = 2, 4

    def __init__(self):
        self.passed = []

    def pass_on(self, block, into, work):
        work()
        self.passed.append((block, into))


def test_each_block_is_attended_once_and_no_buffer_is_read_while_it_is_written():
    link, seen = Recorder(), []
    ring.travel(link, "a", "b", lambda owner, block: seen.append((owner, block)))
    assert seen == [(2, "a"), (1, "b"), (0, "a"), (3, "b")]
    assert link.passed == [("a", "b"), ("b", "a"), ("a", "b")]


def test_data_is_stored_reloaded_and_refused_when_it_does_not_fit(tmp_path):
    made = data.load_or_make(tmp_path, 9, 4, 2, seed=1)
    assert (data.load_or_make(tmp_path, 9, 4, 2, seed=99) == made).all()
    assert (made == data.generate(9, 4, 2, seed=1)).all()
    path = tmp_path / data.file_name(9, 4, 2)
    path.rename(tmp_path / data.file_name(8, 4, 2))
    with pytest.raises(RungError, match=r"q is float32 \(2, 9, 4\), but float32 \(2, 8, 4\) is needed"):
        data.load_or_make(tmp_path, 8, 4, 2, seed=1)
    path.write_bytes(b"not an archive")
    with pytest.raises(RungError, match="does not hold arrays q, k and v"):
        data.load_or_make(tmp_path, 9, 4, 2, seed=1)


def test_the_model_knows_one_rank_and_two_extremes():
    slow_wire = ring.Node(pairs=1e9, latency=0.0, bandwidth=1e6)
    no_wire = ring.Node(pairs=1e9, latency=0.0, bandwidth=1e30)
    common = dict(n=4096, d=64, heads=2, causal=False)
    alone = ring.forecast(slow_wire, ranks=1, **common)
    assert alone.seconds == pytest.approx(2 * 4096**2 / 1e9) and alone.busy == pytest.approx(1)
    free = ring.forecast(no_wire, ranks=8, **common)
    assert free.seconds == pytest.approx(alone.seconds / 8) and free.busy == pytest.approx(1)
    block = 2 * 2 * 512 * 64 * 4
    assert ring.forecast(slow_wire, ranks=8, **common).seconds == pytest.approx(7 * block / 1e6, rel=0.02)


def test_the_model_prefers_zigzag_where_there_is_a_mask():
    node = ring.Node(pairs=1e9)
    times = {
        kind: ring.forecast(node, n=8192, d=64, heads=1, ranks=16, causal=True, kind=kind).seconds
        for kind in ("zigzag", "contiguous")
    }
    assert times["contiguous"] > 1.7 * times["zigzag"]


@pytest.mark.parametrize(
    ("printed", "sentence"),
    [
        ("noise\nrung: rank 1 of 2: no.\nmore noise", "rank 1 of 2: no."),
        (
            "prterun noticed that process rank 1 with PID 26200 on node vm exited on\nsignal 9 (Killed).",
            "rank 1 of 2 died of signal 9 (SIGKILL), which ended the job.",
        ),
        (
            "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   PID 7 RUNNING AT vm\n=   EXIT CODE: 11\n",
            "a rank of 2 died of signal 11 (SIGSEGV), which ended the job.",
        ),
        ("", "the MPI job of 2 ranks failed with exit code 5: it printed nothing"),
    ],
)
def test_what_mpiexec_prints_becomes_one_sentence(printed, sentence):
    assert launch.complaint(printed, 2, 5) == sentence
