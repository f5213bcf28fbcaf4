"""A dataset from `diagnose` in a few lines of text."""

from __future__ import annotations

__all__ = ["summary"]

from collections.abc import Sequence

import numpy as np
import xarray as xr

from equipoise.wording import STAYS, listed, roughly

from .verdicts import CERTIFIED, OVERCONFIDENT, lowest

#: Standard errors on either side of a two-sided interval of 95%.
TWO_SIDED = 1.96
#: A gain of fewer nats than this is shown as 0.00, and is none whatever its error.
LEAST_GAIN = 0.005


def summary(ds: xr.Dataset) -> str:
    """The verdict table of a dataset from `diagnose`, one line a member, to print, and what to know about it.

    A column of what is not known (the gain over a prior that was not given, the information kept without an exact
    posterior) is left out.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> import torch
        >>> from equipoise.diagnostics import diagnose
        >>> flat = torch.distributions.Uniform(torch.zeros(1), torch.ones(1))
        >>> prior = torch.distributions.Independent(flat, 1)
        >>> ds = diagnose(
        ...     lambda x: prior.expand((len(x),)),
        ...     rng.random((60, 1)).astype("float32"),
        ...     rng.random((60, 1)),
        ...     prior=prior,
        ... )
        >>> head, *_, last = summary(ds).splitlines()
        >>> print(head)
        member   verdict                  coverage AUC     log posterior   nats over prior      balance g
        >>> print(last)
        0 and mixture: the gain over the prior cannot be told from 0; as far as these pairs show, nothing was learnt
    """
    members = [str(m) for m in ds["member"].values]
    columns = [("coverage AUC", _column(ds, "coverage_auc", 3)), ("log posterior", _column(ds, "nominal_log_prob", 2))]
    columns += [("nats over prior", _column(ds, "gain", 2))]
    columns += [("information", [f"{v:.2f}" if np.isfinite(v) else "–" for v in ds["information_kept"].values])]
    columns += [("balance g", _column(ds, "balance_signed", 3))]
    verdicts = [str(v) for v in ds["verdict"].values]
    rows = [f"{m:<8} {v:<22}" for m, v in zip(["member", *members], ["verdict", *verdicts], strict=True)]
    for name, cells in columns:
        if any(c != "–" for c in cells) or name not in ("nats over prior", "information"):
            width = max(map(len, (name, *cells)))
            rows = [f"{row}   {cell:>{width}}" for row, cell in zip(rows, (name, *cells), strict=True)]
    for i, more in enumerate(ds["pairs_to_settle"].values, 1):
        if 0 < more < np.inf:
            rows[i] += f"   ({roughly(more, ds.attrs['pairs'])} more pairs would settle it {STAYS})"
    allowed = f"certified conservative allows {float(ds['delta']):g} below the level"
    rows.append(f"{ds.attrs['pairs']} pairs; {ds.attrs['ranks']}; {allowed}")
    notes = [f"note: {note}" for note in ds.attrs["notes"].splitlines() if note]
    return "\n".join([*rows, *_below(ds, members, verdicts), *notes, *_learnt(ds, members, verdicts)])


def _column(ds: xr.Dataset, name: str, digits: int) -> list[str]:
    """Each member's value and its standard error; a dash where it is not known."""
    pairs = zip(ds[name].values, ds[name + "_se"].values, strict=True)
    # Adding 0 makes a plus of the sign of -0.
    return [f"{round(v, digits) + 0:+.{digits}f} ± {e:.{digits}f}" if not np.isnan(v) else "–" for v, e in pairs]


def _below(ds: xr.Dataset, members: Sequence[str], verdicts: Sequence[str]) -> list[str]:
    """Where those that are overconfident are so."""
    told = []
    for i, (member, verdict) in enumerate(zip(members, verdicts, strict=True)):
        if verdict == OVERCONFIDENT:
            level, coverage = (float(v) for v in lowest(ds["rank"].values[i]))
            # As many digits as tell the level from 1, and the coverage from the level.
            digits = int(np.clip(-np.floor(np.log10(min(1 - level, level - coverage))), 2, 6))
            words = f"coverage {coverage:.{digits}f}, {level - coverage:.{digits}f} below"
            told.append(f"{member} at level {level:.{digits}f} ({words})")
    return ["where coverage is furthest below its level, measured by its noise: " + ", ".join(told)] if told else []


def _learnt(ds: xr.Dataset, members: Sequence[str], verdicts: Sequence[str]) -> list[str]:
    """Which members say no more about the truth than the prior does, or less."""
    gain, error = ds["gain"].values, np.nan_to_num(ds["gain_se"].values)
    nothing = abs(gain) <= np.maximum(TWO_SIDED * error, LEAST_GAIN)  # false where the gain is not known
    told = []
    if nothing.any():
        named = [m for m, n in zip(members, nothing, strict=True) if n]
        text = (
            f"{listed(named)}: the gain over the prior cannot be told from 0; as far as these pairs show, nothing was "
            "learnt"
        )
        if any(n and v == CERTIFIED for n, v in zip(nothing, verdicts, strict=True)):
            text += f" (the prior itself is conservative: {CERTIFIED} says no more than that here)"
        told.append(text)
    if (worse := (gain < 0) & ~nothing).any():
        named = [m for m, w in zip(members, worse, strict=True) if w]
        told.append(f"{listed(named)}: says less about the true parameters than the prior does")
    return told
