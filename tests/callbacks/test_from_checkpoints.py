"""The same engine after training, over a folder of files."""

import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint

from tests.callbacks.models import Gen, bandit, fid, fit
from tm_bandit import ModelSelector
from tm_bandit.errors import InputError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("files")
    last = ModelCheckpoint(path, save_top_k=-1, filename="{step}", monitor=None, every_n_epochs=1)
    fit(path, last, EMAWeightAveraging(decay=0.9), max_epochs=12)
    return path


def select(paths, **kwargs):
    settings = {"metric": fid(), "budget": 600, "batch_size": 10, **kwargs}
    return ModelSelector.from_checkpoints(paths, Gen, **settings)


def true_distance(path):
    torch.manual_seed(0)
    metric = fid("none")
    metric.update_features(Gen.load_from_checkpoint(path).eval().sample(20_000).detach())
    return metric.estimate().item()


def test_folder_of_files(folder):
    selector = select(folder, metric=fid("witness"), goal="identify")
    assert selector.arms == [f"step={8 * step}" for step in range(1, 13)]
    result = selector.run(progress=False)
    assert result.total_samples == 600
    truth = {name: true_distance(folder / f"{name}.ckpt") for name in selector.arms}
    # The first checkpoints are several times as far away as the others, which are close to each other.
    assert max(truth.values()) > 4 * min(truth.values())
    assert truth[result.best] < 1.5 * min(truth.values())


def test_agrees_with_samples_of_the_loaded_module(folder):
    selector = select([folder / "step=8.ckpt", folder / "step=96.ckpt"], budget=100)
    while selector.step() is not None:
        pass
    arm = selector._arms["step=96"]
    module, rows = Gen.load_from_checkpoint(folder / "step=96.ckpt").eval(), []
    for draw in range(arm.stats.pulls):
        torch.manual_seed(selector.seed_for("step=96", draw))
        rows.append(module.sample(10).detach())
    metric = fid()
    metric.update_features(torch.cat(rows))
    assert arm.metric.estimate().item() == pytest.approx(metric.estimate().item(), rel=1e-9)


def test_raw_weights_beside_averaged_ones(folder):
    paths = [folder / "step=8.ckpt", folder / "step=96.ckpt"]
    scores = []
    for key in ("state_dict", "current_model_state"):
        selector = select(paths, budget=100, checkpoint_key=key)
        selector.run(progress=False)
        content = torch.load(paths[0], weights_only=True)
        module = selector._arms["step=8"].sampler._shelf.put(paths[0], key)
        assert torch.equal(module.net.weight, content[key]["net.weight"])
        scores.append(selector.result().best_score)
    assert scores[0] != scores[1]


def test_variants_names_and_a_sampler(folder, tmp_path):
    def sampler(module, n, *, generator, shift):
        return shift + module.sample(n)

    (tmp_path / "other").mkdir()
    twin = tmp_path / "other" / "step=8.ckpt"
    twin.write_bytes((folder / "step=8.ckpt").read_bytes())
    selector = select(
        [folder / "step=8.ckpt", twin], sampler=sampler, variants={"": {"shift": 0.0}, "far": {"shift": 50.0}}
    )
    names = [f"{folder.name}/step=8", f"{folder.name}/step=8/far", "other/step=8", "other/step=8/far"]
    assert selector.arms == names
    assert not selector.run(progress=False).best.endswith("far")


def test_missing_and_broken_files(folder, tmp_path):
    (tmp_path / "cut.ckpt").write_bytes(b"nothing")
    torch.save({"state_dict": {"net.weight": torch.zeros(2, 2)}}, tmp_path / "other.ckpt")
    paths = [folder / "step=96.ckpt", tmp_path / "gone.ckpt", tmp_path / "cut.ckpt", tmp_path / "other.ckpt"]
    with pytest.warns(UserWarning, match=r"gone\.ckpt is missing; its arm gone is retired"):
        selector = select(paths)
    result = selector.run(progress=False)
    assert set(result.retired) == {"gone", "cut", "other"}
    assert "another architecture" in result.retired["other"]
    assert result.best == "step=96"


def test_nothing_to_select(tmp_path):
    with pytest.raises(InputError, match="checkpoint files"):
        select(tmp_path)
    with pytest.raises(InputError, match="checkpoint files"):
        select(tmp_path / "no.ckpt")


def test_a_module_without_a_sampler(folder):
    with pytest.raises(InputError, match="draw"):
        select(folder, sampler="draw")
    with pytest.raises(InputError, match="module_class"):
        ModelSelector.from_checkpoints(folder, dict, metric=fid())


def test_arms_of_the_callback_can_be_judged_again(tmp_path):
    callback = bandit(tmp_path)
    fit(tmp_path, callback, max_epochs=3)
    selector = select(tmp_path, budget=900)
    assert set(selector.arms) == {"step8", "step16", "step24"}
    assert selector.run(progress=False).best is not None
