"""A selector hands labels and prompts to its samplers."""

from collections import Counter

import pytest
import torch

from tests.selection.toy import MeanMetric
from tm_bandit import ModelSelector
from tm_bandit.errors import InputError


class Labelled:
    """Returns its labels with some noise, and remembers what it was given."""

    def __init__(self, shift=0.0):
        self.shift, self.seen = shift, []

    def __call__(self, num_samples, generator, conditions):
        self.seen.append(conditions)
        labels = torch.as_tensor(conditions, dtype=torch.float32)[:, None]
        return self.shift + labels + 0.1 * torch.randn(num_samples, 1, generator=generator)


def make(samplers, conditions, **kwargs):
    kwargs = {"budget": 200, "samples": "features", "policy": "uniform", "stop": "budget", **kwargs}
    return ModelSelector(MeanMetric(), samplers, conditions=conditions, **{"batch_size": 5, **kwargs})


def test_all_arms_get_the_same_labels_each_equally_often():
    arms = {"a": Labelled(), "b": Labelled(1.0)}
    selector = make(arms, [0, 1, 2, 3])
    result = selector.run(progress=False)
    assert arms["a"].seen == arms["b"].seen
    assert all(isinstance(given, list) and len(given) == 5 for given in arms["a"].seen)
    assert Counter(label for given in arms["a"].seen for label in given) == dict.fromkeys(range(4), 25)
    assert result.settings["conditions"] == 4


def test_a_tensor_arrives_as_a_tensor_and_a_function_is_asked_for_each_draw():
    arm = Labelled()
    make({"a": arm}, torch.arange(4)).run(progress=False)
    assert all(isinstance(given, torch.Tensor) and given.shape == (5,) for given in arm.seen)
    arm = Labelled()
    result = make({"a": arm}, lambda draw, size: [draw] * size).run(progress=False)
    assert arm.seen == [[draw] * 5 for draw in range(40)]
    assert result.settings["conditions"] == "function"


def test_pulls_of_a_loop_of_ones_own_carry_them():
    selector = make({"a": None, "b": None}, torch.arange(4))
    first, second = selector.ask(2)
    assert (first.arm, second.arm) == ("a", "b")
    assert torch.equal(first.conditions, second.conditions)
    assert first != second
    selector.tell(first, first.conditions[:, None].float())
    assert selector.spent == 5


def test_a_sampler_that_takes_none_is_refused_at_once():
    with pytest.raises(InputError, match="the sampler of arm 'b' to take `conditions=`"):
        make({"a": Labelled(), "b": lambda n: torch.zeros(n, 1)}, [0, 1])
    selector = make({"a": Labelled()}, [0, 1])
    with pytest.raises(InputError, match="the sampler of arm 'late' to take `conditions=`"):
        selector.add_arm("late", lambda n: torch.zeros(n, 1))
    assert selector.arms == ["a"]
    with pytest.raises(InputError, match="at least one entry in conditions"):
        make({"a": Labelled()}, [])


def test_conditions_that_end_lose_nothing():
    arm = Labelled()
    selector = make({"a": arm}, lambda draw, size: list(range(23))[draw * size : (draw + 1) * size])
    with pytest.raises(InputError, match=r"conditions\(4, 5\) to return 5 entries, one per sample, but got 3"):
        selector.run(progress=False)
    assert selector.spent == 20
    assert selector.draws("a") == 4
    assert selector.retired == {}
    assert selector.result().best == "a"


def test_a_resumed_run_goes_on_with_the_list():
    whole = make({"a": Labelled()}, [0, 1, 2], budget=90)
    half = make({"a": Labelled()}, [0, 1, 2], budget=45)
    whole.run(progress=False)
    half.run(progress=False)
    rest = make({"a": Labelled()}, [0, 1, 2], budget=45)
    rest.load_state_dict(half.state_dict())
    rest.run(progress=False, budget=45)
    assert rest.result().history == whole.result().history
    for other in (None, [0, 1]):
        with pytest.raises(InputError, match=r"conditions=.*, but got one with 3; use the same value"):
            make({"a": Labelled()}, other).load_state_dict(half.state_dict())
