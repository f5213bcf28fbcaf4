"""Tables and figures of docs/ that are made from results/: they follow from the results."""

from __future__ import annotations

import dataclasses
import itertools
import re

import numpy as np
import pytest
import xarray as xr
from report_results import synthetic_results

import ablations
import agreement
import claims
import estimates
import figures
import formats
import ledgers
import reading
import summary
import tables
from equipoise.experiments import load_grid

METHODS = ["nre", "bnre", "nre_c", "bnre_c", "npe", "rnpe", "brnpe", "brnpe_init"]
LEVELS = np.linspace(0, 1, 101)


def with_ledger(ds, seconds=10.0, device="cuda"):
    """Two stacks: the classifiers and the flows of everything."""
    ds = ds.assign_coords(ledger=["a", "b"])
    ds["ledger_network"] = ("ledger", ["classifier", "flow"])
    ds["ledger_device"] = ("ledger", [device] * 2)
    ds["ledger_hardware"] = ("ledger", ["a machine"] * 2)
    ds["ledger_place"], ds["ledger_began"] = ("ledger", [""] * 2), ("ledger", [0.0, 1000.0])
    for name, value in (("train_seconds", seconds), ("diagnose_seconds", 1.0), ("seconds", seconds + 2)):
        ds[f"ledger_{name}"] = ("ledger", [value, 2 * value])
    ds["ledger_members"], ds["ledger_steps"] = ("ledger", [4, 4]), ("ledger", [1e6, 2e6])
    ds["ledger_task"], ds["ledger_budget"] = ("ledger", ["slcp"] * 2), ("ledger", [1024, 2048])
    ds.attrs |= {"cells_done": 48, "cells_wanted": 48}
    return ds


@pytest.fixture(scope="module")
def made_up(tmp_path_factory):
    """Results of both protocols, from ranks with a known coverage."""
    folder = tmp_path_factory.mktemp("results")
    for name, seed in (("paper", 0), ("released", 1)):
        ds = synthetic_results(
            ("slcp", "two_moons"), [*METHODS, "bnpe", "bnpe_init"], (1024, 8192), 3, 1, 500, name, seed=seed
        )
        with_ledger(ds).to_netcdf(folder / f"{name}.nc", engine="h5netcdf")
    return folder


def setting(task="slcp", method="nre", budget=1024, curve=LEVELS, verdicts=("inconclusive",) * 3, **numbers):
    runs = {n: np.asarray(v, float) for n, v in numbers.items()}
    return reading.Setting(task, method, budget, runs, list(verdicts), np.asarray(curve))


class Fake:
    """Results that hold given settings."""

    def __init__(self, name, *settings):
        self.name, self.settings = name, {(s.task, s.method, s.budget): s for s in settings}
        self.tasks, self.methods = (list(dict.fromkeys(k[i] for k in self.settings)) for i in (0, 1))
        self.budgets = sorted({k[2] for k in self.settings})

    each = reading.Results.each


# --- the document -----------------------------------------------------------------------------------------------------


def test_pages_say_what_the_results_say():
    named: list[str] = []
    for page in tables.PAGES:
        text = page.read_text(encoding="utf-8")
        assert tables.fill(text, up=tables.up_to_docs(page)) == text, "run `make figures`"
        named += re.findall(r"<!-- table: ([\w-]+) -->", text)
    assert sorted(named) == sorted(tables.BLOCKS), "every table is on one page, once"


def test_without_results_each_table_says_which_file_is_missing(tmp_path):
    text = "".join(f"<!-- table: {name} -->\nold\n<!-- end -->\n" for name in tables.BLOCKS)
    filled = tables.fill(text, tmp_path)
    assert "old" not in filled and filled.count("ot computed yet") >= len(tables.BLOCKS)
    assert all(f"{n}" in filled for n in reading.FILES) and tables.fill(filled, tmp_path) == filled
    with pytest.raises(ValueError, match="there is no table 'nothing'"):
        tables.fill("<!-- table: nothing --><!-- end -->", tmp_path)


def test_with_results_the_tables_are_filled_and_stay(made_up, tmp_path, capsys):
    pages = [tmp_path / page.relative_to(tables.DOCS) for page in tables.PAGES]
    for page, copy in zip(tables.PAGES, pages, strict=True):
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(page.read_text(encoding="utf-8"), encoding="utf-8")
    options = ["--results", str(made_up), "--docs", str(tmp_path)]
    assert tables.main([*options, "--check"]) == 1 and tables.main(options) == 0
    assert tables.main([*options, "--check"]) == 0 and "up to date" in capsys.readouterr().out
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    missing = set(re.findall(r"`results/(\w+)\.nc` is not there", text))
    others = {"released_again", "ablation", "start", "artefact", "leakage", "mixture", "strength", "rolls", "escape"}
    assert missing == others | {"estimate", "frontier", "temperatures"}
    assert "](figures/reproduction-auc.png)" in text and "](../figures/reproduction-log-paper.png)" in text


# --- reading ----------------------------------------------------------------------------------------------------------


def test_published_numbers_are_under_the_names_they_have_here():
    numbers = reading.published()
    assert numbers["slcp", "brnpe", 1024] == -0.028 and numbers["two_moons", "brnpe_init", 131072] == -0.097
    assert not any(m in ("bnpe", "bnpe_init") for _, m, _ in numbers)
    # Read at three budgets, and for BNRE on SLCP at seven.
    assert {b for t, m, b in numbers if (t, m) != ("slcp", "bnre")} == {1024, 8192, 131072} and len(numbers) == 122
    assert (reading.HERE / "published-auc.csv").read_text().startswith("# Coverage AUC")


def test_the_area_is_that_of_the_median_curve():
    # Coverage u² has the area ∫ u² - u = -1/6; the trapezoidal rule with steps h = 0.05 adds h²/6.
    assert reading.figure_auc(setting(curve=LEVELS**2), LEVELS) == pytest.approx(-1 / 6 + 0.05**2 / 6)
    assert setting(curve=LEVELS**2).dip == pytest.approx(-0.25)


def test_settings_are_the_runs_that_are_there(made_up):
    results = reading.Results("paper", made_up)
    found = results.settings["slcp", "npe", 8192]
    cell = results.ds.sel({"task": "slcp", "method": "npe", "budget": 8192})
    assert found.median("coverage_auc") == float(cell["coverage_auc"].median())
    assert found.ends("entropy") == (float(cell["entropy"].min()), float(cell["entropy"].max()))
    np.testing.assert_allclose(found.curve, cell["coverage"].median("run"))
    assert found.verdicts == [str(v) for v in cell["verdict_holm"].values]
    partly = results.ds.copy(deep=True)
    partly["coverage"][0, 0, 0, 1:] = np.nan
    partly["coverage"][0, 0, 1] = np.nan
    results.ds = partly
    del results.settings
    assert len(results.settings["slcp", "nre", 1024].verdicts) == 1 and ("slcp", "nre", 8192) not in results.settings


@pytest.fixture
def again(made_up, tmp_path):
    """Both sets of runs of the released protocol; the second has SLCP at a larger budget, and is judged twice."""
    for name in ("paper", "released"):
        (tmp_path / f"{name}.nc").write_bytes((made_up / f"{name}.nc").read_bytes())
    ds = with_ledger(synthetic_results(("slcp",), METHODS, (1024, 131072), 3, 1, 500, "released", seed=7))
    ds["released_coverage"] = ds["coverage"] * 0 + LEVELS**2
    ds["released_coverage_auc"] = ds["coverage_auc"] * 0 - 1 / 6
    ds.to_netcdf(tmp_path / "released_again.nc", engine="h5netcdf")
    return tmp_path, ds


def test_larger_budgets_of_a_second_file_are_read_with_the_first(again, made_up):
    folder, second = again
    both, first = reading.opened("released", folder), reading.Results("released", made_up)
    assert both.budgets == [1024, 8192, 131072] and set(first.settings) < set(both.settings)
    added = {k for k in both.settings if k not in first.settings}
    assert added == {("slcp", m, 131072) for m in METHODS}
    for key in [("slcp", "nre", 1024), ("two_moons", "brnpe", 8192)]:  # what the first has, is the first's
        np.testing.assert_array_equal(both.settings[key].curve, first.settings[key].curve)
        assert both.settings[key].verdicts == first.settings[key].verdicts
    for m in METHODS:
        cell, found = second.sel({"method": m, "task": "slcp", "budget": 131072}), both.settings["slcp", m, 131072]
        np.testing.assert_array_equal(found.numbers["entropy"], cell["entropy"].values)
        assert found.verdicts == [str(v) for v in cell["verdict_holm"].values]
    assert reading.Results("released", folder).budgets == [1024, 8192]
    alone = [ledgers.device_seconds(reading.Results(n, folder).ds) for n in ("paper", "released", "released_again")]
    assert [len(one[0]) for one in alone] == [2, 2, 2] and reading.opened("released", folder).ds.sizes["ledger"] == 2


def test_second_runs_are_compared_by_both_recipes(again):
    folder, _ = again
    area = -1 / 6 + 0.05**2 / 6  # of coverage u², as read
    ours = reading.opened("released_again", folder)
    head, _, compared, *_ = agreement.agreement(folder).splitlines()
    # The first runs alone, though `opened` adds the largest budget of the second to them.
    first = sum(k in reading.Results("released", folder).settings for k in reading.published())
    numbers = [cell.strip() for cell in compared.strip("|").split("|")][1:]
    assert numbers[1:] == [f"{first} of 122", "–", f"{2 * len(METHODS)} of 122", "–"]
    assert "second runs, released ranks" in head
    (nre,) = [row for row in agreement.systematic(folder).splitlines() if row.startswith("| NRE |")]
    gap = area - reading.published()["slcp", "nre", 1024]
    shared = reading.figure_auc(ours.settings["slcp", "nre", 1024], LEVELS) - reading.published()["slcp", "nre", 1024]
    assert re.search(rf"\| 1 \| .* \| {re.escape(formats.signed(shared))} \| {re.escape(formats.signed(gap))} \|$", nre)
    largest = agreement.largest_budget(folder)
    middle = reading.figure_auc(ours.settings["slcp", "npe", 131072], LEVELS)
    assert f"| NPE, SLCP | −0.053 | {formats.signed(middle)} |" in largest and largest.count(formats.signed(area)) == 8
    every = agreement.against_published("slcp", folder)
    assert every.count(f"| {formats.signed(area)} |") == 16 and "second runs, released ranks" in every


def test_what_does_not_agree_is_listed_from_the_largest_difference(monkeypatch):
    """Runs that scatter much may agree all the same; nearby ones that agree are left out."""
    theirs = {("slcp", m, 1024): 0.0 for m in ("nre", "bnre", "npe", "rnpe")}
    offsets = {"nre": 0.03, "bnre": 0.09, "npe": 0.06, "rnpe": 0.01}
    scatter = {"nre": 0.001, "bnre": 0.001, "npe": 0.05, "rnpe": 0.001}
    settings = [
        setting(
            "slcp", m, 1024, curve=LEVELS + 6 * d * LEVELS * (1 - LEVELS), coverage_auc=[d - scatter[m], d + scatter[m]]
        )
        for m, d in offsets.items()
    ]
    fake = Fake("released", *settings)
    fake.ds = {"level": xr.DataArray(LEVELS)}
    monkeypatch.setattr(agreement, "opened", lambda name, folder: fake)
    monkeypatch.setattr(agreement, "published", lambda: theirs)
    rows = [row.strip("| ").split(" | ") for row in agreement.outliers(reading.HERE).splitlines()[2:]]
    words = "only because our runs scatter"
    assert [(row[0], row[-1]) for row in rows] == [
        ("BNRE, SLCP", "**no**"),
        ("NPE, SLCP", words),
        ("NRE, SLCP", "**no**"),
    ]


def test_agreement_allows_for_reading_and_for_the_range_of_runs():
    s = setting(coverage_auc=[-0.10, -0.08, -0.04])
    assert agreement.agrees(s, -0.08, -0.129) and agreement.agrees(s, -0.08, -0.031)  # 0.02 + 0.06 / 2
    assert not agreement.agrees(s, -0.08, -0.131) and not agreement.agrees(s, -0.08, -0.029)


# --- claims -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("so", "word"),
    [(10, "holds: 10 of 10"), (9, "holds: 9 of 10"), (8, "holds in part: 8 of 10"), (5, "holds in part: 5 of 10"),
     (4, "does not hold: 4 of 10")],
)  # fmt: skip
def test_a_verdict_is_a_share_of_cases(so, word):
    cases = [claims.Case("slcp", "nre", 2**i, i < so) for i in range(10)]
    claim = claims.Claim("", "", lambda results: iter(cases))
    assert claims.decide(claim, Fake("paper")) == (word, cases)
    assert claims.exceptions(cases) == ("" if so == 10 else f"NRE on SLCP ({10 - so})")
    assert claims.decide(dataclasses.replace(claim, cases=lambda r: iter(())), Fake("paper"))[0] == "not computed"


def claim_with(words):
    (found,) = [c for c in claims.CLAIMS if words in c.words]
    return found


def test_each_rule_turns_with_its_numbers():
    """A balanced and a plain method at two budgets; each rule is tried with numbers that obey and that defy it."""

    def numbers(auc, log, error, entropy):
        levels, kept = 50 + 100 * auc, (log + 3.6) / 3.6  # as many levels, and as much information, as go with them
        named = {"coverage_auc": auc, "nominal_log_prob": log, "balancing_error": error, "entropy": entropy}
        return named | {"levels_covered": levels, "information_kept": kept}

    def results(small, large, plain_small, plain_large, method="bnre", other="nre"):
        def at(m, b, n, over):
            return setting("slcp", m, b, verdicts=["overconfident"] * over + [""] * (3 - over), **numbers(*n))

        return Fake(
            "paper",
            at(method, 1024, small, 0),
            at(method, 131072, large, 0),
            at(other, 1024, plain_small, 2),
            at(other, 131072, plain_large, 0),
        )

    ones = np.ones(3)
    obeys = results(
        (0.1 * ones, -3 * ones, 0.01 * ones, 2 * ones),
        (0.1 * ones, -1.05 * ones, 0.01 * ones, 1.05 * ones),
        (-0.1 * ones, -2 * ones, 0.2 * ones, 1.5 * ones),
        (0 * ones, -1 * ones, 0.05 * ones, 1 * ones),
    )
    defies = results(
        (-0.2 * ones, -1 * ones, 0.3 * ones, 1 * ones),
        (-0.2 * ones, -0.5 * ones, 0.3 * ones, 1.2 * ones),
        (-0.1 * ones, -2 * ones, 0.2 * ones, 1.5 * ones),
        (0 * ones, -1 * ones, 0.19 * ones, 1 * ones),
    )
    for quote in (
        "more conservative than their counterparts",
        "by the paper's definition",
        "have a lower nominal log posterior",
        "leads to more balanced surrogates",
        "diminishes with the budget",
        "larger posteriors for low budgets",
        "shrink as the budget increases",
        "recover posteriors like",
    ):
        claim = claim_with(quote)
        assert claims.decide(claim, obeys)[0].startswith("holds:"), quote
        assert claims.decide(claim, defies)[0].startswith("does not hold"), quote
    assert claims.decide(claim_with("Commonly used"), obeys)[0] == "holds: 1 of 1"
    similar = claim_with("similar nominal log posterior")
    assert claims.decide(similar, obeys)[0] == "holds: 1 of 1"
    flows = results(
        (0.1 * ones, -3 * ones, 0.1 * ones, 2 * ones),
        (0.1 * ones, -1.2 * ones, 0.1 * ones, 2 * ones),
        (-0.1 * ones, -2 * ones, 0.2 * ones, 1.5 * ones),
        (0 * ones, -1 * ones, 0.2 * ones, 1 * ones),
        "bnpe_init",
        "bnpe",
    )
    assert claims.decide(claim_with("Starting at the prior"), flows)[0] == "holds: 2 of 2"
    assert claims.decide(claim_with("still learns"), flows)[0] == "holds: 1 of 1"
    assert claims.decide(claim_with("learns as much"), flows)[0] == "does not hold: 0 of 1"
    still = dataclasses.replace(
        flows.settings["slcp", "bnpe_init", 131072], numbers=numbers(0.1 * ones, -2.6 * ones, ones, ones)
    )
    asleep = Fake("paper", still, flows.settings["slcp", "bnpe", 131072])
    assert claims.decide(claim_with("still learns"), asleep)[0] == "does not hold: 0 of 1"
    # At a smaller budget these two say nothing.
    early = [dataclasses.replace(s, budget=8192) for s in asleep.settings.values()]
    for quote in ("still learns", "learns as much", "similar nominal log posterior"):
        assert claims.decide(claim_with(quote), Fake("paper", *early))[0] == "not computed"


def test_conservative_by_test_and_by_eye():
    below = LEVELS - 0.03 * np.sin(np.pi * LEVELS)
    over, fine = ["overconfident"] * 3, ["inconclusive"] * 3
    balanced = Fake("paper", setting(method="bnre", verdicts=fine), setting(method="bnpe", verdicts=over, curve=below))
    tend, eye, init, moons, moons_eye = claims.CLAIMS[1:6]
    started = Fake("paper", setting(method="bnpe_init", verdicts=over), setting(method="bnre", verdicts=fine))
    assert claims.decide(init, started)[0] == "does not hold: 0 of 1" and "Not claimed" in init.words
    assert claims.decide(tend, started)[0] == "holds: 1 of 1"
    assert [claims.decide(c, balanced)[0] for c in (tend, eye)] == ["holds in part: 1 of 2"] * 2
    two = Fake("paper", setting("two_moons", verdicts=over, curve=below), setting("two_moons", "npe", verdicts=fine))
    assert [claims.decide(c, two)[0] for c in (moons, moons_eye)] == ["holds in part: 1 of 2"] * 2
    assert "Two Moons" in moons.words and "eye" in moons_eye.words


LATE = "at 131,072 simulations"


def test_every_claim_is_decided_on_results_of_both_protocols(made_up):
    for name in ("paper", "released"):
        results = reading.Results(name, made_up)
        decided = [claims.decide(c, results)[0] for c in claims.CLAIMS]
        late = [LATE in c.rule for c in claims.CLAIMS]
        assert [d == "not computed" for d in decided] == late and 1 < sum(late) < 6  # there are only small budgets
        assert all(re.match(r"(holds|holds in part|does not hold): \d+ of \d+$|not computed$", d) for d in decided)


# --- ablations --------------------------------------------------------------------------------------------------------


def test_every_part_of_the_grid_has_its_place_in_the_table():
    grid = load_grid("ablation")
    results = Fake("ablation", *(setting(method=m.label) for m in grid.methods))
    found = [
        part.method
        for keep in ("best", "last")
        for loss in ablations.LOSSES
        for term in ablations.TERMS
        for s in ablations.STRENGTHS
        if (part := ablations.part_of(results, "slcp", 1024, loss, term, s, keep)) is not None
    ]
    assert set(found) == {m.label for m in grid.methods}
    balanced = [m for m in found if "strength" in m]
    assert len(balanced) == len(set(balanced)) == 72  # and λ = 0 stands in the row of every term


def test_what_a_part_does_is_over_pairs_that_differ_in_it_alone():
    """AUC is made up as a sum of what each part adds, so that every difference is known."""
    adds = {"last": -0.2, "rnpe": 0.05, "kl": 0.01, "unbiased": 0.002, "multiclass": -0.03}

    def area(label):
        name, options = formats.options_of(label)
        term = "unbiased" if "unbiased" in options else options.get("balance", "")
        return adds.get(options["keep"], 0) + adds.get(term, 0) + 0.05 * name.endswith("rnpe")

    some = [
        setting(method=m.label, coverage_auc=[area(m.label)] * 3, nominal_log_prob=[-1.0] * 3)
        for m in load_grid("ablation").methods
    ]
    lines = ablations.changes_of(Fake("ablation", *some)).splitlines()[2:]
    expected = {
        "last weights": ("−0.200", 40),
        "ratio loss": ("+0.050", 26),
        "KL": ("+0.010", 16),
        "unbiased": ("+0.002", 16),
        "multiclass": ("−0.030", 8),
    }
    for line, (start, (value, pairs)) in zip(lines, expected.items(), strict=True):
        assert line.startswith(f"| {start}") and f"| {pairs} | {value} | {value} … {value} |" in line


def test_every_start_of_the_grid_has_words():
    for entry in load_grid("start").methods:
        _, options = formats.options_of(entry.label)
        assert (options.get("start", "random"), options.get("init", "")) in ablations.STARTS


def test_the_artefact_is_read_from_networks_that_were_judged_twice(tmp_path):
    labels = [f"nre[recipe={r}]" for r in ("equipoise", "released")]
    ds = synthetic_results(("slcp",), ("nre", "bnre"), (1024,), 2, 1, 500, "released", gallery=False)
    ds = ds.assign_coords(method=labels)
    ds.to_netcdf(tmp_path / "artefact.nc", engine="h5netcdf")
    text = ablations.artefact(tmp_path)
    curves = ds["coverage"].median("run").values[0, :, 0]
    assert f"| {curves[0, 10]:.3f} / {curves[1, 10]:.3f} |" in text
    assert f"differ by at most {np.abs(curves[0] - curves[1]).max():.3f} at any level" in text


def test_another_strength_stands_beside_the_texts_and_the_published_number(tmp_path):
    ds = synthetic_results(("slcp",), ("bnre", "bnre_c"), (1024, 8192), 3, 1, 400, "released", gallery=False)
    ds.to_netcdf(tmp_path / "released.nc", engine="h5netcdf")
    other = ds.assign_coords(method=["bnre[strength=50]", "bnre_c[strength=50]"]).copy(deep=True)
    other["coverage"][:] = np.linspace(0, 1, other.sizes["level"]) ** 2
    other["coverage"][:, 1, 1] = np.nan
    other.to_netcdf(tmp_path / "strength.nc", engine="h5netcdf")
    rows = ablations.strength(tmp_path).splitlines()[2:5]
    assert [row.split(" | ")[0] for row in rows] == [
        "| BNRE, SLCP, λ = 100 / 50",
        "| BNRE, SLCP, λ = 100 / 50",
        "| BNRE-C, SLCP, λ = 100 / 50",
    ]
    here = reading.figure_auc(reading.Results("released", tmp_path).settings["slcp", "bnre", 8192], ds["level"].values)
    assert f"| 8,192 | +0.020 | {formats.signed(here)}<br>" in rows[1] and "| −0.166<br>" in rows[1]


def test_places_that_were_not_computed_have_no_table_and_no_panel(tmp_path):
    ds = synthetic_results(("slcp", "two_moons"), ("nre", "bnre"), (1024, 8192), 2, 1, 400, gallery=False)
    ds["coverage"][1, :, 1] = np.nan
    ds = ds.assign_coords(method=["nre[keep=best]", "bnre[strength=10,keep=best]"])
    ds.to_netcdf(tmp_path / "ablation.nc", engine="h5netcdf")
    results = reading.Results("ablation", tmp_path)
    assert ablations.places_of(results) == [("slcp", 1024), ("slcp", 8192), ("two_moons", 1024)]
    text = ablations.ablation(tmp_path)
    assert text.count("simulations**") == 3 and "*Not computed yet: Two Moons 8,192 (classifiers).*" in text
    assert len(figures.ablation(tmp_path).axes) == 6 * 3  # three families, best and last weights


def test_a_mixture_stands_beside_its_networks(tmp_path):
    ds = synthetic_results(("slcp",), ("npe", "bnre"), (1024,), 3, 5, 400, gallery=False)
    ds.to_netcdf(tmp_path / "mixture.nc", engine="h5netcdf")
    rows = ablations.mixture(tmp_path).splitlines()
    cell = ds.isel(task=0, method=0, budget=0)
    alone, whole = (np.median(cell[n]) for n in ("member_coverage_auc", "coverage_auc"))
    assert len(rows) == 6 and rows[2].startswith("| SLCP, NPE | 1,024 | ")
    assert f"| {formats.signed(alone)} / {formats.signed(whole)} |" in rows[2]
    count = formats.counted(cell["member_verdict"].values.ravel().tolist())
    assert f"| {count} |" in rows[2] and sum(map(int, re.findall(r"\d+", count))) == 15


# --- the short tables -------------------------------------------------------------------------------------------------


def test_two_exact_replicates_are_as_close_as_the_runs_scatter():
    """Simulated replicates agree with the closed form behind the column."""
    spread, rng = 0.03, np.random.default_rng(0)
    medians = np.median(rng.normal(scale=spread, size=(2, 20_000, 5)), -1)
    within = (np.abs(medians[0] - medians[1]) <= agreement.READING_ERROR).mean()
    runs = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
    runs *= spread / runs.std(ddof=1)
    key = ("slcp", "nre", 1024)
    found = agreement._replicates({key: setting(coverage_auc=runs)}, [key] * 1000)
    assert int(found["within 0.02"].split()[0]) / 1000 == pytest.approx(within, abs=0.015)


def test_the_short_tables_count_what_the_results_hold(made_up):
    results = reading.Results("paper", made_up)
    text = summary.answer(made_up)
    for claim in (c for c in claims.CLAIMS if c.short):
        (row,) = [line for line in text.splitlines() if line.startswith(f"| {claim.short} |")]
        assert claims.decide(claim, results)[0].partition(": ")[2] in row
    rows = summary.certificates(made_up).splitlines()[2:]
    bnre = [v for s in results.each(["slcp"], ["bnre"], results.budgets) for v in s.verdicts]
    low, high = bnre.count("overconfident"), bnre.count("certified conservative")
    assert rows[0].startswith(f"| BNRE | {len(bnre)} | {low} | {len(bnre) - low - high} | {high} | ")
    kept = results.settings["slcp", "npe", 8192].median("information_kept")
    (npe,) = [line for line in summary.information(made_up).splitlines() if line.startswith("| NPE |")]
    assert npe.endswith(f"| {kept:.2f} |")


def test_systematic_differences_are_of_each_method(made_up):
    ours = reading.Results("released", made_up)
    keys = [k for k in reading.published() if k[:2] == ("slcp", "npe") and k in ours.settings]
    gaps = [reading.figure_auc(ours.settings[k], LEVELS) - reading.published()[k] for k in keys]
    (row,) = [line for line in agreement.systematic(made_up).splitlines() if line.startswith("| NPE |")]
    error = abs(gaps[0] - gaps[1]) / 2
    assert row.split("|")[2].strip() == "2"
    assert row.split("|")[4].strip() == f"{formats.signed(np.mean(gaps))} ± {error:.3f}"
    assert row.split("|")[3].strip() == str(sum(gap > 0 for gap in gaps))


# --- cost -------------------------------------------------------------------------------------------------------------


def test_the_authors_loop_takes_its_steps_for_every_network(tmp_path):
    ds = synthetic_results(("slcp",), ("nre", "npe"), (1024,), 2, 1, 200, gallery=False)
    with_ledger(ds, seconds=1.0).to_netcdf(tmp_path / "paper.nc", engine="h5netcdf")
    # 921 training pairs are 4 batches of 256, 500 epochs, two runs.
    results = reading.Results("paper", tmp_path)
    assert ledgers._loop_seconds(results, "classifier") == pytest.approx(2 * 2000 * 3392e-6)
    assert ledgers._loop_seconds(results, "flow") == pytest.approx(2 * 2000 * 18933e-6)
    text = ledgers.cost(tmp_path)
    assert "| `paper`, classifiers | 1 | 4 | 1.00 | 1 | 1 | 3 | 0.0 | 5× |" in text and "a machine" in text
    assert "| **`paper`, all** | **2** | **8** | **3.00** | **3** | **3** | **9** | **0.0** | **10×** |" in text
    with_ledger(ds, device="cpu").to_netcdf(tmp_path / "paper.nc", engine="h5netcdf")
    assert "×" not in ledgers.cost(tmp_path)
    assert set(ledgers.LOOP_US) == set(reading.LABELS) - {"calibrated"}  # not a method of theirs
    assert [ledgers._step("spatial_sir", m) for m in ("nre_c", "npe", "bnpe_init")] == [7622, 18933, 28948]


def test_stacks_that_are_missing_cost_twice_the_one_before(tmp_path) -> None:
    ds = synthetic_results(("slcp",), ["nre", "npe"], (1024,), 2, 1, 50, "paper")
    with_ledger(ds, seconds=8.0).to_netcdf(tmp_path / "paper.nc", engine="h5netcdf")
    classifiers, _, whole = ledgers.cost_of_stacks(tmp_path).splitlines()[2:]
    cells = [c.strip() for c in classifiers.strip("|").split("|")]
    assert cells[1:9] == ["10"] + [f"*{10 * 2**k:,}*" for k in range(1, 8)]
    steps = sum(500 * -(-int(0.9 * b) // 256) for b in ledgers.BUDGETS)
    assert cells[9:11] == [f"{10 * 255:,}", f"{2 * steps * 3392e-6 / 3600:.1f}"]
    assert whole.startswith("| **`paper`, whole**")
    with pytest.raises(reading.Missing):
        ledgers.cost_of_stacks(tmp_path / "nothing")


def test_the_authors_loop_trains_every_network_of_a_mixture_and_shared_ones_once(tmp_path):
    ds = synthetic_results(("slcp",), ("nre", "bnre"), (1024,), 2, 5, 200, gallery=False)
    ds = with_ledger(ds).assign_coords(method=["nre[keep=best]", "nre[keep=last]"])
    ds["coverage"][:, 1, :, 1:] = np.nan  # one run has best weights only
    ds.to_netcdf(tmp_path / "mixture.nc", engine="h5netcdf")
    results = reading.Results("mixture", tmp_path)
    assert ledgers._loop_seconds(results, "classifier") == pytest.approx(5 * 2 * 2000 * 3392e-6)


def test_stacks_that_share_a_gpu_share_its_seconds():
    rows = {
        "began": [0.0, 4.0, 6.0, 100.0, 0.0, 0.0],
        "seconds": [10.0, 6.0, 10.0, 5.0, 7.0, 3.0],
        "device": ["cuda"] * 5 + ["cpu"],
        "place": ["a"] * 4 + ["b", ""],
    }
    ds = xr.Dataset({f"ledger_{name}": ("ledger", values) for name, values in rows.items()})
    # On "a": 0–4 the first alone, 4–6 two of them, 6–10 three, 10–16 the third alone, then a gap.
    third = 4 / 3
    expected = [5 + third, 1 + third, 6 + third, 5, 7, np.nan]
    assert ledgers.device_seconds(ds)[0] == pytest.approx(expected, nan_ok=True)
    # It is the same for stacks of different grids.
    apart = ledgers.device_seconds(ds.isel(ledger=[0, 1]), ds.isel(ledger=[2, 3, 4, 5]))
    assert [len(part) for part in apart] == [2, 4]
    assert np.concatenate(apart) == pytest.approx(expected, nan_ok=True)


def test_the_loops_times_are_those_of_the_page_about_speed():
    page = (tables.DOCS / "speed.md").read_text(encoding="utf-8")
    for name, method in (("NRE", "nre"), ("NPE", "npe"), ("BNPE", "bnpe"), ("BNRE-C", "bnre_c")):
        assert f"| {name} | {ledgers.LOOP_US[method]:,} |" in page
    for task, times in ledgers.EMBEDDED_US.items():
        for name, time in zip(("BNRE", "BNPE"), times, strict=True):
            assert f"| {name}, {reading.TASKS[task]} | {time:,} |" in page


# --- figures ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_figures_are_drawn_from_results_alone_and_twice_the_same(made_up, tmp_path, capsys):
    first = figures.draw(made_up, tmp_path / "one")
    missing = {f"gallery-{grid}{task}" for grid in ("", "released-") for task in ("lotka_volterra", "spatial_sir")}
    names = set(figures.FIGURES) - {"ablation", "start", "estimate"} - missing
    assert {p.name for p in first} == {f"reproduction-{n}.png" for n in names}
    assert "reproduction-start: not drawn, `results/start.nc` is not there" in capsys.readouterr().out
    for again in figures.draw(made_up, tmp_path / "two", ["auc", "headline"]):
        assert again.read_bytes() == (tmp_path / "one" / again.name).read_bytes()


def test_every_figure_has_its_place_in_the_document():
    assert {f"figure-{n}" for n in figures.FIGURES} == {n for n in tables.BLOCKS if n.startswith("figure-")}


def test_published_numbers_stand_beside_both_judgements():
    rows = [line for line in estimates.judged_twice(reading.HERE).splitlines() if "Spatial SIR" in line]
    assert len(rows) == 4 and all(line.count("|") == 6 for line in rows)
    text = estimates.bnre_on_slcp(reading.HERE).splitlines()
    assert text[0].count("|") == 9 and "+0.076" in text[2]
    assert [line.split(" |")[0] for line in text[4:]] == [
        f"| λ = {strength}, {precision}" for strength in (100, 50) for precision in ("TF32", "float32")
    ]
    short = estimates.bnre_on_slcp(reading.HERE, short=True).splitlines()
    assert (
        short[3].split(" | ")[1:] == text[4].split(" | ")[1:] and short[4].split(" | ")[1:] == text[6].split(" | ")[1:]
    )


def test_rolls_are_compared_run_by_run(tmp_path):
    rows = estimates.rolls(reading.HERE).splitlines()[2:]
    assert sum("| NRE-C, SLCP" in row for row in rows) == 4 and all(" ± 0.0" in row for row in rows)
    with pytest.raises(reading.Missing, match="rolls"):
        estimates.rolls(tmp_path)


def test_the_estimates_of_balance_are_tabulated(tmp_path):
    assert "t = 1.00 everywhere" in estimates.toy(reading.HERE)
    with pytest.raises(reading.Missing, match="estimate-toy"):
        estimates.toy(tmp_path)


@pytest.fixture
def small_networks(tmp_path):
    """Coverage AUCs that follow λ/n with the plain estimate, and are 0 with the unbiased one; t is the slope."""
    names = "task,batch,strength,objective,run,steps,t,slope,least_loss_t,coverage_auc,nominal_log_prob"
    lines = [names]
    for n, run in itertools.product((64, 256), (0, 1)):
        lines += [f"weinberg,{n},0.0,nre,{run},100,{t},0.9,1.0,{0.3 * (1 - t)},{t - 1}" for t in (0.1, 0.5, 1.0)]
        for strength in (100.0, 400.0):
            t = 1 / (1 + strength / n)
            lines.append(f'weinberg,{n},{strength},"bnre, plain",{run},100,1.0,{t},{t},{0.2 * (1 - t)},{t - 1}')
            lines.append(f'weinberg,{n},{strength},"bnre, unbiased",{run},100,1.0,1.0,1.0,0.0,-0.95')
    (tmp_path / "estimate-train.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_what_lambda_and_the_batch_do_is_compared_run_by_run(small_networks):
    rows = estimates.effects(small_networks).splitlines()[2:]
    assert [row.split(" | ")[1] for row in rows] == ["4", "4", "2"]
    strength, batch, both = (row.split(" | ")[2] for row in rows)
    assert strength.startswith("+0.0") and batch.startswith("−0.0") and both == "0.000 (0.000 … 0.000)"
    assert all("| 0.000 (0.000 … 0.000) |" in row for row in rows)


def test_coverage_is_listed_by_the_ratio(small_networks):
    head, _, plain, unbiased = estimates.by_ratio(small_networks).splitlines()
    assert head == "|  | no balance | λ/n = 0.39 | λ/n = 1.6 | λ/n = 6.2 |"
    # 0.2 (1 - t); two pairs of λ and n have the ratio 1.6
    assert plain == "| BNRE, Weinberg, plain | 0.000, 0.000 | +0.056 | +0.122, +0.122 | +0.172 |"
    assert unbiased == "| BNRE, Weinberg, unbiased | 0.000, 0.000 | 0.000 | 0.000, 0.000 | 0.000 |"


def test_balanced_networks_stand_beside_tempered_ones_with_as_much_information(small_networks):
    head, _, plain, unbiased = estimates.informed(small_networks).splitlines()
    # AUC 0.3 (1 - t) against 0.2 (1 - t); a log posterior of -0.95 is below that of the smallest t.
    assert plain.startswith("| BNRE, Weinberg, plain | 8 of 8 | +0.0") and plain.endswith("| 0 (0) | 0 |")
    assert unbiased.endswith("| 0 of 0 | – | – | 0 (0) | 8 |") and head.endswith("less than at t = 0.1 |")
    file = small_networks / "estimate-train.csv"
    file.write_text(
        file.read_text().replace('unbiased",0,100,1.0,1.0,1.0,0.0,-0.95', 'unbiased",0,100,1.0,1.0,1.0,0.1,0.2')
    )
    *_, unbiased = estimates.informed(small_networks).splitlines()
    assert unbiased.endswith("| 4 (4) | 4 |")  # more informed, with a larger coverage AUC
    found = [n for n in estimates.networks(small_networks) if not n.strength]
    assert found[0].tempered(0.75) == pytest.approx(0.075)
    assert found[0].as_informed(-0.25) == pytest.approx(0.075)


def test_few_simulations_have_a_row_for_each_strength():
    rows = estimates.few_simulations(reading.HERE).splitlines()
    assert rows[0] == "|  | n = 64, plain | n = 64, unbiased | n = 256, plain | n = 256, unbiased |"
    assert [row.split(" |")[0] for row in rows[2:6]] == [
        f"| Weinberg, 1,024, {words}" for words in ("NRE", "λ = 25", "λ = 100", "λ = 400")
    ]
    assert rows[2].count("−0.0") == 4 and rows[2].count("|  |") == 2  # NRE has no estimate
    assert rows[-1].startswith("*Log posterior of the prior: Weinberg −0.56, SLCP −3.58")


def test_slopes_stand_beside_the_prediction(small_networks):
    text = estimates.slopes(small_networks)
    # 0.2 (1 - t) with balance, and without 0.3 (1 - t) at t = 0.72
    assert "| BNRE, λ = 100, n = 256 | 0.39 | 0.72 | 0.72 | 0.72 | 1.00 | 0.90 | +0.056 | +0.084 |" in text
    with pytest.raises(reading.Missing, match="estimate-train"):
        estimates.networks(small_networks / "elsewhere")


def test_what_the_exact_ratio_is_tempered_to_stands_beside_the_prediction_near_the_prior(small_networks):
    near, weinberg = estimates.expected(small_networks).splitlines()[2:]
    assert (
        near
        == "| cross-entropy, near the prior | 0.72 | 0.39 | 0.14 |"
        == weinberg.replace("Weinberg", "near the prior")
    )
    # λ/n has less effect where a base loss weighs information more (κ = 0.45 and 1 instead of ¼).
    expected = {"bnre": 0.5, "brnpe": 0.5, "bnre_c": 1 / (1 + 1 / 1.8), "bnpe": 0.8}
    assert {m: estimates.near_prior(m, 1.0) for m in expected} == pytest.approx(expected)


def test_the_figure_of_the_estimates_has_a_panel_for_each_task_and_method(small_networks):
    (ax,) = figures.estimate(small_networks).axes
    assert ax.get_title() == "BNRE, Weinberg"
    assert [t.get_text() for t in ax.get_xticklabels()] == ["0.39", "", "6.2"]
    line = next(one for one in ax.lines if len(one.get_xdata()) == 60)
    ratio, area = line.get_data()
    near = ratio < 8.5  # of smaller t the file has nothing
    np.testing.assert_allclose(area[near], 0.3 * (1 - 1 / (1 + ratio[near])), atol=1e-9)
    marks = [one for one in ax.lines if one.get_marker() == "o"]
    filled = [one.get_ydata()[0] for one in marks if one.get_markerfacecolor() == one.get_color()]
    open_ones = [one.get_ydata()[0] for one in marks if one.get_markerfacecolor() == figures.PAPER]
    plain = [0.2 * (1 - 1 / (1 + strength / n)) for n in (64, 256) for strength in (100.0, 400.0)]
    assert sorted(filled) == pytest.approx(sorted(plain)) and open_ones == [0.0] * 4


def test_nats_lost_are_beside_the_network_without_balance(small_networks):
    head, _, plain, unbiased = estimates.lost(small_networks).splitlines()
    assert head.split("|")[2:-1] == [" no balance ", " λ/n = 0.39 ", " λ/n = 1.6 ", " λ/n = 6.2 "]
    without, *lost = (cell.strip() for cell in plain.split("|")[2:-1])
    expected = [1 / (1 + ratio) - 1 for ratio in (100 / 256, 100 / 64, 400 / 64)]
    assert without == "0.00, 0.00" and lost[0] == f"−{-expected[0]:.2f}" and lost[2] == f"−{-expected[2]:.2f}"
    assert lost[1] == ", ".join([f"−{-expected[1]:.2f}"] * 2)
    assert [cell.strip() for cell in unbiased.split("|")[3:-1]] == ["−0.95", "−0.95, −0.95", "−0.95"]


@pytest.mark.parametrize("gain", [0.1, 0.9])
def test_runs_may_all_leave_the_prior_or_none(gain, tmp_path, monkeypatch):
    results = reading.opened("escape", reading.HERE)
    prior = float(results.ds["prior_log_prob"].sel(task="spatial_sir"))
    for s in results.settings.values():
        monkeypatch.setitem(s.numbers, "nominal_log_prob", np.full(20, prior + gain))
    rows = [row.split("|") for row in summary.escaped(reading.HERE).splitlines()[2:]]
    assert len(rows) == 4
    for row in rows:
        share, their_gain, _, left, _, stayed = (cell.strip() for cell in row[2:-1])
        assert share == ("20 of 20" if gain > 0.4 else "0 of 20")
        assert (left == "–", stayed == "–", their_gain == "–") == (gain < 0.4, gain > 0.4, gain < 0.4)
