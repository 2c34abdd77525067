"""Rows, their key, and what is derived under it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tm_bandit.functional import moments_from_rows
from tm_bandit.metrics.row_log import RowLog


def numbered(start, stop):
    return torch.arange(float(start), float(stop))[:, None]


def test_the_key_changes_with_every_row_and_with_every_rewriting():
    log = RowLog()
    keys = [log.key]
    for rows in (numbered(0, 3), numbered(3, 4)):
        log.append(rows)
        keys.append(log.key)
    log.fold(2, moments_from_rows(numbered(0, 2)))
    keys.append(log.key)
    assert len(set(keys)) == 4
    assert keys[0][0] == keys[1][0] == keys[2][0] != keys[3][0]
    assert [length for _, length in keys] == [0, 3, 4, 4]
    assert (log.gone, log.kept) == (2, 2)
    assert RowLog().key != RowLog().key


def test_nothing_is_added_by_an_empty_batch():
    log = RowLog()
    key = log.key
    log.append(torch.empty(0, 1))
    assert log.key == key
    assert log.batches == []


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    cuts=st.tuples(st.integers(0, 54), st.integers(0, 54)),
    most=st.integers(1, 12),
    gone=st.integers(0, 20),
)
def test_blocks_are_the_rows_in_order(sizes, cuts, most, gone):
    total = sum(sizes)
    log = RowLog(list(torch.split(numbered(0, total), sizes)))
    gone = min(gone, total)
    if gone:
        log.fold(gone, moments_from_rows(numbered(0, gone)))
    start, stop = sorted(min(cut, log.kept) for cut in cuts)
    blocks = list(log.blocks(start, stop, most))
    assert torch.equal(torch.cat([torch.empty(0, 1), *blocks]), numbered(gone + start, gone + stop))
    assert all(1 <= len(block) <= most for block in blocks)
    # No more blocks than need be: two neighbours never fit into one, if batches are not larger than a block.
    if max(sizes) == 1:
        assert all(len(block) == most for block in blocks[:-1])
    log.append(numbered(total, total + 2))
    assert torch.equal(torch.cat(list(log.blocks(0, log.kept, 100))), numbered(gone, total + 2))


def test_a_fold_keeps_no_storage_of_rows_that_are_gone():
    rows = numbered(0, 10)
    log = RowLog([rows])
    log.fold(7, moments_from_rows(rows[:7]))
    assert torch.equal(log.batches[0], numbered(7, 10))
    assert log.batches[0].untyped_storage().nbytes() == 3 * 4


def test_a_prefix_is_a_history_of_its_own():
    log = RowLog(list(numbered(0, 9).split(4)), moments_from_rows(numbered(0, 5)))
    prefix = log.prefix(6)
    assert (prefix.gone, prefix.kept, prefix.length) == (5, 6, 11)
    assert prefix.epoch != log.epoch
    assert log.kept == 9


def test_one_value_per_name_and_key():
    log, made = RowLog(), []

    def make():
        made.append(log.key)
        return len(made)

    assert [log.derive("value", make, log.key, 0.05) for _ in range(3)] == [1, 1, 1]
    assert log.derive("value", make, log.key, 0.1) == 2
    log.append(numbered(0, 1))
    assert log.derive("value", make, log.key, 0.1) == 3
    assert log.derive("other", make, log.key, 0.1) == 4
    assert log.known("value") == 3
    log.forget("value")
    assert log.known("value") is None
    assert log.derive("value", make, log.key, 0.1) == 5


def test_what_raises_is_not_remembered():
    log = RowLog()
    with pytest.raises(ZeroDivisionError):
        log.derive("value", lambda: 1 / 0)
    assert log.derive("value", lambda: 7) == 7
