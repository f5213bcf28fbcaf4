"""The batch estimate of balance, and published numbers judged as the released code judges."""

from __future__ import annotations

__all__ = [
    "Network",
    "bnre_on_slcp",
    "by_ratio",
    "effects",
    "expected",
    "few_simulations",
    "groups_of",
    "informed",
    "judged_twice",
    "lost",
    "near_prior",
    "networks",
    "ratio_label",
    "rolls",
    "slopes",
    "toy",
]

import csv
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from agreement import figure_name
from claims import COUNTERPART
from equipoise.losses import batch_temperature
from equipoise.methods import METHODS
from formats import options_of, signed, table
from reading import LABELS, TASKS, Missing, figure_auc, opened, optional, published

#: Grids in which the same networks were judged by both recipes.
TWICE = ("artefact", "leakage")
#: What of the toy is shown: λ, and the columns are batch sizes.
STRENGTHS, BATCHES = (10, 100, 1000), (64, 256, 1024, 4096)


def _rows(name: str, folder: Path) -> list[dict[str, str]]:
    file = folder / f"{name}.csv"
    if not file.exists():
        raise Missing(f"`results/{name}.csv` is not there")
    with open(file, encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def toy(folder: Path) -> str:
    """The exponent of the best tempered log-ratio in the conjugate Gaussian problem, and what is expected."""
    found = {(r["information"], float(r["strength"]), int(r["batch"])): r for r in _rows("estimate-toy", folder)}
    rows = []
    for strength in STRENGTHS:
        near = [next(r for k, r in found.items() if k[1:] == (strength, n))["t_expected"] for n in BATCHES]
        rows.append([f"λ = {strength:,}", "1/(1 + λ/n)", *(f"{float(t):.2f}" for t in near)])
        for nats in dict.fromkeys(k[0] for k in found):
            cells = [f"{float(found[nats, strength, n]['t_plain']):.2f}" for n in BATCHES]
            rows.append(["", f"{float(nats):.3g} nats", *cells])
    free = {f"{float(r['t_unbiased']):.2f}" for r in found.values()}
    note = f"*The unbiased estimate gives t = {', '.join(sorted(free))} everywhere.*"
    return table(["t with the plain estimate", "", *(f"n = {n:,}" for n in BATCHES)], rows) + f"\n\n{note}"


#: What the base losses are called.
LOSS_WORDS = {"nre": "cross-entropy", "nre_c": "contrastive", "npe": "likelihood"}


@dataclasses.dataclass(frozen=True)
class Network:
    """A network of `benchmarks/balance.py train`, untempered; `curve` is for those without balance.

    Arguments:
        method: the balanced method, also of the network without balance beside it.
        estimate: "plain" or "unbiased"; empty without balance.
        batch: n.
        strength: λ; 0 without balance.
        auc: coverage AUC.
        log_prob: nominal log posterior.
        slope: of the learnt log-ratio on the exact one.
        least_loss_t: t of the least loss of t log r + c with the plain estimate and the exact log r.
        curve: t, nominal log posterior and coverage AUC of the tempered network, with shape `(3, T)`, by t.
    """

    task: str
    method: str
    estimate: str
    batch: int
    strength: float
    run: str
    auc: float
    log_prob: float
    slope: float
    least_loss_t: float
    curve: np.ndarray

    @property
    def group(self) -> tuple[str, str]:
        """What is compared: networks of one task and method."""
        return self.task, self.method

    @property
    def ratio(self) -> float:
        """λ/n."""
        return self.strength / self.batch

    def tempered(self, t: float) -> float:
        """The coverage AUC at a temperature, between those looked at; NaN below the smallest."""
        return float(np.interp(t, self.curve[0], self.curve[2], left=np.nan))

    @property
    def known(self) -> np.ndarray:
        """The curve up to the temperature of the largest log posterior: above it the network is overconfident."""
        return self.curve[:, : 1 + int(self.curve[1].argmax())]

    def as_informed(self, log_prob: float) -> float:
        """The coverage AUC at the temperature with this nominal log posterior; NaN where there is none."""
        return float(np.interp(log_prob, self.known[1], self.known[2], left=np.nan, right=np.nan))


def near_prior(method: str, ratio: float) -> float:
    """The temperature that the plain estimate gives near the prior, by λ/n."""
    return batch_temperature(METHODS[method].but(strength=ratio).objective, 1)


def networks(folder: Path) -> list[Network]:
    """Every network of the study, those without balance first."""
    rows = _rows("estimate-train", folder)
    balanced = {free: method for method, free in COUNTERPART.items()}
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[n] for n in ("task", "batch", "strength", "objective", "run")), []).append(row)
    found = []
    for (task, batch, strength, objective, run), here in groups.items():
        here = sorted(here, key=lambda r: float(r["t"]))
        curve = np.array([[float(r[n]) for r in here] for n in ("t", "nominal_log_prob", "coverage_auc")])
        numbers = (float(here[-1][n]) for n in ("coverage_auc", "nominal_log_prob", "slope", "least_loss_t"))
        method, _, estimate = objective.partition(", ")
        method = balanced.get(method, method)
        found.append(Network(task, method, estimate, int(batch), float(strength), run, *numbers, curve))
    return sorted(found, key=lambda n: n.strength > 0)


def groups_of(found: list[Network]) -> dict[tuple[str, str], str]:
    """What is compared, by method and then in the order of the file, with its name."""
    known = sorted(dict.fromkeys(n.group for n in found), key=lambda g: list(COUNTERPART).index(g[1]))
    return {group: f"{LABELS[group[1]]}, {TASKS[group[0]]}" for group in known}


def ratio_label(ratio: float) -> str:
    """λ/n as tables and the figure have it."""
    return f"{ratio:.2g}"


def by_ratio(folder: Path) -> str:
    """Coverage AUC by λ/n: means over runs, one number for each pair of λ and n, from small to large n."""
    return _by_ratio(networks(folder), lambda n: n.auc, 3)


def lost(folder: Path) -> str:
    """Nominal log posterior without balance, and what balance takes from it, by λ/n as above."""
    found = networks(folder)
    free = {(n.group, n.batch, n.run): n.log_prob for n in found if not n.strength}
    return _by_ratio(found, lambda n: n.log_prob - (free[n.group, n.batch, n.run] if n.strength else 0.0), 2)


def _by_ratio(found: list[Network], number: Callable[[Network], float], digits: int) -> str:
    ratios = sorted({n.ratio for n in found})  # 0 without balance
    rows = []
    for group, name in groups_of(found).items():
        for estimate in ("plain", "unbiased"):
            cells: dict[float, dict[int, list[float]]] = {r: {} for r in ratios}
            for n in found:
                if n.group == group and n.estimate == (estimate if n.strength else ""):
                    cells[n.ratio].setdefault(n.batch, []).append(number(n))
            means = [[signed(float(np.mean(v)), digits) for _, v in sorted(c.items())] for c in cells.values()]
            rows.append([f"{name}, {estimate}", *(", ".join(values) or "–" for values in means)])
    return table(["", "no balance", *(f"λ/n = {ratio_label(r)}" for r in ratios[1:])], rows)


def effects(folder: Path) -> str:
    """What λ × 4, n × 4 and both do to the coverage AUC, run by run over all pairs of cells."""
    found = networks(folder)
    by = {(n.group, n.estimate, n.batch, n.strength, n.run): n for n in found if n.strength}
    rows = []
    for group, name in groups_of(found).items():
        for words, more_n, more_strength in (("λ × 4", 1, 4), ("n × 4", 4, 1), ("both × 4", 4, 4)):
            cells, numbers = [], []
            for estimate in ("plain", "unbiased"):
                change = [
                    other.auc - one.auc
                    for (where, kind, n, strength, run), one in by.items()
                    if (where, kind) == (group, estimate)
                    and (other := by.get((group, estimate, n * more_n, strength * more_strength, run)))
                ]
                numbers.append(len(change))
                spread = f" ({signed(min(change))} … {signed(max(change))})" if change else ""
                cells.append(signed(float(np.mean(change))) + spread if change else "–")
            if any(numbers):
                rows.append([f"{name}, {words}", " / ".join(map(str, dict.fromkeys(numbers))), *cells])
    return table(["", "pairs of networks", "plain estimate: change of coverage AUC", "unbiased estimate"], rows)


def expected(folder: Path) -> str:
    """t of the least loss of t log r + c with the exact log-ratio and the plain estimate, by task and λ/n."""
    found = [n for n in networks(folder) if n.estimate == "plain" and np.isfinite(n.least_loss_t)]
    ratios = sorted({n.ratio for n in found})
    rows = []
    methods: dict[str, str] = {}
    for n in found:
        methods.setdefault(METHODS[n.method].loss, n.method)
    for loss, method in methods.items():
        near = [_plain(near_prior(method, r)) for r in ratios]
        rows.append([f"{LOSS_WORDS[loss]}, near the prior", *near])
        for task in dict.fromkeys(n.task for n in found if n.method == method):
            cells = []
            for r in ratios:
                here = [n.least_loss_t for n in found if (n.task, n.method, n.ratio) == (task, method, r)]
                cells.append(_plain(float(np.mean(here))) if here else "–")
            rows.append([f"{LOSS_WORDS[loss]}, {TASKS[task]}", *cells])
    return table(["", *(f"λ/n = {ratio_label(r)}" for r in ratios)], rows)


def slopes(folder: Path) -> str:
    """Slopes on Weinberg, of both estimates, beside the prediction near the prior and that of the exact log-ratio.

    And the coverage AUC of the plain estimate beside that of the networks without balance of the same n, tempered by
    the prediction near the prior.
    """
    found = [n for n in networks(folder) if n.task == "weinberg"]
    rows = []
    for group, name in groups_of(found).items():
        here = [n for n in found if n.group == group]
        for ratio, strength, batch in sorted({(n.ratio, n.strength, n.batch) for n in here if n.strength}):
            cell = [n for n in here if (n.strength, n.batch) == (strength, batch)]
            plain, unbiased = ([n for n in cell if n.estimate == words] for words in ("plain", "unbiased"))
            free = [n for n in here if not n.strength and n.batch == batch]
            t = near_prior(group[1], ratio)
            near = [ratio_label(ratio), _plain(t), _plain(plain[0].least_loss_t)]
            listed = [_plain(float(np.mean([n.slope for n in some]))) for some in (plain, unbiased, free)]
            areas = [signed(float(np.mean(v))) for v in ([n.auc for n in plain], [n.tempered(t) for n in free])]
            rows.append([f"{name.split(',')[0]}, λ = {strength:g}, n = {batch:,}", *near, *listed, *areas])
    head = ["", "λ/n", "t near the prior", "t of the least loss", "slope, plain", "slope, unbiased"]
    return table([*head, "slope, no balance", "coverage AUC, plain", "no balance, tempered by t near the prior"], rows)


def _plain(value: float) -> str:
    """A number without the sign of a positive one."""
    return signed(value, 2).removeprefix("+")


def informed(folder: Path) -> str:
    """Balanced networks beside those without balance of the same batch size and run, tempered to the same nominal log
    posterior.

    Some balanced networks know more than the other at any temperature up to 1, some less than it at the smallest.
    """
    found = networks(folder)
    free = {(n.group, n.batch, n.run): n for n in found if not n.strength}
    rows = []
    for group, name in groups_of(found).items():
        for estimate in ("plain", "unbiased"):
            here = [
                (n, free[group, n.batch, n.run])
                for n in found
                if n.strength and (n.group, n.estimate) == (group, estimate)
            ]
            gaps = np.array([other.as_informed(n.log_prob) - n.auc for n, other in here])
            known = gaps[np.isfinite(gaps)]
            more = [n.auc > other.known[2, -1] for n, other in here if n.log_prob > other.known[1, -1]]
            cells = [f"{int((known > 0).sum())} of {len(known)}"]
            cells.append(signed(float(np.median(known))) if len(known) else "–")
            cells.append(f"{signed(float(known.min()))} … {signed(float(known.max()))}" if len(known) else "–")
            cells += [f"{len(more)} ({sum(more)})", f"{len(here) - len(known) - len(more)}"]
            rows.append([f"{name}, {estimate}", *cells])
    least = min(float(n.curve[0, 0]) for n in free.values())
    head = ["", "tempered is more conservative", "median difference", "range"]
    return table(
        [*head, "more informed than at any t ≤ 1 (and more conservative)", f"less than at t = {least:g}"], rows
    )


def few_simulations(folder: Path) -> str:
    """Coverage AUC and nominal log posterior of NRE and BNRE where simulations are few: medians over runs."""
    results = opened("estimate", folder)
    options = [options_of(method)[1] for method in results.methods]
    batches = sorted({int(o["batch_size"]) for o in options})
    strengths = sorted({float(o["strength"]) for o in options if "strength" in o})

    def cell(task: str, budget: int, strength: float, n: int, unbiased: str) -> str:
        if not strength and unbiased == "true":  # NRE has no estimate
            return ""
        balanced = f"bnre[strength={strength:g},unbiased={unbiased},batch_size={n}]"
        s = results.settings.get((task, balanced if strength else f"nre[batch_size={n}]", budget))
        return "–" if s is None else f"{signed(s.median('coverage_auc'))} / {signed(s.median('nominal_log_prob'), 2)}"

    rows = [
        [
            f"{TASKS[task]}, {budget:,}, " + (f"λ = {strength:g}" if strength else "NRE"),
            *(cell(task, budget, strength, n, unbiased) for n in batches for unbiased in ("false", "true")),
        ]
        for task in results.tasks
        for budget in results.budgets
        if any(key[0] == task and key[2] == budget for key in results.settings)
        for strength in (0.0, *strengths)
    ]
    head = [f"n = {n}, {words}" for n in batches for words in ("plain", "unbiased")]
    prior = ", ".join(f"{TASKS[t]} {signed(float(results.ds['prior_log_prob'].sel(task=t)), 2)}" for t in results.tasks)
    return f"{table(['', *head], rows)}\n\n*Log posterior of the prior: {prior}.*"


def judged_twice(folder: Path) -> str:
    """Published numbers beside the same networks, judged by our ranks and by the released recipe."""
    rows = []
    for grid in TWICE:
        results = optional(grid, folder)
        if results is None:
            continue
        levels = results.ds["level"].values
        for (task, method, budget), theirs in published().items():
            names = [f"{method}[recipe={recipe}]" for recipe in ("equipoise", "released")]
            both = [results.settings.get((task, name, budget)) for name in names]
            if both[0] is not None and both[1] is not None:
                ours = [figure_auc(s, levels) for s in both if s is not None]
                label = f"{figure_name(method)}, {TASKS[task]}"
                rows.append([label, f"{budget:,}", signed(theirs), *map(signed, ours)])
    if not rows:
        raise Missing("no published setting was judged by both recipes")
    return table(["", "budget", "published", "our ranks", "released ranks"], rows)


def bnre_on_slcp(folder: Path, short: bool = False) -> str:
    """BNRE on SLCP at every budget that was read off the figure: strength × precision, or in short one precision."""
    grids = {name: optional(name, folder) for name in ("released", "bnre_slcp")}
    budgets = sorted(b for t, m, b in published() if (t, m) == ("slcp", "bnre"))
    kinds = {"λ = 100, TF32, as in `released`": ("released", "bnre")} | {
        f"λ = {strength}, {words}": ("bnre_slcp", f"bnre[strength={strength},tf32={tf32}]")
        for strength in (100, 50)
        for tf32, words in (("true", "TF32"), ("false", "float32"))
    }
    if short:
        kinds = {f"ours, λ = {strength}": kinds[f"λ = {strength}, TF32"] for strength in (100, 50)}
    rows = [["published", *(signed(published()["slcp", "bnre", b]) for b in budgets)]]
    for words, (grid, method) in kinds.items():
        there = grids[grid]
        found = [None if there is None else there.settings.get(("slcp", method, b)) for b in budgets]
        if there is not None and any(found):
            levels = there.ds["level"].values
            rows.append([words, *("–" if s is None else signed(figure_auc(s, levels)) for s in found)])
    if len(rows) == 1:
        raise Missing("neither `results/released.nc` nor `results/bnre_slcp.nc` has BNRE on SLCP")
    return table(["BNRE, SLCP", *(f"{b:,}" for b in budgets)], rows)


def rolls(folder: Path) -> str:
    """NRE-C and BNRE-C with shared rolls of θ and with rolls of their own, on the same simulations and first weights.

    The standard error is that of the mean of the runs' differences.
    """
    results, rows = opened("rolls", folder), []
    for task in results.tasks:
        for method in ("nre_c", "bnre_c"):
            for budget in results.budgets:
                both = [results.settings.get((task, f"{method}[share_rolls={v}]", budget)) for v in ("true", "false")]
                if None in both:
                    continue
                shared, apart = (s.numbers["coverage_auc"] for s in both if s is not None)
                gap = apart - shared
                error = float(gap.std(ddof=1)) / math.sqrt(len(gap))
                theirs = published().get((task, method, budget))
                medians = [signed(float(np.median(v))) for v in (shared, apart)]
                name = f"{LABELS[method]}, {TASKS[task]}"
                known = "–" if theirs is None else signed(theirs)
                rows.append([name, f"{budget:,}", known, *medians, f"{signed(float(gap.mean()))} ± {error:.3f}"])
    if not rows:
        raise Missing("`results/rolls.nc` has no setting with both kinds of rolls")
    return table(["", "budget", "published", "shared rolls", "rolls of their own", "difference"], rows)
