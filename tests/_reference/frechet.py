"""Second, plain versions of every formula about the Frechet distance; numpy, scipy and mpmath only."""

from __future__ import annotations

import mpmath
import numpy as np
import scipy.linalg


def distance(rows, mu, sigma, ddof=1):
    """Frechet distance as written in the paper, with a general matrix square root."""
    mean = rows.mean(axis=0)
    cov = np.cov(rows, rowvar=False, ddof=ddof).reshape(len(mu), len(mu))
    root = scipy.linalg.sqrtm(cov @ sigma).real
    return float(np.sum((mean - mu) ** 2) + np.trace(cov) + np.trace(sigma) - 2 * np.trace(root))


def exact_distance(rows, mu, sigma, ddof=1, digits=60):
    """Frechet distance with sixty digits, from the eigenvalues of the product of covariances."""
    with mpmath.workdps(digits):
        n, d = rows.shape
        x = mpmath.matrix(rows.tolist())
        mean = [mpmath.fsum(x[i, j] for i in range(n)) / n for j in range(d)]
        centred = mpmath.matrix(n, d)
        for i in range(n):
            for j in range(d):
                centred[i, j] = x[i, j] - mean[j]
        real = mpmath.matrix(sigma.tolist())
        real = (real + real.T) / 2
        gram = centred * real * centred.T / (n - ddof)
        gram = (gram + gram.T) / 2
        values = mpmath.eigsy(gram, eigvals_only=True)
        root = mpmath.fsum(mpmath.sqrt(value) for value in values if value > mpmath.mpf(10) ** (-digits // 2))
        gap = mpmath.fsum((m - mpmath.mpf(float(r))) ** 2 for m, r in zip(mean, mu, strict=True))
        trace = mpmath.fsum(centred[i, j] ** 2 for i in range(n) for j in range(d)) / (n - ddof)
        return float(gap + trace + mpmath.fsum(real[j, j] for j in range(d)) - 2 * root)


def distance_between_rows(real, rows):
    """Frechet distance of two sets of rows without any covariance: singular values keep all digits of small ones."""
    factors = [np.linalg.qr(part - part.mean(axis=0), mode="r") / np.sqrt(len(part) - 1) for part in (real, rows)]
    gap = np.sum((real.mean(axis=0) - rows.mean(axis=0)) ** 2)
    cross = np.linalg.svd(factors[0] @ factors[1].T, compute_uv=False).sum()
    return float(gap + sum(np.sum(factor**2) for factor in factors) - 2 * cross)


def root_trace(sigma):
    """Trace of the square root of a covariance."""
    return float(np.sqrt(np.clip(np.linalg.eigvalsh(sigma), 0, None)).sum())


def covariance(rows, ddof):
    return np.cov(rows, rowvar=False, ddof=ddof).reshape(rows.shape[1], rows.shape[1])


def bonus_paper(rows, mu, sigma, delta, kappa=1.0, printed=False):
    """Theorem 1, term by term; the corrected one has the expectation of the mean's squared error."""
    n = len(rows)
    s = covariance(rows, ddof=0)
    eigenvalues = np.linalg.eigvalsh(s)
    norm, trace = eigenvalues[-1], eigenvalues.sum()
    log6 = np.log(6 / delta)
    d_mu_sq = (np.sqrt(8 * np.sum(eigenvalues**2) * log6) + 8 * norm * log6) / n
    if not printed:
        d_mu_sq += trace / n
    d_sigma = 20 * kappa**2 * norm * np.sqrt((4 * trace / norm + np.log(3 / delta)) / n) + d_mu_sq
    gap = np.linalg.norm(rows.mean(axis=0) - mu)
    first = 2 * np.sqrt(d_mu_sq) * (np.sqrt(d_mu_sq) + gap)
    second = root_trace(sigma) * np.sqrt(8 * d_sigma)
    third = trace * np.sqrt(8 / n * log6)
    fourth = 8 * norm / n * log6
    return first + second + third + fourth


def bonus_bounded(rows, mu, sigma, delta, bound, kappa=1.0, printed=False):
    """Theorem 4, term by term."""
    n, d = rows.shape
    s = covariance(rows, ddof=0)
    norm, trace = np.linalg.norm(s, 2), np.trace(s)
    d1 = np.sqrt(2 * d * bound**2 / n * np.log(6 * d / delta) + trace / n)
    d2 = 20 * kappa**2 * norm * np.sqrt((4 * trace / norm + np.log(3 / delta)) / n) + d1**2
    gap = np.linalg.norm(rows.mean(axis=0) - mu)
    logarithm = np.log((3 if printed else 6) / delta)
    last = 4 * bound**2 * np.sqrt(logarithm / (2 * n))
    return 2 * (d1 + gap) * d1 + root_trace(sigma) * np.sqrt(8 * d2) + last


def authors_score(rows, mu, sigma, delta, kappa=1.0, threshold=0.0, naive=False):
    """What the authors' program would answer: running covariance, every constant one."""
    n, d = rows.shape
    mean, cov = np.zeros(d), np.zeros((d, d))
    for m, row in enumerate(rows, start=1):
        if m > 1:
            cov = (m - 2) / (m - 1) * cov + np.outer(row - mean, row - mean) / m
        mean = (m - 1) / m * mean + row / m
    root = scipy.linalg.sqrtm(cov @ sigma).real
    gap = np.linalg.norm(mean - mu)
    estimate = gap**2 + np.trace(cov) + np.trace(sigma) - 2 * np.trace(root)
    limit = threshold * np.sqrt(2 * np.outer(np.diag(cov), np.diag(cov)) * np.log(d) / n)
    kept = np.where(np.abs(cov) < limit, 0.0, cov)
    eigenvalues = np.linalg.eigvalsh(kept)
    norm, trace, squares = eigenvalues[-1], np.trace(kept), np.sum(eigenvalues**2)
    if naive:
        norm, trace, squares = 1.0, float(d), float(d)
    logarithm = np.log(1 / delta)
    d_mu = np.sqrt((np.sqrt(squares * logarithm) + norm * logarithm) / n)
    d_cov = kappa**2 * norm * np.sqrt((trace / norm + logarithm) / n) + d_mu**2
    bonus = d_mu * (d_mu + gap) + root_trace(sigma) * np.sqrt(d_cov)
    bonus += trace * np.sqrt(logarithm / n) + norm * logarithm / n
    return estimate - bonus
