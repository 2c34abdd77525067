"""A plain training run: its arms, where they live, what is logged, and what can be done with the winner."""

import json

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, EMAWeightAveraging, ModelCheckpoint

from tests.callbacks.models import Gen, bandit, fid, fit, loaders, trainer
from tm_bandit import ModelSelector
from tm_bandit.selection import SelectionResult


def weights(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


class Witness(pl.Callback):
    """Notes the module's weights and the logged values at the end of every validation."""

    def __init__(self):
        self.weights, self.metrics, self.names = {}, [], []

    def on_validation_end(self, trainer, pl_module):
        if not trainer.sanity_checking:
            self.weights[trainer.global_step] = weights(pl_module)
            self.metrics.append(dict(trainer.callback_metrics))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit")
    callback, witness = bandit(folder / "arms", max_arms=3), Witness()
    monitor = ModelCheckpoint(folder / "monitored", monitor="bandit/current", save_top_k=-1, filename="{step}")
    early = EarlyStopping("bandit/current", patience=50)
    done = fit(folder, callback, monitor, early, witness, max_epochs=5)
    return done, callback, witness, monitor


def test_arms_are_the_weights_of_each_validation(run):
    _, callback, witness, _ = run
    assert set(callback.result.num_samples) == {f"step{step}" for step in (8, 16, 24, 32, 40)}
    files = sorted(callback._session.store.folder.root.glob("*.ckpt"))
    assert len(files) == 3
    for path in files:
        content = torch.load(path, weights_only=True)
        assert "optimizer_states" not in content
        assert "callbacks" not in content
        step = content["global_step"]
        assert path.stem == f"step{step}"
        for name, value in witness.weights[step].items():
            assert torch.equal(content["state_dict"][name], value), name
        loaded = Gen.load_from_checkpoint(path)
        for name, value in witness.weights[step].items():
            assert torch.equal(loaded.state_dict()[name], value), name


def test_the_budget_is_spent_and_statistics_live_on(run):
    _, callback, _, _ = run
    assert sum(callback.result.num_samples.values()) == 5 * 60
    assert len(callback.result.history["arm"]) == 5 * 6
    # An arm of an early validation goes on being pulled in later ones.
    pulled = [(index // 6, int(arm.removeprefix("step"))) for index, arm in enumerate(callback.result.history["arm"])]
    assert any(step < 8 * (validation + 1) for validation, step in pulled)
    assert all(step <= 8 * (validation + 1) for validation, step in pulled)


def test_the_surplus_is_dropped_with_its_files_but_never_the_best(run):
    _, callback, _, _ = run
    left = {path.stem for path in callback._session.store.folder.root.glob("*.ckpt")}
    assert left == set(callback.result.num_samples) - set(callback.result.retired)
    assert callback.best_arm in left
    scores = {row["arm"]: row["debiased"] for row in callback.result.table()}
    assert callback.best_model_score.item() == scores[callback.best_arm]


def test_logged_values(run):
    _, callback, witness, monitor = run
    for values in witness.metrics:
        assert values["bandit/best"] <= values["bandit/current"] or values["bandit/current_is_best"] == 1
        assert values["bandit/current"].dtype == torch.float64
    last = witness.metrics[-1]
    assert last["bandit/best"].item() == callback.best_model_score.item()
    assert f"step{int(last['bandit/best_step'])}" == callback.best_arm
    # One curve for all steps, of which each point is the newest weights' score.
    assert [values["bandit/raw"] for values in witness.metrics] == [
        values["bandit/current"] for values in witness.metrics
    ]
    # ModelCheckpoint saw the fresh value of each validation.
    assert len(monitor.best_k_models) == 5
    seen = {path.rsplit("step=", 1)[1]: float(score) for path, score in monitor.best_k_models.items()}
    for step, values in zip((8, 16, 24, 32, 40), witness.metrics, strict=True):
        assert seen[f"{step}.ckpt"] == pytest.approx(float(values["bandit/current"]), rel=1e-6)


def test_the_result_is_written_beside_the_arms(run):
    _, callback, _, _ = run
    folder = callback._session.store.folder.root
    assert SelectionResult.from_json(folder / "selection.json").to_json() == callback.result.to_json()
    assert json.loads((folder / "selection.json").read_text())["best"] == callback.best_arm
    assert (folder / "selection.png").read_bytes()[:4] == b"\x89PNG"


def test_best_checkpoint_is_what_trainer_test_uses(run):
    done, callback, witness, _ = run
    before = (callback.best_arm, callback.result, callback.state_dict())
    module = Gen()
    module.test_step = lambda batch, batch_idx: None
    done.loggers = []
    with pytest.warns(UserWarning, match="multiple `ModelCheckpoint`"):
        done.test(module, loaders()[1], ckpt_path="best", verbose=False)
    step = int(callback.best_arm.removeprefix("step"))
    for name, value in witness.weights[step].items():
        assert torch.equal(module.state_dict()[name], value), name
    assert (callback.best_arm, callback.result, callback.state_dict()) == before


def test_averaged_weights_and_variants_are_arms(tmp_path):
    callback, witness = bandit(tmp_path, variants={"": {}, "half": {"scale": 0.5}}, budget=120), Witness()
    average = EMAWeightAveraging(decay=0.5, update_starting_at_step=10)
    fit(tmp_path, callback, average, witness)
    # Before its first update the average is the untrained model, which is not an arm.
    expected = {"step8", "step8/half", "step16", "step16/half", "step16-avg", "step16-avg/half"}
    assert set(callback.result.num_samples) == expected
    raw = torch.load(tmp_path / "step16.ckpt", weights_only=True)["state_dict"]
    averaged = torch.load(tmp_path / "step16-avg.ckpt", weights_only=True)["state_dict"]
    for name, value in witness.weights[16].items():
        assert torch.equal(raw[name], value)
        assert torch.equal(averaged[name], average._average_model.module.state_dict()[name])
    assert not torch.equal(raw["net.weight"], averaged["net.weight"])


@pytest.mark.parametrize("order", ["before", "after"])
def test_weight_averaging_may_be_listed_anywhere(tmp_path, order):
    callback, average = bandit(tmp_path), EMAWeightAveraging(decay=0.5)
    callbacks = [callback, average] if order == "before" else [average, callback]
    last = ModelCheckpoint(tmp_path / "last", save_last=True)
    fit(tmp_path, *callbacks, last, max_epochs=1)
    full = torch.load(last.last_model_path, weights_only=True)
    arms = {name: torch.load(tmp_path / f"{name}.ckpt", weights_only=True) for name in ("step8", "step8-avg")}
    for name in ("net.weight", "tied.bias"):
        assert torch.equal(arms["step8"]["state_dict"][name], full["current_model_state"][name])
        assert torch.equal(arms["step8-avg"]["state_dict"][name], full["state_dict"][name])


def test_averaged_weights_can_be_left_out(tmp_path):
    callback = bandit(tmp_path, averaged=False)
    fit(tmp_path, callback, EMAWeightAveraging(decay=0.5), max_epochs=1)
    assert set(callback.result.num_samples) == {"step8"}


def test_memory_store_writes_only_the_best_arm(tmp_path):
    callback = bandit(tmp_path, store="memory")
    fit(tmp_path, callback, max_epochs=3)
    assert [path.name for path in tmp_path.glob("*.ckpt")] == [f"{callback.best_arm}.ckpt"]
    other = tmp_path / "disk"
    disk = bandit(other)
    fit(tmp_path, disk, max_epochs=3)
    assert disk.result.to_json() == callback.result.to_json()
    best = f"{callback.best_arm}.ckpt"
    mine, theirs = (torch.load(f / best, weights_only=True)["state_dict"] for f in (tmp_path, other))
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_several_callbacks_do_not_collide(tmp_path):
    callbacks = [bandit(tmp_path, key="one"), bandit(tmp_path, key="two", seed=5)]
    done = fit(tmp_path, *callbacks, ModelCheckpoint(tmp_path, save_last=True), max_epochs=1)
    assert {"one/best", "two/best"} <= set(done.callback_metrics)
    assert callbacks[0].best_model_path == str(tmp_path / "one" / "step8.ckpt")
    assert callbacks[1].best_model_path == str(tmp_path / "two" / "step8.ckpt")
    assert callbacks[0].best_model_score != callbacks[1].best_model_score
    states = torch.load(tmp_path / "last.ckpt", weights_only=True)["callbacks"]
    assert {callback.state_key for callback in callbacks} <= set(states)


def test_files_of_an_earlier_training_are_left_alone(tmp_path):
    first, second = bandit(tmp_path), bandit(tmp_path)
    fit(tmp_path, first, max_epochs=1)
    kept = (tmp_path / "step8.ckpt").read_bytes()
    fit(tmp_path, second, max_epochs=1, module=Gen(lr=0.2))
    assert second.best_model_path == str(tmp_path / "v1" / "step8.ckpt")
    assert (tmp_path / "step8.ckpt").read_bytes() == kept


def test_a_new_trainer_starts_afresh_and_the_same_one_goes_on(tmp_path):
    callback, module = bandit(tmp_path / "a"), Gen()
    done = fit(tmp_path, callback, module=module, max_epochs=1)
    done.fit_loop.max_epochs = 2
    done.fit(module, *loaders())
    assert set(callback.result.num_samples) == {"step8", "step16"}
    fit(tmp_path, callback, module=Gen(), max_epochs=1)
    assert set(callback.result.num_samples) == {"step8"}
    assert callback.result.total_samples == 60


def test_default_folder_is_where_the_logger_writes(tmp_path):
    callback = bandit()
    fit(tmp_path, callback, max_epochs=1)
    assert callback.best_model_path == str(tmp_path / "bandit" / "step8.ckpt")
    with_logger = bandit(key="other")
    logger = pl.loggers.CSVLogger(tmp_path, name="run")
    fit(tmp_path, with_logger, max_epochs=1, logger=logger)
    assert with_logger.best_model_path == str(tmp_path / "run" / "version_0" / "other" / "step8.ckpt")


def test_stop_rule_saves_budget(tmp_path):
    settings = {"budget": 2000, "batch_size": 20, "stop": "likely", "variants": {"": {}, "bad": {"scale": 30.0}}}
    callback = bandit(tmp_path, metric=fid("witness"), **settings)
    fit(tmp_path, callback, max_epochs=1)
    assert callback.result.status in ("likely", "won")
    assert callback.result.total_samples < 1000
    assert callback.best_arm == "step8"


def test_only_every_nth_epoch_and_not_before_min_step(tmp_path):
    seldom, late = bandit(tmp_path / "a", every_n_epochs=2, key="a"), bandit(tmp_path / "b", min_step=9, key="b")
    fit(tmp_path, seldom, late, max_epochs=3)
    assert set(seldom.result.num_samples) == {"step16"}
    assert set(late.result.num_samples) == {"step16", "step24"}


def test_callback_survives_copies(tmp_path):
    import copy
    import pickle

    callback = bandit(tmp_path)
    done = fit(tmp_path, callback, max_epochs=1)
    for twin in (copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))):
        assert twin.best_arm == callback.best_arm
        assert twin.result.to_json() == callback.result.to_json()
    assert trainer(tmp_path, copy.deepcopy(callback)).checkpoint_callbacks
    assert done.checkpoint_callback is callback


def test_arms_of_the_callback_can_be_judged_again(tmp_path):
    callback = bandit(tmp_path)
    fit(tmp_path, callback, max_epochs=3)
    selector = ModelSelector.from_checkpoints(tmp_path, Gen, metric=fid(), budget=900, batch_size=10)
    assert set(selector.arms) == {"step8", "step16", "step24"}
    assert selector.run(progress=False).best is not None
