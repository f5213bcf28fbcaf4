r"""Priors, and the map between a prior and the standard normal.

A prior is a `torch.distributions.Distribution` over vectors: `event_shape == (D,)`, `sample((n,))` with shape `(n, D)`,
`log_prob(theta)` with shape `(*,)`. What Equipoise adds is in `Prior`: support checks, `.to(device)`, a description
that can be stored as JSON, and, where the marginals have cumulative distribution functions, the map

.. math:: z_j = \Phi^{-1}(F_j(\theta_j)), \qquad \theta_j = F_j^{-1}(\Phi(z_j)),

under which the prior becomes N(0, I). With it a density \(q_z(z|x)\) over z is a density over θ with

.. math:: \log \frac{q(\theta|x)}{p(\theta)} = \log q_z(z|x) - \log \varphi(z),

because \(dz_j / d\theta_j = p_j(\theta_j) / \varphi(z_j)\): the Jacobian and the prior's density cancel. Nothing else
is needed to start a flow at the prior and to keep all of its mass inside the support. `marginals` explains how the map
stays accurate in float32.

Every method works in the dtype and on the device of its argument, whatever those of the prior.

    text, conversion ► independent ► marginals ► closed_forms, scipy_marginals ► prior

`conversion` makes priors from what users bring, `text` from what they type and from what was stored. `marginals` has
the map of one parameter. `agreement` tests whether parameters were drawn from a prior.
"""

from __future__ import annotations

from .closed_forms import BoxUniform, GaussianPrior, LogUniform
from .conversion import OpaquePrior, as_prior
from .independent import IndependentPrior
from .prior import Prior
from .text import prior_from_spec

__all__ = [
    "BoxUniform",
    "GaussianPrior",
    "IndependentPrior",
    "LogUniform",
    "OpaquePrior",
    "Prior",
    "as_prior",
    "prior_from_spec",
]
