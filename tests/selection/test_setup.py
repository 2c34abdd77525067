"""What the selector requires of a metric and a policy before a run."""

import pytest

from tests.selection.toy import MeanMetric
from tm_bandit import ModelSelector, OptimisticFID, OptimisticIS, OptimisticKID
from tm_bandit.errors import InputError, NotReadyError
from tm_bandit.selection.setup import arm_delta, check_metric, resolve_stop


@pytest.mark.parametrize(
    ("bound", "guarantee"),
    [("witness", "anytime"), ("paper", "finite"), ("authors", "none"), ("naive", "none"), ("none", "none")],
)
def test_a_bound_tells_its_guarantee(bound, guarantee):
    assert OptimisticFID("none", bound=bound).traits.guarantee == guarantee
    traits = OptimisticIS("none", bound=bound).traits
    assert (traits.guarantee, traits.higher_is_better) == (guarantee, True)


def test_shares_of_the_failure_probability_sum_to_at_most_all_of_it():
    metric = MeanMetric(delta=0.1)
    shares = [arm_delta(metric, 3, position) for position in range(1, 2000)]
    assert shares[:3] == [0.025] * 3
    assert shares[3] == pytest.approx(0.1 / 20)
    assert sum(shares) < 0.1
    assert arm_delta(MeanMetric(bound="naive"), 3, 1) is None


def test_a_choice_outside_the_list_is_refused_with_the_list():
    with pytest.raises(InputError, match="`stop` to be one of budget, certified, likely, but got 'soon'"):
        ModelSelector(MeanMetric(), stop="soon")


def test_something_else_than_a_metric_is_refused():
    with pytest.raises(InputError, match="but got str, which has no traits, delta, device"):
        check_metric("fid")


@pytest.mark.parametrize("make", [OptimisticFID, OptimisticKID])
def test_a_metric_without_a_reference_is_refused_before_anything_is_drawn(make):
    arms = {"a": lambda n: 1 / 0, "b": lambda n: 1 / 0}
    with pytest.raises(NotReadyError, match="at least two real samples, but got 0; give `reference=`"):
        ModelSelector(make("none"), arms)
    selector = ModelSelector(make("none"), budget="10s", cost={})
    with pytest.raises(NotReadyError, match="give `reference=`"):
        selector.add_arm("a", cost=2.0)
    assert selector.arms == []
    assert selector.state_dict()["prices"] == {}


@pytest.mark.parametrize(
    ("stop", "goal", "bound", "rule"),
    [
        (None, "identify", "witness", "likely"),
        (None, "identify", "naive", "budget"),
        (None, "regret", "witness", "budget"),
        ("certified", "regret", "witness", "certified"),
        ("budget", "identify", "witness", "budget"),
    ],
)
def test_what_ends_a_run_by_default(stop, goal, bound, rule):
    assert resolve_stop(stop, MeanMetric(bound=bound), goal) == rule
    assert ModelSelector(MeanMetric(bound=bound), stop=stop, goal=goal).stop == rule


def test_by_default_the_best_arm_is_to_be_named_on_common_noise():
    settings = ModelSelector(MeanMetric()).settings()
    assert {name: settings[name] for name in ("goal", "stop", "pairing", "algorithm")} == {
        "goal": "identify",
        "stop": "likely",
        "pairing": "common",
        "algorithm": "Race",
    }
