"""Loggers as they are, offline: each gets the scalars, the table, the plot and samples of the best arm."""

import csv
import io
import json
import os

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger
from PIL import Image

from tests.callbacks.models import DIM, Calm, Gen, bandit, calm_loaders, fid, fit
from tm_bandit import SelectionResult

#: Up to twelve samples of 2 x 2 pixels, in two lines of six with two pixels between them.
SHEET = (22, 6)


class Painter(Gen):
    """A generator whose samples are grey images of 2 x 2 pixels."""

    def sample(self, num_samples, scale=1.0):
        return super().sample(num_samples, scale).reshape(num_samples, 1, 2, 2)


class CalmPainter(Painter, Calm):
    """One whose training can be resumed bit by bit."""


class Flat(torch.nn.Module):
    num_features = DIM

    def forward(self, images):
        return images.flatten(1)


@pytest.fixture(params=["validation", "after"])
def evaluate(request):
    return request.param


def train(tmp_path, logger, evaluate="validation", **kwargs):
    metric = fid()
    metric = type(metric)(feature=Flat(), reference=metric.reference, bound="authors")
    callback = bandit(tmp_path / "arms", metric, evaluate=evaluate)
    fit(tmp_path, callback, module=Painter, logger=logger, **kwargs)
    assert callback.best_arm in callback.result.pictures
    return callback


def curve(callback):
    """Return the debiased scores by step, as the result has them."""
    rows = {int(row["arm"].removeprefix("step")): row["debiased"] for row in callback.result.arms}
    return [rows[step] for step in sorted(rows)]


def assert_plot(file):
    with Image.open(file) as picture:
        assert picture.size[0] > 500


def assert_sheet(file):
    with Image.open(file) as opened:
        picture = opened.convert("RGB")
    assert picture.size == SHEET
    assert len(np.unique(np.asarray(picture))) > 10


def test_csv(tmp_path, evaluate):
    callback = train(tmp_path, CSVLogger(tmp_path, "csv"), evaluate)
    folder = tmp_path / "csv" / "version_0"
    assert_sheet(folder / "bandit_samples.png")
    assert_plot(folder / "bandit.png")
    with (folder / "bandit.csv").open() as file:
        assert next(csv.DictReader(file))["arm"] == callback.best_arm
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["bandit/best"]) for row in rows if row["bandit/best"]][-1] == pytest.approx(
        callback.best_model_score.item()
    )
    scores = [float(row["bandit/raw"]) for row in rows if row["bandit/raw"]]
    assert len(scores) == 2
    if evaluate == "after":  # otherwise later validations have improved the first one
        assert scores == pytest.approx(curve(callback))


def test_tensorboard(tmp_path, evaluate):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    callback = train(tmp_path, TensorBoardLogger(tmp_path, "tb"), evaluate)
    events = EventAccumulator(str(tmp_path / "tb" / "version_0"))
    events.Reload()
    assert events.Scalars("bandit/best")[-1].value == pytest.approx(callback.best_model_score.item())
    assert [point.step for point in events.Scalars("bandit/raw")] == ([8, 16] if evaluate == "after" else [7, 15])
    text = events.Tensors("bandit/selection/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert f"**{callback.best_arm}**" in text
    assert len(events.Images("bandit/selection")) == 1
    (samples,) = events.Images("bandit/samples")
    assert_sheet(io.BytesIO(samples.encoded_image_string))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # MLflow, of its own file store
def test_mlflow(tmp_path, monkeypatch, evaluate):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    logger = MLFlowLogger("digits", tracking_uri=(tmp_path / "mlruns").as_uri())
    callback = train(tmp_path, logger, evaluate)
    run = logger.experiment.get_run(logger.run_id)
    assert run.data.metrics["bandit/best"] == pytest.approx(callback.best_model_score.item())
    assert len(logger.experiment.get_metric_history(logger.run_id, "bandit/raw")) == 2
    (artifacts,) = (tmp_path / "mlruns").glob(f"*/{logger.run_id}/artifacts")
    assert f"**{callback.best_arm}**" in (artifacts / "bandit.md").read_text()
    assert_plot(artifacts / "bandit.png")
    assert_sheet(artifacts / "bandit_samples.png")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_wandb_offline(tmp_path, monkeypatch, evaluate):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = WandbLogger("run", save_dir=tmp_path, offline=True, project="digits")
    try:
        callback = train(tmp_path, logger, evaluate)
        summary = dict(logger.experiment.summary)
    finally:
        wandb.finish()
    assert summary["bandit/best"] == pytest.approx(callback.best_model_score.item())
    assert summary["bandit/raw"] > 0
    (media,) = tmp_path.glob("wandb/offline-run-*/files/media")
    tables = sorted(media.glob("table/bandit/selection_*.table.json"), key=os.path.getmtime)
    assert json.loads(tables[-1].read_text())["data"][0][0] == callback.best_arm
    (plot,) = media.glob("images/bandit/selection_plot_*.png")
    assert_plot(plot)
    (samples,) = media.glob("images/bandit/samples_*.png")
    assert_sheet(samples)


def test_the_curve_of_averaged_weights_with_variants_is_named_after_them(tmp_path):
    metric = fid()
    metric = type(metric)(feature=Flat(), reference=metric.reference, bound="authors")
    variants = {"": {}, "wide": {"scale": 2.0}}
    callback = bandit(tmp_path / "arms", metric, evaluate="after", variants=variants)
    logger = CSVLogger(tmp_path, "csv")
    fit(tmp_path, callback, EMAWeightAveraging(decay=0.5), module=Painter, logger=logger)
    with (tmp_path / "csv" / "version_0" / "metrics.csv").open() as file:
        heads = next(csv.reader(file))
    assert {head for head in heads if head.startswith("bandit/")} == {
        "bandit/avg",
        "bandit/avg/wide",
        "bandit/best",
        "bandit/best_step",
    }


def test_the_samples_are_still_there_after_an_interruption(tmp_path):
    metric = fid()
    metric = type(metric)(feature=Flat(), reference=metric.reference, bound="authors")
    variants = {"": {}, "wide": {"scale": 2.0}}
    whole, first, second = (bandit(tmp_path / name, metric, variants=variants) for name in ("whole", "arms", "arms"))
    training = {"module": CalmPainter, "data": calm_loaders()}
    fit(tmp_path, whole, max_epochs=3, **training)
    kept = ModelCheckpoint(tmp_path / "last", save_last=True)
    fit(tmp_path, first, kept, max_epochs=2, **training)
    fit(tmp_path, second, kept, max_epochs=3, ckpt_path=tmp_path / "last" / "last.ckpt", **training)
    assert len(whole.result.pictures) == 2
    assert any(name.endswith("/wide") for name in whole.result.num_samples)
    assert second.result == whole.result
    assert SelectionResult.from_json(tmp_path / "arms" / "selection.json").pictures == whole.result.pictures
