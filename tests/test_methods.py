"""The table of methods, and what a call makes of a row."""

from __future__ import annotations

import pytest

from equipoise import choices
from equipoise.methods import METHODS, resolve
from equipoise.networks import UNIVARIATE


def test_the_table_is_the_papers() -> None:
    rows = {m.name: (m.network, m.loss, m.balance, m.strength, m.start) for m in METHODS.values()}
    assert rows == {
        "nre": ("classifier", "nre", "none", 0.0, "random"),
        "bnre": ("classifier", "nre", "chi2", 100.0, "random"),
        "nre_c": ("classifier", "nre_c", "none", 0.0, "random"),
        "bnre_c": ("classifier", "nre_c", "chi2", 100.0, "random"),
        "npe": ("flow", "npe", "none", 0.0, "random"),
        "bnpe": ("flow", "npe", "chi2", 100.0, "random"),
        "rnpe": ("flow", "nre", "none", 0.0, "random"),
        "brnpe": ("flow", "nre", "chi2", 100.0, "random"),
        "bnpe_init": ("flow", "npe", "chi2", 100.0, "prior"),
        "brnpe_init": ("flow", "nre", "chi2", 100.0, "prior"),
    }


def test_a_call_overrides_its_row() -> None:
    assert resolve("bnre").strength == 100.0
    assert resolve("bnre", strength=25).strength == 25.0
    assert resolve("nre_c", balance="multiclass").strength == 100.0
    assert resolve("bnpe", balance="none").strength == 0.0
    assert resolve("bnpe", strength=0).objective.balanced is False
    assert resolve("npe", start="prior_base").start == "prior_base"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bnpe-init",), "did you mean 'bnpe_init'"),
        (("brne",), "did you mean"),
        (("nre", "chi"), "balance is one of"),
        (("nre", None, 10.0), "no balance term"),
        (("nre", "multiclass"), "contrastive"),
        (("nre", None, None, "prior"), "for flows"),
        (("npe", None, None, "identity"), "start is one of"),
    ],
)
def test_what_cannot_be_is_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve(*arguments)


def test_a_method_names_every_transform_that_networks_have() -> None:
    assert tuple(UNIVARIATE) == choices.UNIVARIATE
