"""Every arm of a real training gets the same noise, from its first draw on."""

import pytest
import torch

from tests.callbacks.models import DIM, Gen, Stuck, bandit, fit
from tm_bandit.errors import InputError
from tm_bandit.execution.conditions import Conditions
from tm_bandit.execution.draw import DrawPlan


class Listening(Gen):
    """Notes what noise its sampler draws, by the weights it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.noise: dict[float, list[torch.Tensor]] = {}

    def mark(self):
        return self.net.weight.detach().double().sum().item()

    def sample(self, num_samples):
        noise = torch.randn(num_samples, DIM)  # no generator: paired by the global seed
        self.noise.setdefault(self.mark(), []).append(noise)
        return self(noise)


def drawn(folder, **settings):
    """The noise of each arm, in the order of draws and chunks."""
    module = Listening()
    start = module.mark()
    callback = bandit(folder, batch_size=16, chunk_size=8, budget=96, policy="uniform", burn_in=16, **settings)
    fit(folder, callback, module=module, max_epochs=3)
    arms = [torch.cat(parts) for weights, parts in module.noise.items() if weights != start]  # it was a rehearsal
    assert [len(noise) for noise in arms] == list(callback.result.num_samples.values())
    return arms, callback


def test_newcomers_start_with_the_noise_that_the_first_arm_had(tmp_path):
    arms, callback = drawn(tmp_path)
    assert len(arms) == 3
    assert min(map(len, arms)) >= 32
    for noise in arms[1:]:
        common = min(len(noise), len(arms[0]))
        assert torch.equal(noise[:common], arms[0][:common])
    assert len(torch.unique(arms[0], dim=0)) == len(arms[0]), "no noise comes twice within an arm"
    assert callback.result.settings["pairing"] == "common"


def test_independent_arms_have_nothing_in_common(tmp_path):
    arms, _ = drawn(tmp_path, pairing="independent")
    assert len(torch.unique(torch.cat(arms), dim=0)) == sum(map(len, arms))


def test_another_pairing_is_refused_when_the_callback_is_made(tmp_path):
    with pytest.raises(InputError, match=r"pairing.* .?common.* .?independent.*, but got 'same'"):
        bandit(tmp_path, pairing="same")


class Labelled(Gen):
    """Moves by its label, and notes the labels by the weights it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.given: dict[int, list] = {}

    def sample(self, num_samples, conditions):
        assert len(conditions) == num_samples
        self.given.setdefault(self.trainer.global_step, []).append(conditions)
        return super().sample(num_samples) + 0.1 * torch.as_tensor(conditions)[:, None]


def test_chunks_get_their_slice_of_the_conditions(tmp_path):
    module = Labelled()
    # Chunks of 8 make up draws of 20: the last four samples of the third are cut off.
    fit(tmp_path, bandit(tmp_path, batch_size=20, chunk_size=8, budget=40, conditions=[0, 1, 2, 3, 4]), module=module)
    plan = DrawPlan(0, "common", Conditions([0, 1, 2, 3, 4]))
    expected = [plan.pull("any", draw, 20).conditions for draw in (0, 1)]
    for step in (8, 16):
        chunks = module.given[step]
        draws = [(*chunks[start], *chunks[start + 1], *chunks[start + 2]) for start in (0, 3)]
        assert [draw[:20] for draw in draws] == expected


def test_a_module_that_takes_no_conditions_is_refused_before_the_training(tmp_path):
    with pytest.raises(InputError, match="Expected the sampler to take `conditions=`"):
        fit(tmp_path, bandit(tmp_path, conditions=[0, 1]))
    with pytest.raises(InputError, match="at least one entry in conditions"):
        bandit(tmp_path, conditions=[])
    with pytest.raises(InputError, match=r"conditions\(0, 10\) to return 10 entries.* but got 1"):
        fit(tmp_path, bandit(tmp_path, conditions=lambda draw, size: [0]), module=Labelled)


def test_conditions_that_end_cost_no_training(tmp_path):
    callback = bandit(tmp_path, conditions=lambda draw, size: [0] * (size if draw < 4 else 1))
    with pytest.warns(UserWarning, match=r"conditions\(4, 10\) to return 10 entries"):
        fit(tmp_path, callback, module=Labelled, max_epochs=3)
    assert set(callback.result.num_samples.values()) == {40}
    assert callback.best_arm


def test_a_sampler_that_ignores_its_seed_is_refused_before_the_training(tmp_path):
    with pytest.raises(InputError, match="has the same rows as draw 0; the sampler ignores its seed"):
        fit(tmp_path, bandit(tmp_path), module=Stuck)
