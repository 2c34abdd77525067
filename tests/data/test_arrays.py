"""Arrays on disk: the layouts that are understood, memory maps, and what is refused."""

import numpy as np
import pytest
import torch
from PIL import Image

from tm_bandit.data import ArraySource, is_statistics_file, open_source
from tm_bandit.data.arrays import array_names, open_array
from tm_bandit.data.images import decode_image
from tm_bandit.errors import InputError

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed], ids=["stored", "compressed"])
def test_npz_members_read_back_exactly(tmp_path, save):
    arrays = {
        "arr_0": RNG.integers(0, 256, (5, 4, 4, 3), dtype=np.uint8),
        "labels": np.arange(5),
        "fortran": np.asfortranarray(RNG.normal(size=(3, 2))),
        "scalar": np.float64(3.5),
        "empty": np.zeros((0, 4)),
    }
    save(tmp_path / "a.npz", **arrays)
    assert array_names(tmp_path / "a.npz") == list(arrays)
    for key, value in arrays.items():
        np.testing.assert_array_equal(open_array(tmp_path / "a.npz", key), value)


def test_uncompressed_files_are_mapped_not_loaded(tmp_path):
    np.savez(tmp_path / "a.npz", RNG.normal(size=(5, 4)))
    np.save(tmp_path / "a.npy", RNG.normal(size=(5, 4)))
    assert isinstance(open_array(tmp_path / "a.npz"), np.memmap)
    assert isinstance(open_array(tmp_path / "a.npy"), np.memmap)


def test_arrays_beside_the_samples_do_not_matter(tmp_path):
    np.savez(tmp_path / "a.npz", RNG.normal(size=(5, 4)), labels=np.array([{}], dtype=object))
    assert len(open_source(tmp_path / "a.npz")) == 5


@pytest.mark.parametrize("layout", ["last", "first", "grey", "grey_last"])
def test_image_layouts(layout):
    images = RNG.integers(0, 256, (2, 5, 7, 3), dtype=np.uint8)
    expected = images[1].transpose(2, 0, 1)
    if layout.startswith("grey"):
        expected = np.stack([images[1, ..., 0]] * 3)
    array = {
        "last": images,
        "first": images.transpose(0, 3, 1, 2),
        "grey": images[..., 0],
        "grey_last": images[..., :1],
    }[layout]
    source = ArraySource(array, "a.npy")
    assert not source.is_features
    np.testing.assert_array_equal(source[1].numpy(), expected)


def test_features_keep_their_dtype(tmp_path):
    rows = RNG.normal(size=(4, 6)).astype(np.float16)
    np.save(tmp_path / "f.npy", rows)
    source = open_source(tmp_path / "f.npy")
    assert source.is_features
    assert len(source) == 4
    np.testing.assert_array_equal(source[3].numpy(), rows[3])


@pytest.mark.parametrize("dtype", [">f4", ">f8", np.longdouble])
def test_numbers_that_torch_cannot_hold_are_converted(dtype):
    rows = RNG.normal(size=(4, 6)).astype(np.float32)
    np.testing.assert_array_equal(ArraySource(rows.astype(dtype), "a.npy")[2].numpy(), rows[2])


def test_images_in_arrays_are_resized_like_those_in_files(tmp_path):
    images = RNG.integers(0, 256, (2, 6, 9, 3), dtype=np.uint8)
    Image.fromarray(images[1]).save(tmp_path / "a.png")
    expected = decode_image(tmp_path / "a.png", resize=4)
    assert expected.shape == (3, 4, 4)
    assert torch.equal(ArraySource(images, "a.npy", resize=4)[1], expected)
    floats = ArraySource(images / 255, "a.npy", resize=4)[1]
    assert 0 <= floats.min() <= floats.max() <= 1
    torch.testing.assert_close(floats * 255, expected.float(), rtol=0, atol=1.01)  # 8-bit pixels are rounded twice


def test_the_usual_names_win_and_a_key_overrules(tmp_path):
    np.savez(tmp_path / "a.npz", feats=np.ones((3, 2)), other=np.zeros((4, 2)))
    assert len(open_source(tmp_path / "a.npz")) == 3
    assert len(open_source(tmp_path / "a.npz", key="other")) == 4
    np.savez(tmp_path / "one.npz", whatever=np.zeros((5, 2)))
    assert len(open_source(tmp_path / "one.npz")) == 5


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.ones((3, 2)), "b": np.ones((3, 2))}, r"named arr_0 or .* but got a, b"),
        ({"mu": np.ones(2), "sigma": np.eye(2)}, r"got statistics \(mu, sigma\)"),
        ({"arr_0": np.arange(6).reshape(3, 2)}, r"int64 of shape 3x2"),
        ({"arr_0": np.ones((3, 5, 5, 4), np.uint8)}, r"uint8 of shape 3x5x5x4"),
        ({"arr_0": np.ones((0, 2))}, r"at least one sample"),
        ({"arr_0": np.ones((3, 0, 5, 3), np.uint8)}, r"at least one sample .* but got 3x0x5x3"),
        ({"arr_0": np.array([{}], dtype=object)}, r"Python objects"),
    ],
)
def test_wrong_contents_are_named(tmp_path, arrays, message):
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(InputError, match=message) as caught:
        open_source(tmp_path / "bad.npz")
    assert "bad.npz" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_key_lists_the_names(tmp_path):
    np.savez(tmp_path / "a.npz", np.ones((3, 2)))
    with pytest.raises(InputError, match=r"named feats .* but got arr_0"):
        open_source(tmp_path / "a.npz", key="feats")


@pytest.mark.parametrize("name", ["cut.npy", "cut.npz"])
def test_truncated_files_are_named(tmp_path, name):
    path = tmp_path / name
    (np.save if name.endswith("npy") else np.savez)(path, RNG.normal(size=(50, 4)))
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(InputError, match=name):
        open_source(path)


def test_a_damaged_directory_of_an_archive_is_named(tmp_path):
    np.savez(tmp_path / "a.npz", RNG.normal(size=(5, 4)))
    content = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(content.replace(b"PK\x01\x02", b"XXXX"))
    for look in (is_statistics_file, open_source):
        with pytest.raises(InputError, match=r"a\.npz"):
            look(tmp_path / "a.npz")


def test_statistics_files_are_told_from_samples(tmp_path):
    np.savez(tmp_path / "stats.npz", mu=np.zeros(2), sigma=np.eye(2))
    np.savez(tmp_path / "samples.npz", np.zeros((3, 2)))
    np.save(tmp_path / "samples.npy", np.zeros((3, 2)))
    assert is_statistics_file(tmp_path / "stats.npz")
    assert not is_statistics_file(tmp_path / "samples.npz")
    assert not is_statistics_file(tmp_path / "samples.npy")
