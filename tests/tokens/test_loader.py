"""The loader: every row once an epoch, the same rows on any number of processes, any step without the ones before."""

import gc
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tsdfm.corpus import CorpusSettings
from tsdfm.corpus.run import run as make_corpus
from tsdfm.errors import UserError
from tsdfm.tokens import Loader, TokenRows, TokensSettings, prefetch
from tsdfm.tokens.run import run
from tsdfm.tokens.shuffle import shuffled


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> TokenRows:
    folder = tmp_path_factory.mktemp("rows")
    (folder / "a.txt").write_text("".join(f"{i:07d}" for i in range(101)))  # a row is its own number
    corpus = make_corpus(CorpusSettings(out=folder / "corpus", path=folder / "a.txt", cut="lines", valid=0))
    out = run(TokensSettings(corpus=corpus, out=folder / "tokens", tokenizer="byte", length=7, shard_rows=10))
    return TokenRows(out)


def numbers(rows: TokenRows, tokens: torch.Tensor) -> list[int]:
    return [int(rows.tokenizer.decode(row)) for row in tokens]


@given(size=st.integers(1, 3000), seed=st.integers(-(2**62), 2**62), epoch=st.integers(0, 2**40))
def test_every_epoch_is_a_permutation(size: int, seed: int, epoch: int) -> None:
    order = shuffled(np.arange(size), size, seed, epoch)
    assert np.array_equal(np.sort(order), np.arange(size))
    assert shuffled(np.array([size - 1]), size, seed, epoch)[0] == order[-1]


def test_orders_differ_by_epoch_and_seed_and_look_random() -> None:
    size = 5000
    a, b, c = (shuffled(np.arange(size), size, *pair) for pair in ((0, 0), (0, 1), (1, 0)))
    for left, right in ((a, b), (a, c), (a, np.arange(size))):
        assert (left == right).sum() < 10  # about 1 in a random pair
        assert abs(np.corrcoef(left, right)[0, 1]) < 0.08
    assert abs(np.corrcoef(a[:-1], a[1:])[0, 1]) < 0.08


def test_a_small_set_takes_every_order_about_equally_often() -> None:
    first = [tuple(shuffled(np.arange(4), 4, 0, epoch)) for epoch in range(4800)]
    counts = np.unique(first, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert ((counts - 200.0) ** 2 / 200).sum() < 60  # chi-square with 23 degrees of freedom: p < 4e-5 above 60


def test_rows_are_read_across_shards(rows: TokenRows) -> None:
    assert len(rows) == 101
    wanted = [100, 0, 9, 10, 55, 55]
    assert numbers(rows, torch.from_numpy(rows.take(wanted).astype(np.int64))) == wanted
    assert rows.tokenizer.decode(rows[99]) == "0000099"
    for wrong in (-1, 101):
        with pytest.raises(IndexError):
            rows[wrong]
        with pytest.raises(IndexError):
            rows.take([wrong])


def test_every_row_once_an_epoch_and_a_new_order_each(rows: TokenRows) -> None:
    loader = Loader(rows, batch=8, seed=3)
    seen = [n for step in range(26) for n in numbers(rows, loader.at(step).tokens)]
    assert sorted(seen[:101]) == sorted(seen[101:202]) == list(range(101))
    assert seen[:101] != seen[101:202]
    assert seen[:8] != numbers(rows, Loader(rows, batch=8, seed=4).at(0).tokens)
    assert loader.epoch(101) == 8.0


def test_processes_share_the_batch_of_one(rows: TokenRows) -> None:
    for step in (0, 12, 1000):
        whole = Loader(rows, batch=8, seed=0).at(step)
        parts = [Loader(rows, batch=8, seed=0, rank=r, world=4).at(step) for r in range(4)]
        assert torch.equal(torch.cat([p.tokens for p in parts]), whole.tokens)
        assert torch.equal(torch.cat([p.rows for p in parts]), whole.rows)
        assert whole.rows.tolist() == list(range(step * 8, step * 8 + 8))
        assert whole.tokens.dtype == whole.rows.dtype == torch.int64
    with pytest.raises(UserError, match="multiple of 3"):
        Loader(rows, batch=8, seed=0, world=3)


def test_a_batch_larger_than_the_set(rows: TokenRows) -> None:
    batch = Loader(rows, batch=250, seed=0).at(0)
    assert sorted(numbers(rows, batch.tokens)[:101]) == list(range(101))


def loader_threads() -> int:
    return sum(thread.name == "loader" for thread in threading.enumerate())


def wait_for_no_thread() -> bool:
    deadline = time.monotonic() + 600
    while loader_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    return loader_threads() == 0


def test_prefetching_gives_the_same_batches_and_ends(rows: TokenRows) -> None:
    loader = Loader(rows, batch=8, seed=0)
    found = list(prefetch(loader, 5, "cpu", stop=25))
    assert len(found) == 20
    for step, batch in enumerate(found, 5):
        assert torch.equal(batch.tokens, loader.at(step).tokens)
        assert torch.equal(batch.rows, loader.at(step).rows)
    assert wait_for_no_thread()


def test_prefetching_stops_when_closed_left_or_dropped(rows: TokenRows) -> None:
    loader = Loader(rows, batch=8, seed=0)
    batches = prefetch(loader, 0, "cpu")
    next(batches)
    assert loader_threads() == 1
    batches.close()
    batches.close()
    assert loader_threads() == 0
    assert next(batches, None) is None
    with prefetch(loader, 0, "cpu") as batches:
        next(batches)
    assert loader_threads() == 0
    batches = prefetch(loader, 0, "cpu")
    next(batches)
    del batches
    gc.collect()
    assert wait_for_no_thread()


def test_an_error_in_the_thread_reaches_the_caller(rows: TokenRows) -> None:
    class Broken(Loader):
        def at(self, step: int):
            if step == 3:
                raise UserError("the disk went away")
            return super().at(step)

    batches = prefetch(Broken(rows, batch=8, seed=0), 0, "cpu")
    with pytest.raises(UserError, match="the disk went away"):
        list(batches)
    assert wait_for_no_thread()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_prefetching_to_the_gpu(rows: TokenRows) -> None:
    loader = Loader(rows, batch=8, seed=0)
    with prefetch(loader, 0, "cuda", stop=20) as batches:
        for step, batch in enumerate(batches):
            assert batch.tokens.is_cuda
            assert torch.equal(batch.tokens.cpu(), loader.at(step).tokens)
