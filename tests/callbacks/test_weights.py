"""The weights of an arm: everything in the module comes back, and an average is one only after its first update."""

from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch.optim.swa_utils import AveragedModel

from tests.callbacks.models import DIM, Gen, Rude
from tm_bandit.callbacks._weights import BorrowedModule, averaged_weights, persistent_tensors


class TestBorrowedModule:
    def test_everything_comes_back(self):
        module = Rude()
        module.net.weight.grad = torch.ones(DIM, DIM)
        module.drop.eval()
        gradient, modes = module.net.weight.grad, [part.training for part in module.modules()]
        before = {name: value.clone() for name, value in (*module.named_parameters(), *module.named_buffers())}
        parameters = list(module.parameters())

        def sampler():
            assert not module.training
            assert module.net.weight.grad is None
            module.sample(4)
            module._buffers["gain"] = torch.tensor(5.0)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt), BorrowedModule(module):
            sampler()
        assert all(a is b for a, b in zip(parameters, module.parameters(), strict=True))
        assert module.net.weight.grad is gradient
        assert torch.equal(gradient, torch.ones(DIM, DIM))
        assert [part.training for part in module.modules()] == modes
        for name, value in (*module.named_parameters(), *module.named_buffers()):
            assert torch.equal(value, before[name]), name

    def test_live_weights_are_named_once(self):
        module = Gen()
        with BorrowedModule(module) as borrowed:
            live = borrowed.live()
        assert "net.weight" in live
        assert "tied.weight" not in live
        assert "gain" not in live
        assert set(live) == set(persistent_tensors(module))

    def test_put_gives_back_what_is_not_saved(self):
        module = Gen()
        with BorrowedModule(module) as borrowed:
            module.gain.fill_(9.0)
            module.train()
            borrowed.put(borrowed.fit({**borrowed.live(), "net.weight": torch.zeros(DIM, DIM)}))
            assert module.gain == 1.0
            assert not module.training
            assert not module.tied.weight.any()
            gain, module._buffers["gain"] = module.gain, torch.tensor(5.0)
            borrowed.put(borrowed.fit(borrowed.live()))
            assert module.gain is gain, "a tensor that a sampler has put in the buffer's place"
        assert module.net.weight.any()

    def test_tied_weights_have_all_their_names_where_they_are_asked_for(self):
        module = Gen()
        with BorrowedModule(module) as borrowed:
            module.net.weight.data.zero_()
            live = borrowed.live_by_alias()
        assert live["tied.weight"] is live["net.weight"]
        assert torch.equal(live["net.weight"], module.net.weight)
        assert live["net.weight"].any()


def test_there_is_no_average_before_its_first_update():
    module, callback = Gen(), EMAWeightAveraging()
    trainer = SimpleNamespace(callbacks=[callback])
    assert averaged_weights(SimpleNamespace(callbacks=[])) is None
    assert averaged_weights(trainer) is None
    callback._average_model = AveragedModel(module, use_buffers=True)
    assert averaged_weights(trainer) is None, "the untrained model"
    callback._average_model.update_parameters(module)
    found = averaged_weights(trainer)
    assert found.keys() == persistent_tensors(module).keys()
    callback._average_model.module.net.weight.data.zero_()
    assert torch.equal(found["net.weight"], module.net.weight), "a copy"
