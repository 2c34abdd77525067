"""Several arms of one checkpoint: how many checkpoints stay, what is logged about them, which one has won and where."""

import json
import logging
import warnings
from pathlib import Path

import pytest
from lightning.pytorch.callbacks import EMAWeightAveraging
from lightning_utilities.core import rank_zero

from tests.callbacks.models import Gen, bandit, fit
from tests.callbacks.test_report import TableLogger
from tm_bandit import SelectionResult

VARIANTS = {"": {}, "wide": {"scale": 3.0}, "wider": {"scale": 9.0}}


class Hooked(Gen):
    """Its sampler takes an option that is no plain value."""

    def sample(self, num_samples, scale=1.0, hook=None):
        return super().sample(num_samples, scale)


def steps_of(callback):
    return {name.split("/")[0].removesuffix("-avg") for name in callback._session.books.arms}


def test_max_arms_counts_checkpoints(tmp_path):
    callback = bandit(tmp_path, variants=VARIANTS, max_arms=2, budget=400, batch_size=10, burn_in=20)
    fit(tmp_path, callback, EMAWeightAveraging(), max_epochs=3)
    assert len(callback._session.books.arms) == 12
    assert len(steps_of(callback)) == 2
    assert callback.best_arm in callback._session.books.arms


def test_one_checkpoint_is_enough_for_any_number_of_variants(tmp_path):
    callback = bandit(tmp_path, variants=VARIANTS, max_arms=1, budget=400, batch_size=10, burn_in=20)
    fit(tmp_path, callback, max_epochs=2)
    assert len(callback._session.books.arms) == 3
    assert len(steps_of(callback)) == 1


def test_the_best_variant_is_an_attribute_and_in_the_file(tmp_path):
    variants = {"far": {"scale": 5.0}, "right": {"scale": 1.0}}
    callback = bandit(tmp_path, variants=variants, budget=400, batch_size=10)
    assert callback.best_variant == {}
    fit(tmp_path, callback, max_epochs=2)
    assert callback.best_arm.endswith("/right")
    assert callback.best_variant == {"scale": 1.0}
    saved = Path(callback.best_model_path).with_name("selection.json")
    assert json.loads(saved.read_text())["settings"]["best_variant"] == {"scale": 1.0}
    assert SelectionResult.from_json(saved) == callback.result
    callback.best_variant["scale"] = 7.0
    assert callback.best_variant == {"scale": 1.0}


def test_an_option_that_no_file_can_hold_is_described(tmp_path):
    callback = bandit(tmp_path, variants={"a": {"scale": 1.0, "hook": None}}, budget=40, batch_size=10)
    callback.variants["a"]["hook"] = len
    fit(tmp_path, callback, module=Hooked, max_epochs=1)
    assert callback.best_variant == {"scale": 1.0, "hook": len}
    assert callback.result.settings["best_variant"] == {"scale": 1.0, "hook": "<built-in function len>"}


@pytest.mark.parametrize("evaluate", ["validation", "after"])
def test_the_last_line_names_the_winner_and_its_path(tmp_path, caplog, evaluate):
    variants = {"far": {"scale": 5.0}, "right": {"scale": 1.0}}
    callback = bandit(tmp_path, variants=variants, budget=400, batch_size=10, evaluate=evaluate)
    with caplog.at_level(logging.INFO, logger=rank_zero.log.name):
        fit(tmp_path, callback, max_epochs=1)
    last = [record.getMessage() for record in caplog.records if record.getMessage().startswith("bandit: ")][-1]
    assert last == (f"bandit: the best arm is {callback.best_arm} with {{'scale': 1.0}}, in {callback.best_model_path}")
    assert Path(callback.best_model_path).is_file()


def test_each_variant_is_one_curve(tmp_path):
    logger = TableLogger()
    callback = bandit(tmp_path, variants={"": {}, "wide": {"scale": 3.0}}, budget=400, batch_size=10)
    fit(tmp_path, callback, EMAWeightAveraging(), max_epochs=3, logger=logger)
    entries = [metrics for _, metrics in logger.metrics if "bandit/best" in metrics]
    curves = {"bandit/raw", "bandit/raw/wide", "bandit/avg", "bandit/avg/wide"}
    assert len(entries) == 3
    assert all(curves <= set(entry) for entry in entries)
    assert not [key for entry in entries for key in entry if "/step" in key]
    rows = {row["arm"]: row for row in callback.result.arms}
    assert float(entries[-1]["bandit/avg/wide"]) == pytest.approx(rows["step24-avg/wide"]["debiased"], rel=1e-6)


def test_a_budget_that_the_burn_in_takes_is_warned_of_at_the_start(tmp_path):
    callback = bandit(tmp_path, variants=VARIANTS, budget=60, batch_size=10)
    with pytest.warns(UserWarning, match="3 new arms of a validation with 20 samples each take the whole budget of 60"):
        fit(tmp_path, callback, max_epochs=1)


def test_a_budget_that_leaves_something_is_not_warned_of(tmp_path):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*take the whole budget.*")
        fit(tmp_path, bandit(tmp_path, variants=VARIANTS, budget=80, batch_size=10), max_epochs=1)
