"""Drawing from a finite source: every sample once, in an order that seed and name decide."""

import numpy as np
import pytest
import torch

from tm_bandit.data import ArraySource, SourceExhaustedError, SourceSampler
from tm_bandit.errors import InputError


class Flaky(ArraySource):
    """A source in which some samples cannot be read."""

    bad = frozenset({1, 4})

    def __getitem__(self, index):
        if index in self.bad:
            raise InputError(f"cannot read {index}")
        return super().__getitem__(index)


ROWS = np.arange(8.0)[:, None]


def drawn(sampler, sizes):
    return torch.cat([sampler(size) for size in sizes])[:, 0].tolist()


def test_without_replacement_every_sample_comes_once_whatever_the_batches():
    source = ArraySource(ROWS, "rows.npy")
    one, two = SourceSampler(source, "a", 3), SourceSampler(source, "a", 3)
    first = drawn(one, [3, 3, 3])
    assert sorted(first) == list(range(8))
    assert drawn(two, [1, 5, 2]) == first
    assert one.remaining == 0
    with pytest.raises(SourceExhaustedError, match=r"rows\.npy, but got all 8 already"):
        one(1)


def test_seed_and_name_decide_the_order():
    source = ArraySource(ROWS, "rows.npy")
    orders = {tuple(drawn(SourceSampler(source, name, seed), [8])) for name in "ab" for seed in (0, 1)}
    assert len(orders) == 4


def test_with_replacement_the_generator_decides_and_nothing_runs_out():
    sampler = SourceSampler(ArraySource(ROWS, "rows.npy"), "a", replacement=True)
    assert sampler.remaining is None
    first = sampler(50, generator=torch.Generator().manual_seed(1))
    again = sampler(50, generator=torch.Generator().manual_seed(1))
    assert torch.equal(first, again)
    assert len(first) == 50


@pytest.mark.parametrize("replacement", [False, True])
def test_unreadable_samples_stop_the_draw_or_are_left_out(replacement):
    source = Flaky(ROWS, "rows.npy")
    generator = torch.Generator().manual_seed(0)
    with pytest.raises(InputError, match="cannot read"):
        SourceSampler(source, "a", replacement=replacement)(60, generator=generator)
    lenient = SourceSampler(source, "a", replacement=replacement, skip_unreadable=True)
    rows = set(lenient(60, generator=generator)[:, 0].tolist())
    assert rows == {0.0, 2.0, 3.0, 5.0, 6.0, 7.0}
    assert sorted(lenient.left_out) == ["rows.npy[1]", "rows.npy[4]"]


def test_nothing_readable_ends_with_replacement_too():
    class Dead(Flaky):
        bad = frozenset(range(8))

    with pytest.raises(InputError, match="got none"):
        SourceSampler(Dead(ROWS, "rows.npy"), "a", replacement=True, skip_unreadable=True)(1)


def test_paired_sources_of_one_length_are_drawn_from_in_step():
    one, two = (
        SourceSampler(ArraySource(ROWS + shift, "rows.npy"), name, 3, paired=True)
        for name, shift in (("a", 0), ("b", 9))
    )
    assert (np.array(drawn(two, [3, 5])) - np.array(drawn(one, [3, 5]))).tolist() == [9] * 8
