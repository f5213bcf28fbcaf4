"""What is known of sbi's posteriors beyond `sample` and `log_prob`.

sbi's posteriors share names and not always meanings:

- `log_prob` of what is drawn by MCMC or by rejection is the potential: a log density up to a constant of x. It says so
  in a warning. Ranks compare densities at one x and need no constant; the log posterior and the balance do.
- `log_prob` of the importance sampler is normalised, by a sum over ten thousand fresh draws in every call: two calls
  for one x differ by a random constant, so that ranks take the potential, which does not.
- `reject_outside_prior=False` gives a flow's draws as they are, which is what leakage is measured from; to the
  rejection sampler it means draws of its proposal.
- `sample_batched` exists everywhere, and raises a NotImplementedError where it is not written.
"""

from __future__ import annotations

__all__ = ["BATCHES", "LEAKS", "UNNORMALISED", "explained", "is_sbi", "silent", "speaks_of"]

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

#: What a `log_prob` says that is not normalised.
UNNORMALISED = (r".*un-?normali[sz]ed", r".*not normali[sz]ed", r".*up to an? (normali[sz]ing |additive )?constant")
#: What sbi says of draws that are asked for as they are.
LEAKS = (r".*of samples drawn with reject_outside_prior=False lie outside the prior support",)
#: What sbi says of several observations at once.
BATCHES = (
    r"Note that for batched sampling, we use num_chains many chains for each x",
    r"Capping max_sampling_batch_size from \d+ to \d+",
)


def is_sbi(posterior: Any, name: str) -> bool:
    """Whether a posterior is sbi's of this class, or of one derived from it."""
    return any(c.__name__ == name and c.__module__.split(".")[0] == "sbi" for c in type(posterior).__mro__)


def speaks_of(patterns: Sequence[str], call: Callable[[], Any]) -> bool:
    """Whether a call warns of something. Its warnings are kept back: the same call comes again."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        call()
    return any(re.match(p, str(w.message), re.IGNORECASE) for w in heard for p in patterns)


@contextmanager
def silent(patterns: Sequence[str]) -> Iterator[None]:
    """Keep back exactly these warnings, because what they say is dealt with here."""
    if not patterns:
        yield
        return
    with warnings.catch_warnings():
        for pattern in patterns:
            warnings.filterwarnings("ignore", message=pattern)
        yield


@contextmanager
def explained() -> Iterator[None]:
    """A posterior that was fitted to one observation cannot be asked about others: say what can be."""
    try:
        yield
    except ValueError as error:
        if "not fit on the specified observation" not in str(error):
            raise
        raise ValueError(
            "this posterior was fitted to a single observation (sbi's VIPosterior after train()), and coverage asks "
            "for a posterior of every test observation. Fit one for all: posterior.train_amortized(theta, x), or "
            "another method"
        ) from error
