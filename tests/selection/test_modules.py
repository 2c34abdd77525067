"""What may be put into a user's module."""

import pytest
import torch
from torch import nn

from tm_bandit.errors import ArmError, InputError
from tm_bandit.selection.modules import bind_sampler, make_module, put_weights


def test_a_class_or_a_function_makes_a_module():
    layer = nn.Linear(2, 1)
    assert make_module(layer, [], {}) is layer
    assert make_module(nn.Linear, [], {"in_features": 3, "out_features": 1}).in_features == 3
    assert isinstance(make_module(lambda: layer, [], {}), nn.Linear)


@pytest.mark.parametrize(
    ("module_class", "text"), [("Linear", "a function that returns a module"), (nn.Linear, "give")]
)
def test_what_makes_no_module_is_refused(module_class, text):
    with pytest.raises(InputError, match=text):
        make_module(module_class, [], {})


class Plain(nn.Module):
    def sample(self, num_samples):
        return torch.zeros(num_samples, 2)


class Labelled(nn.Module):
    def sample(self, num_samples, conditions):
        return torch.tensor(conditions).float()[:, None]


def test_a_module_is_checked_for_its_method_and_for_conditions():
    assert bind_sampler(Plain(), None, {})(3, torch.Generator()).shape == (3, 2)
    with pytest.raises(InputError, match="method `draw"):
        bind_sampler(Plain(), "draw", {})
    labelled = bind_sampler(Labelled(), None, {}, conditioned=True)
    assert labelled(2, torch.Generator(), conditions=[0, 1]).tolist() == [[0.0], [1.0]]
    with pytest.raises(InputError, match="conditions="):
        bind_sampler(Plain(), None, {}, conditioned=True)


class TestPutWeights:
    def test_refuses_other_shapes_and_missing_weights(self):
        layer = nn.Linear(2, 1)
        before = layer.weight.clone()
        with pytest.raises(ArmError, match="another architecture"):
            put_weights(layer, {"weight": torch.zeros(3, 3), "bias": torch.zeros(1)})
        with pytest.raises(ArmError, match="bias"):
            put_weights(layer, {"weight": torch.zeros(1, 2)})
        assert torch.equal(layer.weight, before)

    def test_compiled_and_plain_names_fit_each_other(self):
        plain = nn.Sequential(nn.Linear(2, 1))
        compiled = nn.Sequential(torch.compile(nn.Linear(2, 1)))
        put_weights(compiled, plain.state_dict())
        assert torch.equal(compiled[0].weight, plain[0].weight)
        put_weights(plain, {name: value + 1 for name, value in compiled.state_dict().items()})
        assert torch.equal(plain[0].weight, compiled[0].weight + 1)

    def test_states_of_metrics_are_left_alone(self):
        from torchmetrics import MeanMetric

        module = nn.Sequential(nn.Linear(1, 1), MeanMetric())
        module[1].persistent(True)
        module[1].update(3.0)
        state = {name: value.clone() for name, value in module.state_dict().items()}
        module[1].update(5.0)
        put_weights(module, state)
        module[1].update(4.0)
        assert module[1].compute() == 4.0
        assert state["1.mean_value"] == 3.0
