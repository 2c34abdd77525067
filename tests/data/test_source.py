"""From a path to the source that reads it."""

import numpy as np
import pytest

from tests._pictures import pictures, save_pictures
from tm_bandit.data import ArraySource, ImageFolder, open_source
from tm_bandit.errors import InputError


def test_open_source_names_what_is_missing_or_foreign(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        open_source(tmp_path / "nowhere")
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(InputError, match=r"a\.txt; convert"):
        open_source(tmp_path / "a.txt")


def test_the_path_decides_what_is_opened(tmp_path):
    save_pictures(tmp_path / "folder", pictures(0, 1, 0))
    np.save(tmp_path / "rows.NPY", np.ones((3, 2)))
    (tmp_path / "rows.NPY.npy").rename(tmp_path / "rows.NPY")
    np.savez(tmp_path / "more.npz", first=np.zeros((2, 5)), second=np.ones((7, 5)))
    folder, rows = open_source(tmp_path / "folder", resize=2), open_source(str(tmp_path / "rows.NPY"))
    assert isinstance(folder, ImageFolder)
    assert isinstance(rows, ArraySource)
    assert (folder.is_features, rows.is_features) == (False, True)
    assert (folder[0].shape, rows[2].tolist()) == ((3, 2, 2), [1.0, 1.0])
    assert len(open_source(tmp_path / "more.npz", key="second")) == 7
    assert rows.describe(2) == f"{tmp_path / 'rows.NPY'}[2]"
