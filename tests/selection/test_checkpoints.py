"""The same engine after training, over a folder of files."""

import lightning
import pytest
import torch

from tests.callbacks.models import DIM, Gen, fid
from tm_bandit import ModelSelector
from tm_bandit.errors import ArmError, InputError
from tm_bandit.selection.checkpoints import checkpoint_samplers


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files of a training that comes closer from epoch to epoch; the averaged weights lag behind the raw ones."""
    path, module = tmp_path_factory.mktemp("files"), Gen()
    module.net.weight.data.copy_(1.3 * torch.eye(DIM))
    module.tied.bias.data.zero_()
    for epoch in range(1, 13):
        states = {}
        for key, lag in (("state_dict", 1), ("current_model_state", 0)):
            module.net.bias.data.fill_(1.0 + 2.0 * 0.6 ** (epoch - lag))
            states[key] = {name: value.clone() for name, value in module.state_dict().items()}
        about = {"epoch": epoch - 1, "global_step": 8 * epoch, "pytorch-lightning_version": lightning.__version__}
        torch.save({**about, **states}, path / f"step={8 * epoch}.ckpt")
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
    assert result.total_samples <= 600
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
        sampler = selector._arms["step=8"].sampler
        sampler(1, torch.Generator())
        assert torch.equal(sampler._shelf.module.net.bias, content[key]["net.bias"])
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


def test_conditions_reach_the_method_and_are_refused_where_it_takes_none(folder):
    class Labelled(Gen):
        def sample(self, num_samples, conditions):
            seen.append(tuple(conditions))
            return super().sample(num_samples)

    seen = []
    paths = [folder / "step=8.ckpt", folder / "step=96.ckpt"]
    settings = {"metric": fid(), "budget": 40, "batch_size": 10, "conditions": ["cat", "dog", "bird"]}
    selector = ModelSelector.from_checkpoints(paths, Labelled, **settings)
    assert selector.run(progress=False).retired == {}
    assert seen[:2] == [selector._plan.pull(name, 0, 10).conditions for name in selector.arms]
    assert seen[0] == seen[1] != seen[2]
    with pytest.raises(InputError, match="Expected the sampler to take `conditions=`"):
        ModelSelector.from_checkpoints(paths, Gen, **settings)


def test_a_file_that_is_written_anew_is_no_longer_the_arm(folder, tmp_path):
    path = tmp_path / "a.ckpt"
    path.write_bytes((folder / "step=8.ckpt").read_bytes())
    (sampler,) = checkpoint_samplers({"a": path}, Gen).values()
    assert sampler(3, torch.Generator()).shape == (3, DIM)
    path.write_bytes((folder / "step=96.ckpt").read_bytes() + b"\0")
    with pytest.raises(ArmError, match="was rewritten"):
        sampler(3, torch.Generator())
