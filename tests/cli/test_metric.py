"""``--metric``: named scores, the user's functions, and what does not go together."""

import json

import pytest

from tests.cli.parts import assert_refused
from tm_bandit import ReferenceStatistics

SHORT = "--budget 200 --batch-size 20 --quiet --json"
ARMS = "--arm far=far --arm near=near"

SCORES = """
import torch
def brightness(images):
    return images.double().mean((1, 2, 3)) / 255
def rows(features):
    return features.mean(1)
def likeness(images, prompts):
    return images.double().mean((1, 2, 3))
def average(images):
    return images.double().mean()
class Darkness(torch.nn.Module):
    def forward(self, images):
        return 255 - images.float().mean((1, 2, 3))
number = 3

from tm_bandit.metrics import OptimisticMetric, Traits
class Average(OptimisticMetric):
    higher_is_better = True
    traits = Traits(higher_is_better=True, centre="unbiased", guarantee="anytime", reference="none")
    def __init__(self):
        super().__init__()
        self.add_state("values", default=torch.zeros(0, dtype=torch.float64), dist_reduce_fx="cat")
    @property
    def num_samples(self):
        return len(self.values)
    def extract(self, inputs):
        return inputs.flatten(1).double().mean(1, keepdim=True)
    def check_rows(self, rows):
        assert rows.shape[1] == 1
        return rows
    def add_rows(self, rows):
        self.values = torch.cat([self.values, rows[:, 0]])
    def losses(self, fields):
        loss, error = -float(self.values.mean()), float(self.values.std()) / self.num_samples**0.5
        return {name: error if "stderr" in name else loss for name in fields}
metric = Average()
"""


@pytest.fixture
def scores(here):
    (here / "cli_scores.py").write_text(SCORES)


@pytest.fixture
def with_rows(run):
    assert run("stats real -o rows.npz --rows 100 --feature cli_parts:pool --workers 0").code == 0


@pytest.mark.parametrize("metric", ["kid", "cmmd"])
def test_kernel_distances(run, with_rows, metric):
    outcome = run(f"select --metric {metric} --reference rows.npz --feature cli_parts:pool", ARMS, SHORT)
    assert outcome.code == 0, outcome.err
    result = json.loads(outcome.out)
    assert (result["best"], result["metric"]) == ("near", "OptimisticKID")
    plain = run(f"select --metric {metric} --bound none --reference rows.npz --feature cli_parts:pool", ARMS, SHORT)
    assert json.loads(plain.out)["best"] == "near"


def test_a_folder_as_reference_of_a_kernel_distance_says_how_many_rows_it_keeps(run, monkeypatch):
    words = "select --metric kid --reference real --feature cli_parts:pool --budget 200 --batch-size 20 --json"
    assert "kept a random" not in run(words, ARMS).err
    monkeypatch.setattr("tm_bandit.cli.metric.MOST_ROWS", 40)
    assert "kept a random 40 of 300 rows (seed 3)" in run(words, ARMS, "--seed 3").err


@pytest.mark.parametrize(
    ("words", "best"),
    [
        ("cli_scores:brightness --bounded 0 1", "far"),
        ("cli_scores:brightness --lower-is-better", "near"),
        ("cli_scores:Darkness", "near"),
    ],
)
def test_functions_and_modules(run, scores, words, best):
    outcome = run(f"select --metric {words}", ARMS, SHORT)
    assert outcome.code == 0, outcome.err
    result = json.loads(outcome.out)
    assert (result["best"], result["metric"]) == (best, "OptimisticMean")


def test_features_are_scored_too(run, scores):
    outcome = run("select --metric cli_scores:rows --arm far=far.npy --arm near=near.npy", SHORT)
    assert json.loads(outcome.out)["best"] == "far", outcome.err


@pytest.mark.parametrize("ending", ["", ".npy"])
def test_a_metric_that_the_package_does_not_know(run, scores, ending):
    outcome = run(f"select --metric cli_scores:metric --arm far=far{ending} --arm near=near{ending}", SHORT)
    assert outcome.code == 0, outcome.err
    result = json.loads(outcome.out)
    assert (result["best"], result["metric"]) == ("far", "Average")


def test_what_does_not_go_together(run, scores, reference):
    assert_refused(run("select --metric kid", ARMS), "--reference FILE|DIR for --metric kid", "stats --rows")
    assert_refused(run(f"select --metric kid --reference {reference} --feature cli_parts:pool", ARMS), "with rows")
    assert_refused(run("select --metric psnr", ARMS), "fid, kid, cmmd, is or package.module:name, but got 'psnr'")
    assert_refused(run(f"select --metric cli_scores:brightness --reference {reference}", ARMS), "no --reference")
    assert_refused(run("select --metric cli_scores:brightness --bound paper", ARMS), "no --bound")
    assert_refused(run("select --metric cli_scores:number", ARMS), "function or module from samples to scores")
    assert_refused(run("select --metric cli_scores:likeness", ARMS), "takes conditions (prompts, labels)")
    assert_refused(run("select --metric is --bounded 0 1", ARMS), "only for a function as --metric")
    for option in ("--bounded 0 1", "--lower-is-better"):
        assert_refused(run(f"select --metric cli_scores:metric {option}", ARMS), "a metric that says so itself")


def test_a_score_of_a_whole_batch_is_refused(run, scores):
    outcome = run("select --metric cli_scores:average", ARMS, SHORT)
    assert outcome.code == 2
    assert "do not average over the batch" in outcome.err


def test_rows_of_the_reference(run):
    outcome = run("stats real.npy -o rows.npz --rows 40 --json")
    assert json.loads(outcome.out)["rows"] == 40
    assert "kept a random 40 of 300 rows (seed 0)" in outcome.err
    first = ReferenceStatistics.load("rows.npz")
    assert (len(first.rows), first.num_samples) == (40, 300)
    run("stats real.npy -o all.npz --rows")
    assert len(ReferenceStatistics.load("all.npz").rows) == 300
    run("stats rows.npz -o rows.pt")
    assert len(ReferenceStatistics.load("rows.pt").rows) == 40
    run("stats real.npy -o plain.npz")
    assert_refused(run("stats plain.npz -o again.npz --rows"), "statistics without rows in plain.npz")
