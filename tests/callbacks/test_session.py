"""One training run as the bandit sees it, validation by validation, without the training."""

import pytest
import torch

from tests.callbacks.models import DIM, Gen, bandit, fid, idle
from tm_bandit.callbacks._session import Session


class Parts:
    """An open session whose module is moved by hand."""

    def __init__(self, tmp_path, sampler=None, **kwargs):
        self.callback = bandit(tmp_path / "arms", fid("witness"), sampler=sampler, **{"budget": 200, **kwargs})
        self.module = Gen()
        self.module.net.weight.data.copy_(torch.eye(DIM))
        self.module.tied.bias.data.zero_()
        self.session = Session(self.callback, idle(tmp_path, self.module, self.callback), self.module)
        assert self.session.open(None) is None

    def validate(self, step, distance):
        """Move the weights this far from what the metric wants, and evaluate them."""
        self.module.net.bias.data.fill_(1.0 + distance)
        return self.session.evaluate(step)

    def files(self):
        return self.session.store.folder.names("*.ckpt")


@pytest.fixture
def parts(tmp_path):
    made = Parts(tmp_path, max_arms=2, policy="uniform", stop="budget")
    yield made
    made.session.release()


def test_arms_compete_and_the_worst_makes_room(parts):
    assert parts.validate(8, 1.0).best_arm == "step8"
    assert parts.validate(16, 0.0).best_arm == "step16"
    summary = parts.validate(24, 2.0)
    assert (summary.best_arm, summary.arms) == ("step16", ("step8", "step16"))
    assert summary.lost == ("step24",)
    assert summary.result.retired == {"step24": "dropped to make room for better arms"}
    assert summary.best_path == str(parts.session.store.folder.root / "step16.ckpt")
    assert torch.load(summary.best_path, weights_only=True)["state_dict"]["net.bias"].tolist() == [1.0] * DIM
    assert parts.module.net.bias[0] == 3.0, "the training goes on with its own weights"
    assert parts.files() == ["step16.ckpt", "step8.ckpt"]


def test_the_state_is_that_of_the_last_validation_that_has_ended(parts):
    assert parts.session.state_dict()["number"] == 0
    parts.validate(8, 1.0)
    state = parts.session.state_dict()
    assert (state["number"], state["step"], list(state["files"])) == (1, 8, ["step8"])
    assert state["run"] == parts.session.store.folder.run


def test_a_checkpoint_that_is_taken_while_an_arm_is_in_the_module_has_the_weights_of_the_training(parts):
    parts.validate(8, 1.0)
    parts.module.net.bias.data.fill_(7.0)
    with parts.session._borrowing() as borrowed:
        borrowed.put(borrowed.fit(parts.session.store.read("step8")))
        checkpoint = {"state_dict": {name: value.clone() for name, value in parts.module.state_dict().items()}}
        assert checkpoint["state_dict"]["net.bias"][0] == 2.0
        parts.session.note_checkpoint(checkpoint)
        assert parts.session.state_dict()["due"]
    assert checkpoint["state_dict"]["net.bias"].tolist() == [7.0] * DIM


def test_a_file_that_is_gone_retires_its_arm(parts):
    parts.validate(8, 1.0)
    (parts.session.store.folder.root / "step8.ckpt").unlink()
    with pytest.warns(UserWarning, match="step8 is retired: its weights step8.ckpt are gone"):
        summary = parts.validate(16, 0.0)
    assert summary.arms == ("step16",)


def test_if_every_arm_fails_all_of_them_stay(tmp_path):
    broken = []

    def sampler(module, num_samples, *, generator):
        if broken:
            raise RuntimeError("no luck")
        return module(torch.randn(num_samples, DIM, generator=generator))

    parts = Parts(tmp_path, sampler, policy="uniform", stop="budget")
    parts.validate(8, 1.0)
    broken.append(True)
    with pytest.warns(UserWarning, match="no arm could be sampled in this validation"):
        summary = parts.validate(16, 0.0)
    assert summary.arms == ("step8", "step16")
    assert (summary.best_arm, summary.result.retired) == ("step8", {})
    parts.session.release()
