"""Priors and marginals that several test files share."""

from __future__ import annotations

import math

import numpy as np
import scipy.stats
import torch
import torch.distributions as td

import equipoise as eq
from equipoise.priors import Prior

# Each marginal in float64 beside scipy's version of the same distribution.
MARGINALS = {
    "normal": (td.Normal, (1.5, 2.0), scipy.stats.norm(1.5, 2.0)),
    "uniform": (td.Uniform, (-2.0, 5.0), scipy.stats.uniform(-2.0, 7.0)),
    "gamma": (td.Gamma, (2.0, 3.0), scipy.stats.gamma(2.0, scale=1 / 3.0)),  # no icdf in torch
    "steep_gamma": (td.Gamma, (0.3, 1.0), scipy.stats.gamma(0.3)),
    "log_normal": (td.LogNormal, (0.5, 0.7), scipy.stats.lognorm(0.7, scale=math.exp(0.5))),
    "exponential": (td.Exponential, (2.0,), scipy.stats.expon(scale=0.5)),
    "laplace": (td.Laplace, (-1.0, 0.5), scipy.stats.laplace(-1.0, 0.5)),
    "cauchy": (td.Cauchy, (0.0, 1.0), scipy.stats.cauchy()),
    "half_normal": (td.HalfNormal, (1.3,), scipy.stats.halfnorm(scale=1.3)),
    "inverse_gamma": (td.InverseGamma, (3.0, 2.0), scipy.stats.invgamma(3.0, scale=2.0)),  # no icdf in torch
    "chi2": (td.Chi2, (4.0,), scipy.stats.chi2(4.0)),
    "pareto": (td.Pareto, (1.0, 3.0), scipy.stats.pareto(3.0)),
    "gumbel": (td.Gumbel, (0.0, 1.0), scipy.stats.gumbel_r()),
    "log_uniform": (eq.LogUniform, (0.001, 10.0), scipy.stats.loguniform(0.001, 10.0)),
    "beta": (td.Beta, (2.0, 5.0), scipy.stats.beta(2.0, 5.0)),  # from here on no cdf in torch
    "steep_beta": (td.Beta, (0.5, 2.0), scipy.stats.beta(0.5, 2.0)),
    "student_t": (td.StudentT, (3.0, 1.0, 2.0), scipy.stats.t(3.0, 1.0, 2.0)),
    "fisher": (td.FisherSnedecor, (3.0, 6.0), scipy.stats.f(3.0, 6.0)),
}


def make(name: str, dtype: torch.dtype = torch.float64) -> td.Distribution:
    cls, arguments, _ = MARGINALS[name]
    return cls(*(torch.tensor(a, dtype=dtype) for a in arguments))


def mixture(dtype: torch.dtype = torch.float64) -> td.Distribution:
    """A bimodal marginal, whose quantile Newton alone would not find."""
    parts = td.Normal(torch.tensor([-20.0, 30.0], dtype=dtype), torch.tensor([1.0, 0.5], dtype=dtype))
    return td.MixtureSameFamily(td.Categorical(torch.tensor([0.3, 0.7], dtype=dtype)), parts)


def priors(dtype: torch.dtype = torch.float32) -> dict[str, Prior]:
    corner = torch.tensor([-3.0, 100.0], dtype=dtype)
    covariance = torch.tensor([[2.0, 0.6], [0.6, 0.5]], dtype=dtype)
    return {
        "box": eq.BoxUniform(corner, torch.tensor([3.0, 200.0], dtype=dtype)),
        "independent": eq.IndependentPrior([make(name, dtype) for name in MARGINALS]),
        "gaussian": eq.GaussianPrior(torch.tensor([1.0, -2.0], dtype=dtype), covariance),
    }


NAMES = list(priors())


class Scripted:
    """A prior with no more than `sample` and `log_prob`, in NumPy: uniform on the triangle 0 < b < a < 1."""

    def sample(self, shape: tuple[int, ...] = ()) -> np.ndarray:
        rng = np.random.default_rng(0)
        return np.sort(rng.random((*shape, 2)), axis=-1)[..., ::-1].copy()

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        a, b = theta[..., 0], theta[..., 1]
        return torch.where((b > 0) & (b < a) & (a < 1), math.log(2.0), -math.inf)
