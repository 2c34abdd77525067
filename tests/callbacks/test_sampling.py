"""From a seed to rows, and what is refused before training."""

import pytest
import torch
from torch import nn

from tests.callbacks.models import DIM, Gen, Stuck, fid, function_sampler, idle
from tm_bandit.callbacks._sampling import RowSampler
from tm_bandit.errors import InputError
from tm_bandit.execution.conditions import Conditions


class Labelled(Gen):
    def sample(self, num_samples, conditions):
        return torch.tensor(conditions).float()[:, None] + super().sample(num_samples)


class Short(Gen):
    def sample(self, num_samples):
        return super().sample(num_samples - 1)


@pytest.mark.parametrize("sampler", [None, function_sampler])
def test_rows_depend_on_seed_and_variant_alone(tmp_path, sampler):
    module = Gen().eval()
    trainer = idle(tmp_path, module)
    rows = RowSampler(sampler, fid(), {"": {}, "wide": {"scale": 3.0}}, chunk_size=4)
    with torch.no_grad():
        first = rows.rows(trainer, module, "", seed=5, seen=(seen := []).append)
        assert torch.equal(*seen, first), "the network of this metric changes nothing"
        assert not torch.equal(rows.rows(trainer, module, "", seed=6), first)
        assert torch.allclose(rows.rows(trainer, module, "wide", seed=5), 3.0 * first)
        assert torch.equal(rows.rows(trainer, module, "", seed=5), first)


def test_samplers_run_in_the_precision_of_the_trainer(tmp_path):
    def sampler(module, num_samples, *, generator):
        found.append(module.net(torch.randn(num_samples, DIM, generator=generator)))
        return found[-1].float()

    module, found = Gen().eval(), []
    with torch.no_grad():
        trainer = idle(tmp_path, module, precision="bf16-mixed")
        RowSampler(sampler, fid(), {"": {}}, chunk_size=4).rows(trainer, module, "", seed=0)
    assert found[0].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("module", "variants", "message"),
    [
        (Stuck, {"": {}}, "the sampler ignores its seed"),
        (Short, {"": {}}, "the sampler to return 4 samples"),
        (Gen, {"": {}, "odd": {"size": 3}}, "variant 'odd',.*TypeError"),
    ],
)
def test_a_rehearsal_refuses_what_would_fail_later(tmp_path, module, variants, message):
    module = module().eval()
    with torch.no_grad(), pytest.raises(InputError, match=message):
        RowSampler(None, fid(), variants, 4).rehearse(idle(tmp_path, module), module, batch_size=8)


def test_a_rehearsal_with_conditions_or_untrained_weights_passes(tmp_path):
    module = Labelled().eval()
    with torch.no_grad():
        RowSampler(None, fid(), {"": {}}, 4, Conditions.of([0, 1])).rehearse(idle(tmp_path, module), module, 8)
    module = Gen().eval()
    nn.init.constant_(module.net.bias, float("nan"))
    with torch.no_grad():
        RowSampler(function_sampler, fid(), {"": {}}, 4).rehearse(idle(tmp_path, module), module, 8)
