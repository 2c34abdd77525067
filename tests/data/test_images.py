"""Folders of images: what is found, how it is decoded, and what is refused."""

import numpy as np
import pytest
from PIL import Image

from tm_bandit.data import ImageFolder
from tm_bandit.data.images import decode_image, list_images
from tm_bandit.errors import InputError


def save(path, array, **kwargs):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **kwargs)
    return path


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path, pixels):
    for index in range(4):
        save(tmp_path / f"{index}.png", pixels)
    return tmp_path


def test_pixels_arrive_as_rgb_channels_first(tmp_path, pixels):
    image = decode_image(save(tmp_path / "a.png", pixels))
    assert image.dtype.is_floating_point is False
    np.testing.assert_array_equal(image.numpy(), pixels.transpose(2, 0, 1))


def test_every_mode_becomes_rgb(tmp_path, pixels):
    grey = pixels[..., 0]
    np.testing.assert_array_equal(decode_image(save(tmp_path / "l.png", grey)).numpy(), np.stack([grey] * 3))
    rgba = np.dstack([pixels, np.full(grey.shape, 7, np.uint8)])
    np.testing.assert_array_equal(decode_image(save(tmp_path / "rgba.png", rgba)).numpy(), pixels.transpose(2, 0, 1))
    deep = grey.astype(np.uint16) * 256 + 200
    np.testing.assert_array_equal(decode_image(save(tmp_path / "i16.png", deep)).numpy()[1], grey)
    palette = Image.fromarray(pixels).quantize(4)
    palette.save(tmp_path / "p.png", transparency=bytes([0, 255, 255, 255]))
    expected = np.asarray(palette.convert("RGB")).transpose(2, 0, 1)
    np.testing.assert_array_equal(decode_image(tmp_path / "p.png").numpy(), expected)


def test_subfolders_are_searched_and_other_files_ignored(folder, pixels):
    save(folder / "cats" / "X.JPG", pixels, format="JPEG")
    save(folder / ".cache" / "hidden.png", pixels)
    (folder / "notes.txt").write_text("no image")
    (folder / ".5.png").write_text("no image either")
    assert [path.name for path in list_images(folder)] == ["0.png", "1.png", "2.png", "3.png", "X.JPG"]


def test_links_to_folders_are_followed_once(folder, tmp_path_factory, pixels):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    save(elsewhere / "far.png", pixels)
    (folder / "linked").symlink_to(elsewhere)
    (folder / "again").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(folder)
    assert [path.name for path in list_images(folder)] == ["0.png", "1.png", "2.png", "3.png", "far.png"]


def test_a_folder_without_images_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InputError, match="got none in"):
        list_images(tmp_path)


def test_opening_decodes_nothing(folder, monkeypatch):
    decoded = []
    monkeypatch.setattr(Image.Image, "convert", lambda *args, **kwargs: decoded.append(args))
    assert len(ImageFolder(folder)) == 4
    assert decoded == []


def test_mixed_sizes_are_refused_by_name_or_resized(folder, pixels):
    save(folder / "odd.png", pixels[:5])
    with pytest.raises(InputError, match=r"9x6 and 9x5 \(.*odd\.png\); .*--resize"):
        ImageFolder(folder)
    source = ImageFolder(folder, resize=4)
    assert {tuple(source[index].shape) for index in range(5)} == {(3, 4, 4)}


def test_files_that_are_no_images_are_refused_or_left_out(folder):
    (folder / "broken.png").write_bytes(b"not an image at all")
    with pytest.raises(InputError, match=r"1 of 5 .*broken\.png \(not an image\)"):
        ImageFolder(folder)
    source = ImageFolder(folder, skip_unreadable=True)
    assert len(source) == 4
    assert [path.name for path in source.unreadable] == ["broken.png"]


def test_nothing_readable_is_refused_even_when_skipping(tmp_path):
    (tmp_path / "broken.png").write_bytes(b"")
    with pytest.raises(InputError, match=r"broken\.png"):
        ImageFolder(tmp_path, skip_unreadable=True)


def test_a_truncated_image_is_named(folder):
    whole = (folder / "2.png").read_bytes()
    (folder / "2.png").write_bytes(whole[: len(whole) // 2])
    source = ImageFolder(folder)
    with pytest.raises(InputError, match=r"2\.png"):
        source[2]
