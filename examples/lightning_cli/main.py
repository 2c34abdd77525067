"""Everything from YAML: LightningCLI builds the model, the data, the metric and the callback from `config.yaml`.

Run it in its own folder; any value can be changed on the command line, as always with LightningCLI:

    cd examples/lightning_cli
    python main.py fit --config config.yaml --trainer.max_epochs 20
"""

import torch
from lightning.pytorch.cli import LightningCLI
from torch import Tensor, nn

from tm_bandit.demo.digits import load_digits, train_classifier
from tm_bandit.demo.flow import DigitFlow, DigitsData


class TrainedClassifier(nn.Module):
    """The feature network of the metric, named in the YAML file: a classifier that is trained when it is built."""

    def __init__(self, steps: int = 600):
        super().__init__()
        self.classifier = train_classifier(load_digits(), steps=steps)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(images)


if __name__ == "__main__":
    torch.set_num_threads(1)  # a small network: on a busy machine, threads would wait for each other
    cli = LightningCLI(DigitFlow, DigitsData, save_config_callback=None)
    bandit = cli.trainer.checkpoint_callbacks[0]
    print(bandit.result)
    print(f"\nbest: {bandit.best_arm}, in {bandit.best_model_path}")
