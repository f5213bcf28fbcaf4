"""Losses and balance terms against lampe, their definitions, and the identities of the paper."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lampe.inference import BNRELoss, CNRELoss, NRELoss
from torch import Tensor, nn

from equipoise import losses
from equipoise.losses import (
    LOSSES,
    Objective,
    batch_temperature,
    information_weight,
    objective_kinds,
    objective_terms,
    pairs_needed,
    rolls_needed,
)
from equipoise.losses.objective import Term
from equipoise.methods import METHODS


class Recorded(nn.Module):
    """A lampe estimator whose log-ratio is a fixed smooth function, so that both sides see the same numbers."""

    def forward(self, theta: Tensor, x: Tensor) -> Tensor:
        return (theta * x).sum(-1) - 0.3 * theta.square().sum(-1) + 0.1 * x.sum(-1)


@pytest.fixture
def batch() -> tuple[Tensor, Tensor, Tensor]:
    """θ and x with shape (64, 2), and the log-ratios of 12 rolls with shape (12, 64)."""
    g = torch.Generator().manual_seed(1)
    theta = torch.randn(64, 2, generator=g, dtype=torch.float64)
    x = torch.randn(64, 2, generator=g, dtype=torch.float64)
    rolls = torch.stack([Recorded()(theta.roll(r, 0), x) for r in range(12)])
    return theta, x, rolls


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_nre_is_lampes(batch: tuple[Tensor, Tensor, Tensor]) -> None:
    theta, x, rolls = batch
    joint, marginal = losses.joint_and_marginal(rolls)
    torch.testing.assert_close(losses.nre(joint, marginal), NRELoss(Recorded())(theta, x))


def test_balanced_nre_is_lampes(batch: tuple[Tensor, Tensor, Tensor]) -> None:
    theta, x, rolls = batch
    pair = losses.joint_and_marginal(rolls)
    ours = losses.nre(*pair) + 100 * losses.balance_chi2(*pair)
    torch.testing.assert_close(ours, BNRELoss(Recorded(), lmbda=100.0)(theta, x))


@pytest.mark.parametrize("K", [1, 3, 5])
@pytest.mark.parametrize("gamma", [0.3, 1.0, 2.0])
def test_nre_c_is_lampes_up_to_the_true_class(batch: tuple[Tensor, Tensor, Tensor], K: int, gamma: float) -> None:
    """lampe asks whether any of the K made x, the paper which one did: they differ by log softmax of the true one."""
    theta, x, _ = batch
    sets = torch.cat((theta, theta[: K - 1])).unfold(0, K, 1).movedim(-1, 1)
    joint = Recorded()(sets, x[:, None])
    marginal = Recorded()(sets.roll(K, 0), x[:, None])
    which = torch.log_softmax(joint, -1)[:, 0].mean()
    lampe = CNRELoss(Recorded(), cardinality=K, gamma=gamma)(theta, x)
    torch.testing.assert_close(losses.nre_c(joint, marginal, gamma), lampe - gamma / (1 + gamma) * which)


def test_nre_c_with_one_parameter_is_nre() -> None:
    joint, marginal = random(3, 64), random(3, 64, seed=1)
    torch.testing.assert_close(losses.nre_c(joint[..., None], marginal[..., None]), losses.nre(joint, marginal))


def test_contrastive_sets_have_the_true_parameter_first(batch: tuple[Tensor, Tensor, Tensor]) -> None:
    _, _, rolls = batch
    joint, marginal = losses.contrastive_sets(rolls[:6], 5)
    assert joint.shape == marginal.shape == (64, 5)
    torch.testing.assert_close(joint[:, 0], rolls[0])
    torch.testing.assert_close(marginal[:, 4], rolls[5])


@pytest.mark.parametrize(("K", "gamma"), [(1, 1.0), (3, 0.3), (5, 1.0), (5, 2.0)])
def test_without_shared_rolls_nre_c_is_the_released_loss(K: int, gamma: float) -> None:
    """The released loss, written out: 2K rolls, joint sets from the first K, marginal ones from the others."""
    n, g = 23, torch.Generator().manual_seed(3)
    theta, x = torch.randn(2, n, generator=g, dtype=torch.float64)

    def log_ratio(b: int, roll: int) -> float:
        return float(1.5 * theta[(b - roll) % n] * x[b] - 0.4 * theta[(b - roll) % n] ** 2)

    released = 0.0
    for b in range(n):
        joint = [math.exp(log_ratio(b, roll)) for roll in range(K)]
        marginal = [math.exp(log_ratio(b, roll)) for roll in range(K, 2 * K)]
        released -= math.log(K / (K + gamma * sum(marginal))) / (1 + gamma) / n
        released -= gamma * math.log(gamma * joint[0] / (K + gamma * sum(joint))) / (1 + gamma) / n
    objective = Objective("nre_c", contrastive=K, gamma=gamma, share_rolls=False)
    assert rolls_needed(objective) == 2 * K
    h = torch.stack([1.5 * theta.roll(r) * x - 0.4 * theta.roll(r) ** 2 for r in range(2 * K)])
    # Beside a member whose sets share rolls, which looks at fewer of them.
    shared = Objective("nre_c", contrastive=K, gamma=gamma)
    kinds, index = objective_kinds([objective, shared])
    assert len(kinds) == 2
    found, _ = objective_terms(h.expand(2, -1, -1), kinds, torch.tensor(index), torch.zeros(2))
    torch.testing.assert_close(found[0], torch.tensor(released, dtype=torch.float64), rtol=1e-12, atol=0)
    alone = losses.nre_c(h[:K].mT, h[1 : K + 1].mT, gamma)
    torch.testing.assert_close(found[1], alone)
    assert K == 1 or abs(found[0] - found[1]) > 1e-3


def test_sharing_rolls_leaves_the_expected_loss_and_raises_its_variance() -> None:
    """Over 20,000 batches of 16 pairs: the same mean, and more noise where the sets share negatives."""
    g, repeats, n, K = torch.Generator().manual_seed(5), 20_000, 16, 5
    theta = torch.randn(repeats, n, generator=g, dtype=torch.float64)
    x = theta + torch.randn(repeats, n, generator=g, dtype=torch.float64)
    h = torch.stack([1.5 * theta.roll(r, 1) * x - 0.5 for r in range(2 * K)], 1)
    shared, apart = (losses.nre_c(*losses.contrastive_sets(h, K, share)) for share in (True, False))
    difference = shared - apart
    assert abs(difference.mean()) < 4 * difference.std() / repeats**0.5
    assert shared.var() > 1.02 * apart.var()


def test_balance_is_the_chi2_divergence_from_its_definition() -> None:
    joint, marginal = random(64, scale=2), random(64, seed=1, scale=2)
    varpi = torch.cat([joint, marginal]).sigmoid().mean()
    definition = sum((q - 0.5) ** 2 / 0.5 for q in (varpi, 1 - varpi))
    torch.testing.assert_close(losses.balance_chi2(joint, marginal), torch.as_tensor(definition))


def test_multiclass_balance_is_the_chi2_over_all_labels() -> None:
    """The sum over the K + 1 labels, each label's marginal computed by itself, equals the one-scalar form."""
    K, gamma = 4, 0.7
    joint, marginal = random(50, K), random(50, K, seed=1)
    pi = torch.tensor([1 / (1 + gamma)] + [gamma / (1 + gamma) / K] * K, dtype=torch.float64)

    def probabilities(h: Tensor) -> Tensor:
        weights = torch.cat([torch.full_like(h[:, :1], K), gamma * h.exp()], 1)
        return weights / weights.sum(1, keepdim=True)

    # By symmetry, the joint set with its true element in place k is the given one with elements 0 and k swapped.
    varpi = pi[0] * probabilities(marginal).mean(0)
    for k in range(K):
        order = list(range(K))
        order[0], order[k] = order[k], order[0]
        varpi = varpi + pi[k + 1] * probabilities(joint[:, order]).mean(0)
    # Marginal sets are exchangeable only in expectation; average over label permutations as the expectation does.
    varpi = torch.cat([varpi[:1], varpi[1:].mean().expand(K)])
    definition = ((varpi - pi) ** 2 / pi).sum()
    torch.testing.assert_close(losses.balance_multiclass(joint, marginal, gamma), definition)


def test_multiclass_balance_with_one_parameter_is_the_binary_one() -> None:
    joint, marginal = random(3, 64), random(3, 64, seed=1)
    torch.testing.assert_close(
        losses.balance_multiclass(joint[..., None], marginal[..., None]), losses.balance_chi2(joint, marginal)
    )


@given(st.lists(st.floats(-20, 20), min_size=4, max_size=20), st.floats(-5, 5))
@settings(max_examples=60, deadline=None)
def test_kl_in_the_other_direction_is_at_most_chi2(values: list[float], shift: float) -> None:
    """KL(ϖ‖π) ≤ χ²(ϖ‖π) = B for any classifier (the direction that holds)."""
    h = torch.tensor(values, dtype=torch.float64)
    joint, marginal = h + shift, h.flip(0) - shift
    one = ((joint.sigmoid().mean() + marginal.sigmoid().mean()) / 2).item()
    kl = sum(q * math.log(2 * q) for q in (one, 1 - one) if q > 0)
    assert kl <= losses.balance_chi2(joint, marginal).item() + 1e-12


def test_kl_balance_is_kl_from_its_definition() -> None:
    joint, marginal = random(64, scale=2), random(64, seed=1, scale=2)
    varpi = torch.cat([joint, marginal]).sigmoid().mean()
    definition = 0.5 * (0.5 / varpi).log() + 0.5 * (0.5 / (1 - varpi)).log()
    torch.testing.assert_close(losses.balance_kl(joint, marginal), definition)


def discrete_toy() -> tuple[Tensor, Tensor]:
    """A joint distribution of (θ, x) on 4 × 5 points, and the product of its marginals."""
    joint = torch.rand(4, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    joint = joint / joint.sum()
    return joint, joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)


def test_the_optimal_classifier_is_balanced_and_the_chain_rule_holds() -> None:
    joint, product = discrete_toy()
    optimal = joint / (joint + product)
    balance = (joint * optimal).sum() + (product * optimal).sum() - 1
    assert abs(balance.item()) < 1e-15

    varpi = torch.rand(4, 5, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    whole = 0.0
    for pi_y, of_y in ((joint / 2, varpi), (product / 2, 1 - varpi)):
        whole = whole + (pi_y * (pi_y / (of_y * (joint + product) / 2)).log()).sum()
    mixture = (joint + product) / 2
    conditional = (
        mixture * (optimal * (optimal / varpi).log() + (1 - optimal) * ((1 - optimal) / (1 - varpi)).log())
    ).sum()
    torch.testing.assert_close(torch.as_tensor(whole), conditional)
    label = (mixture * varpi).sum()
    of_label = 0.5 * (0.5 / label).log() + 0.5 * (0.5 / (1 - label)).log()
    given_label = 0.5 * (joint * (joint / (mixture * varpi / label)).log()).sum()
    given_label = given_label + 0.5 * (product * (product / (mixture * (1 - varpi) / (1 - label))).log()).sum()
    torch.testing.assert_close(of_label + given_label, conditional)


def test_a_balanced_classifier_is_less_confident_in_expectation() -> None:
    """E_joint[π/ϖ] ≥ 1 and E_marginal[(1-π)/(1-ϖ)] ≥ 1 for classifiers shifted until they are balanced."""
    joint, product = discrete_toy()
    optimal = joint / (joint + product)
    for seed in range(20):
        h = 2 * torch.randn(4, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        low, high = -30.0, 30.0
        for _ in range(80):
            c = (low + high) / 2
            g = ((joint + product) * (h + c).sigmoid()).sum() - 1
            low, high = (c, high) if g < 0 else (low, c)
        varpi = (h + c).sigmoid()
        assert (joint * optimal / varpi).sum() >= 1 - 1e-9
        assert (product * (1 - optimal) / (1 - varpi)).sum() >= 1 - 1e-9


def test_the_prior_is_balanced_under_every_criterion() -> None:
    flat, sets = torch.zeros(2, 32, dtype=torch.float64), torch.zeros(2, 32, 5, dtype=torch.float64)
    for value in (
        losses.balance_chi2(flat, flat),
        losses.balance_chi2(flat, flat, unbiased=True),
        losses.balance_kl(flat, flat),
        losses.balance_multiclass(sets, sets),
        losses.balance_multiclass(sets, sets, gamma=0.3, unbiased=True),
    ):
        torch.testing.assert_close(value, torch.zeros(2, dtype=torch.float64), atol=1e-15, rtol=0)


def test_the_unbiased_estimates_are_unbiased_and_the_plain_ones_are_not() -> None:
    """20,000 batches of 16 pairs from a toy with known g; the plain estimate overshoots by over 20 standard errors."""
    g = torch.Generator().manual_seed(0)
    n, repeats, K = 16, 20_000, 3
    theta = torch.randn(repeats, n, generator=g, dtype=torch.float64)
    x = theta + torch.randn(repeats, n, generator=g, dtype=torch.float64)
    h = torch.stack([1.5 * theta.roll(r, 1) * x - 0.5 for r in range(K + 1)], 1)
    joint, marginal = losses.joint_and_marginal(h)
    truth = ((joint.sigmoid() + marginal.sigmoid()).mean() - 1).square()
    for unbiased in (True, False):
        values = losses.balance_chi2(joint, marginal, unbiased=unbiased)
        z = (values.mean() - truth) / (values.std() / repeats**0.5)
        assert abs(z) < 4 if unbiased else z > 20
    sets = losses.contrastive_sets(h, K)
    p0 = [torch.sigmoid(-(s.logsumexp(-1) - math.log(K))).mean() for s in sets]
    truth = ((p0[0] + p0[1]) / 2 - 0.5).square() * 4
    for unbiased in (True, False):
        values = losses.balance_multiclass(*sets, unbiased=unbiased)
        z = (values.mean() - truth) / (values.std() / repeats**0.5)
        assert abs(z) < 4 if unbiased else z > 20


@pytest.mark.parametrize(
    ("objective", "bandwidth"),
    [
        (Objective("nre", "chi2", 1.0, unbiased=True), 1),
        (Objective("nre", "chi2", 1.0, unbiased=True, normalized=True, normalizer=4), 4),
        (Objective("nre_c", "multiclass", 1.0, unbiased=True, contrastive=3), 3),
        (Objective("nre_c", "multiclass", 1.0, unbiased=True, contrastive=3, share_rolls=False), 5),
        (Objective("nre_c", "multiclass", 1.0, unbiased=True, contrastive=3, normalized=True, normalizer=2), 3),
        (Objective("nre_c", "multiclass", 1.0, unbiased=True, contrastive=2, normalized=True, normalizer=4), 4),
    ],
    ids=[
        "binary",
        "binary, normalised",
        "multiclass",
        "multiclass, rolls apart",
        "multiclass, few rolls",
        "multiclass, many rolls",
    ],
)
def test_the_unbiased_balance_of_an_objective_leaves_out_all_that_share_a_parameter(
    objective: Objective, bandwidth: int
) -> None:
    """Terms share a θ exactly where one θ moves both, and products of such terms are not in the balance.

    Which terms a θ moves is found by moving it; the estimate is then summed up over the pairs of terms that no θ moves
    together.
    """
    n, K, g = 16, objective.contrastive, torch.Generator().manual_seed(0)
    theta, x = torch.randn(2, n, generator=g, dtype=torch.float64)
    other = torch.randn(n, generator=g, dtype=torch.float64)

    def log_ratios(theta: Tensor) -> Tensor:
        return torch.stack([1.5 * theta.roll(r) * x - 0.5 for r in range(rolls_needed(objective))])

    def terms(theta: Tensor) -> Tensor:
        h = log_ratios(theta)
        if objective.normalized:
            h = h - h[1 : objective.normalizer + 1].exp().mean(0).log()
        if objective.balance == "chi2":
            return h[0].sigmoid() + h[1].sigmoid() - 1
        first = 1 if objective.share_rolls else K
        joint, marginal = (K / (K + some.exp().sum(0)) for some in (h[:K], h[first : first + K]))
        return joint + marginal - 1

    s, moved = terms(theta), torch.zeros(n, n, dtype=torch.bool)  # terms, parameters
    for b in range(n):
        moved[:, b] = terms(torch.where(torch.arange(n) == b, other, theta)) != s
    apart = ~(moved[:, None] & moved[None]).any(-1)
    assert (apart.sum(1) == n - 1 - 2 * bandwidth).all()
    expected = (s[:, None] * s)[apart].mean()
    kinds, index = objective_kinds([objective])
    one = torch.ones(1, dtype=torch.float64)
    _, balance = objective_terms(log_ratios(theta)[None], kinds, torch.tensor(index), one)
    torch.testing.assert_close(balance[0], expected)
    # The fewest pairs are those that leave one product.
    least = pairs_needed(objective)
    assert least == 2 + 2 * bandwidth
    h = random(1, rolls_needed(objective), least)
    assert objective_terms(h, kinds, torch.tensor(index), one)[1].isfinite().all()
    with pytest.raises(ValueError, match=f"more than {least - 1} pairs"):
        objective_terms(h[..., 1:], kinds, torch.tensor(index), one)


def test_the_unbiased_balance_of_normalised_ratios_is_unbiased() -> None:
    """As above, over 20,000 batches of 16 pairs; products of terms that share a θ through Ẑ(x) would bias it."""
    g, repeats, n = torch.Generator().manual_seed(0), 20_000, 16
    objective = Objective("nre", "chi2", 1.0, unbiased=True, normalized=True, normalizer=4)
    theta = torch.randn(repeats, n, generator=g, dtype=torch.float64)
    x = theta + torch.randn(repeats, n, generator=g, dtype=torch.float64)
    h = torch.stack([1.5 * theta.roll(r, 1) * x - 0.5 for r in range(5)], 1)
    kinds, index = objective_kinds([objective])
    _, values = objective_terms(h, kinds, torch.tensor(index * repeats), torch.ones(repeats, dtype=torch.float64))
    joint, marginal = losses.joint_and_marginal(h - (h[:, 1:].logsumexp(1, keepdim=True) - math.log(4)))
    truth = ((joint.sigmoid() + marginal.sigmoid()).mean() - 1).square()
    near = losses.balance_chi2(joint, marginal, unbiased=True, bandwidth=1)
    for estimate, unbiased in ((values, True), (near, False)):
        z = abs(estimate.mean() - truth) / (estimate.std() / repeats**0.5)
        assert z < 4 if unbiased else z > 10


def test_an_unbiased_balance_of_too_small_a_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 3 pairs"):
        losses.balance_chi2(torch.zeros(3), torch.zeros(3), unbiased=True)


def test_members_with_different_objectives_are_evaluated_as_if_alone() -> None:
    objectives = [
        Objective("npe"),
        Objective("nre"),
        Objective("nre", "chi2", 3.0),
        Objective("nre", "chi2", 100.0),
        Objective("npe", "kl", 10.0),
        Objective("nre", "chi2", 5.0, unbiased=True),
        Objective("nre", "chi2", 5.0, normalized=True, normalizer=4),
        Objective("nre_c"),
        Objective("nre_c", "multiclass", 7.0, contrastive=3, gamma=0.5),
        Objective("npe", "chi2", 0.0),
    ]
    h = random(len(objectives), 6, 40, seed=5)
    kinds, index = objective_kinds(objectives)
    strength = torch.tensor([o.strength for o in objectives], dtype=torch.float64)
    together, balances = objective_terms(h, kinds, torch.tensor(index), strength)
    for m, objective in enumerate(objectives):
        assert rolls_needed(objective) <= 6
        one, where = objective_kinds([objective])
        alone, balance = objective_terms(h[m : m + 1], one, torch.tensor(where), strength[m : m + 1])
        torch.testing.assert_close(together[m], alone[0])
        torch.testing.assert_close(balances[m], balance[0])
    torch.testing.assert_close(together[0], losses.npe(h[0, 0]))
    torch.testing.assert_close(together[9], losses.npe(h[9, 0]))
    joint, marginal = losses.joint_and_marginal(h[4])
    torch.testing.assert_close(together[4], losses.npe(joint) + 10 * losses.balance_kl(joint, marginal))
    log_z = h[6, 1:5].logsumexp(0) - math.log(4)
    torch.testing.assert_close(balances[6], losses.balance_chi2(h[6, 0] - log_z, h[6, 1] - log_z))


def test_a_formula_of_a_neighbour_cannot_hand_over_a_nan() -> None:
    """Ratios so large that KL's logarithm is infinite must not touch the gradient of a member with another loss."""
    objectives = [Objective("nre"), Objective("nre", "kl", 1.0)]
    h = torch.zeros(2, 2, 8)
    h[0] = 200.0
    h.requires_grad_()
    kinds, index = objective_kinds(objectives)
    total, _ = objective_terms(h, kinds, torch.tensor(index), torch.tensor([0.0, 1.0]))
    (gradient,) = torch.autograd.grad(total.sum(), h)
    assert gradient.isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss": "nll"}, "loss"),
        ({"loss": "nre", "balance": "chi3"}, "balance"),
        ({"loss": "nre", "balance": "multiclass", "strength": 1.0}, "contrastive"),
        ({"loss": "nre", "balance": "kl", "strength": 1.0, "unbiased": True}, "no unbiased estimate"),
    ],
)
def test_impossible_objectives_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Objective(**arguments)


def test_a_new_balance_term_is_a_function_and_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def balance_absolute(joint: Tensor, marginal: Tensor) -> Tensor:
        return (joint.sigmoid() + marginal.sigmoid() - 1).mean(-1).abs()

    monkeypatch.setitem(losses.BALANCES, "absolute", Term(balance_absolute, "pairs"))
    objective = METHODS["npe"].but(balance="absolute", strength=3.0).objective
    h = torch.randn(1, rolls_needed(objective), 8, generator=torch.Generator().manual_seed(0))
    total, balance = objective_terms(h, [objective], torch.tensor([0]), torch.tensor([3.0]))
    torch.testing.assert_close(balance, balance_absolute(h[:, 0], h[:, 1]))
    torch.testing.assert_close(total, losses.npe(h[:, 0]) + 3 * balance)


@pytest.fixture(scope="module")
def all_batches() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Independent θ and x with three values each: their probabilities, and all batches of four pairs with theirs."""
    of_theta, of_x = torch.tensor([[0.2, 0.3, 0.5], [0.5, 0.1, 0.4]], dtype=torch.float64)
    batches = torch.tensor(list(itertools.product(itertools.product(range(3), repeat=2), repeat=4)))
    return of_theta, of_x, batches, (of_theta[batches[..., 0]] * of_x[batches[..., 1]]).prod(-1)


@pytest.mark.parametrize(
    "options",
    [
        {"loss": "npe"},
        {"loss": "nre"},
        {"loss": "nre_c", "contrastive": 2},
        {"loss": "nre_c", "contrastive": 2, "share_rolls": False},
        {"loss": "nre_c", "contrastive": 3, "gamma": 0.4},
    ],
    ids=lambda options: ", ".join(map(str, options.values())),
)
@pytest.mark.parametrize("part", ["both", "θ", "x", "constant"])
def test_the_curvature_at_the_prior_is_as_derived(all_batches, options: dict[str, Any], part: str) -> None:
    """The second derivative of the expected loss at h = 0, by enumeration, in each part of the log-ratio.

    Without balance it is κ E h² in what depends on both. The plain estimate of balance adds λ E h²/4n to it, and
    2λ E h²/4n to functions of θ or x alone; the unbiased one adds nothing but to a constant.
    """
    of_theta, of_x, batches, probability = all_batches
    strength, n = 7.0, batches.shape[1]
    u, f, v = random(3, 3, seed=3), random(3, 1, seed=4), random(3, seed=5)
    u = u - (of_theta[:, None] * u).sum(0)
    h = {
        "both": u - (of_x * u).sum(1, keepdim=True),
        "θ": (f - (of_theta[:, None] * f).sum()).expand(3, 3),
        "x": (v - (of_x * v).sum()).expand(3, 3),
        "constant": torch.ones(3, 3, dtype=torch.float64),
    }[part]

    def curvature(objective: Objective) -> float:
        kinds, _ = objective_kinds([objective])

        def expected(scale: Tensor) -> Tensor:
            ratios = scale * h
            if objective.loss == "npe":  # flows are normalised
                ratios = ratios - (of_theta[:, None] * ratios.exp()).sum(0).log()
            theta, x = batches[..., 0], batches[..., 1]
            rolls = torch.stack([ratios[theta.roll(r, 1), x] for r in range(max(2, rolls_needed(objective)))], 1)
            every = torch.zeros(len(rolls), dtype=torch.int64)
            totals, _ = objective_terms(rolls, kinds, every, torch.full((len(rolls),), objective.strength))
            return (probability * totals).sum()

        return float(torch.autograd.functional.hessian(expected, torch.zeros((), dtype=torch.float64)))

    free = Objective(**options)
    plain, unbiased = (
        Objective(**options, balance="chi2", strength=strength, unbiased=unbiased) for unbiased in (False, True)
    )
    square = float((of_theta[:, None] * of_x * h**2).sum())
    start = curvature(free)
    if part == "both":  # the linear part is that of log r with the curvature κ: t is the ratio of curvatures
        assert start == pytest.approx(information_weight(free) * square)
        assert batch_temperature(plain, n) == pytest.approx(start / curvature(plain))
        assert batch_temperature(unbiased, n) == batch_temperature(free, n) == 1
    normalised = part in ("x", "constant") and options["loss"] == "npe"  # which then leaves nothing of this part
    added = {"both": 1, "θ": 2, "x": 2, "constant": 2 * n}[part] * strength * square / (4 * n)
    assert curvature(plain) - start == pytest.approx(0 if normalised else added, abs=1e-12)
    kept = added if part == "constant" and not normalised else 0
    assert curvature(unbiased) - start == pytest.approx(kept, abs=1e-12)


def test_batches_of_an_epoch_have_less_bias() -> None:
    """The variance of ḡ over batches cut from N pairs, near the prior: joint pairs are drawn without replacement."""
    g, (N, n) = torch.Generator().manual_seed(0), (200, 60)
    shares = []
    for _ in range(150):
        h = torch.randn(N, N, generator=g, dtype=torch.float64)
        h = h - h.mean(0) - h.mean(1, keepdim=True) + h.mean()
        x = torch.rand(1000, N, generator=g).argsort(-1)[:, :n]
        means = (h[x, x] + h[x.roll(1, -1), x]).mean(-1)
        shares.append(float(means.var() / (2 * h.square().mean() / n)))
    assert sum(shares) / 150 == pytest.approx(1 - (n - 1) / (2 * (N - 1)), abs=0.02)


def test_a_loss_whose_weight_of_information_is_not_known_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOSSES, "new", Term(lambda joint: -joint.mean(-1), "joint"))
    with pytest.raises(ValueError, match="κ of the loss 'new' is not known"):
        information_weight(Objective("new"))
