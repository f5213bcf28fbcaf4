"""The short tables of the first page: the answer, what balance costs, what is not learnt."""

from __future__ import annotations

__all__ = ["answer", "certificates", "escaped", "information", "jumps", "learnt", "mixtures", "weights"]

from pathlib import Path

import numpy as np

from ablations import part_of
from claims import CLAIMS, COUNTERPART, decide
from equipoise.plots.settings import CERTIFIED, OVERCONFIDENT
from formats import counted, signed, table
from reading import LABELS, TASKS, Missing, Results, opened, optional, published

#: A run that gains less than this over the prior, in nats, has learnt next to nothing.
LEARNT = 0.4
#: A certificate says little where the gain over the prior is a smaller share than this of the counterpart's.
LITTLE = 0.25
#: A rise of the training loss between two stored epochs that counts as a jump.
JUMP = 0.2
#: The flows among the methods of the text's protocol.
FLOWS = ("npe", "bnpe", "rnpe", "brnpe", "bnpe_init", "brnpe_init")


def answer(folder: Path) -> str:
    """The claims that matter most, in short, and whether they hold in both protocols."""
    found = {name: optional(name, folder) for name in ("paper", "released")}
    if not any(found.values()):
        raise Missing("`results/paper.nc` and `results/released.nc` are not there")
    rows = []
    for claim in CLAIMS:
        if claim.short:
            cells = ["not computed" if r is None else _bold(decide(claim, r)[0]) for r in found.values()]
            rows.append([claim.short, *cells])
    mixed = optional("mixture", folder)
    if mixed is not None:
        verdicts = [v for m in ("bnpe", "brnpe") for v in _verdicts(mixed, m, "verdict_holm")]
        whole = f"{verdicts.count(CERTIFIED)} of {len(verdicts)} certified"
        rows.append(
            ["(Not in the paper) Mixtures of five BNPE or BRNPE are certified conservative", whole, "not computed"]
        )
    return table(["claim", "text's protocol", "released protocol"], rows)


def _bold(verdict: str) -> str:
    word, _, count = verdict.partition(": ")
    return f"**{word}**" + (f", {count}" if count else "")


def weights(folder: Path) -> str:
    """Coverage AUC of the same trainings with the weights of the last and of the best epoch."""
    results, task = opened("ablation", folder), "slcp"
    rows = []
    for loss in ("nre", "nre_c", "npe", "rnpe"):
        for budget in results.budgets:
            last, best = (part_of(results, task, budget, loss, "chi2", 0, keep) for keep in ("last", "best"))
            if last is not None and best is not None:
                theirs = published().get((task, loss, budget))
                figure = "–" if theirs is None else signed(theirs)
                ours = [signed(s.median("coverage_auc")) for s in (last, best)]
                rows.append([LABELS[loss], f"{budget:,}", figure, *ours])
    if not rows:
        raise Missing("`results/ablation.nc` has no training of which both weights were kept")
    return table([TASKS[task], "budget", "published", "last weights", "best weights"], rows)


def certificates(folder: Path) -> str:
    """Verdicts of balanced methods outside Two Moons, and how many certificates are of posteriors near the prior."""
    results = opened("paper", folder)
    rows = []
    for method, other in COUNTERPART.items():
        verdicts: list[str] = []
        little = 0
        for task in (t for t in results.tasks if t != "two_moons"):
            prior = float(results.ds["prior_log_prob"].sel(task=task))
            for s in results.each([task], [method], results.budgets):
                verdicts += s.verdicts
                plain = results.settings.get((task, other, s.budget))
                if plain is not None:
                    enough = LITTLE * (plain.median("nominal_log_prob") - prior)
                    gains = s.numbers["nominal_log_prob"] - prior
                    little += sum(v == CERTIFIED and g < enough for v, g in zip(s.verdicts, gains, strict=True))
        if verdicts:
            low, high = verdicts.count(OVERCONFIDENT), verdicts.count(CERTIFIED)
            counts = [len(verdicts), low, len(verdicts) - low - high, high, little]
            rows.append([LABELS[method], *map(str, counts)])
    head = [
        "",
        "runs",
        "overconfident",
        "inconclusive",
        "certified",
        f"certified, with under {LITTLE:.0%} of the counterpart's gain",
    ]
    return table(head, rows)


def information(folder: Path) -> str:
    """Information kept on SLCP, methods × budgets: 0 is the prior, 1 the exact posterior."""
    results, task = opened("paper", folder), "slcp"
    if task not in results.tasks:
        raise Missing("`results/paper.nc` has nothing of SLCP")
    rows = []
    for method in results.methods:
        cells = [results.settings.get((task, method, b)) for b in results.budgets]
        text = ["–" if s is None else f"{s.median('information_kept'):.2f}" for s in cells]
        rows.append([LABELS[method], *text])
    return table([TASKS[task], *(f"{b:,}" for b in results.budgets)], rows)


def learnt(folder: Path) -> str:
    """How many runs of balanced classifiers gain something over the prior where x is an image or a series."""
    grids = {name: results for name in ("paper", "released", "escape") if (results := optional(name, folder))}
    rows, budgets = [], sorted({b for results in grids.values() for b in results.budgets})
    for task in ("spatial_sir", "lotka_volterra"):
        for name, results in grids.items():
            if task not in results.tasks:
                continue
            prior = float(results.ds["prior_log_prob"].sel(task=task))
            for method in ("bnre", "bnre_c"):
                cells = []
                for b in budgets:
                    s = results.settings.get((task, method, b))
                    gains = None if s is None else s.numbers["nominal_log_prob"] - prior
                    cells.append("–" if gains is None else f"{int((gains >= LEARNT).sum())} of {len(gains)}")
                rows.append([f"{LABELS[method]}, {TASKS[task]}, `{name}`", *cells])
    if not rows:
        raise Missing("neither protocol has a task with images or series")
    return table([f"runs that gain {LEARNT} nat or more", *(f"{b:,}" for b in budgets)], rows)


def escaped(folder: Path) -> str:
    """Twenty runs of balanced classifiers of images: those that leave the prior, and those that do not."""
    results = opened("escape", folder)
    prior = float(results.ds["prior_log_prob"].sel(task="spatial_sir"))
    rows = []
    for s in results.each(["spatial_sir"], ["bnre", "bnre_c"], results.budgets):
        gains, areas = s.numbers["nominal_log_prob"] - prior, s.numbers["coverage_auc"]
        left = gains >= LEARNT
        cells = []
        for which in (left, ~left):
            some, verdicts = areas[which], [v for v, w in zip(s.verdicts, which, strict=True) if w]
            if len(some):
                low, middle, high = (signed(float(v)) for v in np.quantile(some, [0, 0.5, 1]))
                cells += [f"{middle} ({low} … {high})", counted(verdicts)]
            else:
                cells += ["–", "–"]
        share = f"{int(left.sum())} of {len(left)}"
        gain = signed(float(np.median(gains[left])), 2) if any(left) else "–"
        rows.append([f"{LABELS[s.method]}, {s.budget:,}", share, gain, *cells])
    head = ["Spatial SIR", "leave the prior", "their gain", "their coverage AUC", "their verdicts"]
    return table([*head, "coverage AUC of the others", "their verdicts"], rows)


def jumps(folder: Path) -> str:
    """How many trainings of flows have a jump of the training loss, by task and budget."""
    results = opened("paper", folder)
    if "train_loss" not in results.ds:
        raise Missing("`results/paper.nc` has no histories")
    rows = []
    for task in results.tasks:
        cells = []
        for b in results.budgets:
            found = [m for m in FLOWS if (task, m, b) in results.settings]
            loss = results.ds["train_loss"].sel({"task": task, "budget": b, "method": found}).values
            loss = loss.reshape(-1, loss.shape[-1])
            loss = loss[np.isfinite(loss).any(-1)]
            with np.errstate(invalid="ignore"):
                jumped = (np.diff(loss, axis=-1) > JUMP).any(-1)
            cells.append(f"{int(jumped.sum())} of {len(loss)}" if len(loss) else "–")
        rows.append([TASKS[task], *cells])
    return table([f"flows whose loss rises by more than {JUMP}", *(f"{b:,}" for b in results.budgets)], rows)


def mixtures(folder: Path) -> str:
    """Verdicts of single networks and of their mixtures, over all tasks and budgets."""
    results = opened("mixture", folder)
    rows = [
        [LABELS[m], counted(_verdicts(results, m, "member_verdict")), counted(_verdicts(results, m, "verdict"))]
        for m in results.methods
    ]
    return table(["", "single networks", "mixtures of five"], rows)


def _verdicts(results: Results, method: str, name: str) -> list[str]:
    values = results.ds[name].sel({"method": method}).values.ravel() if method in results.methods else []
    return [str(v) for v in values if str(v)]
