"""The list of slow files is about files that exist."""

from pathlib import Path

from tests.conftest import SLOW


def test_every_slow_file_is_there():
    here = Path(__file__).parent
    assert [name for name in sorted(SLOW) if not (here / name).is_file()] == []
