"""Tables of the ablations: balance, its strength, starts at the prior, how ranks are computed, mixtures."""

from __future__ import annotations

__all__ = [
    "CLASSIFIERS",
    "STARTS",
    "STRENGTHS",
    "ablation",
    "artefact",
    "changes",
    "mixture",
    "part_of",
    "places_of",
    "start",
    "started",
    "starts",
    "strength",
]

from pathlib import Path

import numpy as np

from formats import counted, options_of, signed, table
from reading import LABELS, TASKS, Missing, Results, Setting, figure_auc, opened, optional, published

STRENGTHS = (0, 1, 10, 100, 1000)
CLASSIFIERS = ("nre", "bnre", "nre_c", "bnre_c")
LOSSES = {
    "npe": "flow, likelihood",
    "rnpe": "flow, ratio",
    "nre": "classifier, ratio",
    "nre_c": "classifier, contrastive",
}
TERMS = {"chi2": "χ²", "unbiased": "χ², unbiased", "kl": "KL", "multiclass": "χ², multiclass"}
STARTS = {
    ("random", ""): "random",
    ("prior", "scaled"): "transform to the prior, weights ÷ 5",
    ("prior", "identity"): "transform to the prior, identity",
    ("prior_base", "scaled"): "prior as base, weights ÷ 5",
    ("prior_base", "identity"): "prior as base, identity",
}


def ablation(folder: Path) -> str:
    """Coverage AUC and nominal log posterior: weights kept × loss × balance, against λ."""
    results = opened("ablation", folder)
    parts = []
    for task, budget in places_of(results):
        rows = []
        for keep in ("best", "last"):
            for loss, words in LOSSES.items():
                for term, term_words in TERMS.items():
                    found = {s: part_of(results, task, budget, loss, term, s, keep) for s in STRENGTHS}
                    if any(found[s] is not None for s in STRENGTHS[1:]):
                        cells = ["–" if s is None else _pair(s) for s in found.values()]
                        rows.append([f"{words}, {term_words}, {keep}", *cells])
        head = ["loss, balance, weights kept", *(f"λ = {s}" for s in STRENGTHS)]
        parts.append(f"**{TASKS[task]}, {budget:,} simulations**\n\n" + table(head, rows))
    return "\n\n".join(part for part in (*parts, missing(results)) if part)


def changes(folder: Path) -> str:
    """What one change does to coverage and sharpness, over all pairs of settings that differ in nothing else."""
    return changes_of(opened("ablation", folder))


def changes_of(results: Results) -> str:
    flows, both, strengths = ("npe", "rnpe"), ("best", "last"), STRENGTHS[1:]
    same = [(b, s, k) for b in TERMS for s in STRENGTHS for k in both]
    compared = {
        "last weights instead of best": [
            ((a, b, s, "last"), (a, b, s, "best")) for a in LOSSES for b, s, k in same if k == "best"
        ],
        "ratio loss instead of likelihood, flows": [(("rnpe", b, s, k), ("npe", b, s, k)) for b, s, k in same],
        "KL instead of χ², flows": [
            ((a, "kl", s, k), (a, "chi2", s, k)) for a in flows for s in strengths for k in both
        ],
        "unbiased χ² instead of plain, flows": [
            ((a, "unbiased", s, k), (a, "chi2", s, k)) for a in flows for s in strengths for k in both
        ],
        "multiclass χ² instead of binary, NRE-C": [
            (("nre_c", "multiclass", s, k), ("nre_c", "chi2", s, k)) for s in strengths for k in both
        ],
    }
    rows = []
    for words, pairs in compared.items():
        found = {
            (one.task, one.budget, one.method, two.method): (one, two)
            for place in places_of(results)
            for first, second in pairs
            if (one := part_of(results, *place, *first)) is not None
            and (two := part_of(results, *place, *second)) is not None
        }
        area, log = (
            np.array([one.median(n) - two.median(n) for one, two in found.values()])
            for n in ("coverage_auc", "nominal_log_prob")
        )
        if len(found):
            middle, low, high = (signed(float(f(area))) for f in (np.median, np.min, np.max))
            change = signed(float(np.median(log)), 2)
            rows.append([words, f"{len(found)}", middle, f"{low} … {high}", change])
    head = ["change", "pairs of settings", "coverage AUC, median", "range", "nominal log posterior, median"]
    return table(head, rows) if rows else ""


def missing(results: Results) -> str:
    """What of the grid was not computed, by task, budget and network; empty where nothing is missing."""
    words: dict[str, None] = {}
    for task in map(str, results.ds["task"].values):
        for budget in map(int, results.ds["budget"].values):
            for method in map(str, results.ds["method"].values):
                if (task, method, budget) not in results.settings:
                    network = "classifiers" if options_of(method)[0] in CLASSIFIERS else "flows"
                    words[f"{TASKS[task]} {budget:,} ({network})"] = None
    return f"*Not computed yet: {', '.join(words)}.*" if words else ""


def places_of(results: Results) -> list[tuple[str, int]]:
    """The tasks and budgets of which a setting is there."""
    there = {(task, budget) for task, _, budget in results.settings}
    return [(t, b) for t in results.tasks for b in results.budgets if (t, b) in there]


def part_of(results: Results, task: str, budget: int, loss: str, term: str, strength: int, keep: str) -> Setting | None:
    """The setting with this loss, balance term, λ and weights; λ = 0 is the method without balance."""
    for method in results.methods:
        name, options = options_of(method)
        if options.get("keep", "best") != keep or (task, method, budget) not in results.settings:
            continue
        if strength == 0 and name == loss:
            return results.settings[task, method, budget]
        its_term = "unbiased" if options.get("unbiased") == "true" else options.get("balance", "chi2")
        if name == "b" + loss and its_term == term and float(options.get("strength", 100)) == strength:
            return results.settings[task, method, budget]
    return None


def _pair(s: Setting) -> str:
    return f"{signed(s.median('coverage_auc'))} / {signed(s.median('nominal_log_prob'), 2)}"


def strength(folder: Path) -> str:
    """Another strength than the text's, beside it and beside the published number."""
    results, text = opened("strength", folder), opened("released", folder)
    every = [r for r in (results, optional("strength_brnpe", folder)) if r is not None]
    level, rows = results.ds["level"].values, []
    for s in (s for r in every for s in r.each(r.tasks, r.methods, r.budgets)):
        name, options = options_of(s.method)
        key = s.task, name, s.budget
        if key not in text.settings:
            continue
        both = text.settings[key], s
        areas = [f"{signed(figure_auc(x, level))}<br><sub>{_range(x)}</sub>" for x in both]
        logs = [signed(x.median("nominal_log_prob"), 2) for x in both]
        figure = signed(published()[key]) if key in published() else "–"
        words = f"{LABELS[name]}, {TASKS[s.task]}, λ = 100 / {options['strength']}"
        rows.append([words, f"{s.budget:,}", figure, *areas, *logs])
    if not rows:
        raise Missing("`results/strength.nc` and `results/released.nc` have no setting in common")
    head = ["", "budget", "published", "λ = 100", "other λ", "log posterior, λ = 100", "other λ"]
    pairs = f"{int(text.ds['pairs']):,} and {int(results.ds['pairs']):,} pairs"
    return f"{table(head, rows)}\n\n*Coverage AUC of the median curve, and its range over runs; {pairs}.*"


def _range(s: Setting) -> str:
    return " … ".join(signed(end) for end in s.ends("coverage_auc"))


# --- starts and the artefact ------------------------------------------------------------------------------------------


def started(folder: Path) -> Results:
    """The results of the starts, if they have more than one budget to draw."""
    results = opened("start", folder)
    if len(results.budgets) < 2:
        raise Missing("`results/start.nc` has one budget only, which makes no figure")
    return results


def start(folder: Path) -> str:
    """Balancing error and nominal log posterior of each start."""
    results = opened("start", folder)
    parts = []
    for task in results.tasks:
        rows = []
        for loss, words in (("npe", "likelihood loss"), ("rnpe", "ratio loss")):
            for method in [loss, *(m for m in results.methods if options_of(m)[0] == "b" + loss)]:
                name, options = options_of(method)
                scheme = STARTS[options.get("start", "random"), options.get("init", "")]
                cells = [results.settings.get((task, method, b)) for b in results.budgets]
                text = ["–" if s is None else _error_and_log(s) for s in cells]
                rows.append([f"{words}, {'not balanced' if name == loss else 'balanced'}, {scheme}", *text])
        parts.append(f"**{TASKS[task]}**\n\n" + table(["", *(f"{b:,}" for b in results.budgets)], rows))
    return "\n\n".join(part for part in (*parts, missing(results)) if part)


def _error_and_log(s: Setting) -> str:
    low, high = s.ends("balancing_error")
    log = signed(s.median("nominal_log_prob"), 2)
    return f"{s.median('balancing_error'):.4f} / {log}<br><sub>{low:.4f} … {high:.4f}</sub>"


def starts(folder: Path) -> str:
    """In how many settings a start has a smaller balancing error, and a higher log posterior, than the random one."""
    results, rows = opened("start", folder), []
    for (place, init), words in STARTS.items():
        if place != "random":
            names = {n: f"{n}[start={place},init={init}]" for n in ("bnpe", "brnpe")}
            rows.append([words, *_start_counts(results, results, names)])
    try:
        names = {"bnpe": "bnpe_init", "brnpe": "brnpe_init"}
        rows.append(
            [f"{STARTS['prior', 'scaled']}, in `paper`", *_start_counts(opened("paper", folder), results, names)]
        )
    except Missing:
        pass
    head = [
        "start",
        "smaller balancing error",
        "higher log posterior, likelihood loss",
        "higher log posterior, ratio loss",
    ]
    return table(head, rows)


def _start_counts(results: Results, like: Results, names: dict[str, str]) -> list[str]:
    """Over the tasks and budgets of `like`: where a start beats the random one."""
    pairs = [
        (mine, plain)
        for task in like.tasks
        for name, other in names.items()
        for b in like.budgets
        if (mine := results.settings.get((task, other, b))) is not None
        and (plain := results.settings.get((task, name, b))) is not None
    ]
    less = sum(m.median("balancing_error") < p.median("balancing_error") for m, p in pairs)
    counts = [f"{less} of {len(pairs)}"]
    for loss in names:
        of = [(m, p) for m, p in pairs if p.method == loss]
        more = sum(m.median("nominal_log_prob") > p.median("nominal_log_prob") for m, p in of)
        counts.append(f"{more} of {len(of)}")
    return counts


def artefact(folder: Path, grid: str = "artefact") -> str:
    """Coverage of the same networks, by our ranks and by the released ones."""
    results = opened(grid, folder)
    level, rows, apart = results.ds["level"].values, [], []
    for task in results.tasks:
        for name in dict.fromkeys(options_of(m)[0] for m in results.methods):
            for b in results.budgets:
                both = [results.settings.get((task, f"{name}[recipe={r}]", b)) for r in ("equipoise", "released")]
                if both[0] is None or both[1] is None:
                    continue
                ours, theirs = both
                apart.append(float(np.abs(ours.curve - theirs.curve).max()))
                read = [[float(np.interp(u, level, s.curve)) for u in (0, 0.05, 0.1, 0.5)] for s in (ours, theirs)]
                pairs = [f"{o:.3f} / {t:.3f}" for o, t in zip(*read, strict=True)]
                area = f"{signed(ours.median('coverage_auc'))} / {signed(theirs.median('coverage_auc'))}"
                rows.append([f"{LABELS[name]}, {TASKS[task]}", f"{b:,}", *pairs, area])
    if not rows:
        raise Missing(f"`results/{grid}.nc` has no network that was judged twice")
    head = ["", "budget", "at level 0", "at 0.05", "at 0.10", "at 0.50", "coverage AUC"]
    note = (
        f"*Ours / released, medians, {int(results.ds['pairs']):,} pairs. "
        f"Median curves differ by at most {max(apart):.3f} at any level.*"
    )
    return f"{table(head, rows)}\n\n{note}"


def mixture(folder: Path) -> str:
    """Single networks and the mixtures of the same networks: verdicts, coverage and nominal log posterior."""
    results = opened("mixture", folder)
    rows = []
    for s in results.each(results.tasks, results.methods, results.budgets):
        here = results.ds.sel({"task": s.task, "method": s.method, "budget": s.budget})
        alone = [str(v) for v in here["member_verdict"].values.ravel() if str(v)]
        medians = [
            f"{signed(float(np.nanmedian(here[f'member_{name}'])), digits)} / {signed(s.median(name), digits)}"
            for name, digits in (("coverage_auc", 3), ("nominal_log_prob", 2))
        ]
        verdicts = [str(v) for v in here["verdict"].values.ravel() if str(v)]
        words = f"{TASKS[s.task]}, {LABELS[s.method]}"
        rows.append([words, f"{s.budget:,}", counted(alone), counted(verdicts), *medians])
    head = ["", "budget", "single networks", "mixtures", "coverage AUC", "nominal log posterior"]
    note = "*Medians of single networks / of mixtures. Verdicts are those of each by itself.*"
    return "\n\n".join(part for part in (table(head, rows), note, missing(results)) if part)
