"""A dataset from `diagnose` in a few lines of text."""

from __future__ import annotations

__all__ = ["summary"]

import numpy as np
import xarray as xr

from equipoise.wording import STAYS, roughly


def summary(ds: xr.Dataset) -> str:
    """The verdict table of a dataset from `diagnose`, one line a member, to print.

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
        >>> print(summary(ds).splitlines()[0])
        member   verdict                 coverage AUC      log posterior    information   balance g
    """
    rows = ["member   verdict                 coverage AUC      log posterior    information   balance g"]
    for m in map(str, ds["member"].values):
        one = ds.sel(member=m)
        names = ("coverage_auc", "nominal_log_prob", "balance_signed")
        (area, area_se), (nominal, nominal_se), (g, g_se) = ((float(one[v]), float(one[v + "_se"])) for v in names)
        kept = float(one["information_kept"])
        rows.append(
            f"{m:<8} {one['verdict'].item():<23} {area:+.3f} ± {area_se:.3f}   {nominal:+7.2f} ± {nominal_se:.2f}   "
            + (f"{kept:11.2f}" if np.isfinite(kept) else " " * 10 + "–")
            + (f"   {g:+.3f} ± {g_se:.3f}" if np.isfinite(g) else "   –")
        )
        more = float(one["pairs_to_settle"])
        if 0 < more < np.inf:
            rows[-1] += f"   ({roughly(more, ds.attrs['pairs'])} more pairs would settle it {STAYS})"
    allowed = f"certified conservative allows {float(ds['delta']):g} below the level"
    rows.append(f"{ds.attrs['pairs']} pairs; {ds.attrs['ranks']}; {allowed}")
    return "\n".join(rows + [f"note: {note}" for note in ds.attrs["notes"].splitlines() if note])
