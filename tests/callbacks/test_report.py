"""What users see: loggers, console, progress bars, the YAML of LightningCLI."""

import csv
import logging

import pytest
import torch
import yaml
from lightning.pytorch.callbacks import ModelCheckpoint, RichProgressBar, TQDMProgressBar
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.loggers.logger import Logger
from lightning_utilities.core import rank_zero

from tests.callbacks.models import CliData, Gen, bandit, fit, reference
from tm_bandit.report.result import COLUMNS


class TableLogger(Logger):
    """A logger that offers what Weights & Biases offers."""

    name, version, save_dir = "table", 0, "."

    def __init__(self):
        super().__init__()
        self.metrics, self.tables, self.images = [], [], []

    def log_metrics(self, metrics, step=None):
        self.metrics.append((step, metrics))

    def log_hyperparams(self, *args, **kwargs):
        pass

    def log_table(self, key, columns, data):
        self.tables.append((key, columns, data))

    def log_image(self, key, images):
        self.images.append((key, images))


def test_loggers_get_scalars_a_table_and_the_plot(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    loggers = [CSVLogger(tmp_path, "csv"), TensorBoardLogger(tmp_path, "tb"), TableLogger()]
    callback = bandit(tmp_path / "arms")
    fit(tmp_path, callback, logger=loggers)

    folder = tmp_path / "csv" / "version_0"
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    assert [float(row["bandit/best_step"]) for row in rows if row.get("bandit/best_step")]
    assert float(rows[-1]["bandit/best"]) == pytest.approx(callback.best_model_score.item())
    assert len([row for row in rows if row["bandit/raw"]]) == len([row for row in rows if row["bandit/best"]])
    table = list(csv.DictReader((folder / "bandit.csv").read_text().splitlines()))
    assert tuple(table[0]) == COLUMNS
    assert table[0]["arm"] == callback.best_arm
    assert (folder / "bandit.png").read_bytes()[:4] == b"\x89PNG"

    events = EventAccumulator(str(tmp_path / "tb" / "version_0"))
    events.Reload()
    assert [round(e.value, 4) for e in events.Scalars("bandit/best")][-1] == round(callback.best_model_score.item(), 4)
    text = events.Tensors("bandit/selection/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert f"**{callback.best_arm}**" in text
    assert len(events.Images("bandit/selection")) == 1

    key, columns, data = loggers[2].tables[-1]
    assert (key, tuple(columns)) == ("bandit/selection", COLUMNS)
    assert data[0][0] == callback.best_arm
    assert len(loggers[2].tables) == 3  # two validations and the end
    assert loggers[2].images == [("bandit/selection_plot", [str(tmp_path / "arms" / "selection.png")])]


def test_one_line_per_validation(tmp_path, caplog):
    callback = bandit(tmp_path, key="gan")
    with caplog.at_level(logging.INFO, logger=rank_zero.log.name):
        fit(tmp_path, callback, max_epochs=3)
    lines = [record.message for record in caplog.records if record.message.startswith("gan: ")]
    *lines, last = lines
    assert [line.split(":")[1].strip() for line in lines] == ["step 8", "step 16", "step 24"]
    assert last == f"gan: the best arm is {callback.best_arm}, in {callback.best_model_path}"
    assert "the only arm" in lines[0]
    assert f"best {callback.best_arm}, FID {callback.best_model_score.item():.4g} [" in lines[2]
    assert "60 samples, 180 in total" in lines[2]


@pytest.mark.parametrize("bar", [TQDMProgressBar, RichProgressBar])
def test_progress_is_shown_with_the_trainers_bar(tmp_path, bar, capfd):
    class Spy(Gen):
        def sample(self, num_samples):
            shown = self.trainer.progress_bar_callback
            if self.trainer.global_step == 8 and isinstance(shown, RichProgressBar):
                seen.append([task.description for task in shown.progress.tasks if task.visible])
            return super().sample(num_samples)

    seen = []
    fit(tmp_path, bandit(tmp_path), bar(), module=Spy, enable_progress_bar=True, max_epochs=2)
    if bar is TQDMProgressBar:
        assert "bandit" in capfd.readouterr().err
    else:
        assert any(task == "bandit" for tasks in seen for task in tasks)


def test_rich_bar_is_hidden_afterwards(tmp_path):
    bar = RichProgressBar()
    left = []

    class Look(ModelCheckpoint):
        def on_validation_end(self, trainer, pl_module):
            if not trainer.sanity_checking:
                left.extend(task.description for task in bar.progress.tasks if task.visible)

    fit(tmp_path, bandit(tmp_path), bar, Look(tmp_path), enable_progress_bar=True, max_epochs=1)
    assert left
    assert not any("bandit" in task for task in left)


CONFIG = """
trainer:
  max_epochs: 1
  accelerator: cpu
  logger: false
  enable_progress_bar: false
  enable_model_summary: false
  default_root_dir: {root}
  callbacks:
    - class_path: tm_bandit.callbacks.BanditCheckpoint
      init_args:
        metric:
          class_path: tm_bandit.OptimisticFID
          init_args:
            feature:
              class_path: torch.nn.Identity
            reference: {root}/ref.npz
            bound: authors
        budget: 40
        batch_size: 10
        dirpath: {root}/arms
        variants:
          "": {{}}
          wide:
            scale: 3.0
        sampler: {sampler}
        stop: {stop}
        goal: {goal}
    - class_path: lightning.pytorch.callbacks.ModelCheckpoint
      init_args:
        dirpath: {root}/last
        save_last: true
model:
  lr: 0.1
"""


@pytest.mark.parametrize(
    ("sampler", "stop", "goal"),
    [
        ("null", "null", "identify"),
        ("sample", "budget", "regret"),
        ("tests.callbacks.models.function_sampler", "budget", "identify"),
        ("{class_path: tests.callbacks.models.ClassSampler}", "null", "regret"),
    ],
)
def test_lightning_cli_builds_it_from_yaml(tmp_path, monkeypatch, sampler, stop, goal):
    reference().save(tmp_path / "ref.npz")
    (tmp_path / "config.yaml").write_text(CONFIG.format(root=tmp_path, sampler=sampler, stop=stop, goal=goal))
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")  # about a call that Lightning makes
    monkeypatch.setattr("sys.argv", ["train.py", "fit", "--config", str(tmp_path / "config.yaml")])
    cli = LightningCLI(Gen, CliData, save_config_callback=None, seed_everything_default=7)
    callback = cli.trainer.checkpoint_callback
    assert set(callback.result.num_samples) == {"step8", "step8/wide"}
    assert (callback.stop, callback.goal) == (None if stop == "null" else stop, goal)
    assert callback.metric.reference.num_samples == 10_000
    assert torch.load(callback.best_model_path, weights_only=True)["hyper_parameters"]["lr"] == 0.1
