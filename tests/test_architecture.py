"""What ARCHITECTURE.md says of the code, counted."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from types import FrameType

import pytest
import torch

import equipoise as eq

#: From the user's call to the mathematics, one function calling the next.
CHAIN = ["fit", "fit_many", "train_stack", "step", "losses", "objective_terms", "nre"]


def chain(target: str) -> list[str]:
    """The functions of Equipoise on the stack when a base loss is first called in an eager fit on a CPU."""
    theta = torch.rand(40, 1, generator=torch.Generator().manual_seed(0))
    found: list[str] = []

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and not found and frame.f_code.co_name == target:
            inside: FrameType | None = frame
            while inside is not None:
                if inside.f_globals.get("__name__", "").partition(".")[0] == "equipoise":
                    found.append(inside.f_code.co_name)
                inside = inside.f_back

    sys.setprofile(look)
    try:
        eq.fit(
            theta,
            theta,
            prior=eq.BoxUniform([0.0], [1.0]),
            method=eq.METHODS["nre"].but(hidden=(4,)),
            members=1,
            epochs=1,
            batch_size=8,
            validation_fraction=0.25,
            settings=eq.Settings(compile=False),
            device="cpu",
            progress=False,
        )
    finally:
        sys.setprofile(None)
    return found[::-1]


def test_from_fit_to_the_loss_it_is_six_hops() -> None:
    found = chain("nre")
    assert found == CHAIN
    assert len(found) - 1 <= 6


def test_what_reading_results_does_not_need_is_not_imported() -> None:
    """torch takes seconds and 250 MB, numba and `scipy.stats` 50 MB each."""
    unneeded = {"torch", "numba", "scipy.stats", "distributed"}
    reading = "equipoise.experiments, equipoise.report, equipoise.cli.run"
    code = f"import sys, {reading}; print(sorted({unneeded} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("guess", "told"),
    [
        ("Uniform", r"eq\.BoxUniform\(low, high\)"),
        ("uniform", r"eq\.BoxUniform\(low, high\)"),
        ("MultivariateNormal", r"eq\.GaussianPrior\(mean, covariance\)"),
        ("LogNormal", r"eq\.IndependentPrior\(\{'beta'"),
        ("NPE", r"method='npe'"),
        ("pairplot", r"eq\.plots\.corner"),
        ("train", r"eq\.fit\(pairs, prior=prior\)"),
    ],
)
def test_a_name_that_people_guess_is_answered_with_the_right_one(guess: str, told: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{guess}'; .*{told}"):
        getattr(eq, guess)


def test_another_name_has_the_error_of_python() -> None:
    with pytest.raises(AttributeError, match=r"^module 'equipoise' has no attribute 'nothing'$"):
        _ = eq.nothing


def test_what_the_pointers_name_exists() -> None:
    """Every `eq.name` of the sentences, so that none outlives what it names."""
    for sentence in eq._INSTEAD.values():
        for path in re.findall(r"eq((?:\.\w+)+)", sentence):
            assert functools.reduce(getattr, path[1:].split("."), eq) is not None
    assert not {name.lower() for name in eq.__all__} & set(eq._INSTEAD)
