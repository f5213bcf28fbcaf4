"""How conservative and how sharp the default of `eq.fit` is: tables. No torch.

The default as users get it comes from the grids `frontier`, `frontier_series` and `frontier_untuned`. What it is
compared with, and other rules for the temperature, come from `temperatures.nc`, which `benchmarks/temperatures.py`
writes: one line per problem, budget, run and way to use a fit. A posterior is *overconfident* if its fresh pairs reject
"coverage ≥ level everywhere" at 5%, else *certified conservative* if they certify it at 5%, else *inconclusive*, as in
`eq.diagnose`.
"""

from __future__ import annotations

__all__ = [
    "PLANE",
    "WAYS",
    "Used",
    "chosen",
    "default_fits",
    "fits_of",
    "frontier_table",
    "local_table",
    "methods_table",
    "networks_table",
    "raw",
    "read",
    "rules_table",
    "schedules_table",
    "used",
]

import csv
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import wrap

import numpy as np
import xarray as xr

from equipoise.plots.settings import CERTIFIED, INCONCLUSIVE, OVERCONFIDENT
from equipoise.plots.style import VERDICTS
from formats import signed, table
from reading import HERE, TASKS, Missing, opened

LEVEL = 0.05
#: The grids of the default.
GRIDS = ("frontier", "frontier_series", "frontier_untuned")
#: Problems in the order of the tables.
PROBLEMS = {
    **TASKS,
    "survey": "Survey, D = 4",
    "switch": "Switch, D = 3",
    "linear": "Linear, D = 12",
    "curved": "Curved, D = 10",
}
#: A rule that sees the pairs by which it is judged.
FITTED = "the default's rule on the fresh pairs themselves"
#: The vector tasks of the plane.
PLANE = ("slcp", "weinberg", "two_moons")
#: What is compared: a way to use a fit, whether it is tempered, and its words in the table.
WAYS = (
    ("calibrated", False, "the ten flows, not tempered"),
    ("calibrated", True, "tempered: the default"),
    ("bnpe_init", False, "`bnpe_init` × 5"),
    ("brnpe", False, "`brnpe` × 5"),
    ("rejection ABC", False, "rejection ABC"),
)
#: The ways between which docs/methods.md lets choose: words and advice.
METHODS = (
    ("calibrated", True, '`"calibrated"`, the default', "first"),
    ("calibrated", False, "the same, `calibrate=False`", "to temper it with `eq.calibrate` on fresh pairs"),
    ("bnpe_init", False, '`"bnpe_init"`', "with `folds=5, calibrate=True`"),
    ("brnpe", False, '`"brnpe"`', "to repeat the paper"),
)


@dataclasses.dataclass(frozen=True)
class Used:
    """A fit at one temperature, judged by fresh pairs.

    Arguments:
        problem, budget, run, way: which.
        t: the temperature.
        verdict: of the fresh pairs.
        nats: the nominal log posterior less the log prior.
        lost: how much larger that is at t = 1.
        auc: the coverage AUC.
        dip: how far coverage falls below its level, at most.
    """

    problem: str
    budget: int
    run: int
    way: str
    t: float
    verdict: str
    nats: float
    lost: float
    auc: float
    dip: float


def read(folder: Path = HERE) -> xr.Dataset:
    """Every line of the study of temperatures."""
    file = folder / "temperatures.nc"
    if not file.exists():
        raise Missing("`results/temperatures.nc` is not there")
    with xr.open_dataset(file, engine="h5netcdf") as ds:
        return ds.load()


def used(ds: xr.Dataset, way: str, choose: Callable[[xr.Dataset], float]) -> list[Used]:
    """Every fit of a way at the temperature that `choose` takes from its line."""
    found = []
    for i in np.flatnonzero(ds["way"].values == way):
        line = ds.isel(line=i)
        k = int(np.abs(ds["t"].values - choose(line)).argmin())
        over, cert, auc, dip = (float(line[f"fresh_{n}"].values[k]) for n in ("p_over", "p_cert", "auc", "dip"))
        log_prob = line["fresh_log_prob"].values.astype(float)
        verdict = OVERCONFIDENT if over <= LEVEL else CERTIFIED if cert <= LEVEL else INCONCLUSIVE
        name, budget, run, prior = (line[n].item() for n in ("problem", "budget", "run", "prior_log_prob"))
        nats, lost = float(log_prob[k]) - prior, float(log_prob[-1] - log_prob[k])
        found.append(Used(name, budget, run, way, float(ds["t"].values[k]), verdict, nats, lost, auc, dip))
    return found


def default_fits(folder: Path = HERE) -> tuple[list[Used], list[Used]]:
    """The fits of the default in its grids, before and after tempering."""
    both: tuple[list[Used], list[Used]] = [], []
    for name in GRIDS:
        ds = opened(name, folder).ds
        ds = ds.isel(method=ds["method"].values.tolist().index("calibrated"))
        for t, b, r in zip(*np.nonzero(np.isfinite(ds["coverage_auc"].values)), strict=True):
            cell = ds.isel(task=t, budget=b, run=r)
            problem = str(cell["task"].item()).partition("problem=")[2].rstrip("]") or str(cell["task"].item())
            which = problem, int(cell["budget"]), int(r), "calibrated"
            top = float(cell["untempered_nominal_log_prob"])
            for found, start, temperature in zip(
                both, ("untempered_", ""), (1.0, float(cell["temperature"])), strict=True
            ):
                log_prob = float(cell[f"{start}nominal_log_prob"])
                numbers = log_prob - float(cell["prior_log_prob"]), top - log_prob, float(cell[f"{start}coverage_auc"])
                dip = float((cell["level"] - cell[f"{start}coverage"]).max())
                found.append(Used(*which, temperature, str(cell[f"{start}verdict"].item()), *numbers, dip))
    return both


def fits_of(ways: Sequence[tuple[str, bool]], folder: Path = HERE) -> list[list[Used]]:
    """The fits of some ways: the default's from its grids, the others' from the study of temperatures."""
    own, ds = default_fits(folder), read(folder)
    return [own[tempered] if way == "calibrated" else used(ds, way, raw) for way, tempered in ways]


def raw(line: xr.Dataset) -> float:
    return 1.0


def chosen(line: xr.Dataset) -> float:
    return float(line["chosen"])


def rule(certificate: bool, p_over: float, pairs: str = "fold") -> Callable[[xr.Dataset], float]:
    """The largest temperature that out-of-fold or fresh pairs pass, and the smallest looked at if there is none."""

    def choose(line: xr.Dataset) -> float:
        fine = line[f"{pairs}_p_over"].values >= p_over
        if certificate:
            fine &= line[f"{pairs}_p_cert"].values <= LEVEL
        return float(line["t"].values[np.flatnonzero(fine)[-1] if fine.any() else 0])

    return choose


def counted(fits: Sequence[Used], between: str = " / ") -> str:
    """Certified / inconclusive / overconfident."""
    found = [fit.verdict for fit in fits]
    return between.join(str(found.count(v)) for v in (CERTIFIED, INCONCLUSIVE, OVERCONFIDENT))


def _cell(fits: Sequence[Used]) -> str:
    if not fits:
        return "–"
    found = [fit.verdict for fit in fits]
    marks = [f"{found.count(v)} {VERDICTS[v].symbol}" for v in (OVERCONFIDENT, INCONCLUSIVE, CERTIFIED) if v in found]
    return f"{' '.join(marks)}, {np.mean([fit.nats for fit in fits]):.2f}"


def frontier_table(folder: Path = HERE) -> str:
    """Verdicts and nats over the prior: problems and budgets × ways."""
    by_way = fits_of([way[:2] for way in WAYS], folder)
    cells = sorted({(f.problem, f.budget) for fits in by_way for f in fits}, key=lambda c: (_place(c[0]), c[1]))
    rows = []
    for problem, budget in cells:
        mine = [[f for f in fits if (f.problem, f.budget) == (problem, budget)] for fits in by_way]
        lost = [f.lost for f in mine[1]]
        rows.append(
            [PROBLEMS.get(problem, problem), f"{budget:,}", *map(_cell, mine), f"{np.mean(lost):.2f}" if lost else "–"]
        )
    before, after = by_way[:2]
    losses = [f.lost for f in after]
    head = ["problem", "simulations", *(words for _, _, words in WAYS), "nats lost to tempering"]
    fresh = sorted({int(opened(name, folder).ds["pairs"]) for name in GRIDS})
    counts = [counted(fits, "/") for fits in (before, after)]
    dips = [max(f.dip for f in fits) for fits in (before, after)]
    note = (
        f"*Certified/inconclusive/overconfident over all {len(after)} fits: {counts[0]} before tempering, {counts[1]} "
        f"after it. Coverage falls below its level by at most {dips[0]:.3f} before and {dips[1]:.3f} after. Tempering "
        f"costs {np.median(losses):.3f} nats in the median, {np.mean(losses):.3f} in the mean, {max(losses):.2f} at "
        f"most. {' or '.join(f'{n:,}' for n in fresh)} fresh pairs.*"
    )
    return table(head, rows) + "\n\n" + "\n".join(wrap(note, 98))


def methods_table(folder: Path = HERE, budgets: tuple[int, ...] = (1024, 4096)) -> str:
    """Nats over the prior on the vector tasks, and how many fits are overconfident: what a method costs."""
    rows = []
    found = fits_of([way[:2] for way in METHODS], folder)
    for (_, _, words, advice), fits in zip(METHODS, found, strict=True):
        fits = [f for f in fits if f.problem in PLANE and f.budget in budgets]
        cells = [[[f.nats for f in fits if (f.problem, f.budget) == (task, b)] for b in budgets] for task in PLANE]
        nats = [", ".join(f"{np.mean(c):.2f}" if c else "–" for c in task) for task in cells]
        rows.append([words, *nats, f"{sum(f.verdict == OVERCONFIDENT for f in fits)} of {len(fits)}", advice])
    head = ["`eq.fit(…, method=…)`", *(TASKS[t] for t in PLANE), "overconfident", "use it"]
    return table(head, rows)


def rules_table(folder: Path = HERE) -> str:
    """What other rules for the temperature give."""
    ds = read(folder)
    rules = (
        ("not tempered", "calibrated", raw),
        ("p ≥ ¼ alone", "calibrated", rule(False, 0.25)),
        ("certificate alone", "calibrated", rule(True, 0.0)),
        ("**certificate and p ≥ ¼**", "calibrated", rule(True, 0.25)),
        ("certificate and p ≥ ½", "calibrated", rule(True, 0.5)),
        ("the five that begin at the prior, the default's rule", "near_prior x 5", rule(True, 0.25)),
        ("the five others, the default's rule", "ordinary x 5", rule(True, 0.25)),
        (FITTED, "calibrated", rule(True, 0.25, "fresh")),
    )
    rows = []
    for words, way, choose in rules:
        fits = used(ds, way, choose)
        rows.append(
            [
                words,
                "–" if words == FITTED else counted(fits),
                f"{np.mean([f.t for f in fits]):.2f}",
                f"{np.mean([f.nats for f in fits]):.2f}",
                f"{np.mean([f.lost for f in fits]):.3f}",
                f"{max(f.dip for f in fits):.3f}",
            ]
        )
    head = [
        "rule",
        "certified / inconclusive / overconfident",
        "mean t",
        "nats over the prior",
        "nats lost",
        "deepest dip",
    ]
    return table(head, rows)


def local_table(folder: Path = HERE) -> str:
    """What a temperature that depends on x changes, by problem."""
    file = folder / "local-temperature.csv"
    if not file.exists():
        raise Missing("`results/local-temperature.csv` is not there")
    with file.open(encoding="utf-8", newline="") as stream:
        lines = list(csv.DictReader(stream))
    rows = []
    for problem in sorted({line["problem"] for line in lines}, key=_place):
        mine = [
            {k: float(v) for k, v in line.items() if k != "problem"} for line in lines if line["problem"] == problem
        ]
        gain = [line["local log_prob"] - line["one log_prob"] for line in mine]
        worst = [min(line[f"{way} worst_bin"] for line in mine) for way in ("one", "local")]
        slopes = ", ".join(f"{line['slope']:g}".replace("-", "−") for line in mine)
        rows.append([PROBLEMS[problem], slopes, signed(float(np.mean(gain))), *(f"{w:.3f}" for w in worst)])
    head = ["problem", "slope b of each fit", "nats gained", "lowest coverage at 0.95 in a bin, one t", "t(x)"]
    return table(head, rows)


#: Configurations of `networks.csv` that docs/speed.md shows, with their words.
NETWORKS = {
    "affine batch 64": "affine, 5 transforms, (64, 64)",
    "spline batch 64": "spline, 4 bins, (64, 64)",
    "spline 128 4 bins rate 2": "spline, 4 bins, (128, 128), begins at the prior",
    "standard rate 2": "the same, ordinary first weights",
    "spline 128 4 bins rate 2 + standard rate 2": "both, mixed by score",
    "spline 96 x 3 4 bins batch 64": "spline, 4 bins, (96, 96, 96)",
    "spline 96 x 3 4 bins batch 64 + standard rate 2": "both, the first kind of (96, 96, 96)",
    "spline 256 x 3": "spline, 8 bins, (256, 256, 256): the paper's size",
}
NETWORK_PROBLEMS = {
    "outbreak": "outbreak",
    "exponentials": "exponentials",
    "regression": "regression",
    "lynx_hare": "lynx–hare",
    "slcp": "SLCP",
    "weinberg": "Weinberg",
    "two_moons": "Two Moons",
}


def networks_table(folder: Path = HERE, budget: int = 2000) -> str:
    """Nats over the prior / CPU seconds of mixtures of five: configurations × problems."""
    file = folder / "networks.csv"
    if not file.exists():
        raise Missing("`results/networks.csv` is not there")
    with file.open(encoding="utf-8", newline="") as stream:
        lines = {(r["config"], r["problem"]): r for r in csv.DictReader(stream) if int(r["budget"]) == budget}
    rows = []
    for config, words in NETWORKS.items():
        found = [lines.get((config, problem)) for problem in NETWORK_PROBLEMS]
        cells = ["–" if r is None else f"{float(r['mixture']):.2f} / {float(r['cpu_seconds']):.0f}" for r in found]
        rows.append([words, *cells])
    return table(["five members of", *NETWORK_PROBLEMS.values()], rows)


#: How the default is trained, by the name of the configuration in `schedules.csv`.
SCHEDULES = {
    "plateaus": "(128, 128), rates that fall on plateaus",
    "cycle": "one cycle of 60 epochs",
    "cycle, averaged": "and averaged weights",
    "cycle, averaged, 96 x 3": "and (96, 96, 96)",
    "patience, 96 x 3": "100 epochs, and members stop by themselves",
    "patience, 64 x 3": "the same, (64, 64, 64)",
    "patience, 128 x 3": "the same, (128, 128, 128)",
    "patience, 96 x 3, 8 bins": "(96, 96, 96), 8 bins",
    "patience, 96 x 3, 4 and 8 bins": "4 bins for those that begin at the prior, 8 for the others",
    "default": "**8 bins for those that begin at the prior, 4 for the others: the default**",
}
SCHEDULE_PROBLEMS = {
    "slcp": "SLCP, 1,024",
    "outbreak": "outbreak, 1,000",
    "two_moons": "Two Moons, 1,024",
    "exponentials": "exponentials, 1,000",
    "regression": "regression, 2,000",
}


def schedules_table(folder: Path = HERE) -> str:
    """Nats over the prior of mixtures of ten / of single members / CPU seconds: configurations × problems."""
    file = folder / "schedules.csv"
    if not file.exists():
        raise Missing("`results/schedules.csv` is not there")
    with file.open(encoding="utf-8", newline="") as stream:
        lines = {(r["config"], r["problem"]): r for r in csv.DictReader(stream)}
    rows = []
    for config, words in SCHEDULES.items():
        found = [lines.get((config, problem)) for problem in SCHEDULE_PROBLEMS]
        rows.append([words, *("–" if r is None else _score(r) for r in found)])
    return table(["ten members", *SCHEDULE_PROBLEMS.values()], rows)


def _score(r: dict[str, str]) -> str:
    return f"{float(r['mixture']):.2f} / {float(r['single']):.2f} / {float(r['cpu_seconds']):.0f}"


def _place(problem: str) -> int:
    names = list(PROBLEMS)
    return names.index(problem) if problem in names else len(names)
