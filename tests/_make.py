"""What many tests make: rows, references, witnesses of rows."""

import torch

from tm_bandit.functional import FrechetBasis
from tm_bandit.functional.crossfit import FOLDS, fold_numbers
from tm_bandit.functional.witness_is import uniform_prior
from tm_bandit.metrics.frechet_stream import FrechetStream
from tm_bandit.metrics.marginal_stream import MarginalSums, add_probs
from tm_bandit.metrics.row_log import RowLog


def random_covariance(dim, generator, decay=1.0):
    """A covariance with eigenvalues that fall like a power, in random directions."""
    turn = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))[0]
    return turn @ torch.diag(torch.arange(1, dim + 1, dtype=torch.float64) ** -decay) @ turn.T


def make_basis(mean, covariance):
    """The eigenbasis of a reference."""
    values, vectors = torch.linalg.eigh(covariance)
    return FrechetBasis.from_eigen(mean, values.flip(0).clamp_min(0), vectors.flip(1))


def gaussian_rows(count, mean, covariance, generator):
    """Rows of a Gaussian."""
    root = torch.linalg.cholesky(covariance)
    return torch.randn(count, len(mean), generator=generator, dtype=torch.float64) @ root.T + mean


class Streamed:
    """Rows that grow, with their witness scores."""

    def __init__(self, basis, rows=None, settled=None, **options):
        self.log = RowLog(folded=settled)
        self.stream = FrechetStream(basis, **options)
        if rows is not None:
            self.extend(rows)

    def extend(self, rows):
        self.log.append(rows)

    def summary(self):
        return self.stream.summary(self.log)

    def scores(self):
        return self.stream.scores(self.log)


def class_probs(count, classes=20, sharpness=5.0, seed=0):
    """Class probabilities of a classifier that is rather sure."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, classes, generator=generator, dtype=torch.float64)
    logits[torch.arange(count), torch.randint(classes, (count,), generator=generator)] += sharpness
    return logits.softmax(-1)


def fold_sums(probs, folds=FOLDS):
    """Sums of the probabilities, and numbers of samples, per fold."""
    parts = [probs[fold_numbers(0, len(probs)) % folds == fold] for fold in range(folds)]
    return torch.stack([part.sum(0) for part in parts]), torch.tensor([float(len(part)) for part in parts]).double()


def marginal_sums(probs, batch=None, priors=None):
    """What the witness of the Inception Score remembers of samples."""
    classes = probs.shape[1]
    sums = MarginalSums.empty(classes)
    for part in probs.split(batch or len(probs)):
        sums = add_probs(sums, part, uniform_prior(classes) if priors is None else priors)
    return sums
