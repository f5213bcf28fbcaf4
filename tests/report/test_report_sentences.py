"""The sentences of the report: right about every kind of finding, and no stronger than the verdicts."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from report_results import synthetic_results

from equipoise.plots.settings import CERTIFIED, INCONCLUSIVE, OVERCONFIDENT, PARTLY, settings_of
from equipoise.report import open_results
from equipoise.report.sentences import headline

OVER, SAFE, OPEN = OVERCONFIDENT, CERTIFIED, INCONCLUSIVE


def judged(
    verdicts: list[list[list[list[str]]]], tasks: list[str], methods: list[str], budgets: list[int]
) -> xr.Dataset:
    """Results with these verdicts, over task, method, budget and run."""
    words = np.array(verdicts, dtype=object)
    there = words != ""
    coverage = np.where(there[..., None], np.linspace(0, 1, 11), np.nan)
    dims = ("task", "method", "budget", "run")
    return xr.Dataset(
        {
            "coverage": ((*dims, "level"), coverage),
            "coverage_auc": (dims, np.where(there, 0.01 * np.arange(words.shape[-1]), np.nan)),
            "verdict": (dims, words),
            "verdict_holm": (dims, words),
        },
        {"task": tasks, "method": methods, "budget": budgets, "level": np.linspace(0, 1, 11)},
    )


def test_one_method_overconfident_everywhere() -> None:
    ds = judged([[[[OVER, OVER], [OVER, OVER]], [[SAFE, SAFE], [SAFE, SAFE]]]], ["slcp"], ["npe", "bnre"], [1024, 4096])
    found = headline(ds)
    assert (
        found.lead
        == "NPE is overconfident on SLCP at both budgets. BNRE is certified conservative wherever it was judged."
    )
    assert found.findings == [(OVER, 2, ["NPE on SLCP at both budgets"]), (SAFE, 2, ["BNRE on SLCP at both budgets"])]
    assert "all 8 trained posteriors" in found.certainty[0] and "at most 5%" in found.certainty[0]
    assert "their verdicts agree" in found.certainty[2]


def test_methods_that_share_a_finding_share_a_sentence() -> None:
    ds = judged([[[[OVER]], [[OVER]], [[OPEN]]]], ["slcp"], ["npe", "nre", "bnre"], [1024])
    found = headline(ds)
    assert found.lead == "NPE and NRE are overconfident on SLCP."
    assert found.findings[1] == (OPEN, 1, ["BNRE on SLCP"])
    assert "There is one run of each setting" in found.certainty[2]


def test_runs_that_disagree_are_counted_not_rounded() -> None:
    ds = judged([[[[OVER, OVER, OPEN], [SAFE, SAFE, SAFE]]]], ["slcp"], ["npe"], [1024, 4096])
    found = headline(ds)
    assert found.lead == (
        "No setting is overconfident in all of its runs; 1 of 2 settings is in some of them. "
        "NPE is certified conservative on SLCP at 4,096 simulations."
    )
    assert found.findings[0] == (PARTLY, 1, ["NPE on SLCP: 2 of 3 runs at 1,024"])
    assert "in 1 of 2 settings the verdicts disagree" in found.certainty[2]


def test_nothing_is_concluded_from_inconclusive() -> None:
    found = headline(judged([[[[OPEN, OPEN]]]], ["slcp"], ["npe"], [1024]))
    assert found.lead.startswith("The posterior was not found to be overconfident. That is no certificate")
    found = headline(judged([[[[OPEN], [SAFE]]]], ["slcp"], ["npe"], [1024, 4096]))
    assert found.lead == (
        "No posterior was found to be overconfident. NPE is certified conservative on SLCP at 4,096 simulations."
    )


def test_many_methods_that_agree_are_counted() -> None:
    methods = ["npe", "nre", "bnre", "rnpe", "brnpe"]
    ds = judged([[[[OVER]] for _ in methods]], ["slcp"], methods, [1024])
    assert headline(ds).lead == "All five methods are overconfident on SLCP."


def test_some_runs_beside_a_clear_case() -> None:
    ds = judged([[[[OVER, OVER]], [[OVER, OPEN]]]], ["slcp"], ["npe", "nre"], [1024])
    assert headline(ds).lead == "NPE is overconfident on SLCP. NRE is overconfident in some runs only."


def test_places_are_said_as_shortly_as_they_can_be() -> None:
    budgets = [2**k for k in range(10, 18)]
    tasks = ["slcp", "weinberg", "two_moons"]

    def row(n: int) -> list[list[str]]:
        return [[OVER]] * n + [[SAFE]] * (8 - n)

    everywhere = judged([[row(8)], [row(8)], [row(8)]], tasks, ["npe"], budgets)
    assert headline(everywhere).findings[0].where == ["NPE on all three tasks at every budget"]
    early = judged([[row(3)], [row(3)], [row(8)]], tasks, ["npe"], budgets)
    assert headline(early).findings[0].where == [
        "NPE on SLCP and Weinberg up to 4,096 simulations; on Two Moons at every budget"
    ]
    late = headline(early).findings[1].where
    assert late == ["NPE on SLCP and Weinberg from 8,192 simulations on"]
    hole = judged([[[[OVER]] * 4 + [[SAFE]] + [[OVER]] * 3], [row(1)], [row(0)]], tasks, ["npe"], budgets)
    assert headline(hole).findings[0].where == [
        "NPE on SLCP at every budget but 16,384; on Weinberg at 1,024 simulations"
    ]


def test_missing_runs_are_said() -> None:
    ds = judged([[[[OVER, ""], ["", ""]]]], ["slcp"], ["npe"], [1024, 4096])
    found = headline(ds)
    assert found.lead == "NPE is overconfident on SLCP at 1,024 simulations."
    assert found.certainty[-1] == "Three runs of 4 are not here: not computed yet, or failed."


def test_without_holm_the_page_says_so() -> None:
    ds = judged([[[[OVER], [OVER]]]], ["slcp"], ["npe"], [1024, 4096]).drop_vars("verdict_holm")
    assert "not corrected for their number" in headline(ds).certainty[0]


def test_released_results_have_the_names_of_the_figures() -> None:
    ds = judged([[[[OVER]], [[OVER]]]], ["slcp"], ["brnpe", "brnpe_init"], [1024])
    assert headline(ds).lead == "BRNPE and BRNPE Init are overconfident on SLCP."
    ds.attrs["protocol"] = "released"
    assert headline(ds).lead == ("BRNPE (paper: BNPE) and BRNPE Init (paper: BNPE Init) are overconfident on SLCP.")


def test_settings_are_medians_and_ranges_over_the_runs_that_are_there() -> None:
    ds = synthetic_results(runs=4, missing=[("slcp", "npe", 1024, 2)], gallery=False, pairs=200)
    first = settings_of(open_results(ds))[0]
    there = ds["coverage_auc"].sel({"task": "slcp", "method": "npe", "budget": 1024}).dropna("run").values
    assert (first.runs, first.planned) == (3, 4)
    assert (first.auc.median, first.auc.low, first.auc.high) == (np.median(there), there.min(), there.max())
    words = ds["verdict_holm"].sel({"task": "slcp", "method": "npe", "budget": 1024}).values.tolist()
    assert first.overconfident == words.count("overconfident")


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (lambda ds: ds.isel(run=0), "the dimensions run are missing"),
        (lambda ds: ds.drop_vars("coverage"), "no coverage"),
        (lambda ds: ds.assign(coverage=ds["coverage"] * np.nan), "no cell of these results is finished"),
    ],
)
def test_what_is_not_results_is_refused(broken, said) -> None:
    ds = judged([[[[OVER]]]], ["slcp"], ["npe"], [1024])
    with pytest.raises(ValueError, match=said):
        open_results(broken(ds))


def test_no_results_at_all(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="is no experiment; a report is of what `equipoise run`"):
        open_results(tmp_path)
    (tmp_path / "model.json").touch()
    with pytest.raises(FileNotFoundError, match="is a saved posterior, which `equipoise diagnose` judges"):
        open_results(tmp_path)


@pytest.mark.parametrize("name", ["coverage", "coverage_auc", "verdict", "nominal_log_prob"])
@pytest.mark.parametrize("kind", ["a scalar", "another dimension", "another kind"])
def test_results_whose_variables_are_not_what_they_are_called(name, kind) -> None:
    ds = synthetic_results()
    other = np.zeros(ds[name].shape) if ds[name].dtype.kind in "OUS" else np.full(ds[name].shape, "x", dtype=object)
    given = {"a scalar": ((), 1.0), "another dimension": ("other", [1.0]), "another kind": (ds[name].dims, other)}[kind]
    with pytest.raises(ValueError, match=f"{name} of these results"):
        open_results(ds.assign({name: given}))


def test_results_with_equal_or_strange_labels() -> None:
    ds = synthetic_results()
    for name in ("method", "budget"):
        for labels in (np.repeat(ds[name].values[:1], ds.sizes[name]), np.arange(ds.sizes[name]) + 0.5):
            with pytest.raises(ValueError, match=f"labels of {name}"):
                open_results(ds.assign_coords({name: labels}))
    with pytest.raises(ValueError, match="no coverage_auc"):
        open_results(ds.drop_vars("coverage_auc"))
