"""What the selector asks of a metric and a policy before a run."""

import pytest

from tests.selection.toy import MeanMetric
from tm_bandit import OptimisticFID, OptimisticIS
from tm_bandit.errors import InputError
from tm_bandit.selection.setup import arm_delta, check_choices, check_metric, facts_of, fork, traits_of


@pytest.mark.parametrize(
    ("bound", "guarantee"),
    [("witness", "anytime"), ("paper", "finite"), ("authors", "none"), ("naive", "none"), ("none", "none")],
)
def test_a_bound_tells_its_guarantee(bound, guarantee):
    assert traits_of(OptimisticFID("none", bound=bound)).guarantee == guarantee
    traits = traits_of(OptimisticIS("none", bound=bound))
    assert (traits.guarantee, traits.higher_is_better) == (guarantee, True)


def test_shares_of_the_failure_probability_sum_to_at_most_all_of_it():
    metric = MeanMetric(delta=0.1)
    shares = [arm_delta(metric, 3, position) for position in range(1, 2000)]
    assert shares[:3] == [0.025] * 3
    assert shares[3] == pytest.approx(0.1 / 20)
    assert sum(shares) < 0.1
    assert arm_delta(MeanMetric(bound="naive"), 3, 1) is None


def test_a_fork_has_its_own_samples_and_its_own_delta():
    metric = MeanMetric()
    one, two = fork(metric, 0.01, None), fork(metric, None, "cpu")
    assert (one.delta, two.delta, metric.delta) == (0.01, 0.05, 0.05)
    assert one.values is not two.values


def test_facts_are_what_results_and_states_say():
    assert facts_of(OptimisticIS("none", delta=0.1)) == {"bound": "witness", "delta": 0.1, "width": None}


def test_a_choice_outside_the_list_is_refused_with_the_list():
    check_choices(stop="likely", goal="identify", samples="features")
    with pytest.raises(InputError, match="stop to be 'budget', 'certified' or 'likely', but got 'soon'"):
        check_choices(stop="soon")


def test_something_else_than_a_metric_is_refused():
    with pytest.raises(InputError, match="but got str, which has no check_rows, device, extract"):
        check_metric("fid")
