"""Files that were cut, changed or exchanged: a reader says so in one of our errors, or reads what is there."""

import contextlib
import io
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save as pack_safely
from torch import nn

from tests.extractors.networks import save_script
from tests.fuzz.junk import JUNK, rounds, soon
from tests.report.results import make_result
from tm_bandit import ReferenceStatistics, SelectionResult
from tm_bandit._weights_file import read_file, sign
from tm_bandit.data import open_source
from tm_bandit.data.images import decode_image
from tm_bandit.errors import BanditError
from tm_bandit.extractors import resolve
from tm_bandit.report.encoding import encode


def saved(save, *args, **kwargs):
    file = io.BytesIO()
    save(file, *args, **kwargs)
    return file.getvalue()


def picture(kind):
    file = io.BytesIO()
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(file, kind)
    return file.getvalue()


def checkpoint(legacy):
    weights = {"a": torch.arange(6.0), "b.c": torch.ones(2, 3)}
    content = {"state_dict": weights, "global_step": 3}
    sign(content, weights, "tag", "run")
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=not legacy)
    return file.getvalue()


def script():
    file = io.BytesIO()
    save_script(nn.Linear(2, 3), torch.zeros(1, 2), file)
    return file.getvalue()


ROWS = np.random.default_rng(0).normal(size=(12, 2))
MOMENTS = {"mu": ROWS.mean(0), "sigma": np.cov(ROWS.T), "num_samples": 12}
FILES = {
    "reference.npz": saved(np.savez, **MOMENTS),
    "packed.npz": saved(np.savez_compressed, **MOMENTS),
    "reference.pt": saved(lambda file: torch.save(MOMENTS, file)),
    "rows.npy": saved(np.save, ROWS),
    "rows.npz": saved(np.savez_compressed, ROWS),
    "images.npz": saved(np.savez, np.zeros((3, 4, 4, 3), np.uint8)),
    "image.png": picture("PNG"),
    "image.jpg": picture("JPEG"),
    "image.webp": picture("WEBP"),
    "image.tif": picture("TIFF"),
    "new.ckpt": checkpoint(False),
    "old.ckpt": checkpoint(True),
    "new.safetensors": pack_safely({"a": torch.arange(6.0)}),
    "script.pth": script(),
    "result.json": make_result(pulls=8).to_json().encode(),
}


def read(path):
    """Read a file with every reader that takes such a file, as far as its content."""
    readers = {
        ".npz": (ReferenceStatistics.load, lambda place: [*map(open_source(place).__getitem__, range(2))]),
        ".npy": (ReferenceStatistics.load, lambda place: [*map(open_source(place).__getitem__, range(2))]),
        ".pt": (ReferenceStatistics.load, read_file),
        ".ckpt": (read_file,),
        ".safetensors": (read_file,),
        ".pth": (lambda place: resolve("dinov2-vit-s-14", weights_path=place),),
        ".json": (lambda place: SelectionResult.from_json(place).to_html(),),
    }
    for reader in readers.get(path.suffix, (decode_image,)):
        with soon(), contextlib.suppress(BanditError):
            reader(path)


@st.composite
def damaged(draw, content):
    """Bytes that were cut off, flipped, inserted or exchanged with those of another file."""
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(len(changed) - 1, 0)))
        kind = draw(st.sampled_from(["cut", "flip", "flip", "flip", "insert", "other"]))
        if kind == "cut":
            del changed[at:]
        elif kind == "flip" and changed:
            changed[at] ^= draw(st.integers(1, 255))
        elif kind == "insert":
            changed[at:at] = draw(st.binary(max_size=12))
        elif kind == "other":
            changed = bytearray(FILES[draw(st.sampled_from(sorted(FILES)))])
    return bytes(changed)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FILES)
def test_damaged_files(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(FILES[name])
    read(path)

    @rounds()
    @given(damaged(FILES[name]))
    def check(content):
        path.unlink()  # a file that is mapped must not change
        path.write_bytes(content)
        read(path)

    check()


@pytest.mark.filterwarnings("ignore")
def test_results_of_any_content():
    plain = json.loads(make_result(pulls=4).to_json())
    leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5))
    names = st.text(max_size=5)
    values = st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=6
    )

    @rounds()
    @given(st.dictionaries(st.sampled_from(sorted(plain)), values, min_size=1, max_size=2))
    def check(changes):
        try:
            with soon():
                result = SelectionResult.from_json(encode({**plain, **changes}))
        except BanditError:
            return
        str(result), result.to_html(), result.to_markdown()

    check()


@pytest.mark.filterwarnings("ignore")
def test_statistics_of_any_content(tmp_path):
    keys = ("mu", "sigma", "mean", "num_samples", "extractor", "x")

    @rounds()
    @given(st.dictionaries(st.sampled_from(keys), JUNK, max_size=4))
    def check(content):
        path = tmp_path / "reference.pt"
        try:
            torch.save({**MOMENTS, **content}, path)
        except Exception:
            return  # not even torch can write that
        read(path)

    check()
