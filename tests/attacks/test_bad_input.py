"""Input that makes no sense ends in one of our own errors, and changes nothing."""

import json
import math
import os
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests._make import class_probs
from tests.callbacks.models import Gen
from tests.fuzz.junk import soon
from tests.report.results import make_result
from tests.selection.toy import MeanMetric, gaussian
from tm_bandit import (
    ModelSelector,
    OptimisticFID,
    OptimisticIS,
    OptimisticKID,
    OptimisticMean,
    ReferenceStatistics,
    SelectionResult,
    policies,
)
from tm_bandit._weights_file import read_weights
from tm_bandit.callbacks import BanditCheckpoint
from tm_bandit.callbacks._folder import RunFolder, owner
from tm_bandit.callbacks._sidecar import read_sidecars
from tm_bandit.cli import main
from tm_bandit.data import ArraySource, SourceSampler, is_statistics_file, open_source
from tm_bandit.data.images import decode_image
from tm_bandit.errors import ArmError, BanditError, InputError, WeightsError
from tm_bandit.execution.conditions import Conditions
from tm_bandit.extractors import resolve
from tm_bandit.selection.watcher import Watcher


def odd_tensors():
    """Tensors of every kind that is no plain block of numbers."""
    rows = torch.rand(6, 4)
    return {
        "sparse": rows.to_sparse(),
        "csr": rows.to_sparse_csr(),
        "meta": rows.to("meta"),
        "nested": torch.nested.nested_tensor([rows, rows]),
        "jagged": torch.nested.nested_tensor([rows, rows], layout=torch.jagged),
        "float8": rows.to(torch.float8_e4m3fn),
        "quantized": torch.quantize_per_tensor(rows, 0.1, 0, torch.quint8),
        "complex": rows + 1j,
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["sparse", "csr", "meta", "nested", "jagged", "float8", "quantized", "complex"])
def test_tensors_that_are_no_plain_block_of_numbers(kind):
    odd = odd_tensors()[kind]
    fid = OptimisticFID("none", ReferenceStatistics(torch.zeros(4), torch.eye(4)))
    module = OptimisticFID(nn.Identity(), ReferenceStatistics(torch.zeros(4), torch.eye(4)))
    scores, mean = OptimisticIS("none"), OptimisticMean()
    kid = OptimisticKID("none", ReferenceStatistics.from_features(torch.rand(9, 4), keep_rows=True))
    selector = ModelSelector(fid, budget=100, batch_size=6)
    selector.add_arm("a")
    takes = (fid.update_features, module.update, scores.update_probs, fid.check_rows, scores.check_rows)
    for take in (*takes, kid.update_features, mean.update, mean.update_scores):
        with pytest.raises(InputError):
            take(odd)
    if kind != "float8":  # which a reference can be made of: it is converted, and nothing is lost
        with pytest.raises(InputError):
            ReferenceStatistics.from_features(odd)
    with pytest.raises(InputError):
        ReferenceStatistics(odd, odd)
    with pytest.raises(ArmError):
        selector.tell(selector.ask()[0], odd)
    assert {metric.num_samples for metric in (fid, module, scores, kid, mean)} == {selector.spent} == {0}
    fid.update_features(torch.rand(6, 4))
    scores.update_probs(class_probs(6))
    assert math.isfinite(fid.estimate())
    assert math.isfinite(scores.estimate())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["sparse", "meta", "nested", "quantized"])
def test_images_that_are_no_plain_block_of_numbers(kind):
    images = torch.rand(6, 3, 4, 4)
    odd = {
        "sparse": images.to_sparse(),
        "meta": images.to("meta"),
        "nested": torch.nested.nested_tensor([images, images]),
        "quantized": torch.quantize_per_tensor(images, 0.1, 0, torch.quint8),
    }[kind]
    metric = OptimisticFID(nn.Flatten(), ReferenceStatistics(torch.zeros(48), torch.eye(48)), normalize=True)
    with pytest.raises(InputError, match="dense"):
        metric.update(odd)
    assert metric.num_samples == 0


def test_complex_statistics_are_refused_not_cut():
    with pytest.raises(InputError, match="real numbers"):
        ReferenceStatistics(np.zeros(2), np.eye(2) * (1 + 1j))
    with pytest.raises(InputError, match="real numbers"):
        ReferenceStatistics.from_features(np.zeros((4, 2), dtype=complex))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "i4", "u2", "f16"])
def test_arrays_of_any_byte_order(tmp_path, order, kind):
    rows = np.arange(20).reshape(10, 2) ** 2 % 17
    reference = ReferenceStatistics.from_features(rows.astype(np.dtype(kind).newbyteorder(order)))
    np.testing.assert_allclose(reference.mean.numpy(), rows.mean(0))
    np.testing.assert_allclose(reference.covariance.numpy(), np.cov(rows.T), rtol=1e-12)
    moments = {"mu": rows.mean(0), "sigma": np.cov(rows.T)}
    np.savez(tmp_path / "r.npz", **{name: value.astype(f"{order}f8") for name, value in moments.items()})
    loaded = ReferenceStatistics.load(tmp_path / "r.npz")
    np.testing.assert_array_equal(loaded.mean.numpy(), rows.mean(0))

    kept = ReferenceStatistics(rows.mean(0), np.cov(rows.T), rows=rows.astype(np.dtype(kind).newbyteorder(order)))
    np.testing.assert_array_equal(kept.rows.values.double().numpy(), rows)


@pytest.mark.parametrize(
    "content", [{"feats": "x"}, {"feats": torch.ones(3, 2).to_sparse()}, {"feats": None}, {"x": 1}]
)
@pytest.mark.parametrize("moments", [{}, {"mu": np.zeros(2), "sigma": np.eye(2)}])
def test_rows_of_a_reference_file_that_are_none(tmp_path, content, moments):
    torch.save({**content, **moments}, tmp_path / "r.pt")
    if moments and content.get("feats") is None:
        assert ReferenceStatistics.load(tmp_path / "r.pt").rows is None
        return
    with pytest.raises(InputError):
        ReferenceStatistics.load(tmp_path / "r.pt")


@pytest.mark.parametrize("values", [10**400, None, "x", {}, [1.0, "x"], [[1], [2, 3]], 1j, [None], object()])
def test_scores_that_are_no_numbers(values):
    metric = OptimisticMean()
    with pytest.raises(InputError, match="score"):
        metric.update_scores(values)
    assert metric.num_samples == 0
    metric.update_scores([1, 2.5])
    metric.update_scores(np.array([3.0], dtype=">f8"))
    assert float(metric.estimate()) == pytest.approx(6.5 / 3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: OptimisticFID("none", kappa=10**400),
        lambda: OptimisticIS("none", num_classes=10**400),
        lambda: OptimisticIS("none", num_classes=10**15),
        lambda: OptimisticIS("none", log_scale=np.zeros(2)),
        lambda: OptimisticFID("none").use_reference("reference.npz"),
        lambda: OptimisticIS("none").load_states(None),
        lambda: OptimisticIS("none").merge_state({}),
        lambda: OptimisticIS("none").losses(3),
        lambda: ModelSelector(MeanMetric(), budget=100, epsilon=10**400),
        lambda: BanditCheckpoint(metric=OptimisticIS("none"), budget=10, batch_size=5, burn_in=np.zeros(2)),
        lambda: BanditCheckpoint(metric=OptimisticIS("none"), budget=10, batch_size=5, conditions=np.array("x")),
        lambda: OptimisticFID("none", delta=Fraction(1, 10**400)),
        lambda: OptimisticFID("none", delta=Fraction(10**400)),
        lambda: policies.UCB(index=np.array(["bound", "witness"])),
        lambda: SourceSampler(ArraySource(np.zeros((3, 2)), "rows.npy"), "\ud800"),
        lambda: SourceSampler(ArraySource(np.zeros((3, 2)), "rows.npy"), "a", seed="\ud800"),
        lambda: Conditions(dict).take(0, 2, (0,)),
        lambda: ModelSelector.from_checkpoints(np.array("a.ckpt"), Gen, OptimisticIS(nn.Identity())),
    ],
)
def test_arguments_that_no_number_and_no_object_can_be(make):
    with pytest.raises(InputError):
        make()


class Nowhere(os.PathLike):
    """A path that is none."""

    def __fspath__(self):
        return 3


@pytest.mark.parametrize("path", ["a" * 300, "a" * 300 + "/b", "a/" * 3000, Nowhere(), "a\0b", "\ud800", b"a"])
def test_a_path_that_no_file_can_have(path):
    for take in (
        lambda: ModelSelector.from_checkpoints(path, Gen, OptimisticIS(nn.Identity())),
        lambda: Watcher(path, Gen, OptimisticIS(nn.Identity())),
        lambda: Watcher(".", Gen, OptimisticIS(nn.Identity()), out=path),
        lambda: BanditCheckpoint(metric=OptimisticIS("none"), budget=10, batch_size=5, dirpath=path),
        lambda: make_result().to_html(path),
        lambda: ReferenceStatistics.load(path),
        lambda: ReferenceStatistics(torch.zeros(2), torch.eye(2)).save(path),
        lambda: OptimisticFID(2048, feature_extractor_weights_path=path),
        lambda: ArraySource.open(path),
    ):
        with pytest.raises(InputError):
            take()


def test_a_burn_in_that_no_float_can_hold():
    with pytest.raises(InputError, match="budget"):
        ModelSelector(MeanMetric(), {"a": gaussian(1.0)}, budget=100, burn_in=10**400)
    assert ModelSelector(MeanMetric(), budget=0, burn_in=2**60 + 1, batch_size=2).burn_in == 2**60 + 2


@pytest.mark.parametrize("count", ["x", 2.5, 1, -3, [3, 4], math.nan, True])
def test_a_number_of_samples_that_is_none(tmp_path, count):
    with pytest.raises(InputError, match="num_samples"):
        ReferenceStatistics(torch.zeros(2), torch.eye(2), num_samples=count)
    np.savez(tmp_path / "r.npz", mu=np.zeros(2), sigma=np.eye(2), num_samples=count)
    with pytest.raises(InputError, match="num_samples"):
        ReferenceStatistics.load(tmp_path / "r.npz")


@pytest.mark.parametrize("more", [math.nan, math.inf, 2.5, "10", None])
def test_a_budget_is_extended_by_whole_numbers_only(more):
    selector = ModelSelector(MeanMetric(), {"a": gaussian(1.0)}, budget=50, samples="features")
    with pytest.raises(InputError, match="num_samples"):
        selector.extend_budget(more)
    assert selector.budget == 50


@pytest.mark.parametrize("dirpath", [2.5, 3, [], b"\xff"])
def test_a_folder_that_is_no_path(dirpath):
    with pytest.raises(InputError, match="dirpath"):
        BanditCheckpoint(metric=OptimisticIS("none"), budget=10, batch_size=5, dirpath=dirpath)


@pytest.mark.parametrize("reason", [5, b"x", ["gone"]])
def test_a_reason_is_a_text(reason):
    selector = ModelSelector(MeanMetric(), {"a": gaussian(1.0), "b": gaussian(2.0)}, budget=100, samples="features")
    with pytest.raises(InputError, match="reason"):
        selector.retire_arm("a", reason)
    assert selector.arms == ["a", "b"]
    selector.retire_arm("a", "5")
    assert "<dd>5</dd>" in selector.run(progress=False).to_html()


@pytest.mark.parametrize("name", ["\ud800", "a" * 100_000, "a\0b", "tab\tor\nline"])
def test_names_that_no_file_and_no_page_can_hold(name):
    selector = ModelSelector(MeanMetric(), budget=100)
    with pytest.raises(InputError, match="name"):
        selector.add_arm(name)
    with pytest.raises(InputError, match="name"):
        ModelSelector(MeanMetric(), {name: gaussian(1.0)}, budget=100)
    assert selector.arms == []


def test_a_name_is_no_markdown():
    names = ["<img src=x>", "a|b", "`x`", "[x](https://example.org)", "\\<b>", "\\|"]
    selector = ModelSelector(MeanMetric(), {name: gaussian(1.0) for name in names}, budget=120, samples="features")
    text = selector.run(progress=False).to_markdown()
    shown = ["\\<img src=x>", "a\\|b", "\\`x\\`", "[x]\\(https://example.org)", "\\\\\\<b>", "\\\\\\|"]
    assert all(f" {name} |" in text or f"**{name}** |" in text for name in shown)


def test_images_without_a_network_are_no_features(tmp_path):
    wide = torch.zeros(3, 3 * 256 * 256)
    metric = OptimisticFID("none")
    with pytest.raises(InputError, match="288 GiB"):
        metric.update(wide, real=True)
    assert metric.num_features is None
    with pytest.raises(InputError, match="288 GiB"):
        ReferenceStatistics.from_features(wide)
    np.savez(tmp_path / "rows.npz", feats=wide.numpy())
    with pytest.raises(InputError, match="288 GiB"):
        ReferenceStatistics.load(tmp_path / "rows.npz")


def test_files_that_are_none_are_not_waited_for(tmp_path):
    for name in ("r.npz", "r.npy", "r.pt", "step1.ckpt", "picture.png"):
        os.mkfifo(tmp_path / name)
    with soon():
        assert not is_statistics_file(tmp_path / "r.npz")
        for read in (ReferenceStatistics.load, open_source, ArraySource.open):
            for place in (tmp_path / "r.npz", tmp_path / "r.npy", tmp_path / "r.pt", "/dev/zero"):
                with pytest.raises(InputError, match="not a regular file"):
                    read(place)
        with pytest.raises(InputError, match="not a regular file"):
            open_source(tmp_path)
        with pytest.raises(InputError, match="regular file"):
            decode_image(tmp_path / "picture.png")
        with pytest.raises(ArmError, match="not a regular file"):
            read_weights(tmp_path / "step1.ckpt")
        for network in (2048, "vgg16", "clip-vit-b-32"):
            with pytest.raises(WeightsError, match="not a regular file"):
                resolve(network, weights_path=tmp_path / "r.pt")


@pytest.mark.parametrize("name", ["watch.pt", "run.json", "stats.pt", "stats-1.pt"])
def test_a_pipe_in_the_folder_of_a_run_is_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with soon():
        if name == "watch.pt":
            (tmp_path / "runs").mkdir()
            with pytest.raises(InputError, match="not a regular file"):
                Watcher(tmp_path / "runs", Gen, OptimisticIS(nn.Identity()), out=tmp_path)
        elif name == "stats-1.pt":
            assert read_sidecars(RunFolder(tmp_path, "run")) == []
        else:
            assert owner(tmp_path) == ""


@pytest.mark.parametrize("read", [read_weights, ReferenceStatistics.load, open_source, SelectionResult.from_json])
def test_a_name_that_no_file_system_takes(read):
    with pytest.raises(BanditError):
        read("a" * 5000)


def test_results_that_cannot_be_read(tmp_path):
    (tmp_path / "picture.json").write_bytes(b"\x89PNG\xff\xfe")
    for place in ("nowhere.json", ".", "picture.json", "a\0b"):
        with pytest.raises(InputError, match="saved result"):
            SelectionResult.from_json(tmp_path / place)
    for text in ("[" * 100_000, '{"a":' * 100_000, "[1]", "{}", '{"version": "x"}', '{"version": 1, "arms": 3}'):
        with pytest.raises(InputError):
            SelectionResult.from_json(text if text[0] == "{" else written(tmp_path, text))


def written(folder, text):
    path = folder / "text.json"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "change",
    [
        {"best": "nobody"},
        {"tied": ["nobody"]},
        {"retired": {"nobody": "gone"}},
        {"arms": [{"arm": "a"}]},
        {"history": {"arm": ["nobody"]}},
        {"best": ["a"]},
        {"budget": "x"},
        {"settings": 3},
        {"metric": "\ud800"},
        {"stopped_by": "\udcff"},
    ],
)
def test_a_result_that_contradicts_itself(change):
    data = json.loads(make_result().to_json()) | change
    with pytest.raises(InputError):
        SelectionResult.from_json(json.dumps(data))


@pytest.mark.parametrize("name", ["\ud800", "a" * 100_000, "\x1b]0;title\x07", "two\nlines", ""])
def test_a_result_has_names_that_an_arm_can_have(name):
    text = make_result().to_json().replace(json.dumps(make_result().best), json.dumps(name))
    with pytest.raises(InputError):
        SelectionResult.from_json(text)


def test_what_a_result_says_besides_can_be_shown(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = json.loads(make_result().to_json()) | {"metric": "$\\frac{$", "status": "\x1b[31mred\r"}
    Path("result.json").write_text(json.dumps({**data, "settings": {**data["settings"], "\ud800": "\udcff"}}))
    for form in ("--html=page.html", "--plot=picture.png", "--json", "--markdown"):
        assert main(["report", "result.json", form]) == 0
    said = capsys.readouterr().out
    assert "\\x1b[31mred\\x0d" in said
    assert not {"\x1b", "\r"} & set(said)
