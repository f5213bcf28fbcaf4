"""A dataset from `diagnose` in words: the verdict with its reason, what people report, and what to do next."""

from __future__ import annotations

__all__ = ["Summary", "summary"]

import base64
import html
import io
import textwrap
from collections.abc import Sequence

import numpy as np
import xarray as xr

from equipoise.support.words import STAYS, listed, roughly

from .local_check import local_message
from .verdicts import CERTIFIED, INCONCLUSIVE, OVERCONFIDENT, lowest

#: Standard errors on either side of a two-sided interval of 95%.
TWO_SIDED = 1.96
#: From this much mass outside the prior on, the summary speaks of it.
LEAST_LEAKAGE = 0.01
#: Of more members than this, with their mixture, only the mixture has a line.
MOST_ROWS = 7
#: A gain of fewer nats than this is shown as 0.00, and is none whatever its error.
LEAST_GAIN = 0.005
#: Sentences are wrapped at so many columns.
COLUMNS = 100
#: Pairs for `calibrate`, and the nats that it cost with so many (Gaussian posteriors 10 to 40% too tight, D = 1 to 10).
CALIBRATION_PAIRS, CALIBRATION_COST = 2000, "0.01 to 0.13"


class Summary(str):
    """Text that a notebook shows as it is, with the coverage curve below if Matplotlib is installed.

    Attributes:
        dataset: what is summarised, from `diagnose`.
    """

    dataset: xr.Dataset | None = None

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        head, *rest = html.escape(str(self)).split("\n")
        return "<pre><b>" + head + "</b>\n" + "\n".join(rest) + "</pre>" + self._picture()

    def _picture(self) -> str:
        """The coverage curve as an image in HTML."""
        if self.dataset is None:
            return ""
        try:
            from matplotlib.figure import Figure

            from equipoise.plots import coverage
        except ImportError:  # an extra
            return ""
        page, file = Figure(figsize=(4.6, 4.4)), io.BytesIO()
        coverage(self.dataset, ax=page.subplots())
        page.savefig(file, format="png", dpi=110, bbox_inches="tight")
        content = base64.b64encode(file.getvalue()).decode()
        return f'<img alt="expected coverage against level" src="data:image/png;base64,{content}">'


def summary(ds: xr.Dataset) -> Summary:
    """What `diagnose` found, in words and two tables, to print.

    First comes the verdict on the mixture, or on each network where they are not mixed: why, and at which levels. Then
    follow the coverage of each parameter's central intervals beside that of the joint regions, with standard errors;
    one line per member, or for the mixture alone where they are many; what leaks out of the prior, and what was not
    learnt. The last lines say what to do next and what it costs. What is not known (the gain over a prior that was not
    given, the information kept without an exact posterior) is left out.

    Arguments:
        ds: from `diagnose`.

    Returns:
        A string, which a notebook shows as text with the coverage curve.

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
        >>> text = summary(ds)
        >>> text.splitlines()[0]
        'posterior: inconclusive'
        >>> "posterior: the gain over the prior is indistinguishable from 0, as if nothing was learnt" in text
        True
    """
    if not isinstance(ds, xr.Dataset) or not {"verdict", "rank", "level"} <= set(ds.variables):
        raise TypeError(f"summary takes the dataset that eq.diagnose returns as ds, got {type(ds).__name__}")
    given, ds = ds, _without_copies(ds)
    members = [str(m) for m in ds["member"].values]
    judged = members[-1:] if members[-1] in ("mixture", "posterior") else members
    verdicts = dict(zip(members, (str(v) for v in ds["verdict"].values), strict=True))
    lines = [line for m in judged for line in _verdict(ds.sel(member=m), m, verdicts[m])]
    if len(judged) == 1:
        lines += ["", *_reported(ds.sel(member=judged[0])), ""]
    lines += _table(ds.sel(member=judged) if len(members) > MOST_ROWS else ds, verdicts)
    delta = f"{float(ds['delta']):g}"
    delta = f"min({delta}, ½(1 - level))" if ds.attrs.get("tolerance", "level") == "level" else delta
    allowed = f"certified conservative allows {delta} below the level"
    lines.append(f"{ds.attrs['pairs']} pairs; {ds.attrs['ranks']}; {allowed}")
    notes = [note for note in ds.attrs["notes"].splitlines() if note]
    if judged == ["mixture"]:  # what single members lack is no matter of who samples from the mixture
        notes = [note for note in notes if not note.startswith("member ")]
    words = [*_leaked(ds, members), *(f"note: {note}" for note in notes)]
    words += [*_learnt(ds, verdicts), *_next(ds, verdicts, judged)]
    told = Summary("\n".join([*lines, *map(_wrapped, words)]))
    told.dataset = given
    return told


def _wrapped(sentence: str, indent: str = "  ") -> str:
    """A sentence in lines of at most `COLUMNS`, those after the first indented."""
    return textwrap.fill(sentence, COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _without_copies(ds: xr.Dataset) -> xr.Dataset:
    """A single network is its own mixture: one row, called the posterior."""
    if [str(m) for m in ds["member"].values] != ["0", "mixture"]:
        return ds
    first, second = ds["rank"].values
    if not np.array_equal(first, second, equal_nan=True):
        return ds  # the mixture is tempered
    return ds.isel(member=[1]).assign_coords(member=["posterior"])


# --- the verdict -----------------------------------------------------------------------------------------------------


def _verdict(one: xr.Dataset, member: str, verdict: str) -> list[str]:
    """The verdict on a member, and why."""
    lines = [f"{member}: {verdict}"]
    if verdict == OVERCONFIDENT:
        lines.append(f"  {_worst(one)}")
    elif verdict == CERTIFIED:
        sure = f"p = {float(one['certificate_p_value']):.2g}"
        lines.append(f"  coverage is at least its level, less the tolerance below, at every level ({sure})")
    else:
        more = float(one["pairs_to_settle"])
        why = f"  no coverage is seen below its level (p = {float(one['verdict_p_value']):.2g})"
        if verdict == INCONCLUSIVE and 0 < more < np.inf:
            why += f"; {roughly(more, one.attrs['pairs'])} more pairs would settle it {STAYS}"
        lines.append(why)
    lines.append(f"  from level 0.5 upwards: {one['verdict_upper'].values!s}")
    p = one["local_p_value"].values
    if np.isfinite(p).all():
        told = local_message(one["local_coverage"].values, p, one["local_level"].values, float(one.attrs["alpha"]))
        lines.append(_wrapped(f"  local check: {told}", "    "))
    return lines


def _worst(one: xr.Dataset) -> str:
    """Where coverage is furthest below its level, measured by its noise, and over which levels it is too low."""
    level, coverage = (float(v) for v in lowest(one["rank"].values))
    # As many digits as tell the level from 1, and the coverage from the level.
    digits = int(np.clip(-np.floor(np.log10(min(1 - level, level - coverage))), 2, 6))
    below = f"{level - coverage:.{digits}f} below, worst measured by its noise"
    told = f"coverage {coverage:.{digits}f} at level {level:.{digits}f} ({below})"
    levels, low = one["level"].values, one["too_low"].values.astype(bool)
    if not low.any():
        return told
    first, last = levels[low][0], levels[low][-1]
    where = f"level {first:g}" if first == last else f"{low.sum()} levels from {first:g} to {last:g}"
    return f"{told}; too low at {where}"


def _reported(one: xr.Dataset) -> list[str]:
    """Coverage of what people report: each parameter's central intervals, and the joint regions."""
    levels = one["report_level"].values
    rows = [("coverage of", *(f"{100 * u:g}%" for u in levels))]
    for name, parameter in zip(_names(one), one["parameter"].values, strict=True):
        at = one.sel(parameter=parameter)
        rows.append((f"{name}, central interval", *_shares(at["interval_coverage"], at["interval_coverage_se"])))
    rows.append(("joint region", *_shares(one["region_coverage"], one["region_coverage_se"])))
    width = max(len(row[0]) for row in rows)
    lines = [row[0].ljust(width) + "".join(f"   {cell:>13}" for cell in row[1:]) for row in rows]
    misses = one["interval_coverage"] + TWO_SIDED * one["interval_coverage_se"] < one["report_level"]
    if one["verdict"] == OVERCONFIDENT and not bool(misses.any()):
        region = one["region_coverage"] + TWO_SIDED * one["region_coverage_se"] < one["report_level"]
        told = "joint regions are too small" if bool(region.any()) else "joint regions are too small at other levels"
        lines.append(f"no interval of a single parameter is seen below its level; {told}")
    return lines


def _shares(share: xr.DataArray, error: xr.DataArray) -> list[str]:
    return [f"{v:.3f} ± {e:.3f}" for v, e in zip(share.values, error.values, strict=True)]


def _names(ds: xr.Dataset) -> list[str]:
    """Of the parameters; θ1, θ2, … where they are numbered from 0."""
    values = ds["parameter"].values
    return [f"θ{int(v) + 1}" if np.issubdtype(values.dtype, np.integer) else str(v) for v in values]


# --- the members -----------------------------------------------------------------------------------------------------


def _table(ds: xr.Dataset, verdicts: dict[str, str]) -> list[str]:
    """One line per member."""
    members = [str(m) for m in ds["member"].values]
    columns = [("coverage AUC", _column(ds, "coverage_auc", 3)), ("log posterior", _column(ds, "nominal_log_prob", 2))]
    columns += [("nats over prior", _column(ds, "gain", 2))]
    columns += [("information", [f"{v:.2f}" if np.isfinite(v) else "–" for v in ds["information_kept"].values])]
    columns += [("balance g", _column(ds, "balance_signed", 3))]
    rows = [f"{m:<10} {v:<22}" for m, v in [("member", "verdict"), *((m, verdicts[m]) for m in members)]]
    for name, cells in columns:
        if any(c != "–" for c in cells):
            width = max(map(len, (name, *cells)))
            rows = [f"{row}   {cell:>{width}}" for row, cell in zip(rows, (name, *cells), strict=True)]
    return rows


def _column(ds: xr.Dataset, name: str, digits: int) -> list[str]:
    """Each member's value and its standard error; a dash where it is not known."""
    pairs = zip(ds[name].values, ds[name + "_se"].values, strict=True)
    # Adding 0 makes a plus of the sign of -0.
    return [f"{round(v, digits) + 0:+.{digits}f} ± {e:.{digits}f}" if not np.isnan(v) else "–" for v, e in pairs]


def _learnt(ds: xr.Dataset, verdicts: dict[str, str]) -> list[str]:
    """Which members say no more about the truth than the prior does, or less."""
    gain, error = ds["gain"].values, np.nan_to_num(ds["gain_se"].values)
    nothing = abs(gain) <= np.maximum(TWO_SIDED * error, LEAST_GAIN)  # false where the gain is not known
    lines = []
    if nothing.any():
        named = [m for m, n in zip(verdicts, nothing, strict=True) if n]
        text = f"{listed(named)}: the gain over the prior is indistinguishable from 0, as if nothing was learnt"
        if any(verdicts[m] == CERTIFIED for m in named):
            text += f" (the prior itself is conservative: {CERTIFIED} says no more than that here)"
        lines.append(text)
    if (worse := (gain < 0) & ~nothing).any():
        named = [m for m, w in zip(verdicts, worse, strict=True) if w]
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
        '(eq.fit, start="prior")'
    ]


# --- what to do ------------------------------------------------------------------------------------------------------


def _next(ds: xr.Dataset, verdicts: dict[str, str], judged: Sequence[str]) -> list[str]:
    """What to do about the verdict on the whole, or on the members where they are not mixed."""
    bad = [m for m in judged if verdicts[m] == OVERCONFIDENT]
    open_ = [m for m in judged if verdicts[m] == INCONCLUSIVE]
    alone = [m for m, v in verdicts.items() if v == OVERCONFIDENT and m not in judged]
    lines = []
    if bad:
        several = judged == ["mixture"]
        mix = "" if several else "mix several networks (eq.fit, members=5), or "
        lines.append(
            f"what to do about {listed(bad)}: {mix}temper it with eq.calibrate(posterior, theta, x) on about "
            f"{CALIBRATION_PAIRS:,} fresh pairs (cost where it was measured: {CALIBRATION_COST} nats), or train on "
            "more simulations; then judge again with fresh pairs"
        )
    elif alone:
        which = listed(alone) if len(verdicts) <= MOST_ROWS else f"{len(alone)} of {len(verdicts) - 1} members"
        lines.append(f"what to do: use the mixture as a whole; {which} alone would be overconfident")
    more = ds["pairs_to_settle"].sel(member=open_).values
    if len(more) and np.isfinite(more).all():
        pairs = int(ds.attrs["pairs"])
        lines.append(
            f"what to do about {listed(open_)}: judge again with {roughly(more.max() + pairs, pairs)} fresh pairs in "
            "all, which costs no information; until then it is not certified"
        )
    return lines
