"""On an accelerator: a CPU tensor that meets one of the device's own is found here, and not by a user."""

import os
import subprocess
import sys

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn
from torch.utils import backend_registration
from torch.utils.data import DataLoader, TensorDataset

from tm_bandit import ModelSelector, OptimisticFID, OptimisticIS, ReferenceStatistics
from tm_bandit.callbacks import BanditCheckpoint

DIM = 6
INSIDE = "TM_BANDIT_FAKE_ACCELERATOR"

if INSIDE in os.environ:
    from tests._accelerator import ACCELERATOR, CpuGenerator, FakeAccelerator, Literals, OnAccelerator

inside = pytest.mark.skipif(INSIDE not in os.environ, reason="runs in a process that has the fake accelerator")


def on_device(rows):
    return rows.to(ACCELERATOR)


@pytest.fixture
def accelerator():
    with FakeAccelerator(), Literals():
        yield


@pytest.mark.slow
@pytest.mark.skipif(INSIDE in os.environ, reason="this is that process")
@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch has no accelerators that are written in Python",
)
def test_on_a_fake_accelerator():
    # torch has one accelerator per process, and all tests that come after would have it too.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", __file__]
    done = subprocess.run(command, env={**os.environ, INSIDE: "1"}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


@inside
@pytest.mark.usefixtures("accelerator")
def test_the_fake_refuses_what_a_real_one_refuses():
    one = on_device(torch.ones(3))
    assert one.device == ACCELERATOR
    assert isinstance(one + one, OnAccelerator)
    assert (one + 1).sum().item() == 6
    assert one.cpu().device.type == "cpu"
    assert torch.zeros(2, device=ACCELERATOR).device == ACCELERATOR
    with pytest.raises(RuntimeError, match="same device"):
        one + torch.ones(3)
    with pytest.raises(RuntimeError, match="same device"):
        torch.cat([one, torch.ones(3)])


def reference():
    return ReferenceStatistics(torch.zeros(DIM), torch.eye(DIM), 10_000)


def rows(seed, count=64):
    return 0.2 + torch.randn(count, DIM, generator=torch.Generator().manual_seed(seed))


@inside
@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("bound", ["witness", "paper", "authors", "naive", "none"])
def test_fid(bound):
    numbers = []
    for device in ("cpu", ACCELERATOR):
        metric = OptimisticFID("none", reference(), bound=bound).to(device)
        for seed in range(3):
            metric.update_features(rows(seed).to(device))
        numbers.append([metric.losses([name])[name] for name in metric.loss_fields])
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-9, nan_ok=True)


@inside
@pytest.mark.usefixtures("accelerator")
def test_fid_collects_its_reference():
    metric = OptimisticFID("none").to(ACCELERATOR)
    metric.update_features(on_device(rows(1)), real=True)
    metric.update_features(on_device(rows(2)))
    assert float(metric.estimate()) > 0


@inside
@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("bound", ["witness", "none"])
def test_inception_score(bound):
    numbers = []
    for device in ("cpu", ACCELERATOR):
        metric = OptimisticIS("none", bound=bound).to(device)
        for seed in range(3):
            metric.update_probs(torch.softmax(3 * rows(seed), 1).to(device))
        numbers.append([metric.losses([name])[name] for name in metric.loss_fields])
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-9, nan_ok=True)


@inside
@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("statistics", ["cpu", None], ids=["statistics on the CPU", "with the metric"])
def test_selector(statistics):
    def arm(shift, device):
        return lambda num_samples: (shift + torch.randn(num_samples, DIM)).to(device)

    results = []
    for device in ("cpu", ACCELERATOR):
        arms = {"near": arm(0.1, device), "far": arm(1.0, device)}
        metric = OptimisticFID("none", reference()).to(device)
        selector = ModelSelector(metric, arms, budget=200, samples="features", device=statistics)
        results.append(selector.run(progress=False))
        selector.load_state_dict(selector.state_dict())
    assert results[0].history["arm"] == results[1].history["arm"]
    assert results[0].best == results[1].best == "near"


class Drifting(LightningModule):
    """Moves away from the reference without an optimizer: the fake accelerator has no gradients."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.at = nn.Parameter(torch.zeros(DIM), requires_grad=False)
        self.seen = set()

    def training_step(self, batch, batch_idx):
        self.at += 0.1
        self.trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress.total.completed += 1

    def validation_step(self, batch, batch_idx):
        """The callback is called after a validation."""

    def configure_optimizers(self):
        return None

    def sample(self, num_samples):
        self.seen.add(self.at.device)
        return self.at + torch.randn(num_samples, DIM).to(self.at.device)


class AnyDevice(CPUAccelerator):
    """Lightning's own has to be told that the CPU is the device."""

    def setup_device(self, device):
        pass


@inside
@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("store", ["disk", "memory"])
@pytest.mark.filterwarnings("ignore")
def test_callback(tmp_path, monkeypatch, store):
    monkeypatch.setattr(torch, "Generator", CpuGenerator)
    monkeypatch.setattr(torch.__future__, "get_swap_module_params_on_conversion", lambda: True)
    loader = DataLoader(TensorDataset(torch.zeros(2, 1)), batch_size=1)
    histories = []
    for device in (torch.device("cpu"), ACCELERATOR):
        callback = BanditCheckpoint(
            OptimisticFID(nn.Identity(), reference()),
            budget=100,
            batch_size=10,
            stop="budget",
            store=store,
            dirpath=tmp_path / device.type,
        )
        trainer = Trainer(
            max_epochs=3,
            strategy=SingleDeviceStrategy(device, accelerator=AnyDevice()),
            callbacks=[callback],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module := Drifting(), loader, loader)
        assert module.seen == {device}
        assert callback.best_model_path.endswith("step2.ckpt")
        assert torch.load(callback.best_model_path)["state_dict"]["at"][0].item() == pytest.approx(0.2)
        histories.append(callback.result.history)
    assert len(histories[0]["arm"]) == 30
    assert histories[0]["arm"] == histories[1]["arm"]
    assert histories[0]["estimate"] == pytest.approx(histories[1]["estimate"], rel=1e-9)
