"""Real images of the first validation as the reference."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.callbacks.models import DIM, Gen, bandit, fid, fit, loaders
from tm_bandit import ReferenceStatistics
from tm_bandit.callbacks._reference import first_batch, pick_images
from tm_bandit.errors import InputError


def validation_points():
    return loaders()[1].dataset.tensors[0]


def test_reference_is_made_of_the_first_validation_and_kept(tmp_path):
    metric = fid(with_reference=False)
    callback = bandit(tmp_path, metric=metric)
    fit(tmp_path, callback, max_epochs=2)
    expected = ReferenceStatistics.from_features(validation_points())
    stored = ReferenceStatistics.load(tmp_path / "reference.npz")
    for made in (metric.reference, stored):
        assert made.num_samples == 16
        assert torch.allclose(made.mean, expected.mean, rtol=1e-12)
        assert torch.allclose(made.covariance, expected.covariance, rtol=1e-10, atol=1e-12)
    assert set(callback.result.num_samples) == {"step8", "step16"}


def test_few_validation_images_are_warned_of(tmp_path):
    callback = bandit(tmp_path, metric=fid("witness", with_reference=False))
    with pytest.warns(UserWarning, match="The reference has 16 images for 4 features") as caught:
        fit(tmp_path, callback, max_epochs=2)
    assert len([warning for warning in caught if "The reference has" in str(warning.message)]) == 1


def test_the_next_training_makes_its_own(tmp_path):
    callback = bandit(metric=fid(with_reference=False))
    fit(tmp_path / "a", callback, max_epochs=1)
    train, val = loaders()
    other = DataLoader(TensorDataset(5 + val.dataset.tensors[0]), 8)
    fit(tmp_path / "b", callback, data=(train, other), max_epochs=1)
    assert callback.metric.reference.mean.mean() > 5


def test_a_given_reference_is_left_alone(tmp_path):
    metric = fid()
    before = metric.reference
    fit(tmp_path, bandit(tmp_path, metric=metric), max_epochs=1)
    assert metric.reference is before
    assert not (tmp_path / "reference.npz").exists()


@pytest.mark.parametrize("real", [1, "points", lambda batch: batch["points"]])
def test_where_the_images_are(tmp_path, real):
    points = validation_points()
    mappings = [{"points": point, "label": 3} for point in points]
    data = TensorDataset(torch.arange(16), points) if real == 1 else mappings
    callback = bandit(tmp_path, metric=fid(with_reference=False), real=real)
    fit(tmp_path, callback, data=(loaders()[0], DataLoader(data, 5)), max_epochs=1)
    expected = ReferenceStatistics.from_features(points)
    assert torch.allclose(callback.metric.reference.mean, expected.mean)


def test_pick_images():
    images = torch.zeros(2, 3, 4, 4)
    assert pick_images(images) is images
    assert pick_images((images, torch.ones(2))) is images
    assert pick_images({"label": torch.ones(2), "pixel_values": images}) is images
    assert pick_images({"a": {"b": images}}, lambda batch: batch["a"]["b"]) is images
    for batch in ((), "text", 5, None, {"label": images}, [[images]]):
        with pytest.raises(InputError, match="real images"):
            pick_images(batch)


def test_a_peek_starts_no_workers_and_leaves_the_loader_alone():
    loader = DataLoader(TensorDataset(torch.arange(12.0).reshape(6, 2)), 4, num_workers=2)
    assert torch.equal(first_batch(loader)[0], loader.dataset.tensors[0][:4])
    assert loader._iterator is None
    assert first_batch([loader, loader])[0].shape == (4, 2)
    assert first_batch(DataLoader(TensorDataset(torch.zeros(0, 2)), 4)) is None
    stream = DataLoader(_Stream(), 3)
    assert first_batch(stream).shape == (3, DIM)


class _Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(torch.zeros(7, DIM))


def test_too_few_images(tmp_path):
    data = loaders()[0], DataLoader(TensorDataset(torch.zeros(1, DIM)), 1)
    with pytest.raises(InputError, match="two real images"):
        fit(tmp_path, bandit(tmp_path, metric=fid(with_reference=False)), module=Gen, data=data, max_epochs=1)
