"""Warnings about members that diverged or learnt nothing."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from training_tools import pairs, quick, toy, train

import equipoise as eq
from equipoise.methods import METHODS, resolve
from equipoise.training import Member


def test_members_that_diverge_are_reported_and_the_others_go_on() -> None:
    """A member on data that overflow float32 diverges at once; its neighbour trains as if alone."""
    theta, x = pairs()
    members = [Member(resolve("nre"), seed, data=seed - 1, keep=keep) for keep in ("best", "last") for seed in (1, 2)]
    with pytest.warns(UserWarning, match=r"training nre: member\(s\) 0, 2 never had a finite loss"):
        lost, fine, lost_too, _ = train(members, [(theta, x.sign() * 3e38), (theta, x)])
    assert lost is None and lost_too is None
    (alone,) = train([Member(resolve("nre"), 2, data=0)], [(theta, x)])
    np.testing.assert_allclose(fine.history.validation_loss, alone.history.validation_loss, rtol=1e-3)


def test_words_about_divergence_name_what_there_is() -> None:
    theta, x = toy()
    huge = x.sign() * 3e38
    for members, clip, words in (
        (1, None, r"diverged.*learning_rate \(now 0.001\)"),
        (2, 5.0, r"diverged.*learning_rate \(now 0.001\) or clip \(now 5.0\)"),
    ):
        said = pytest.warns(UserWarning, match="never had a finite loss and are left out$")
        with said, pytest.raises(RuntimeError, match=words):
            quick(theta, huge, standardize=False, members=members, clip=clip, method="nre")


@pytest.mark.parametrize("method", ["nre", "bnre", "bnre_c", "bnpe_init"])
def test_members_that_stop_at_the_prior_are_told_of(method):
    prior, g = eq.BoxUniform([0.0], [1.0]), torch.Generator().manual_seed(0)
    theta = torch.rand(256, 1, generator=g)
    small = METHODS[method].but(transforms=1)
    options = {"method": small, "prior": prior, "members": 2, "patience": 2, "batch_size": None, "epochs": None}
    noise = torch.randn(256, 2, generator=g)
    with pytest.warns(UserWarning, match="stopped having learnt next to nothing"):
        quick(theta, noise, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quick(theta, noise, **(options | {"epochs": 2}))  # cut short: nothing can be said
        weak = small.but(strength=0.1 if small.balance != "none" else 0.0)
        quick(theta, theta + 0.1 * noise[:, :1], **(options | {"method": weak}))
