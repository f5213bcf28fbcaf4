"""A dataset from `diagnose` in a few lines of text."""

from __future__ import annotations

__all__ = ["summary"]

from collections.abc import Sequence

import numpy as np
import xarray as xr

from equipoise.support.words import STAYS, listed, roughly

from .verdicts import CERTIFIED, INCONCLUSIVE, OVERCONFIDENT, lowest

#: Standard errors on either side of a two-sided interval of 95%.
TWO_SIDED = 1.96
#: From this much mass outside the prior on, the summary speaks of it.
LEAST_LEAKAGE = 0.01
#: Methods that are certified more often than others, and know less.
CAUTIOUS = ("brnpe", "bnre")
#: A gain of fewer nats than this is shown as 0.00, and is none whatever its error.
LEAST_GAIN = 0.005


def summary(ds: xr.Dataset) -> str:
    """The verdict table of a dataset from `diagnose`, one line per member, to print, and what to know about it.

    A column of what is not known (the gain over a prior that was not given, the information kept without an exact
    posterior) is left out. Below the table it says where a curve is below its level, what leaks out of the prior and
    what was not learnt; the last lines say what to do next.

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
        >>> head, *_, learnt, last = summary(ds).splitlines()
        >>> print(head)
        member   verdict                  coverage AUC     log posterior   nats over prior      balance g
        >>> print(learnt)
        0 and mixture: the gain over the prior is indistinguishable from 0, as if nothing was learnt
    """
    members = [str(m) for m in ds["member"].values]
    columns = [("coverage AUC", _column(ds, "coverage_auc", 3)), ("log posterior", _column(ds, "nominal_log_prob", 2))]
    columns += [("nats over prior", _column(ds, "gain", 2))]
    columns += [("information", [f"{v:.2f}" if np.isfinite(v) else "–" for v in ds["information_kept"].values])]
    columns += [("balance g", _column(ds, "balance_signed", 3))]
    verdicts = [str(v) for v in ds["verdict"].values]
    rows = [f"{m:<8} {v:<22}" for m, v in zip(["member", *members], ["verdict", *verdicts], strict=True)]
    for name, cells in columns:
        if any(c != "–" for c in cells):
            width = max(map(len, (name, *cells)))
            rows = [f"{row}   {cell:>{width}}" for row, cell in zip(rows, (name, *cells), strict=True)]
    for i, more in enumerate(ds["pairs_to_settle"].values, 1):
        if 0 < more < np.inf:
            rows[i] += f"   ({roughly(more, ds.attrs['pairs'])} more pairs would settle it {STAYS})"
    allowed = f"certified conservative allows {float(ds['delta']):g} below the level"
    rows.append(f"{ds.attrs['pairs']} pairs; {ds.attrs['ranks']}; {allowed}")
    notes = [f"note: {note}" for note in ds.attrs["notes"].splitlines() if note]
    below, learnt = _below(ds, members, verdicts), _learnt(ds, members, verdicts)
    return "\n".join([*rows, *below, *_leaked(ds, members), *notes, *learnt, *_next(ds, members, verdicts)])


def _column(ds: xr.Dataset, name: str, digits: int) -> list[str]:
    """Each member's value and its standard error; a dash where it is not known."""
    pairs = zip(ds[name].values, ds[name + "_se"].values, strict=True)
    # Adding 0 makes a plus of the sign of -0.
    return [f"{round(v, digits) + 0:+.{digits}f} ± {e:.{digits}f}" if not np.isnan(v) else "–" for v, e in pairs]


def _below(ds: xr.Dataset, members: Sequence[str], verdicts: Sequence[str]) -> list[str]:
    """Where those that are overconfident are so."""
    lines = []
    for i, (member, verdict) in enumerate(zip(members, verdicts, strict=True)):
        if verdict == OVERCONFIDENT:
            level, coverage = (float(v) for v in lowest(ds["rank"].values[i]))
            # As many digits as tell the level from 1, and the coverage from the level.
            digits = int(np.clip(-np.floor(np.log10(min(1 - level, level - coverage))), 2, 6))
            words = f"coverage {coverage:.{digits}f}, {level - coverage:.{digits}f} below"
            lines.append(f"{member} at level {level:.{digits}f} ({words})")
    return ["where coverage is furthest below its level, measured by its noise: " + ", ".join(lines)] if lines else []


def _learnt(ds: xr.Dataset, members: Sequence[str], verdicts: Sequence[str]) -> list[str]:
    """Which members say no more about the truth than the prior does, or less."""
    gain, error = ds["gain"].values, np.nan_to_num(ds["gain_se"].values)
    nothing = abs(gain) <= np.maximum(TWO_SIDED * error, LEAST_GAIN)  # false where the gain is not known
    lines = []
    if nothing.any():
        named = [m for m, n in zip(members, nothing, strict=True) if n]
        text = f"{listed(named)}: the gain over the prior is indistinguishable from 0, as if nothing was learnt"
        if any(n and v == CERTIFIED for n, v in zip(nothing, verdicts, strict=True)):
            text += f" (the prior itself is conservative: {CERTIFIED} says no more than that here)"
        lines.append(text)
    if (worse := (gain < 0) & ~nothing).any():
        named = [m for m, w in zip(members, worse, strict=True) if w]
        lines.append(f"{listed(named)}: says less about the true parameters than the prior does")
    return lines


def _leaked(ds: xr.Dataset, members: Sequence[str]) -> list[str]:
    """Whose mass lies outside the prior, and what that means."""
    leaking: dict[str, list[str]] = {}
    for member, share in zip(members, ds["leakage"].values, strict=True):
        if share > LEAST_LEAKAGE:
            leaking.setdefault(f"{100 * share:.0f}%", []).append(member)
    if not leaking:
        return []
    text = listed([f"{share} of the mass of {listed(names)}" for share, names in leaking.items()])
    if ds.attrs.get("recipe") == "released":
        return [f"leakage: {text} lies outside the prior, and is judged with the rest"]
    return [
        f"leakage: {text} lies outside the prior, where no parameter can be. What is judged is the rest, scaled to 1: "
        "leave draws outside the prior out, if sample does not. A flow started at the prior has no such mass "
        '(eq.fit, method="bnpe_init")'
    ]


def _next(ds: xr.Dataset, members: Sequence[str], verdicts: Sequence[str]) -> list[str]:
    """What to do about the verdict on the whole, or on the members where they are not mixed."""
    mixed = members[-1] == "mixture"
    judged = dict(list(zip(members, verdicts, strict=True))[-1 if mixed else 0 :])
    bad = [m for m, v in judged.items() if v == OVERCONFIDENT]
    open_ = [m for m, v in judged.items() if v == INCONCLUSIVE]
    several = mixed and len(members) > 2
    lines = []
    if bad:
        lines.append(f"what to do about {listed(bad)}: {_remedies(str(ds.attrs.get('method', '')), several)}")
    elif several and (alone := [m for m, v in zip(members[:-1], verdicts, strict=False) if v == OVERCONFIDENT]):
        lines.append(f"what to do: use the mixture as a whole; {listed(alone)} alone would be overconfident")
    more = ds["pairs_to_settle"].sel(member=open_).values
    if len(more) and np.isfinite(more).all():
        pairs = int(ds.attrs["pairs"])
        lines.append(
            f"what to do about {listed(open_)}: judge again with {roughly(more.max() + pairs, pairs)} fresh pairs in "
            "all; until then it is not certified"
        )
    return lines


def _remedies(method: str, several: bool) -> str:
    """What makes an overconfident posterior less so, for what `eq.fit` has trained with `method` or for another's."""
    again = "more simulations; then judge again with fresh pairs"
    if not method:
        mixture = "" if several else "mix several networks, or "
        return f'{mixture}train with balance (eq.fit, method="brnpe"), or {again}'
    mixture = "" if several else "use the mixture of several networks (members=5), or "
    if method in CAUTIOUS:
        return f"{mixture}{again}. No method is safe on every task"
    others = " or ".join(f'"{m}"' for m in CAUTIOUS)
    return f"{mixture}method={others} (more often certified, and less sharp), or {again}"
