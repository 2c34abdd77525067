r"""The Frechet distance between two Gaussians, from covariances or straight from few rows.

All routes use symmetric eigenvalue problems only. The nonzero eigenvalues of :math:`\Sigma \Sigma_r` are those of
:math:`\Sigma_r^{1/2} \Sigma \Sigma_r^{1/2}`, and with :math:`\Sigma = X^\top X / n` (centred rows) also those of the
:math:`n \times n` matrix :math:`X \Sigma_r X^\top / n`, which is far smaller with fewer rows than dimensions.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg
import torch
from scipy.linalg import blas
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
from torch import Tensor

from tm_bandit.errors import InputError

#: How much larger noise above zero may be than the noise seen below zero: a margin, as the two are alike.
_NOISE_FACTOR = 8.0

#: Up to this size the threads of scipy's LAPACK wait longer for each other than they work.
_FEW = 256
#: Up to this size a full eigenvalue call is as cheap as a few Lanczos steps.
_DENSE_LIMIT = 128


def frechet_distance(mu1: Tensor, sigma1: Tensor, mu2: Tensor, sigma2: Tensor) -> Tensor:
    r"""Compute the squared Frechet (2-Wasserstein) distance between two Gaussians.

    .. math::
        \mathrm{FD} = \|\mu_1 - \mu_2\|^2 + \mathrm{Tr}\bigl[\Sigma_1 + \Sigma_2 - 2 (\Sigma_1 \Sigma_2)^{1/2}\bigr]

    Equation (1) of the paper. Singular covariances are fine; the result is never below zero.

    Args:
        mu1: mean of the first, shape ``(d,)``.
        sigma1: covariance of the first, shape ``(d, d)``.
        mu2: mean of the second.
        sigma2: covariance of the second.

    Raises:
        InputError: if the shapes do not fit together.

    Example:
        >>> import torch
        >>> from tm_bandit.functional import frechet_distance
        >>> frechet_distance(torch.zeros(2), torch.eye(2), torch.ones(2), 4 * torch.eye(2))
        tensor(4., dtype=torch.float64)
    """
    dim = mu1.shape[-1]
    if mu1.shape != (dim,) or mu2.shape != (dim,) or sigma1.shape != (dim, dim) or sigma2.shape != (dim, dim):
        shapes = ", ".join(str(tuple(value.shape)) for value in (mu1, sigma1, mu2, sigma2))
        raise InputError(f"Expected two means of shape (d,) and two covariances of shape (d, d), but got {shapes}.")
    mu1, sigma1, mu2, sigma2 = (value.to(torch.float64) for value in (mu1, sigma1, mu2, sigma2))
    values, vectors = torch.linalg.eigh(symmetrised(sigma2))
    # Largest first, as in the metrics: small eigenvalues of the product are exact then.
    root = (vectors * clean_eigenvalues(values).sqrt()).flip(1)
    cross = sqrt_trace(root.T @ symmetrised(sigma1) @ root)
    return assemble((mu1 - mu2).square().sum(), sigma1.trace(), sigma2.trace(), cross)


def assemble(mean_gap_squared: Tensor, trace1: Tensor, trace2: Tensor, cross: Tensor) -> Tensor:
    """Put the parts of the Frechet distance together; rounding cannot make it negative."""
    return (mean_gap_squared + trace1 + trace2 - 2.0 * cross).clamp_min(0.0)


def symmetrised(matrix: Tensor) -> Tensor:
    """Return the symmetric part."""
    return (matrix + matrix.mT).mul_(0.5)


def centred_gram(gram: Tensor) -> Tensor:
    """Turn the Gram matrix of rows into that of the centred rows.

    Args:
        gram: shape ``(n, n)``, symmetric: inner products of the rows in any metric.
    """
    means = gram.mean(dim=0)
    return gram - means - means.unsqueeze(1) + means.mean()


def clean_eigenvalues(values: Tensor) -> Tensor:
    """Set eigenvalues of a covariance that may be nothing but rounding noise, perhaps of float32, to zero.

    Args:
        values: ascending eigenvalues of a positive semi-definite matrix.
    """
    if values.numel() == 0:
        return values
    noise = values[-1].clamp_min(0.0) * (values.numel() * torch.finfo(values.dtype).eps)
    noise = torch.maximum(noise, -_NOISE_FACTOR * values[0])
    return torch.where(values > noise, values, torch.zeros_like(values))


def sqrt_trace(matrix: Tensor, zero_directions: int = 0) -> Tensor:
    """Return the trace of the square root of a positive semi-definite matrix.

    The square root of rounding noise is 1e8 times the noise, so what should vanish has to vanish. But the spectrum of a
    product of covariances falls fast, and its small eigenvalues count: those of a matrix whose rows fall off alike are
    exact far below the rounding of the largest. How far the spectrum reaches below zero shows how large the noise is.

    Args:
        matrix: symmetric up to rounding, shape ``(n, n)``.
        zero_directions: how many eigenvalues are known to vanish (1 for a centred Gram matrix).
    """
    values = symmetric_eigenvalues(symmetrised(matrix))
    noise = _NOISE_FACTOR * max(-float(values.min()), 0.0) if values.numel() else 0.0
    return values[zero_directions:].where(values[zero_directions:] > noise, 0.0).sqrt().sum()


def symmetric_eigenvalues(matrix: Tensor) -> Tensor:
    """Return the eigenvalues of a symmetric matrix, ascending.

    Args:
        matrix: symmetric, finite, shape ``(n, n)``.
    """
    if matrix.device.type != "cpu" or matrix.shape[0] <= _FEW:
        values: Tensor = torch.linalg.eigvalsh(matrix)
        return values
    # scipy's LAPACK takes half of torch's time for a thousand rows on AMD processors, and the same at both ends.
    array = scipy.linalg.eigh(matrix.numpy(), eigvals_only=True, driver="evd", check_finite=False)
    return torch.from_numpy(array)


def largest_eigenvalue(matrix: Tensor) -> float:
    """Return the largest (algebraic) eigenvalue of a symmetric matrix, by Lanczos steps when it is large.

    Args:
        matrix: symmetric, shape ``(n, n)``.
    """
    size = matrix.shape[0]
    if size > _DENSE_LIMIT and matrix.device.type == "cpu":
        # A fixed start: the value must be a function of the matrix alone. Random signs are not orthogonal to anything.
        # The products stay in scipy's BLAS: its threads and numpy's would get in each other's way.
        columns = matrix.contiguous().numpy().T
        operator = LinearOperator(columns.shape, lambda vector: blas.dgemv(1.0, columns, vector), dtype=columns.dtype)
        start = np.random.default_rng(0).choice(np.array([-1.0, 1.0]), size=size)
        try:
            return float(eigsh(operator, k=1, which="LA", v0=start, tol=1e-10, return_eigenvectors=False)[0])
        except ArpackError:
            pass
    return float(symmetric_eigenvalues(matrix)[-1])
