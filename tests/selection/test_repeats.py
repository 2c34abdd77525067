"""A sampler that ignores its seed is found out; two arms with the same rows are one model."""

import pytest
import torch

from tests.selection.toy import MeanMetric, gaussian
from tm_bandit import (
    ModelSelector,
    OptimisticFID,
    OptimisticIS,
    OptimisticKID,
    OptimisticMean,
    ReferenceStatistics,
)
from tm_bandit.data import ArraySource, SourceSampler
from tm_bandit.errors import ArmError
from tm_bandit.execution import draw
from tm_bandit.selection.repeats import may_come_again, twins


def stuck(num_samples, generator):
    return torch.randn(num_samples, 1, generator=torch.Generator().manual_seed(0))


def make(samplers, **kwargs):
    kwargs = {"budget": 200, "samples": "features", "policy": "uniform", "stop": "budget", **kwargs}
    return ModelSelector(MeanMetric(), samplers, **{"batch_size": 5, **kwargs})


class TestFingerprint:
    def test_it_is_that_of_the_bits(self):
        rows = torch.randn(6, 1, generator=torch.Generator().manual_seed(0))
        changed = rows.clone()
        changed[5] = torch.nextafter(changed[5], torch.tensor(9.0))
        selector = make({"a": None, "b": None}, batch_size=6)
        for batch in (rows, changed, rows.flip(0), rows + 1):
            selector.observe("a", batch)
            selector.observe("b", batch.expand(6, 2)[:, :1])  # strides do not matter
        marks = [selector._arms[name].fingerprints for name in "ab"]
        assert marks[0] == marks[1]
        assert list(marks[0]) == [0, 1, 2, 3]
        assert len(set(marks[0].values())) == 4

    def test_few_values_may_come_again(self):
        noise = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
        coins = (noise[:, :1] > 0).float()
        assert may_come_again(noise[:1])
        assert not may_come_again(noise[:2])
        assert may_come_again(torch.ones(64, 2)), "a model that has collapsed"
        assert may_come_again(coins[:10])
        assert not may_come_again(coins), "2^-64 is no chance"
        assert not may_come_again(noise[:8].repeat(4, 1)), "one chunk four times"


class TestRun:
    def test_a_sampler_that_ignores_its_seed_is_retired_with_the_reason(self):
        selector = make({"good": gaussian(0.5), "stuck": stuck})
        result = selector.run(progress=False)
        assert result.best == "good"
        assert list(result.retired) == ["stuck"]
        assert "draw 1 has the same rows as draw 0; the sampler ignores its seed" in result.retired["stuck"]
        assert result.num_samples["stuck"] == 5
        assert result.total_samples == 200

    def test_seeds_that_torch_cannot_tell_apart_are_nobodys_fault(self, monkeypatch):
        """Its generator takes the low 32 bits of a seed, so two draws of an honest sampler can be the same."""
        monkeypatch.setattr(draw, "stable_seed", lambda seed, number, chunk: number % 7 + 2**32 * number)
        selector = make({"good": gaussian(0.5), "far": gaussian(2.0), "stuck": stuck})
        result = selector.run(progress=False)
        assert list(result.retired) == ["stuck"]
        marks = list(selector._arms["good"].fingerprints.values())
        assert len(marks) > len(set(marks)) == 7

    def test_a_period_is_found_too(self):
        def rota(num_samples, generator):
            calls.append(0)
            return torch.randn(num_samples, 1, generator=torch.Generator().manual_seed(len(calls) % 3))

        calls = []
        result = make({"good": gaussian(0.5), "rota": rota}).run(progress=False)
        assert "draw 3 has the same rows as draw 0" in result.retired["rota"]

    def test_tell_refuses_them_and_changes_nothing(self):
        selector = make({"a": None})
        rows = stuck(5, None)
        selector.observe("a", rows)
        (pull,) = selector.ask()
        with pytest.raises(ArmError, match="ignores its seed"):
            selector.tell(pull, rows)
        assert selector.spent == 5
        selector.tell(pull, rows + 1)
        assert selector.spent == 10

    def test_it_is_remembered_across_a_restart(self):
        first = make({"a": stuck})
        first.step()
        second = make({"a": stuck, "b": gaussian(0.0)})
        second.load_state_dict(first.state_dict())
        assert "has the same rows as draw 0" in second.run(progress=False).retired["a"]
        old = first.state_dict()
        del old["arms"][0]["fingerprints"]  # as version 0.1 saved it
        third = make({"a": stuck})
        third.load_state_dict(old)
        assert third.spent == 5

    def test_a_pull_that_is_drawn_again_after_a_restart_is_no_repetition(self):
        first = make({"a": gaussian(0.0)})
        early, late = first.ask(2)
        rows = [gaussian(0.0)(5, torch.Generator().manual_seed(pull.seed)) for pull in (early, late)]
        first.tell(late, rows[1])  # waits for the early one, and is not saved
        second = make({"a": gaussian(0.0)})
        second.load_state_dict(first.state_dict())
        assert second.run(progress=False).retired == {}

    def test_single_rows_may_repeat(self):
        def files(num_samples, generator):
            return torch.arange(20.0)[torch.randint(20, (num_samples, 1), generator=generator)]

        result = make({"files": files}, batch_size=10, budget=1000).run(progress=False)
        assert result.retired == {}

    @pytest.mark.parametrize("kind", ["fid", "settled", "kid", "is", "mean"])
    def test_small_draws_of_files_may_repeat(self, kind):
        """Of thirty files, one pair in nine hundred is the same: among 300 draws that happens about fifty times."""
        noise = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
        source = ArraySource(noise.softmax(1).numpy(), "files.npy")
        reference = ReferenceStatistics.from_features(noise, keep_rows=True)
        metric = {
            "fid": lambda: OptimisticFID("none", reference=reference),
            "settled": lambda: OptimisticFID("none", reference=reference, max_rows=100),
            "kid": lambda: OptimisticKID("none", reference=reference),
            "is": lambda: OptimisticIS("none"),
            "mean": lambda: OptimisticMean(lambda rows: rows[:, 0]),
        }[kind]()
        files = SourceSampler(source, "files", replacement=True)
        options = {
            "budget": 600,
            "stop": "budget",
            "batch_size": 2,
            "samples": "features" if kind != "mean" else "images",
        }
        selector = ModelSelector(metric, {"files": files}, **options)
        result = selector.run(progress=False)
        assert (result.retired, result.total_samples) == ({}, 600)
        marks = list(selector._arms["files"].fingerprints.values())
        assert len(set(marks)) < len(marks) - 20

    def test_a_list_that_begins_again_is_found_though_its_draws_are_shifted(self):
        class Rota:
            place = 0

            def __call__(self, num_samples):
                self.place += num_samples
                return torch.arange(self.place - num_samples, self.place).remainder(33).float()[:, None]

        result = make({"good": gaussian(0.5), "rota": Rota()}, budget=600).run(progress=False)
        assert "draw 33 has the same rows as draw 0" in result.retired["rota"]

    def test_a_collapsed_model_stays(self):
        result = make({"flat": lambda n: torch.ones(n, 1), "good": gaussian(0.5)}).run(progress=False)
        assert result.retired == {}


class TestTwins:
    def test_two_arms_with_the_same_rows_are_named(self):
        selector = make({"raw": gaussian(0.0), "other": gaussian(0.1), "copy": gaussian(0.0), "third": gaussian(0.0)})
        for _ in range(4):
            selector.step()
        assert selector.twins() == {}, "one draw says nothing yet"
        result = selector.run(progress=False)
        assert selector.twins() == {"copy": "raw", "third": "raw"}
        assert result.retired == {}
        selector.retire_arm("raw")
        assert selector.twins() == {"third": "copy"}

    def test_independent_noise_has_no_twins(self):
        selector = make({"raw": gaussian(0.0), "copy": gaussian(0.0)}, pairing="independent")
        selector.run(progress=False)
        assert selector.twins() == {}

    def test_only_common_draws_count(self):
        long, short, late = {0: 1, 1: 2, 2: 3}, {0: 1, 1: 2}, {2: 3}
        other = {0: 1, 1: 2, 2: 4}
        assert twins({"long": long, "short": short, "late": late, "other": other}) == {"short": "long"}
