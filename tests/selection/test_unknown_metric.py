"""The engine runs a metric that it has never heard of: the recipe of CONTRIBUTING.md, followed to the letter."""

import math

import pytest
import torch
from torch import Tensor

from tm_bandit import ModelSelector, SelectionResult
from tm_bandit.errors import InputError
from tm_bandit.metrics import OptimisticMetric, Traits
from tm_bandit.metrics.base import missing_parts


class MeanBrightness(OptimisticMetric):
    """The mean brightness of the samples; brighter is better."""

    higher_is_better = True
    traits = Traits(higher_is_better=True, centre="unbiased", guarantee="anytime", reference="none")
    values: Tensor

    def __init__(self, delta: float = 0.05) -> None:
        super().__init__(delta=delta)
        self.add_state("values", default=torch.zeros(0, dtype=torch.float64), dist_reduce_fx="cat")

    @property
    def num_samples(self) -> int:
        return len(self.values)

    def extract(self, inputs: Tensor) -> Tensor:
        return inputs.flatten(1).mean(1, keepdim=True).double()

    def check_rows(self, rows: Tensor) -> Tensor:
        if rows.ndim != 2 or rows.shape[1] != 1 or not rows.isfinite().all():
            raise InputError(f"Expected finite rows of shape (n, 1), but got {tuple(rows.shape)}.")
        return rows

    def add_rows(self, rows: Tensor) -> None:
        self.values = torch.cat([self.values, rows[:, 0]])

    def losses(self, fields):
        loss, error = -float(self.values.mean()), float(self.values.std()) / math.sqrt(self.num_samples)
        width = error * math.sqrt(2.0 * math.log(2.0 * self.num_samples**2 / self.delta))
        numbers = dict.fromkeys(("witness", "estimate", "debiased"), loss)
        numbers |= {"stderr": error, "debiased_stderr": error, "optimistic": loss - width, "pessimistic": loss + width}
        return {name: numbers[name] for name in fields}

    def row_scores(self, count: int) -> Tensor:
        return -self.values[:count]


def pictures(brightness):
    return lambda n, generator: brightness + 0.3 * torch.randn(n, 3, 4, 4, generator=generator)


ARMS = {"dark": pictures(0.2), "bright": pictures(0.8), "grey": pictures(0.5)}


@pytest.mark.parametrize("policy", ["ucb", "race", "lucb", "halving", "thompson", "greedy", "uniform"])
def test_every_policy_finds_the_brightest(policy):
    result = ModelSelector(MeanBrightness(), ARMS, policy, budget=300).run(progress=False)
    assert (result.best, result.higher_is_better, result.metric) == ("bright", True, "MeanBrightness")
    best = next(row for row in result.arms if row["arm"] == "bright")
    assert best["estimate"] == pytest.approx(0.8, abs=0.1)
    assert best["lower"] < 0.8 < best["upper"]


@pytest.mark.parametrize("pairing", ["common", "independent"])
@pytest.mark.parametrize("stop", ["certified", "likely"])
def test_stop_rules_work(stop, pairing):
    result = ModelSelector(MeanBrightness(), ARMS, stop=stop, budget=5000, pairing=pairing).run(progress=False)
    assert (result.best, result.stopped_by) == ("bright", "stop")
    assert result.status in ("won", "likely")
    assert result.total_samples < 500


def test_scores_of_rows_are_compared_draw_by_draw():
    close = {"a": pictures(0.5), "b": pictures(0.49)}
    common, independent = (
        ModelSelector(MeanBrightness(), close, budget=3000, pairing=pairing).run(progress=False)
        for pairing in ("common", "independent")
    )
    assert (common.best, common.status) == ("a", "won")  # certified by the base class
    assert common.total_samples < independent.total_samples / 10
    row = common.arms[1]
    assert (row["behind"], row["correlation"]) == pytest.approx((0.01, 1.0), abs=1e-6)


def test_arms_share_the_failure_probability():
    selector = ModelSelector(MeanBrightness(delta=0.04), ARMS)
    assert [arm.metric.delta for arm in selector._arms.values()] == [0.01] * 3
    assert selector.delta == 0.04


def test_a_target_is_a_score():
    result = ModelSelector(MeanBrightness(), ARMS, target=0.7, budget=5000, stop="budget").run(progress=False)
    assert (result.stopped_by, result.best) == ("target", "bright")


def test_a_run_can_be_saved_and_goes_on(tmp_path):
    def start():
        return ModelSelector(MeanBrightness(), ARMS, budget=300, stop="budget")

    whole, first, second = start().run(progress=False), start(), start()
    for _ in range(25):
        first.step()
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    result = second.run(progress=False)
    assert len(result.pictures) == 2
    assert result == whole
    whole.to_json(tmp_path / "result.json")
    assert SelectionResult.from_json(tmp_path / "result.json") == whole


def test_the_best_of_close_arms_is_named_by_an_unbiased_metric():
    # Neighbours are half a standard deviation of one row apart, and the policy must not lock on to the wrong one.
    gap = 0.5 * 0.3 / math.sqrt(48)
    arms = {f"a{i}": pictures(0.8 - gap * i) for i in range(6)}
    runs = [ModelSelector(MeanBrightness(), arms, budget=800, seed=seed) for seed in range(12)]
    assert [run.run(progress=False).best for run in runs].count("a0") >= 11


@pytest.mark.parametrize("lacking", missing_parts(object()))
def test_a_metric_that_lacks_a_part_is_refused_by_name(lacking):
    class Partly:
        """Has everything but one part."""

    for name in missing_parts(object()):
        if name != lacking:
            setattr(Partly, name, 0)
    with pytest.raises(InputError, match=rf"but got Partly, which has no {lacking};"):
        ModelSelector(Partly(), ARMS)
