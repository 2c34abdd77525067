"""Folds and refits: a schedule that depends on the number of rows alone."""

from itertools import pairwise

import pytest
import torch

from tm_bandit.functional.crossfit import FOLDS, MIN_ROWS, FoldLayout, fold_numbers, num_folds, refit_counts
from tm_bandit.functional.witness_fd import (
    block_size,
)


class TestSchedule:
    def test_refits_are_rare_and_begin_early(self):
        counts = refit_counts(5000)
        assert counts[0] == MIN_ROWS
        assert len(counts) < 50
        for earlier, later in pairwise(counts):
            growth = 1.15 if earlier < 200 else 1.3
            assert (growth - 0.01) * earlier - 1 <= later <= growth * earlier + 1

    def test_it_is_the_same_however_far_one_looks(self):
        for count in (9, 10, 63, 64, 65, 1000):
            assert tuple(refit_counts(count)) == tuple(n for n in refit_counts(4000) if n <= count)

    def test_folds_are_merged_by_halves(self):
        assert num_folds(20) % num_folds(2000) == 0

    def test_folds_are_even_and_do_not_depend_on_where_one_begins(self):
        fold = fold_numbers(0, 5000)
        assert torch.equal(fold.view(-1, FOLDS).sort().values, torch.arange(FOLDS).expand(500, -1))
        for start, stop in ((3, 4), (7, 31), (10, 20), (4321, 4999), (50, 50)):
            assert torch.equal(fold_numbers(start, stop), fold[start:stop])

    def test_folds_know_nothing_of_a_cycle_in_the_order(self):
        """Each fold gets each label of a cycle of ten about equally often; index modulo ten would give it one label."""
        count = torch.zeros(FOLDS, FOLDS)
        label = torch.arange(10_000) % 10
        count.index_put_((fold_numbers(0, 10_000), label), torch.ones(10_000), accumulate=True)
        # One hundred expected, standard deviation below ten; the largest of a hundred cells stays within four of them.
        assert (count - 100).abs().max() < 40

    @pytest.mark.parametrize("folds", [1, 5, 10])
    @pytest.mark.parametrize(("start", "stop"), [(0, 0), (0, 1), (0, 97), (13, 14), (13, 57)])
    def test_the_layout_has_one_place_for_each_row(self, folds, start, stop):
        layout = FoldLayout.of(start, stop, folds)
        assert torch.equal(layout.fold, fold_numbers(start, stop) % folds)
        places = {(int(fold), int(slot)) for fold, slot in zip(layout.fold, layout.slot, strict=True)}
        assert len(places) == stop - start
        assert all(0 <= slot < layout.shape[1] for _, slot in places)
        assert layout.empty(2, width=3, like=torch.zeros(1)).shape == (2, folds, layout.shape[1], 3)

    def test_the_block_grows_up_to_its_limit(self):
        assert [block_size(n, 2048) for n in (1, 2, 3, 100, 255, 256, 1025)] == [1, 2, 2, 64, 128, 256, 256]
        assert [block_size(n, 5) for n in (3, 5, 100)] == [2, 5, 5]

    def test_a_late_block_grows_with_a_quarter_of_the_rows(self):
        assert [block_size(n, 2048) for n in (2047, 2048, 4095, 4096, 99_999)] == [256, 512, 512, 1024, 1024]
        assert [block_size(n, 300) for n in (1199, 1200)] == [256, 300]
