"""``tm-bandit select``: every kind of arm, the outputs, running out of samples, and the ways a run can fail."""

import importlib
import json

import numpy as np
import pytest

from tests._pictures import pictures, save_pictures
from tests.cli.parts import assert_refused, pooled, save_checkpoint
from tm_bandit import SelectionResult
from tm_bandit.data import ImageFolder, SourceSampler
from tm_bandit.data import images as image_files

FOLDERS = "select --reference ref.npz --feature cli_parts:pool --arm near=near --arm mid=mid --arm far=far"
#: With this goal the whole budget is spent, so that arms run out.
TWO = "select --reference ref.npz --feature cli_parts:pool --batch-size 10 --goal regret --arm far=far"
SHORT = "--budget 240 --batch-size 10"
FILES = "--arm near=near --arm mid=mid"


@pytest.fixture
def parts(run, here, monkeypatch):
    """The user's module, imported as the command imports it."""
    monkeypatch.syspath_prepend(str(here))
    module = importlib.import_module("cli_parts")
    module.embedded.clear()
    return module


def test_folders_are_ranked_and_only_pulled_images_are_decoded_and_embedded(run, reference, parts, monkeypatch):
    decoded = []
    decode = image_files.decode_image

    def spy(path, *options):
        decoded.append(path)
        return decode(path, *options)

    monkeypatch.setattr(image_files, "decode_image", spy)
    parts.embedded.clear()
    outcome = run(FOLDERS, SHORT, "--goal regret --json result.json")
    assert outcome.code == 0, outcome.err
    result = SelectionResult.from_json("result.json")
    assert result.best == "near"
    assert result.total_samples == 240
    assert result.num_samples["near"] > result.num_samples["far"]
    assert len(decoded) == len(set(decoded)) == sum(parts.embedded) == 240


def test_the_table_goes_to_standard_output_and_progress_to_standard_error(run, reference):
    outcome = run(FOLDERS, SHORT, "--goal regret")
    assert [line.split()[0] for line in outcome.out.splitlines()[:2]] == ["arm", "near"]
    assert "240 of 240 samples" in outcome.err
    assert "\r" not in outcome.err
    assert run(FOLDERS, SHORT, "--quiet").err == ""


def test_a_run_ends_when_the_best_arm_is_likely_found(run, reference):
    outcome = run(FOLDERS, "--budget 450 --batch-size 10 --json r.json")
    result = SelectionResult.from_json("r.json")
    assert (result.best, result.status, result.stopped_by) == ("near", "likely", "stop")
    assert result.total_samples <= 150
    assert {name: result.settings[name] for name in ("goal", "stop")} == {"goal": "identify", "stop": "likely"}
    header, best, *others = outcome.out.splitlines()[:4]
    assert "behind the best by" in header
    assert best.split()[0] == "near"
    assert all("[" in line and "worse (likely)" in line for line in others)
    assert json.loads(run(FOLDERS, SHORT, "--bound paper --json").out)["settings"]["stop"] == "budget"


def test_arms_that_are_one_model_are_named(run, reference):
    arms = "--arm a=cli_parts:good --arm copy=cli_parts:good --arm bad=cli_parts:bad"
    outcome = run("select --reference ref.npz --feature cli_parts:pool", arms, SHORT, "--json r.json")
    assert outcome.out.count("copy is the same model as a (identical samples).") == 1
    result = SelectionResult.from_json("r.json")
    assert (result.best, result.status, result.tied) == ("a", "tie", ["copy"])
    shown = run("report r.json --markdown").out
    assert "copy is the same model as a" in shown


@pytest.mark.parametrize(("arms", "said"), [("--arm a=cli_parts:good --arm b=cli_parts:own", True), (FILES, False)])
def test_noise_without_effect_is_said_once(run, reference, arms, said):
    outcome = run(f"select --reference ref.npz --feature cli_parts:pool {arms} --budget 200 --batch-size 10")
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("share hardly any noise") == said


def test_json_on_standard_output_is_all_there_is(run, reference):
    outcome = run(FOLDERS, SHORT, "--json")
    assert json.loads(outcome.out)["best"] == "near"


def test_the_same_seed_gives_the_same_result_and_another_seed_other_samples(run, reference):
    first, again = run(FOLDERS, SHORT, "--json").out, run(FOLDERS, SHORT, "--json").out
    other = run(FOLDERS, SHORT, "--json --seed 1").out
    assert first == again
    assert json.loads(first)["history"]["estimate"] != json.loads(other)["history"]["estimate"]


def test_every_output_is_written(run, reference, here):
    outcome = run(FOLDERS, SHORT, "--json r.json --html r.html --plot r.png")
    assert outcome.code == 0, outcome.err
    assert (here / "r.png").read_bytes().startswith(b"\x89PNG")
    assert (here / "r.html").read_text().startswith("<!doctype html>")
    assert not [path for path in here.iterdir() if ".tmp" in path.name]


@pytest.mark.parametrize("ending", ["npz", "npy"])
def test_arrays_of_images_and_of_features(run, reference, ending):
    feature = "--feature cli_parts:pool" if ending == "npz" else ""
    outcome = run(f"select --reference ref.npz {feature} --arm a=far.{ending} --arm b=near.{ending}", SHORT, "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["best"] == "b"


def test_kinds_of_arms_can_be_mixed(run, reference):
    arms = "--arm files=near --arm rows=mid.npy --arm images=cli_parts:bad --arm features=cli_parts:features"
    outcome = run("select --reference ref.npz --feature cli_parts:pool", arms, SHORT, "--json")
    assert outcome.code == 0, outcome.err
    result = json.loads(outcome.out)
    assert result["best"] in ("files", "features")
    assert {row["arm"] for row in result["arms"] if row["n"] >= 20} == {"files", "rows", "images", "features"}


def test_inception_score_of_images_and_of_probabilities(run):
    outcome = run("select --metric is --feature cli_parts:classes --arm a=near --arm b=far", SHORT, "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["higher_is_better"] is True
    eye = np.eye(4).repeat(60, axis=0)
    np.save("sharp.npy", eye)
    np.save("blurred.npy", 0.4 * eye + 0.15)
    outcome = run("select --metric is --arm blurred=blurred.npy --arm sharp=sharp.npy", SHORT, "--json")
    assert json.loads(outcome.out)["best"] == "sharp"


def test_checkpoints_are_loaded_into_the_module_that_is_named(run, reference, here):
    for name, level in (("dark", 20.0), ("right", 123.0), ("bright", 220.0)):
        save_checkpoint(f"{name}.ckpt", level)
    arms = "--arm dark=dark.ckpt --arm right=right.ckpt --arm bright=bright.ckpt --arm files=mid"
    words = f"select --reference ref.npz --feature cli_parts:pool {arms} {SHORT} --json"
    assert_refused(run(words), "dark.ckpt", "--module")
    outcome = run(words, "--module cli_parts:Painter")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["best"] == "right"
    assert_refused(run(words, "--module cli_parts:pool"), "cli_parts:pool")
    assert_refused(run(words, "--module cli_parts:Stranger"), "dark.ckpt", "cli_parts:Stranger")
    (here / "bright.ckpt").write_bytes((here / "bright.ckpt").read_bytes()[:300])
    assert_refused(run(words, "--module cli_parts:Painter"), "bright.ckpt")
    (here / "bright.ckpt").unlink()
    assert_refused(run(words, "--module cli_parts:Painter"), "bright.ckpt")


def test_the_options_reach_the_selector(run, reference):
    words = "--policy halving --stop certified --goal identify --epsilon 0.5 --delta 0.1 --bound paper --burn-in 30"
    outcome = run(FOLDERS, SHORT, words, "--json")
    assert outcome.code == 0, outcome.err
    settings = json.loads(outcome.out)["settings"]
    assert settings["policy"] == "halving"
    assert settings["algorithm"] == "SuccessiveHalving"
    assert settings["stop"] == "certified"
    assert settings["goal"] == "identify"
    assert settings["bound"] == "paper"
    assert (settings["epsilon"], settings["delta"], settings["burn_in"]) == (0.5, 0.1, 30)
    assert "rung   arms   samples per arm" in outcome.err  # halving shows its plan first


def test_paired_files_are_compared_sample_by_sample(run, reference, here):
    np.save("base.npy", pooled(pictures(5, 150, 20)))
    np.save("copy.npy", np.load("base.npy"))
    arms = "--arm base=base.npy --arm copy=copy.npy"
    words = f"select --reference ref.npz {arms} --policy uniform --json {SHORT}"
    for more, same in (("--paired", True), ("", False)):
        outcome = run(words, more)
        assert outcome.code == 0, outcome.err
        result = json.loads(outcome.out)
        assert result["settings"]["pairing"] == ("common" if same else "independent")
        one, two = (row["estimate"] for row in result["arms"])
        assert (one == two) is same
    assert_refused(run(words, "--arm few=few --feature cli_parts:pool --paired"), "--paired", "few (30)")


def test_functions_get_the_same_noise(run, reference):
    arms = "--arm one=cli_parts:good --arm two=cli_parts:good"
    words = f"select --reference ref.npz --feature cli_parts:pool {arms} --policy uniform --json {SHORT}"
    for more, same in (("", True), ("--pairing independent", False)):
        one, two = (row["estimate"] for row in json.loads(run(words, more).out)["arms"])
        assert (one == two) is same


def test_an_interrupt_before_the_first_sample_is_no_traceback(run, reference):
    arms = "--arm a=cli_parts:interrupted --arm b=cli_parts:interrupted"
    outcome = run("select --reference ref.npz --feature none", arms, SHORT)
    assert outcome.code == 1
    assert "interrupted" in outcome.err
    assert "No arm was evaluated" in outcome.out


def test_a_failing_sampler_is_taken_out_and_the_run_goes_on(run, reference):
    arms = "--arm good=cli_parts:good --arm bad=cli_parts:bad --arm broken=cli_parts:failing"
    outcome = run("select --reference ref.npz --feature cli_parts:pool", arms, SHORT, "--json")
    assert outcome.code == 0
    result = json.loads(outcome.out)
    assert result["best"] == "good"
    assert "the disk is gone" in result["retired"]["broken"]
    assert "arm broken was retired" in outcome.err


def test_a_run_in_which_every_arm_fails_is_a_failed_run(run, reference, here):
    arms = "--arm a=cli_parts:failing --arm b=cli_parts:failing"
    outcome = run("select --reference ref.npz --feature cli_parts:pool", arms, SHORT, "--json r.json")
    assert outcome.code == 1
    assert "the disk is gone" in outcome.err
    assert not (here / "r.json").exists()


def test_an_arm_that_runs_out_stays_in_the_comparison(run, reference):
    words = f"{TWO} --arm few=few --budget 170"
    outcome = run(words, "--json")
    assert outcome.code == 0, outcome.err
    assert "fewer samples than the budget of 170: far (150), few (30)" in outcome.err
    result = json.loads(outcome.out)
    assert {row["arm"]: row["n"] for row in result["arms"]} == {"few": 30, "far": 140}
    assert result["best"] == "few"
    result = json.loads(run(words, "--json --replacement").out)
    assert {row["arm"]: row["n"] for row in result["arms"]}["few"] > 30


def test_a_run_ends_when_all_arms_have_run_out(run, reference):
    words = f"{TWO} --arm few=few --budget 5000"
    result = json.loads(run(words, "--json").out)
    assert sum(row["n"] for row in result["arms"]) == 180
    assert result["stopped_by"] == "exhausted"
    assert result["status"] != "unfinished"


def test_unreadable_images_end_the_run_or_are_left_out(run, reference, here):
    save_pictures(here / "torn", pictures(7, 60, 10))
    for name in ("0003.png", "0040.png"):
        path = here / "torn" / name
        path.write_bytes(path.read_bytes()[:-60])
    words = f"{TWO} --arm torn=torn --budget 200"
    assert_refused(run(words, "--json r.json"), "torn", ".png")
    assert not (here / "r.json").exists()
    outcome = run(words, "--json --skip-unreadable")
    assert outcome.code == 0, outcome.err
    result = json.loads(outcome.out)
    assert {row["arm"]: row["n"] for row in result["arms"]}["torn"] == 50
    assert "arm torn: left out 2 unreadable files" in outcome.err


def test_an_arm_whose_last_samples_are_all_unreadable_stays_in_the_comparison(run, reference, here, parts):
    save_pictures(here / "torn", pictures(7, 40, 10))
    order = SourceSampler(ImageFolder(here / "torn"), "torn", 0)._order
    for index in order[30:]:
        path = here / "torn" / f"{index:04d}.png"
        path.write_bytes(path.read_bytes()[:-60])
    outcome = run(f"{TWO} --arm torn=torn --budget 200 --json --skip-unreadable")
    assert outcome.code == 0, outcome.err
    assert {row["arm"]: row["n"] for row in json.loads(outcome.out)["arms"]}["torn"] == 30
    assert "arm torn: left out 10 unreadable files" in outcome.err


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("--reference ref.npz --arm a=near --arm a=far", ["'a'", "near", "far"]),
        ("--reference ref.npz --arm near --arm b=far", ["NAME=PATH", "near"]),
        ("--reference ref.npz --arm a=near", ["two arms"]),
        ("--reference ref.npz --arm a=near --arm b=nowhere", ["nowhere"]),
        ("--reference ref.npz --arm a=near --arm b=empty", ["empty"]),
        ("--reference nowhere.npz --arm a=near --arm b=far", ["nowhere.npz"]),
        ("--reference near.npz --arm a=near --arm b=far", ["near.npz", "mu"]),
        ("--reference cut.npz --arm a=near --arm b=far", ["cut.npz"]),
        ("--arm a=near --arm b=far", ["--reference"]),
        ("--metric is --reference ref.npz --arm a=near --arm b=far", ["--reference"]),
        ("--reference other.npz --arm a=near --arm b=far", ["other.npz", "module:Pool"]),
        ("--reference ref.npz --arm a=near --arm b=ref.npz", ["ref.npz", "statistics"]),
        ("--reference ref.npz --arm a=near --arm b=wide.npy", ["wide.npy"]),
        ("--reference ref.npz --arm a=near --arm b=nan.npy", ["nan.npy"]),
        ("--reference ref.npz --arm a=near --arm b=tiny.npy", ["tiny.npy", "--replacement"]),
        ("--reference ref.npz --arm a=near --arm b=cli_parts:number", ["cli_parts:number"]),
        ("--reference ref.npz --arm a=near --arm b=cli_parts:nothing", ["cli_parts:nothing"]),
        ("--reference ref.npz --arm a=near --arm b=run.ckpt", ["run.ckpt", "--module"]),
        ("--reference ref.npz --arm a=near --arm b=far --module cli_parts:Pool", ["--module"]),
        ("--reference ref.npz --arm a=near --arm b=far --bound nonsense", ["nonsense"]),
        ("--reference ref.npz --arm a=near --arm b=far --policy nonsense", ["nonsense"]),
        ("--reference ref.npz --arm a=near --arm b=far --stop nonsense", ["nonsense"]),
        ("--reference ref.npz --arm a=near --arm b=far --delta 2", ["2"]),
        ("--reference ref.npz --arm a=near --arm b=far --budget 5", ["5"]),
        ("--reference ref.npz --arm a=near --arm b=far --feature none", ["near", "none"]),
        ("--reference ref.npz --arm a=near --arm b=far --normalize", ["arm a, near", "normalize"]),
        ("--reference ref.npz --arm a=near --arm b=far --json missing/r.json", ["missing"]),
        ("--reference ref.npz --arm a=near --arm b=far --plot r.doc", ["r.doc"]),
        ("--reference ref.npz --arm a=near --arm b=far --json r.json --html r.json", ["r.json"]),
        ("--reference ref.npz --arm a=near --arm b=far --json ref.npz", ["ref.npz", "inputs"]),
        ("--reference ref.npz --arm a=near --arm b=tiny.npy --html tiny.npy", ["tiny.npy", "inputs"]),
        ("--arm a=near --arm b=far --nonsense", ["--nonsense"]),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(run, reference, here, words, names):
    (here / "empty").mkdir()
    (here / "run.ckpt").write_bytes(b"")
    (here / "cut.npz").write_bytes((here / "ref.npz").read_bytes()[:400])
    np.save("wide.npy", np.ones((150, 13)))
    np.save("nan.npy", np.full((150, 12), np.nan))
    np.save("tiny.npy", np.ones((15, 12)))
    before = set(here.iterdir())
    feature = "" if "--feature" in words else "--feature cli_parts:pool"
    assert_refused(run("select --budget 100 --batch-size 10 --quiet", feature, words), *names)
    assert set(here.iterdir()) == before


def test_a_folder_is_a_reference_and_that_is_said(run, reference):
    arms = f"--feature cli_parts:pool {SHORT} --json -- near far"
    outcome = run("select --reference real", arms)
    assert outcome.code == 0, outcome.err
    assert "the reference is computed from 300 images in real with callable:pool" in outcome.err
    assert json.loads(outcome.out)["arms"] == json.loads(run("select --reference ref.npz", arms).out)["arms"]
    assert "computed" not in run("select --quiet --reference real", arms).err
    assert run("select --metric kid --reference real", arms).code == 0
    assert_refused(run("select --reference real --feature none near.npy far.npy"), "images in real")


def test_checkpoints_by_pattern(run, reference, here):
    (here / "runs").mkdir()
    for step in range(1, 29):
        save_checkpoint(here / "runs" / f"step={step}.ckpt", 8.0 * step)
    words = "select --reference ref.npz --feature cli_parts:pool --module cli_parts:Painter --budget 1500 --json --"
    outcome = run(words, "runs/*.ckpt")
    assert outcome.code == 0, outcome.err
    result = json.loads(outcome.out)
    assert [row["arm"] for row in result["arms"]] == [f"step={step}" for step in range(1, 29)]
    assert result["best"] in ("step=15", "step=16")
    assert_refused(run(words, "runs/*.pth"), "runs/*.pth")


def test_a_model_is_not_taken_for_the_place_of_the_result(run, reference, here):
    for name in ("a", "b", "c"):
        save_checkpoint(here / f"{name}.ckpt", 8.0)
    before = (here / "a.ckpt").read_bytes()
    words = "select --reference ref.npz --feature cli_parts:pool --module cli_parts:Painter --json"
    assert_refused(run(words, "a.ckpt b.ckpt c.ckpt"), "a.ckpt", "--json=FILE")
    assert (here / "a.ckpt").read_bytes() == before


def test_variants_of_checkpoints_are_arms(run, reference, here):
    save_checkpoint(here / "dark.ckpt", 60.0)
    words = f"select dark.ckpt --reference ref.npz --feature cli_parts:pool --module cli_parts:Shifted {SHORT} --json"
    outcome = run(words, '--variant plain={} --variant lit={"shift":63}')
    assert outcome.code == 0, outcome.err
    result = json.loads(outcome.out)
    assert [row["arm"] for row in result["arms"]] == ["dark/plain", "dark/lit"]
    assert result["best"] == "dark/lit"
    assert_refused(run("select near far --reference ref.npz --feature cli_parts:pool --variant a={}"), "--variant")
    assert_refused(run(words, "--variant lit=3 --variant plain={}"), "NAME=JSON")


def test_for_debugging_the_error_of_a_sampler_ends_the_run_with_its_traceback(run, reference):
    words = f"select --reference ref.npz --feature cli_parts:pool cli_parts:good cli_parts:failing {SHORT}"
    outcome = run(words, "--on-error raise")
    assert outcome.code == 1
    assert "in failing" in outcome.err
    assert outcome.err.splitlines()[-1].startswith(
        "tm-bandit: error: The arm 'failing' failed: the sampler raised OSError"
    )
    assert run(words).code == 0


def test_workers_decode(run, reference, parts, monkeypatch):
    decoded = []
    monkeypatch.setattr(image_files, "decode_image", lambda *given: decoded.append(given))
    outcome = run(FOLDERS, SHORT, "--workers 1 --json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["best"] == "near"
    assert decoded == []


def test_a_budget_may_be_a_cost_or_a_time(run, reference):
    costs = "--cost near=1 --cost mid=1 --cost far=50"
    outcome = run(FOLDERS, "--budget 3000 --batch-size 10", costs, "--json r.json")
    assert outcome.code == 0, outcome.err
    result = SelectionResult.from_json("r.json")
    assert (result.best, result.unit) == ("near", "cost")
    assert result.cost["far"] == 50 * result.num_samples["far"]
    assert "of 3,000 cost" in outcome.err
    outcome = run(FOLDERS, "--budget 1h --batch-size 10 --json t.json")
    assert outcome.code == 0, outcome.err
    result = SelectionResult.from_json("t.json")
    assert (result.best, result.unit, result.budget) == ("near", "seconds", 3600.0)
    assert all(seconds > 0 for seconds in result.cost.values())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--budget 10parsecs", "a time such as"),
        ("--budget 10.5", "`budget` to be an integer"),
        ("--cost near=1", "but got none for 'mid'"),
        ("--cost near=1 --cost mid=1 --cost far=1 --cost x=1", "'x', which is not an arm"),
        ("--cost near=-1 --cost mid=1 --cost far=1", "above 0"),
        ("--cost near", "NAME=NUMBER"),
    ],
)
def test_costs_and_times_that_cannot_be_used(run, reference, options, says):
    assert_refused(run(FOLDERS, options), says)


def test_a_function_that_fails_is_not_taken_for_a_failing_sampler(run, reference):
    metric = "select --metric cli_parts:failing --budget 100 --quiet"
    reason = "OptimisticMean cannot score the samples: OSError: the disk is gone"
    assert_refused(run(metric, FILES), reason)
    of_functions = run(metric, "--arm a=cli_parts:good --arm b=cli_parts:bad")
    assert of_functions.code == 1
    assert f"(a: {reason}; b: {reason})" in of_functions.err
    assert "the sampler raised" not in of_functions.err


def test_a_module_that_ends_the_program_is_refused(run, here):
    (here / "ending.py").write_text("raise SystemExit(3)\n")
    assert_refused(run("select --metric ending:score --budget 100", FILES), "ending", "if __name__ == '__main__':")
