"""Labels and prompts: every one equally often, in an order that seed and position decide."""

from collections import Counter

import numpy as np
import pytest
import torch

from tm_bandit.errors import InputError
from tm_bandit.execution.conditions import Conditions, check_conditioned, chunk_of, shuffled
from tm_bandit.execution.draw import DrawPlan

PROMPTS = ["cat", "dog", "bird", "fish", "frog", "goat", "hare"]


class TestOrder:
    def test_every_pass_is_a_permutation_and_another_one(self):
        stream = shuffled(7, 0, 7 * 50, 3)
        passes = [tuple(stream[start : start + 7]) for start in range(0, len(stream), 7)]
        assert all(sorted(one) == list(range(7)) for one in passes)
        assert len(set(passes)) > 40

    @pytest.mark.parametrize("length", [1, 3, 5, 12])
    def test_draws_cut_the_stream_into_pieces(self, length):
        stream = shuffled(length, 0, 60, "seed")
        for size in (1, 4, 5, 15):
            pieces = [index for draw in range(60 // size) for index in shuffled(length, draw * size, size, "seed")]
            assert pieces == stream

    def test_first_places_are_uniform(self):
        first = Counter(shuffled(4, 0, 1, seed)[0] for seed in range(800))
        assert all(abs(first[index] - 200) < 50 for index in range(4)), first  # four standard deviations


class TestConditions:
    def test_common_arms_get_the_same_and_independent_ones_their_own(self):
        common, own = (DrawPlan(0, pairing, Conditions(PROMPTS)) for pairing in ("common", "independent"))
        for draw in range(20):
            assert common.pull("a", draw, 5).conditions == common.pull("b", draw, 5).conditions
        assert (
            common.pull("a", 0, 7).conditions != DrawPlan(1, "common", Conditions(PROMPTS)).pull("a", 0, 7).conditions
        )
        assert [own.pull("a", k, 7).conditions for k in range(3)] != [own.pull("b", k, 7).conditions for k in range(3)]
        for arm in "ab":
            drawn = Counter(prompt for draw in range(14) for prompt in own.pull(arm, draw, 5).conditions)
            assert drawn == dict.fromkeys(PROMPTS, 10)

    def test_a_tensor_stays_one(self):
        labels = torch.arange(14).reshape(7, 2)
        taken = DrawPlan(0, "common", Conditions(labels)).pull("a", 1, 5).conditions
        expected = shuffled(7, 5, 5, 0, "conditions")
        assert torch.equal(taken, labels[expected])

    def test_arrays_and_datasets_are_sequences(self):
        class Names:
            def __len__(self):
                return 3

            def __getitem__(self, index):
                return f"name {index}"

        assert sorted(Conditions(Names()).take(0, 3, (0,))) == ["name 0", "name 1", "name 2"]
        assert sorted(Conditions(np.arange(3)).take(0, 3, (0,))) == [0, 1, 2]

    def test_a_function_decides_itself(self):
        conditions = Conditions(lambda draw, size: range(draw * size, (draw + 1) * size))
        assert conditions.take(2, 3, (0,)) == (6, 7, 8)
        assert conditions.kind == "function"
        assert Conditions(PROMPTS).kind == 7
        assert torch.equal(
            Conditions(lambda draw, size: torch.full((size,), draw)).take(4, 2, ()), torch.tensor([4, 4])
        )

    @pytest.mark.parametrize(
        ("answer", "got"), [([1, 2], "but got 2"), ([1] * 6, "but got 6"), (None, "a NoneType"), ("abcde", "a str")]
    )
    def test_another_number_than_was_asked_for_is_refused(self, answer, got):
        with pytest.raises(InputError, match=rf"conditions\(3, 5\) to return 5 entries, one per sample, .*{got}"):
            Conditions(lambda draw, size: answer).take(3, 5, (0,))

    def test_a_function_that_fails_is_named(self):
        def broken(draw, size):
            raise KeyError("no more prompts")

        with pytest.raises(InputError, match=r"the 5 samples of draw 3, but got KeyError.*no more prompts"):
            Conditions(broken).take(3, 5, (0,))

    @pytest.mark.parametrize("empty", [[], (), torch.zeros(0), np.zeros(0)])
    def test_an_empty_list_is_refused(self, empty):
        with pytest.raises(InputError, match="at least one entry in conditions"):
            Conditions(empty)

    @pytest.mark.parametrize("wrong", ["a cat", 3, {"a": 1}, torch.tensor(3)])
    def test_something_else_is_refused(self, wrong):
        with pytest.raises(InputError, match=r"a sequence or a function of \(draw, size\)"):
            Conditions(wrong)


def test_chunks_are_slices_whatever_their_size():
    for conditions in (tuple(range(10)), torch.arange(10)):
        for size in (1, 3, 4, 10):
            parts = [chunk_of(conditions, chunk, size) for chunk in range(-(-10 // size))]
            assert all(len(part) == size for part in parts)
            assert [int(entry) for part in parts for entry in part][:10] == list(range(10))
    assert chunk_of((), 3, 4) == ()


def test_samplers_that_take_conditions():
    check_conditioned(lambda n, conditions: None)
    check_conditioned(lambda n, **kwargs: None)
    with pytest.raises(InputError, match="Expected the sampler to take `conditions=`"):
        check_conditioned(lambda n, generator: None)
    with pytest.raises(InputError, match="the sampler of arm 'a' to take `conditions=`"):
        check_conditioned(3, "the sampler of arm 'a'")
