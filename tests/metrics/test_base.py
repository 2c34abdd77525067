"""What every metric gets for its losses: scores, copies for arms, comparisons, and what it may not lack."""

import math

import pytest
import torch
from torch import nn

from tests._make import POWER, all_values, class_probs, fed, filled, power_rows
from tm_bandit import OptimisticFID, OptimisticIS, OptimisticMean
from tm_bandit.comparison import Pair
from tm_bandit.errors import InputError
from tm_bandit.functional.confidence import ScoreMoments, deviation
from tm_bandit.metrics import OptimisticMetric, Traits, missing_parts


class Mean(OptimisticMetric):
    """The least that a metric must say: the mean of one column, higher is better."""

    higher_is_better = True
    traits = Traits(True, "unbiased", "none", "none")
    num_samples = 0

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.add_state("values", [], dist_reduce_fx="cat")

    def extract(self, inputs):
        return inputs

    def check_rows(self, rows):
        return rows

    def add_rows(self, rows):
        self.values.append(rows.double())
        self.num_samples += len(rows)

    def losses(self, fields):
        values = -torch.cat(self.values).flatten()
        mean, error = float(values.mean()), float(values.std()) / math.sqrt(len(values))
        found = {"optimistic": mean - 2 * error, "pessimistic": mean + 2 * error, "stderr": error}
        return {name: found.get(name, error if name == "debiased_stderr" else mean) for name in fields}


def test_scores_are_made_of_losses():
    metric = fed(Mean(), torch.arange(11.0)[:, None])
    error = math.sqrt(11 / 11)
    assert float(metric.estimate()) == 5.0
    assert float(metric.compute()) == pytest.approx(5 + 2 * error)
    assert tuple(map(float, metric.bounds())) == pytest.approx((5 - 2 * error, 5 + 2 * error))
    assert tuple(map(float, metric.debiased())) == pytest.approx((5.0, error))
    assert metric.score_from_loss(-3.0) == 3.0
    assert (metric.min_samples, metric.row_width, metric.burn_in_met) == (2, None, True)
    assert missing_parts(metric) == []


def test_what_is_missing_has_a_name():
    assert missing_parts(filled(power_rows(5))) == []
    assert missing_parts(OptimisticIS("none")) == []
    lacking = set(missing_parts(nn.Identity()))
    assert {"traits", "losses", "fork", "paired", "certificate", "num_samples"} <= lacking
    assert "extract" in missing_parts(3)

    class Half(Mean):
        losses = property(lambda self: 1 / 0)  # what is there is not computed

    Half.__abstractmethods__ = frozenset()
    assert missing_parts(Half()) == []


class TestFork:
    def test_an_arm_has_no_network_and_does_not_sync(self):
        net = nn.Linear(3, 4)
        metric = OptimisticIS(feature=net)
        arm = metric.fork(delta=0.01)
        assert (arm.delta, metric.delta) == (0.01, 0.05)
        assert arm.inception is None
        assert metric.inception is not None
        assert arm.extractor_name == metric.extractor_name
        assert not arm.sync_on_compute
        assert not arm._to_sync
        arm.update_rows(class_probs(20, classes=4))
        assert metric.num_samples == 0

    def test_the_reference_is_shared_also_if_it_was_fed(self):
        metric = OptimisticFID("none")
        metric.update_features(power_rows(60, shift=0.0), real=True)
        arms = [metric.fork() for _ in range(3)]
        assert {id(arm.reference) for arm in arms} == {id(metric.reference)}
        assert all(arm.real_scatter == [] for arm in arms)
        assert len(metric.real_scatter) == 1
        fed(arms[0], power_rows(30))
        assert all_values(arms[0]) == all_values(filled(power_rows(30), ref=metric.reference))
        given = filled(power_rows(0), batch=1)
        assert given.fork().reference is POWER

    def test_a_device_can_be_chosen(self):
        assert OptimisticIS("none").fork(device="cpu").device == torch.device("cpu")

    def test_real_samples_of_the_score_are_copied(self):
        metric = OptimisticIS("none")
        metric.update_probs(class_probs(30), real=True)
        assert float(metric.fork().real_num) == 30


class TestPairs:
    """What an unbiased metric gets for its ``row_scores``."""

    @staticmethod
    def pair(count=400, delta=0.05):
        noise = torch.randn(count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        made = [OptimisticMean(lambda rows: rows, higher_is_better=False, delta=delta) for _ in range(2)]
        made[0].update_scores(1.1 * noise + 0.5)
        made[1].update_scores(noise)
        return made, 0.1 * noise + 0.5

    def test_they_are_compared_by_the_scores_of_each(self):
        (one, two), difference = self.pair()
        found = one.paired(two, 100)
        assert found.difference == pytest.approx(float(difference[:100].mean()))
        assert found.stderr == pytest.approx(float(difference[:100].std()) / 10)

    def test_a_certificate_is_the_sequence_of_the_mean_difference(self):
        (one, two), difference = self.pair(delta=0.02)
        found = one.certificate(two, 300)
        moments = ScoreMoments.of(difference[:300])
        width = deviation(moments, 0.02, upper=False)
        assert found == pytest.approx(float(difference[:300].mean()) - width)
        assert width > 2 * float(difference[:300].std()) / 300**0.5
        assert 0.0 < found < one.certificate(two, 400) < 0.5

    def test_a_certificate_has_the_width_of_the_metric(self):
        (one, two), difference = self.pair()
        one.width = "lil"
        width = deviation(ScoreMoments.of(difference), 0.05, upper=False, kind="lil")
        assert one.certificate(two, 400) == pytest.approx(float(difference.mean()) - width)

    def test_too_few_scores_certify_nothing(self):
        (one, two), _ = self.pair()
        assert [one.certificate(two, count) == -math.inf for count in (2, 9, 10)] == [True, True, False]

    @pytest.mark.parametrize("number", [2, 60])
    def test_equal_scores_say_nothing_if_they_have_few_values(self, number):
        metrics = [OptimisticMean(lambda rows: rows) for _ in range(2)]
        for metric in metrics:
            metric.update_scores([float(value) for value in range(number)] * (60 // number))
        found = metrics[0].paired(metrics[1], 60)
        assert found is None if number == 2 else found[:2] == (0.0, 0.0)

    def test_equal_labels_say_nothing_about_the_next_ones(self):
        template = OptimisticIS("none")
        labels, unsure = torch.eye(5, dtype=torch.float64).repeat(8, 1), class_probs(40)
        for rows, same in ((labels, None), (unsure, Pair.of_twins())):
            arms = [fed(template.fork(), rows) for _ in range(2)]
            assert arms[0].paired(arms[1], 40) == same

    def test_without_scores_of_rows_there_is_neither(self):
        metrics = [Mean(), Mean()]
        assert metrics[0].paired(metrics[1], 10) is None
        assert metrics[0].certificate(metrics[1], 10) is None

    def test_a_sharper_arm_has_the_smaller_loss(self):
        template = OptimisticIS("none")
        arms = [fed(template.fork(), class_probs(60, sharpness=s)) for s in (9.0, 1.0)]
        assert arms[0].paired(arms[1], 50).difference < 0.0


class TestStates:
    @pytest.mark.parametrize("options", [{}, {"max_rows": 40}, {"bound": "paper"}])
    def test_they_come_back(self, options):
        metric, other = filled(power_rows(90), 7, **options), filled(power_rows(30, seed=1), **options)
        all_values(other)
        other.load_states(metric.metric_state, updates=13)
        assert all_values(other) == pytest.approx(all_values(metric), rel=1e-12)
        assert (other.num_samples, other.update_count) == (90, 13)
        assert not torch.equal(other.identity, metric.identity)

    def test_a_missing_one_is_named_and_nothing_changes(self):
        metric = filled(power_rows(30))
        before = all_values(metric)
        states = {**metric.metric_state, "rows": []}
        del states["settled"]
        with pytest.raises(InputError, match="states of a OptimisticFID, but got none for settled"):
            metric.load_states(states)
        assert all_values(metric) == before

    def test_scores_too(self):
        metric, other = fed(OptimisticIS("none"), class_probs(90), 7), OptimisticIS("none")
        other.load_states(metric.metric_state)
        assert all_values(other) == all_values(metric)
