"""Equipoise: conservative simulation-based inference.

    prior ──► simulator ──► simulations ──► training ──► posterior ──► diagnostics ──► figures
    priors    tasks         simulations     training     posteriors    diagnostics     plots
                                            networks
                                            losses
                                            methods

Data flows in one direction, and the stages exchange plain tensors. Everything that can be trained exposes
`log_ratio(theta, x)` = log q(θ|x) - log p(θ); every loss and every balance term is a function of log-ratios; a
method of the paper is a row of `METHODS`.

    >>> import equipoise as eq
    >>> task = eq.task("slcp")
    >>> pairs = eq.simulate(task.prior, task.simulate, 1024, seed=0)
    >>> pairs.theta.shape, pairs.x.shape
    (torch.Size([1024, 2]), torch.Size([1024, 8]))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .version import __version__

# Where each public name lives. The root imports nothing by itself, so that `equipoise.plots` works without torch.
_HOME = {
    "BoxUniform": "priors",
    "GaussianPrior": "priors",
    "IndependentPrior": "priors",
    "LogUniform": "priors",
    "as_prior": "priors",
    "TASKS": "tasks",
    "Task": "tasks",
    "task": "tasks",
    "Simulations": "simulations",
    "Store": "simulations",
    "read_simulations": "simulations",
    "simulate": "simulations",
    "METHODS": "methods",
    "Method": "methods",
    "Member": "training",
    "Settings": "training",
    "fit": "training",
    "fit_many": "training",
    "Posterior": "posteriors",
    "load": "posteriors",
    "calibrate": "diagnostics",
    "diagnose": "diagnostics",
    "summary": "diagnostics",
}
_MODULES = (
    "diagnostics",
    "experiments",
    "losses",
    "methods",
    "networks",
    "plots",
    "posteriors",
    "priors",
    "simulations",
    "tasks",
    "training",
)

# Names that people try, in small letters without underscores, and what to write instead.
_MARGINALS = "a prior of marginals is eq.IndependentPrior({'beta': torch.distributions.Gamma(2.0, 1.0), …})"
_INSTEAD = {
    "uniform": f"a box is eq.BoxUniform(low, high), and {_MARGINALS}",
    "normal": f"a joint normal is eq.GaussianPrior(mean, covariance), and {_MARGINALS}",
    "multivariatenormal": "write eq.GaussianPrior(mean, covariance)",
    **dict.fromkeys(("lognormal", "beta", "gamma", "exponential", "prior", "multipleindependent"), _MARGINALS),
    **dict.fromkeys(("train", "inference"), "eq.fit(pairs, prior=prior) trains a posterior"),
    **{name: f"write eq.fit(pairs, prior=prior, method='{name}')" for name in ("npe", "bnpe", "nre", "bnre")},
    "simulator": "a simulator is a function of your own: eq.simulate(prior, simulator, 2000, seed=0)",
    "sample": "write posterior.sample((1000,), x)",
    "save": "write posterior.save('model'), which eq.load('model') reads",
    **dict.fromkeys(("coverage", "sbc"), "eq.diagnose(posterior, theta, x) computes it, and eq.plots draws it"),
    **dict.fromkeys(("corner", "pairplot"), "write eq.plots.corner(posterior.to_pandas(x))"),
}

__all__ = ["__version__", *_HOME]

if TYPE_CHECKING:
    from .diagnostics import calibrate as calibrate
    from .diagnostics import diagnose as diagnose
    from .diagnostics import summary as summary
    from .methods import METHODS as METHODS
    from .methods import Method as Method
    from .posteriors import Posterior as Posterior
    from .posteriors import load as load
    from .priors import BoxUniform as BoxUniform
    from .priors import GaussianPrior as GaussianPrior
    from .priors import IndependentPrior as IndependentPrior
    from .priors import LogUniform as LogUniform
    from .priors import as_prior as as_prior
    from .simulations import Simulations as Simulations
    from .simulations import Store as Store
    from .simulations import read_simulations as read_simulations
    from .simulations import simulate as simulate
    from .tasks import TASKS as TASKS
    from .tasks import Task as Task
    from .tasks import task as task
    from .training import Member as Member
    from .training import Settings as Settings
    from .training import fit as fit
    from .training import fit_many as fit_many


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    hint = _INSTEAD.get(name.lower().replace("_", ""), "")
    raise AttributeError(f"module 'equipoise' has no attribute {name!r}{hint and '; '}{hint}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
