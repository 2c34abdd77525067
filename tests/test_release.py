"""The dry run of a release says what is missing; the run itself is `make release-check`."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.release import ROOT, TESTS, open_points, version


@pytest.fixture
def project(tmp_path):
    (tmp_path / "tm_bandit").mkdir()
    (tmp_path / "benchmarks" / "history").mkdir(parents=True)
    (tmp_path / "tm_bandit" / "__about__.py").write_text('__version__ = "0.3.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [0.3.0] - 2027-01-02\n\n## [0.2.0] - unreleased\n")
    (tmp_path / "benchmarks" / "history" / "0.3.0.json").write_text("{}")
    return tmp_path


def test_a_project_that_is_ready(project):
    assert version(project) == "0.3.0"
    assert open_points(project) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("tm_bandit/__about__.py", "0.3.0", "0.2.9", "says 0.2.9, and the newest entry of CHANGELOG.md is 0.3.0"),
        ("CHANGELOG.md", "2027-01-02", "unreleased", "'unreleased' where version 0.3.0 needs its date"),
        ("benchmarks/history/0.3.0.json", None, None, "no 0.3.0.json"),
    ],
)
def test_what_is_missing_is_named(project, file, old, new, says):
    path = project / file
    if old is None:
        path.unlink()
    else:
        path.write_text(path.read_text().replace(old, new))
    (point,) = open_points(project)
    assert says in point


def test_the_tests_of_the_wheel_are_there():
    assert all((ROOT / Path(name)).is_file() for name in TESTS)


@pytest.mark.slow
def test_the_tests_of_the_wheel_need_nothing_that_is_not_copied():
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('benchmarks', 'docs', 'examples'), None)); import pytest;"
        "sys.exit(pytest.main(['--collect-only', '-q', '-W', 'default', '-p', 'no:cacheprovider', *sys.argv[1:]]))"
    )
    done = subprocess.run([sys.executable, "-c", code, *TESTS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
