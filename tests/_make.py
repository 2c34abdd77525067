"""What many tests make: rows, references, witnesses of rows."""

import torch

from tm_bandit import OptimisticFID, ReferenceStatistics
from tm_bandit.functional import FrechetBasis, frechet_distance
from tm_bandit.functional.crossfit import FOLDS, fold_numbers
from tm_bandit.functional.witness_is import uniform_prior
from tm_bandit.metrics.base import LOSS_FIELDS
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


def normal_rows(count, seed=0, shift=0.0, dim=3):
    """Rows of standard Gaussians, moved."""
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + shift


def softmax_probs(count, classes, sharpness=3.0, seed=0):
    """Class probabilities from Gaussian logits."""
    return (sharpness * normal_rows(count, seed, dim=classes)).softmax(dim=1)


def scaled_rows(seed, count, dim):
    """Gaussian rows whose deviations are 1, 2, 3, ..."""
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed)) * torch.arange(1.0, dim + 1)


def fed(metric, rows, batch=None):
    """Give rows to a metric, in batches if need be, and return it."""
    for part in rows.split(batch or len(rows)):
        metric.update_rows(part)
    return metric


def power_reference(scale=1.0, dim=24, rank=None):
    """A reference with eigenvalues that fall like a power, in directions that are always the same."""
    values = torch.arange(1, dim + 1, dtype=torch.float64) ** -0.7
    if rank is not None:
        values[rank:] = 0
    turn = torch.linalg.qr(torch.randn(dim, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]
    return ReferenceStatistics(torch.full((dim,), 2 * scale), scale**2 * turn @ torch.diag(values) @ turn.T)


POWER = power_reference()


def power_rows(count, scale=1.0, shift=0.3, stretch=1.3, seed=0, ref=POWER):
    """Rows of a generator that is a shifted and stretched copy of the reference."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, ref.num_features, generator=generator, dtype=torch.float64)
    root = ref.eigenvectors * ref.eigenvalues.sqrt()
    return stretch * rows @ root.T + ref.mean + shift * scale


def power_truth(shift=0.3, stretch=1.3, ref=POWER):
    """The distance of that generator."""
    return float(frechet_distance(ref.mean + shift, stretch**2 * ref.covariance, ref.mean, ref.covariance))


def filled(rows, batch=None, ref=POWER, **options):
    """A Frechet distance of rows."""
    return fed(OptimisticFID(feature="none", reference=ref, **options), rows, batch)


def all_values(metric):
    """All that a metric says, in an order in which every value is asked for after others."""
    found = [metric.losses(LOSS_FIELDS), metric.losses(["witness"])]
    return [*(v for loss in found for v in loss.values()), *map(float, (*metric.bounds(), *metric.debiased()))]
