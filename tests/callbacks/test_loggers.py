"""Loggers as they are, offline: each gets the scalars, the table, the plot and samples of the best arm."""

import io
import json
import os

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger
from PIL import Image

from tests.callbacks.models import DIM, Gen, bandit, fid, fit

#: Twelve samples of 2 x 2 pixels, in two lines of six with two pixels between them.
SHEET = (22, 6)


class Painter(Gen):
    """A generator whose samples are grey images of 2 x 2 pixels."""

    def sample(self, num_samples, scale=1.0):
        return super().sample(num_samples, scale).reshape(num_samples, 1, 2, 2)


class Flat(torch.nn.Module):
    num_features = DIM

    def forward(self, images):
        return images.flatten(1)


def train(tmp_path, logger):
    metric = fid()
    callback = bandit(tmp_path / "arms", type(metric)(feature=Flat(), reference=metric.reference, bound="authors"))
    fit(tmp_path, callback, module=Painter, logger=logger)
    assert callback.best_arm in callback.result.pictures
    return callback


def assert_plot(file):
    with Image.open(file) as picture:
        assert picture.size[0] > 500


def assert_sheet(file):
    with Image.open(file) as opened:
        picture = opened.convert("RGB")
    assert picture.size == SHEET
    assert len(np.unique(np.asarray(picture))) > 10


def test_csv(tmp_path):
    train(tmp_path, CSVLogger(tmp_path, "csv"))
    assert_sheet(tmp_path / "csv" / "version_0" / "bandit_samples.png")


def test_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    callback = train(tmp_path, TensorBoardLogger(tmp_path, "tb"))
    events = EventAccumulator(str(tmp_path / "tb" / "version_0"))
    events.Reload()
    assert events.Scalars("bandit/best")[-1].value == pytest.approx(callback.best_model_score.item())
    text = events.Tensors("bandit/selection/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert f"**{callback.best_arm}**" in text
    assert len(events.Images("bandit/selection")) == 1
    (samples,) = events.Images("bandit/samples")
    assert_sheet(io.BytesIO(samples.encoded_image_string))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # MLflow, of its own file store
def test_mlflow(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    logger = MLFlowLogger("digits", tracking_uri=(tmp_path / "mlruns").as_uri())
    callback = train(tmp_path, logger)
    run = logger.experiment.get_run(logger.run_id)
    assert run.data.metrics["bandit/best"] == pytest.approx(callback.best_model_score.item())
    (artifacts,) = (tmp_path / "mlruns").glob(f"*/{logger.run_id}/artifacts")
    assert f"**{callback.best_arm}**" in (artifacts / "bandit.md").read_text()
    assert_plot(artifacts / "bandit.png")
    assert_sheet(artifacts / "bandit_samples.png")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_wandb_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = WandbLogger("run", save_dir=tmp_path, offline=True, project="digits")
    try:
        callback = train(tmp_path, logger)
        summary = dict(logger.experiment.summary)
    finally:
        wandb.finish()
    assert summary["bandit/best"] == pytest.approx(callback.best_model_score.item())
    (media,) = tmp_path.glob("wandb/offline-run-*/files/media")
    tables = sorted(media.glob("table/bandit/selection_*.table.json"), key=os.path.getmtime)
    assert json.loads(tables[-1].read_text())["data"][0][0] == callback.best_arm
    (plot,) = media.glob("images/bandit/selection_plot_*.png")
    assert_plot(plot)
    (samples,) = media.glob("images/bandit/samples_*.png")
    assert_sheet(samples)
