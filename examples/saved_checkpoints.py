"""Training is over: which of its .ckpt files is the best?
=======================================================

``ModelSelector.from_checkpoints`` makes each file an arm. Weights are read one file at a time, so a folder of large
checkpoints needs the memory of one::

    python examples/saved_checkpoints.py [--fast]
"""

import argparse
import tempfile
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from tm_bandit import ModelSelector, OptimisticFID, ReferenceStatistics, SelectionResult
from tm_bandit.demo.digits import train_classifier
from tm_bandit.demo.flow import DigitFlow, DigitsData


def train(data: DigitsData, folder: Path, epochs: int, every: int) -> None:
    """An ordinary training run that keeps a checkpoint now and then and knows nothing about this package."""
    pl.seed_everything(0, verbose=False)
    trainer = pl.Trainer(
        max_epochs=epochs,
        callbacks=[ModelCheckpoint(folder, filename="{epoch}", every_n_epochs=every, save_top_k=-1)],
        limit_val_batches=0,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(DigitFlow(cycle=250), data)


def main(fast: bool) -> SelectionResult:
    data = DigitsData()
    classifier = train_classifier(data.digits, steps=100 if fast else 600)
    fid = OptimisticFID(
        feature=classifier, reference=ReferenceStatistics.from_features(classifier(data.digits.images)), normalize=True
    )
    with tempfile.TemporaryDirectory() as folder:
        train(data, Path(folder), epochs=4 if fast else 90, every=1 if fast else 15)
        print("files:", ", ".join(sorted(path.name for path in Path(folder).glob("*.ckpt"))))
        selector = ModelSelector.from_checkpoints(
            folder, DigitFlow, metric=fid, batch_size=20, budget=200 if fast else 1500, goal="identify"
        )
        result = selector.run(progress=False)
        print(result)
        print(f"\nbest: {result.best} ({result.status})")
    return result


if __name__ == "__main__":
    torch.set_num_threads(1)  # a small network: on a busy machine, threads would wait for each other
    parser = argparse.ArgumentParser()
    parser.add_argument("--fast", action="store_true", help="a short run, as in the tests")
    result = main(**vars(parser.parse_known_args()[0]))  # a notebook has its own arguments
