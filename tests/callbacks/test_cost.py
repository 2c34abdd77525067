"""What a validation must not cost: work that is already done, and work that grows with the length of training."""

import torch

from benchmarks.callback import PARTS
from tests.callbacks.models import bandit, fid, fit
from tests.callbacks.test_report import TableLogger
from tm_bandit.callbacks._report import HistoryText
from tm_bandit.callbacks._sidecar import pack, read_sidecars, unpack
from tm_bandit.callbacks._store import ArmStore
from tm_bandit.metrics.fid import OptimisticFID
from tm_bandit.report.encoding import encode


def test_the_weights_of_an_arm_are_read_at_most_once_per_validation(tmp_path, monkeypatch):
    read = []
    real = ArmStore.read
    monkeypatch.setattr(
        ArmStore, "read", lambda self, name: ((name in self._memory or read.append(name)) and None) or real(self, name)
    )
    callback = bandit(tmp_path, budget=300, policy="random")
    fit(tmp_path, callback, max_epochs=3)
    assert callback.result.pulls["step8"] > 35, "it is pulled in all validations"
    # The newest weights are in memory; of the older ones there is one in the second validation and two in the third.
    assert len(read) == 3


def test_a_validation_logs_no_more_however_many_arms_there_are(tmp_path):
    logger = TableLogger()
    callback = bandit(tmp_path, budget=40)
    fit(tmp_path, callback, max_epochs=6, logger=logger)
    entries = [metrics for _, metrics in logger.metrics if "bandit/best" in metrics]
    assert len(entries) == 6
    names = {f"bandit/{name}" for name in ("current", "current_is_best", "best", "best_step", "raw")}
    assert all({key for key in entry if key.startswith("bandit/")} == names for entry in entries)


def test_numbers_of_all_arms_are_computed_once_at_the_end_of_a_validation(tmp_path, monkeypatch):
    asked = []
    real = OptimisticFID.losses
    monkeypatch.setattr(OptimisticFID, "losses", lambda self, f: asked.append(self.num_samples) or real(self, f))
    callback = bandit(tmp_path, fid("witness"), budget=400, max_arms=2, policy="uniform")
    fit(tmp_path, callback, max_epochs=3)
    # Once per pull, and once more for each of at most three arms.
    assert len(asked) <= 3 * (40 + 3)
    assert len(callback.result.retired) == 1


def test_retired_arms_leave_numbers_only(tmp_path):
    callback = bandit(tmp_path, max_arms=2)
    fit(tmp_path, callback, max_epochs=6)
    (sidecar,) = read_sidecars(callback._session.store.folder)
    arms = sidecar.statistics()["arms"]
    retired = [arm for arm in arms if arm["retired"] is not None]
    assert len(retired) == 4
    for arm in retired:
        assert arm["metric"] == {}
        assert arm["trace"] == []
    assert all(len(arm["joined"]) <= 2 for arm in arms), "what is kept about rivals does not grow with the training"


def test_the_history_is_encoded_by_what_is_new(monkeypatch):
    from tm_bandit.callbacks import _report

    encoded = []
    monkeypatch.setattr(_report, "encode", lambda value: encoded.append(value) or encode(value))
    text, history = HistoryText(), {"arm": [], "estimate": [], "best": []}
    for name in ('"quoted"', "b", "c"):
        history["arm"] += [name, name]
        history["estimate"] += [float("nan"), 1.5]
        history["best"] += [None, name]
        assert text.read(history) == encode(history)
    assert sum(len(value) for value in encoded if isinstance(value, list)) == 3 * 6


def test_the_benchmark_times_what_is_there():
    places = [place for part in PARTS.values() for place in part]
    assert [f"{owner.__name__}.{name}" for owner, name in places if not callable(getattr(owner, name, None))] == []


def test_packed_statistics_are_the_same(tmp_path):
    rows = [torch.rand(3, 2), torch.rand(1, 2).double(), torch.arange(4), torch.zeros(0, 2), torch.rand(300, 300)]
    value = {"rows": rows, "count": torch.tensor(5), "name": "a", "none": None, "trace": [{"x": float("inf")}]}
    torch.save(pack(value), tmp_path / "packed.pt")
    again = unpack(torch.load(tmp_path / "packed.pt", weights_only=True))
    assert list(again) == list(value)
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(again["rows"], rows, strict=True))
    assert again["count"].shape == ()
    assert (again["name"], again["none"], again["trace"]) == ("a", None, value["trace"])
    small = again["rows"][0]
    assert small.untyped_storage().nbytes() == small.nbytes, "it does not keep the others in memory"
