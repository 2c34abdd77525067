"""``tm-bandit stats``: the numbers are right, whatever the source; bad input leaves nothing behind."""

import json

import numpy as np
import pytest

from tests._pictures import pictures, save_pictures
from tests.cli.parts import assert_refused, pooled
from tm_bandit import ReferenceStatistics


@pytest.fixture(scope="module")
def expected():
    rows = pooled(pictures(0, 300, 0))
    return rows.mean(axis=0), np.cov(rows, rowvar=False)


@pytest.mark.parametrize(
    "words",
    [
        "real --feature cli_parts:pool --workers 0",
        "real --feature cli_parts:Pool --workers 2 --batch-size 7",
        "real_images.npz --feature cli_parts:pool",
        "real.npy",
        "real.npy --feature none",
    ],
)
def test_every_source_gives_the_same_statistics(run, expected, words):
    outcome = run("stats", words, "-o ref.npz --json")
    assert outcome.code == 0, outcome.err
    with np.load("ref.npz") as stored:
        np.testing.assert_allclose(stored["mu"], expected[0], rtol=1e-12)
        np.testing.assert_allclose(stored["sigma"], expected[1], rtol=1e-9, atol=1e-15)
    summary = json.loads(outcome.out)
    assert (summary["num_samples"], summary["num_features"], summary["unreadable"]) == (300, 12, 0)


def test_the_extractor_is_recorded_for_images_only(run):
    run("stats real -o images.npz --feature cli_parts:pool --workers 0")
    run("stats real.npy -o features.npz")
    assert ReferenceStatistics.load("images.npz").extractor == "callable:pool"
    assert ReferenceStatistics.load("features.npz").extractor is None


def test_plain_lines_without_a_terminal_and_silence_on_request(run):
    loud = run("stats real.npy -o ref.npz")
    assert "300 of 300 samples" in loud.err
    assert "\r" not in loud.err
    assert "num_samples: 300" in loud.out
    assert run("stats real.npy -o ref.npz --quiet").err == ""


def test_unreadable_files_stop_the_command_or_are_counted(run, here):
    images = pictures(5, 40, 0)
    save_pictures(here / "mixed", images)
    whole = (here / "mixed" / "0007.png").read_bytes()
    (here / "mixed" / "0007.png").write_bytes(whole[:-60])  # the header is fine, the pixels are cut off
    (here / "mixed" / "0011.png").write_text("no picture")
    command = "stats mixed -o ref.npz --feature cli_parts:pool --workers 0"
    assert_refused(run(command), "0011.png", "--skip-unreadable")
    (here / "mixed" / "0011.png").unlink()
    assert_refused(run(command), "0007.png")
    assert not (here / "ref.npz").exists()
    (here / "mixed" / "0011.png").write_text("no picture")
    outcome = run(command, "--skip-unreadable --json")
    assert json.loads(outcome.out)["unreadable"] == 2
    assert "2 unreadable files" in outcome.err
    kept = pooled(np.delete(images, [7, 11], axis=0))
    np.testing.assert_allclose(np.load("ref.npz")["mu"], kept.mean(axis=0), rtol=1e-12)


def test_resize_brings_mixed_sizes_together(run, here):
    save_pictures(here / "sizes", pictures(1, 30, 0))
    save_pictures(here / "sizes" / "large", pictures(2, 3, 0, size=16))
    command = "stats sizes -o ref.npz --feature cli_parts:pool --workers 0"
    assert_refused(run(command), "8x8 and 16x16", "large", "--resize")
    assert run(command, "--resize 8").code == 0


def test_a_singular_covariance_is_said(run):
    np.save("few.npy", np.random.default_rng(0).normal(size=(5, 12)))
    outcome = run("stats few.npy -o ref.npz")
    assert outcome.code == 0
    assert "singular" in outcome.err


def test_statistics_are_converted_between_formats(run, expected):
    run("stats real.npy -o ref.npz")
    assert run("stats ref.npz -o ref.pt").code == 0
    assert run("stats ref.pt -o back.npz").code == 0
    np.testing.assert_array_equal(np.load("back.npz")["sigma"], np.load("ref.npz")["sigma"])


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("nowhere -o ref.npz", ["nowhere", "does not exist"]),
        ("empty -o ref.npz", ["empty"]),
        ("cli_parts.py -o ref.npz", ["cli_parts.py"]),
        ("real.npy -o ref.txt", ["ref.txt", ".npz"]),
        ("real.npy -o missing/ref.npz", ["missing"]),
        ("keys.npz -o keys.npz --key left", ["keys.npz", "inputs"]),
        ("real_images.npz -o ref.npz --feature cli_parts:pool --normalize", ["real_images.npz", "normalize"]),
        ("real.npy -o ref.npz --feature cli_parts:pool", ["real.npy", "--feature none"]),
        ("real -o ref.npz --feature cli_parts:nothing", ["cli_parts:nothing"]),
        ("real -o ref.npz --feature no_such_module:pool", ["no_such_module"]),
        ("real -o ref.npz --feature cli_parts:NeedsArguments", ["cli_parts:NeedsArguments"]),
        ("real -o ref.npz --feature cli_parts:number", ["cli_parts:number"]),
        ("real -o ref.npz --feature nonsense", ["nonsense"]),
        ("real -o ref.npz --feature none", ["real", "none"]),
        ("real -o ref.npz --feature cli_parts:pool --device nonsense", ["nonsense"]),
        ("real -o ref.npz --weights nowhere.pth", ["nowhere.pth"]),
        ("nan.npy -o ref.npz", ["nan.npy"]),
        ("one.npy -o ref.npz", ["one.npy"]),
        ("keys.npz -o ref.npz", ["keys.npz", "left, right"]),
        ("keys.npz -o ref.npz --key middle", ["keys.npz", "middle"]),
        ("real.npy", ["-o/--output"]),
        ("real.npy -o ref.npz --workers -1", ["at least 0"]),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(run, here, words, names):
    (here / "empty").mkdir()
    np.save("nan.npy", np.full((5, 3), np.nan))
    np.save("one.npy", np.ones((1, 3)))
    np.savez("keys.npz", left=np.ones((5, 3)), right=np.ones((5, 3)))
    before = set(here.iterdir())
    assert_refused(run("stats", words), *names)
    assert set(here.iterdir()) == before
