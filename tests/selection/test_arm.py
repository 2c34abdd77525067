"""One arm's pulls and numbers."""

import tracemalloc

import pytest
import torch

from tests.selection.toy import MeanMetric, gaussian, pull, rows
from tm_bandit import Pull
from tm_bandit.errors import ArmError, InputError
from tm_bandit.selection.arm import Arm, Fingerprints

NEEDS = ("witness", "stderr")


def make(name="a", growth=1.05, sampler=None):
    return Arm(name, MeanMetric(), sampler, growth, {})


class TestPulls:
    def test_draws_are_counted_and_given_back_ones_come_first(self):
        arm = make()
        pulls = [pull(arm) for _ in range(4)]
        assert [p.draw for p in pulls] == [0, 1, 2, 3]
        arm.give_back(pulls[2])
        arm.give_back(pulls[1])
        assert (arm.pending, arm.next_draw) == (10, 1)
        assert [pull(arm).draw for _ in range(3)] == [1, 2, 4]

    def test_rows_are_ready_in_the_order_of_their_draws(self):
        arm = make()
        first, second, third = (pull(arm) for _ in range(3))
        arm.tell(third, rows(3), 1.0)
        arm.tell(first, rows(1), 0.5)
        ready = arm.ready()
        assert torch.equal(ready[0], rows(1))
        assert ready[1] == 0.5
        assert arm.ready() is None
        assert arm.pending == 10
        arm.give_back(second)
        assert torch.equal(arm.ready()[0], rows(3))
        assert (arm.ready(), arm.pending) == (None, 0)

    def test_only_the_very_pull_is_expected(self):
        arm = make()
        mine = pull(arm)
        assert arm.asked(mine)
        assert not arm.asked(Pull("a", 0, 5, seed=1))
        assert not arm.asked(Pull("a", 1, 5, seed=0))

    def test_a_retired_arm_lets_go_of_everything_but_its_numbers(self):
        arm = make()
        for i in range(3):
            arm.add(rows(i), 2.0, NEEDS, 10)
        under_way = pull(arm)
        arm.retire("gone")
        assert (arm.retired, arm.stats.num_samples, arm.stats.cost) == ("gone", 15, 6.0)
        assert (arm.metric.num_samples, arm.trace, arm.pending) == (0, {}, 0)
        assert arm.asked(under_way)

    def test_without_a_sampler_nothing_can_be_drawn(self):
        with pytest.raises(InputError, match="a sampler for arm 'a', but got None"):
            make().carry_out(Pull("a", 0, 5, 0), MeanMetric(), "features")
        drawn = make(sampler=gaussian(1.0)).carry_out(Pull("a", 0, 5, 0), MeanMetric(), "features")
        assert drawn.shape == (5, 1)

    @pytest.mark.parametrize("told", [None, [1.0], torch.zeros(4, 1), torch.zeros(5, 3)])
    def test_rows_that_cannot_be_used_are_refused(self, told):
        with pytest.raises(ArmError, match="Expected"):
            make().checked(Pull("a", 0, 5, 0), told, lambda arm, draw: draw)


class TestNumbers:
    def test_all_numbers_are_refreshed_at_the_same_counts_for_all_arms(self):
        arm, other = make(growth=1.5), make("b", growth=1.5)
        for i in range(12):
            arm.add(rows(i), 0.0, NEEDS, 15)
        for i in range(7):
            other.add(rows(-i), 0.0, (), 15)
        # Looks at 1 and 2 pulls, at the end of the burn-in (3), and then at every growth by a half, rounded up.
        assert list(arm.trace) == [5, 10, 15, 25, 40, 60]
        assert list(other.trace) == [5, 10, 15, 25]
        assert arm.fresh_stats() is arm.stats
        assert other.fresh_stats().witness != other.stats.witness

    def test_a_state_of_other_numbers_loads(self):
        arm, other = make(), make()
        for i in range(3):
            arm.add(rows(i), 0.0, NEEDS, 10)
        state = arm.state_dict()
        state["stats"] |= {"coarse_even": 1.0}  # as version 0.1 had it
        del state["given_back"]
        other.load_state_dict(state)
        assert (other.stats, other.trace, other.next_draw) == (arm.stats, arm.trace, 3)


def test_fingerprints_are_found_whatever_the_order_of_the_draws():
    marks = Fingerprints()
    for draw, mark in ((3, 9), (0, 4), (1, 9), (0, 5)):  # draw 0 is told again
        marks.add(draw, mark)
    assert dict(marks) == {0: 5, 1: 9, 3: 9} == dict(Fingerprints(dict(marks)))
    assert len(marks) == 3
    assert 2 not in marks
    assert [marks.earlier(mark) for mark in (4, 5, 9, 10)] == [None, 0, 1, None]
    with pytest.raises(KeyError):
        marks[-1]


def test_a_fingerprint_takes_a_few_bytes():
    marks = Fingerprints()
    tracemalloc.start()
    try:
        for draw in range(2_000):
            marks.add(draw, 2**50 + 7919 * draw % 2_003)
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert grown / 2_000 < 24
