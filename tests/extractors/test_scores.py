"""One number per sample, from callables, modules and torchmetrics metrics."""

import copy
import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torchmetrics import Metric
from torchmetrics.regression import MeanSquaredError

from tm_bandit.errors import InputError
from tm_bandit.extractors import Score

IMAGES = torch.rand(5, 3, 4, 4, generator=torch.Generator().manual_seed(0))


class Brightness(nn.Module):
    """A network with weights that behaves differently in training."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(48, 1).double()
        self.drop = nn.Dropout(0.5)

    def forward(self, images):
        return self.drop(self.layer(images.flatten(1)))


class PerSample(Metric):
    """A torchmetrics metric that returns one value per sample."""

    def __init__(self):
        super().__init__()
        self.add_state("values", [], dist_reduce_fx="cat")

    def update(self, images):
        self.values.append(images.flatten(1).mean(1))

    def compute(self):
        return torch.cat(self.values)


def test_a_callable():
    assert torch.equal(Score(lambda images: images.flatten(1).sum(1))(IMAGES), IMAGES.flatten(1).sum(1))


def test_a_module_runs_in_evaluation_mode_without_gradients_and_stays_as_it_was():
    network = Brightness()
    score = Score(network)
    values = score(IMAGES)
    assert torch.equal(values, network.layer(IMAGES.double().flatten(1))[:, 0])
    assert not values.requires_grad
    assert network.training
    assert network.drop.training
    assert copy.deepcopy(score) is score


def test_a_metric_with_a_value_per_sample():
    assert torch.equal(Score(PerSample())(IMAGES), IMAGES.flatten(1).mean(1))


def test_a_metric_with_a_value_per_batch_is_asked_sample_by_sample():
    metric = MeanSquaredError()
    score = Score(metric)
    assert score.conditional  # `update(preds, target)`
    targets = [torch.rand(3, 4, 4) for _ in range(5)]
    expected = (IMAGES - torch.stack(targets)).square().flatten(1).mean(1)
    for _ in range(2):
        assert torch.allclose(score(IMAGES, targets), expected)
    assert torch.allclose(score(IMAGES[:1], targets[:1]), expected[:1])  # the last batch may be short
    assert metric.update_count == 0


class Crowded(PerSample):
    """Notices another thread in ``update``."""

    def __init__(self):
        super().__init__()
        self.others, self.crowds = [], 0

    def update(self, images):
        self.others.append(None)
        self.crowds += len(self.others) > 1
        super().update(images.clone())
        time.sleep(0.001)  # lets other threads run
        self.others.pop()


def test_threads_take_turns_at_a_metric():
    score, batches = Score(Crowded()), [IMAGES[:count] * count for count in (1, 2, 3, 4)] * 5
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(score, batches))
    assert score.function.crowds == 0
    for batch, values in zip(batches, found, strict=True):
        assert torch.equal(values, batch.flatten(1).mean(1))
    assert torch.equal(pickle.loads(pickle.dumps(score))(IMAGES), IMAGES.flatten(1).mean(1))


@pytest.mark.parametrize(
    ("function", "wants"),
    [
        (lambda x: x, False),
        (lambda x, y: x, True),
        (lambda x, temperature=1.0: x, False),
        (lambda x, conditions=None: x, True),
        (lambda x, *rest: x, False),
        (torch.sum, False),
        (Brightness(), False),
    ],
)
def test_whether_conditions_are_wanted(function, wants):
    assert Score(function).conditional is wants
    assert Score(function, not wants).conditional is not wants


def test_conditions_reach_the_score_in_order():
    score = Score(lambda images, prompts: torch.tensor([float(len(prompt)) for prompt in prompts]))
    assert score(IMAGES, ["a", "bb", "", "dddd", "c"]).tolist() == [1, 2, 0, 4, 1]


@pytest.mark.parametrize("conditions", [None, ["one"]])
def test_missing_conditions(conditions):
    with pytest.raises(InputError, match=r"Expected (`conditions`|one condition per sample)"):
        Score(lambda x, prompts: x.flatten(1).sum(1))(IMAGES, conditions)


@pytest.mark.parametrize(
    ("function", "got"),
    [
        (lambda x: x.mean(), r"shape \(\)"),
        (lambda x: x.flatten(1), r"shape \(5, 48\)"),
        (lambda x: x.flatten(1).mean(1)[:3], r"shape \(3,\)"),
        (lambda x: [1.0] * 5, "a list"),
    ],
)
def test_anything_but_one_number_per_sample_is_refused(function, got):
    with pytest.raises(InputError, match=rf"shape \(5,\), but got {got}; do not average"):
        Score(function)(IMAGES)


@pytest.mark.parametrize("kind", [Brightness, MeanSquaredError])
def test_a_class_is_no_score(kind):
    with pytest.raises(InputError, match=rf"but got the class {kind.__name__}; make one of it: {kind.__name__}"):
        Score(kind)


def test_what_cannot_be_called_is_refused():
    with pytest.raises(InputError, match="use `update_scores` for numbers"):
        Score(3.0)
