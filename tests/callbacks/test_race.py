"""What the callback does by default: it finds the best checkpoint and stops once it is decided."""

import logging

import pytest
import torch
from lightning_utilities.core import rank_zero
from torch import nn

from tests.callbacks.models import DIM, Drifting, bandit, fid, fit
from tests.callbacks.test_resume import same, train
from tm_bandit import OptimisticIS
from tm_bandit.policies import ArmStats, Board
from tm_bandit.selection.verdict import Verdict, judge

BUDGET = 1000


class Known(Drifting):
    """Its second checkpoint is the best, its third the worst, and it notes the noise of each."""

    def __init__(self) -> None:
        super().__init__()
        self.noise: dict[float, list[torch.Tensor]] = {}

    def distance(self, epoch):
        return (0.0, 0.6, 0.0, 1.2)[epoch]

    def sample(self, num_samples):
        noise = torch.randn(num_samples, DIM)
        self.noise.setdefault(round(float(self.net.bias[0] - 0.5), 2), []).append(noise)
        return self(noise)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder, module = tmp_path_factory.mktemp("race"), Known()
    callback = bandit(folder, fid("witness"), budget=BUDGET, batch_size=10, chunk_size=10)
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    # Not by its name: whichever of lightning and pytorch_lightning was imported last has put its own logger there.
    logger = rank_zero.log
    # Another test may have silenced Lightning's logger.
    level, disabled = logger.level, logger.disabled
    logger.setLevel(logging.INFO)
    logger.disabled = False
    logger.addHandler(handler)
    try:
        fit(folder, callback, module=module, max_epochs=3)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.disabled = disabled
    return callback, module, [line for line in lines if line.startswith("bandit:")]


def test_the_best_of_three_is_found_with_a_fraction_of_the_budget(found):
    callback, _, lines = found
    result = callback.result
    assert (callback.best_arm, result.status, result.stopped_by) == ("step16", "likely", "stop")
    assert [row["arm"] for row in result.table()] == ["step16", "step8", "step24"]
    assert result.total_samples < 0.2 * 3 * BUDGET
    settings = {name: result.settings[name] for name in ("goal", "stop", "pairing", "algorithm")}
    assert settings == {"goal": "identify", "stop": "likely", "pairing": "common", "algorithm": "Race"}
    assert len(lines) == 4, "three validations and the winner"
    assert "likely" in lines[-2]


def test_newcomers_start_at_the_first_draw_of_the_same_noise(found):
    callback, module, _ = found
    drawn = {level: torch.cat(parts) for level, parts in module.noise.items() if level in (0.6, 0.0, 1.2)}
    counts = dict(zip((0.6, 0.0, 1.2), callback.result.num_samples.values(), strict=True))
    assert {level: len(noise) for level, noise in drawn.items()} == counts
    shortest = min(counts.values())
    assert shortest >= 50
    first, *others = (noise[:shortest] for noise in drawn.values())
    assert all(torch.equal(noise, first) for noise in others)


def test_a_beaten_arm_gets_no_more_samples(found):
    callback, _, _ = found
    history = callback.result.history
    since = max(at for at, name in enumerate(history["arm"]) if name == "step8")
    assert since < history["arm"].index("step24"), "step8 was beaten by step16 in the validation before"
    assert {row["arm"]: row["verdict"].split()[0] for row in callback.result.arms}["step8"] == "worse"


def test_resumed_in_the_middle_of_the_race(tmp_path):
    def run(folder, **kwargs):
        return train(folder, metric=fid("witness"), budget=200, **kwargs)

    whole = run(tmp_path / "a")
    run(tmp_path / "b", max_epochs=2)
    again = run(tmp_path / "b", ckpt_path=tmp_path / "b" / "last" / "last.ckpt")
    same(again, whole)
    assert again.result.history == whole.result.history, "bit by bit"
    assert whole.result.settings["algorithm"] == "Race"


def test_an_arm_stays_beaten_when_the_one_that_beat_it_was_beaten_and_dropped():
    arms = [ArmStats(name, 5, 50, debiased=1.0, debiased_stderr=1.0, witness=1.0, stderr=1.0) for name in "bc"]
    before = Verdict("c", "likely", {"b": "a", "a": "c"})
    assert judge(Board(arms), drawn_since={}, before=before).likely_out == {"b": "c"}
    before = Verdict("a", "likely", {"b": "a"})
    assert judge(Board(arms), drawn_since={}, before=before).likely_out == {}, "the winner is gone and nobody beat it"


class Levels(Drifting):
    """The weights say how sharp the classes are, so that older checkpoints keep their scores."""

    def drift(self):
        nn.init.constant_(self.net.bias, (1.0, 4.0, 0.2)[self.trainer.global_step // 8 - 1])

    def sample(self, num_samples):
        return torch.softmax(self.net.bias[0] * torch.randn(num_samples, DIM), 1)


def test_the_worst_makes_room_where_higher_is_better(tmp_path):
    metric = OptimisticIS(feature=nn.Identity())
    callback = bandit(tmp_path, metric, budget=400, batch_size=10, max_arms=2)
    fit(tmp_path, callback, module=Levels, max_epochs=3)
    assert callback.best_arm == "step16"
    assert list(callback.result.retired) == ["step24"]


class Ignoring(Known):
    """Its noise has nothing to do with the seed that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.own = torch.Generator().manual_seed(3)

    def sample(self, num_samples):
        return self(torch.randn(num_samples, DIM, generator=self.own))


def test_pairing_that_does_not_help_is_said_once(tmp_path, caplog):
    callback = bandit(tmp_path, fid("witness"), budget=600, batch_size=10, stop="budget")
    with caplog.at_level(logging.INFO, logger=rank_zero.log.name):
        fit(tmp_path, callback, module=Ignoring, max_epochs=3)
    assert "share hardly any noise" in callback.result.summary()
    assert sum("share hardly any noise" in record.getMessage() for record in caplog.records) == 1


def test_the_same_weights_again_are_named_as_the_same_model(tmp_path):
    class Still(Known):
        def training_step(self, batch, batch_idx):
            return 0.0 * self(batch[0]).sum()

        def distance(self, epoch):
            return 0.6

    callback = bandit(tmp_path, fid("witness"), budget=200, batch_size=10)
    fit(tmp_path, callback, module=Still, max_epochs=2)
    assert callback.result.notes == ["step16 is the same model as step8 (identical samples)."]
    assert callback.result.status == "tie"
    assert callback.result.total_samples <= 250, "as many as show whether one sample of fifty differs"
