"""Statistics of the real data: how they are made, stored, checked and shared."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from tests._make import scaled_rows
from tm_bandit import ReferenceStatistics
from tm_bandit.errors import InputError

draw = partial(scaled_rows, dim=4)


def test_features_in_one_piece_or_in_batches():
    rows = draw(0, 50)
    expected = np.cov(rows.double().numpy(), rowvar=False)
    for features in (rows, rows.numpy(), rows.split(7), iter(rows.split(1)), [rows[:0], rows]):
        reference = ReferenceStatistics.from_features(features)
        np.testing.assert_allclose(reference.covariance.numpy(), expected, rtol=1e-12, atol=1e-14)
        assert reference.num_samples == 50
        assert reference.extractor is None


def test_images_with_and_without_labels():
    images = torch.rand(20, 1, 2, 2)
    plain = ReferenceStatistics.from_images(images.split(6), nn.Flatten())
    labelled = ReferenceStatistics.from_images(
        [(batch, torch.zeros(len(batch))) for batch in images.split(9)], nn.Flatten()
    )
    torch.testing.assert_close(plain.covariance, labelled.covariance, rtol=1e-12, atol=1e-15)
    assert plain.extractor == labelled.extractor == "module:Flatten"


def test_eigen_decomposition():
    reference = ReferenceStatistics.from_features(draw(1, 30))
    values, vectors = reference.eigenvalues, reference.eigenvectors
    torch.testing.assert_close(vectors @ torch.diag(values) @ vectors.T, reference.covariance)
    assert torch.equal(values, values.sort(descending=True).values)
    assert float(reference.trace_root) == pytest.approx(float(values.sqrt().sum()))
    assert float(reference.trace) == pytest.approx(float(values.sum()))
    assert reference.eigenvalues is values  # computed once


def test_file_round_trip(tmp_path):
    reference = ReferenceStatistics.from_features(draw(2, 30), extractor="clip-vit-l-14")
    path = reference.save(tmp_path / "real")
    assert path == tmp_path / "real.npz"
    with np.load(path) as stored:  # what pytorch-fid, clean-fid and guided-diffusion read
        np.testing.assert_array_equal(stored["mu"], reference.mean.numpy())
        np.testing.assert_array_equal(stored["sigma"], reference.covariance.numpy())
    loaded = ReferenceStatistics.load(path)
    assert torch.equal(loaded.covariance, reference.covariance)
    assert (loaded.num_samples, loaded.extractor) == (30, "clip-vit-l-14")
    assert [entry.name for entry in tmp_path.iterdir()] == ["real.npz"]


def test_files_of_other_tools(tmp_path):
    rows = draw(3, 30).numpy()
    sigma = np.cov(rows, rowvar=False).astype(np.float32)
    np.savez(tmp_path / "other.npz", mu=rows.mean(axis=0), sigma=sigma, mu_s=np.zeros(3), sigma_s=np.eye(3))
    loaded = ReferenceStatistics.load(str(tmp_path / "other.npz"), extractor="vgg16")
    assert loaded.num_samples is None
    assert loaded.extractor == "vgg16"
    np.testing.assert_allclose(loaded.covariance.numpy(), sigma, rtol=1e-6)


def test_unusable_files(tmp_path):
    np.savez(tmp_path / "no.npz", arr_0=np.zeros(3))
    np.save(tmp_path / "plain.npy", np.zeros(3))
    (tmp_path / "text.npz").write_text("not a zip file")
    (tmp_path / "empty.npz").write_bytes(b"")
    for name, message in (
        ("no.npz", r"`mu` and `sigma`, or rows in `feats`, in .*no.npz, but got .*arr_0"),
        ("plain.npy", "but got a plain array"),
        ("text.npz", "could not read"),
        ("empty.npz", "could not read"),
        ("gone.npz", "there is none at"),
    ):
        with pytest.raises(InputError, match=message):
            ReferenceStatistics.load(tmp_path / name)


@pytest.mark.parametrize(
    ("mean", "covariance", "message"),
    [
        (torch.zeros(3), torch.eye(2), r"\(d, d\), but got \(3,\) and \(2, 2\)"),
        (torch.zeros(2, 1), torch.eye(2), r"\(d,\)"),
        (torch.tensor([0.0, float("nan")]), torch.eye(2), "`mean` to be finite, but got 1 NaN, infinite .* in 1 rows"),
        (torch.zeros(2), torch.full((2, 2), float("inf")), "got 4 NaN, infinite .* in 2 rows"),
        (torch.zeros(2), 1e200 * torch.eye(2).double(), "got 2 .* absurdly large values in 2 rows"),
        (torch.zeros(2), torch.tensor([[1.0, 0.5], [0.0, 1.0]]), "symmetric covariance, but got entries .* by 0.5"),
        (torch.zeros(2), torch.tensor([[1.0, 2.0], [2.0, 1.0]]), "semi-definite covariance, but got .* of -1 "),
        (torch.zeros(2), -torch.eye(2), "semi-definite"),
        ("mean", torch.eye(2), "tensor or array, but got a str"),
    ],
)
def test_what_is_no_reference(mean, covariance, message):
    with pytest.raises(InputError, match=message):
        ReferenceStatistics(mean, covariance)


def test_too_few_or_unequal_rows():
    with pytest.raises(InputError, match="at least two real samples for a reference, but got 1"):
        ReferenceStatistics.from_features(draw(0, 1))
    with pytest.raises(InputError, match="but got 0"):
        ReferenceStatistics.from_features([])
    with pytest.raises(InputError, match=r"\(n, 4\), but got \(2, 3\)"):
        ReferenceStatistics.from_features([draw(0, 5), draw(0, 2, dim=3)])
    with pytest.raises(InputError, match="`num_samples` to be an integer of at least 2, but got 1"):
        ReferenceStatistics(torch.zeros(2), torch.eye(2), num_samples=1)


def test_rounding_in_float32_files_is_forgiven():
    rows = draw(4, 5, dim=40).double()  # singular: the least eigenvalues come out slightly negative in float32
    sigma = torch.from_numpy(np.cov(rows.numpy(), rowvar=False)).float()
    assert float(torch.linalg.eigvalsh(sigma.double())[0]) < 0
    reference = ReferenceStatistics(rows.mean(dim=0), sigma)
    assert reference.rank == 4
    assert ReferenceStatistics(torch.zeros(3), torch.zeros(3, 3)).rank == 0


def test_copies_are_the_same_object_and_pickles_stay_small():
    reference = ReferenceStatistics.from_features(draw(5, 300, dim=60))
    assert copy.deepcopy(reference) is reference
    assert copy.copy(reference) is reference
    bare = len(pickle.dumps(reference))
    reference.trace_root.item()
    assert len(pickle.dumps(reference)) == bare
    loaded = pickle.loads(pickle.dumps(reference))
    assert torch.equal(loaded.eigenvalues, reference.eigenvalues)


def test_inputs_are_not_aliased():
    mean, covariance = torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    reference = ReferenceStatistics(mean, covariance)
    mean += 1
    covariance += 1
    assert float(reference.mean.sum()) == 0.0
    assert float(reference.trace) == 2.0


def test_one_copy_per_device():
    reference = ReferenceStatistics.from_features(draw(6, 20))
    assert reference.to("cpu") is reference
    elsewhere = reference.to("meta")
    assert elsewhere is reference.to("meta")
    assert elsewhere.mean.device.type == "meta"
    assert elsewhere.to("cpu") is reference
    assert repr(elsewhere) == "ReferenceStatistics(num_features=4, num_samples=20, extractor=None)"


def test_a_small_reference_is_warned_of_once():
    rows = torch.randn(79, 8, generator=torch.Generator().manual_seed(0))
    small = ReferenceStatistics.from_features(rows)
    with pytest.warns(UserWarning, match="79 images for 8 features.* 80 images or more"):
        _ = small.witness_basis
    _ = small.witness_basis
    _ = ReferenceStatistics.from_features(torch.cat([rows, rows[:1]])).witness_basis
    _ = ReferenceStatistics(small.mean, small.covariance).witness_basis  # nobody knows how many
