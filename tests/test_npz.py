"""No more memory is allocated than an archive has content for."""

import io
import zipfile

import numpy as np
import pytest

from tm_bandit._npz import read_header, read_member


def member(content, packed=zipfile.ZIP_DEFLATED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", packed) as archive:
        archive.writestr("a.npy", content)
    archive = zipfile.ZipFile(file)
    return archive, archive.getinfo("a.npy")


def saved(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    "array", [np.arange(6.0).reshape(2, 3), np.float32(3), np.zeros((0, 4)), np.asfortranarray(np.eye(3))]
)
def test_an_array_comes_back(array):
    np.testing.assert_array_equal(read_member(*member(saved(array))), array)


def test_a_claim_without_content_is_refused():
    array = np.zeros(4)
    content = saved(array).replace(b"(4,), }       ", b"(40000000,), }")
    with pytest.raises(ValueError, match=r"claims shape \(40000000,\), but holds"):
        read_member(*member(content))


def test_objects_are_refused_before_they_are_read():
    content = saved(np.array([{}]), allow_pickle=True)
    with pytest.raises(ValueError, match="Python objects"):
        read_header(io.BytesIO(content))
