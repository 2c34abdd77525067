"""The data of the demo and the small classifier whose features and probabilities score the generated digits."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tm_bandit._guards import preserved_rng

#: Width of the classifier's last hidden layer: the dimension of the Frechet distance in the demo.
NUM_FEATURES = 64
NUM_CLASSES = 10


class Digits(NamedTuple):
    """scikit-learn's handwritten digits (8 x 8), split at random; pixels are in ``[0, 1]``."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    @property
    def images(self) -> Tensor:
        """All images, training ones first."""
        return torch.cat([self.train_images, self.test_images])


def load_digits(seed: int = 0, num_test: int = 397) -> Digits:
    """Load the 1,797 digits that ship with scikit-learn (nothing is downloaded).

    Args:
        seed: shuffles the split.
        num_test: how many images are held out.
    """
    from sklearn.datasets import load_digits as sklearn_digits

    bunch = sklearn_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(bunch.target, dtype=torch.long)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    train, test = order[num_test:], order[:num_test]
    return Digits(images[train], labels[train], images[test], labels[test])


class DigitClassifier(nn.Module):
    """A convolutional network of 34,000 weights; calling it gives the features of its last hidden layer.

    So the module itself is a valid ``feature=`` of ``OptimisticFID``; :class:`Logits` is the one of
    ``OptimisticIS``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(32, 32, 3, stride=2, padding=1),
            nn.SiLU(),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, NUM_FEATURES),
            nn.SiLU(),
        )
        self.head = nn.Linear(NUM_FEATURES, NUM_CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Return features of shape ``(N, 64)``."""
        features: Tensor = self.body(2 * images - 1)
        return features

    def accuracy(self, images: Tensor, labels: Tensor) -> float:
        """Share of ``images`` that are recognised."""
        with torch.no_grad():
            return float((self.head(self(images)).argmax(1) == labels).float().mean())


class Logits(nn.Module):
    """The classifier with its last layer, for the Inception Score."""

    def __init__(self, classifier: DigitClassifier) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of shape ``(N, 10)``."""
        logits: Tensor = self.classifier.head(self.classifier(images))
        return logits


def train_classifier(digits: Digits, seed: int = 0, steps: int = 600) -> DigitClassifier:
    """Train the classifier on the training split: a few seconds on one core.

    Args:
        digits: the data.
        seed: for the initial weights and the batches; the global random state is left as it was.
        steps: number of batches of 128.
    """
    with preserved_rng(seed):
        net = DigitClassifier()
        optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-2)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
        for _ in range(steps):
            batch = torch.randint(len(digits.train_images), (128,))
            images = _shifted(digits.train_images[batch])
            loss = F.cross_entropy(net.head(net(images)), digits.train_labels[batch], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return net.eval().requires_grad_(False)


def _shifted(images: Tensor) -> Tensor:
    """Move all images of a batch by up to one pixel: without it the held-out accuracy is about one per cent lower."""
    padded = F.pad(images, (1, 1, 1, 1))
    top, left = (int(v) for v in torch.randint(3, (2,)))
    return padded[:, :, top : top + 8, left : left + 8]
