"""The constraints of ``make test-oldest`` are what pyproject.toml promises."""

from importlib.metadata import version

from packaging.version import Version

from tests.oldest import oldest


def test_every_bound_becomes_a_version(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[project]\ndependencies = ["torch>=2.5", "numpy>=1.26.4"]\n'
        '[project.optional-dependencies]\nplot = ["matplotlib>=3.8"]\ndemo = ["x[plot]", "scikit-learn>=1.4"]\n'
        'diffusers = ["diffusers>=0.30"]\nray = ["ray>=2.40"]\ntest = ["pytest>=8.3"]\n'
    )
    wanted = ["torch==2.5", "numpy==1.26.4", "matplotlib==3.8", "scikit-learn==1.4", "diffusers==0.30"]
    wanted += ["ray==2.40"]
    assert oldest(tmp_path / "pyproject.toml") == wanted


def test_nothing_installed_here_is_older():
    pairs = [item.split("==") for item in oldest()]
    assert len(pairs) >= 13
    assert all(Version(version(name)) >= Version(least) for name, least in pairs)
