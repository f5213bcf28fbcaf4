"""Several architectures as one network: the same numbers as one after the other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.networks import LOG_WEIGHTS, Classifier, Flat, Flow, Mixture, Network, network_from_spec

BOX = eq.BoxUniform(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 3.0]))
BODY = Flat((4,))


def weights_of(net: Network, seeds: list[int]) -> dict[str, Tensor]:
    return net.init([(s, 0) for s in seeds], [torch.zeros(4)] * len(seeds), [torch.ones(4)] * len(seeds))


def parts() -> list[tuple[Network, dict[str, Tensor]]]:
    nets: list[tuple[Network, list[int]]] = [
        (Flow(BOX, BODY, "prior", "standard", hidden=(16,), univariate="affine"), [0, 1]),
        (Flow(BOX, BODY, "prior", "standard", hidden=(8, 8), bins=4), [2]),
        (Flow(BOX, BODY, "random", "standard", hidden=(8, 8), bins=4), [3, 4, 5]),
    ]
    return [(net, weights_of(net, seeds)) for net, seeds in nets]


def test_ratios_features_and_draws_are_those_of_the_parts() -> None:
    found = parts()
    net, p = Mixture.joined(found)
    theta, x = BOX.sample((9, 5)), torch.randn(5, 4)
    assert net.kind == "flow" and net.can_leak and len(p[LOG_WEIGHTS]) == 6
    want = torch.cat([part.log_ratio(w, theta, x) for part, w in found])
    torch.testing.assert_close(net.log_ratio(p, theta, x), want)
    own = net.encode(theta.expand(6, 9, 5, 2))  # every member at points of its own
    torch.testing.assert_close(net.ratio(p, own, net.embed(p, x[None])), want)
    uniform = torch.rand(6, 9, 5, 2)
    draws, ratio = net.sample(p, net.embed(p, x[None]), net.base_noise(uniform))
    low = 0
    for part, w in found:
        assert isinstance(part, Flow)
        size = len(w["x_loc"])
        mine = part.sample(w, part.embed(w, x[None]), part.base_noise(uniform[low : low + size]))
        torch.testing.assert_close((draws[low : low + size], ratio[low : low + size]), mine)
        low += size


def test_members_are_selected_across_architectures() -> None:
    net, p = Mixture.joined(parts())
    theta, x = BOX.sample((3, 5)), torch.randn(5, 4)
    whole = net.log_ratio(p, theta, x)
    for rows in ([1], [0, 2], [2, 3, 5], list(range(6))):
        some, w = net.select(p, rows)
        torch.testing.assert_close(some.log_ratio(w, theta, x), whole[rows])
    assert isinstance(net.select(p, [3, 5])[0], Flow)  # of one architecture
    with pytest.raises(ValueError, match="order"):
        net.select(p, [4, 0])


def test_a_description_builds_the_same_network() -> None:
    net, p = Mixture.joined(parts())
    again = network_from_spec(net.spec(), BOX)
    assert again.spec() == net.spec() and {n: tuple(w.shape[1:]) for n, w in p.items()} == again.shapes
    theta, x = BOX.sample((3, 5)), torch.randn(5, 4)
    torch.testing.assert_close(again.log_ratio(p, theta, x), net.log_ratio(p, theta, x))


def test_what_cannot_be_mixed() -> None:
    classifier = Classifier(BOX, BODY, hidden=(8,))
    assert Mixture.joined([*parts(), (classifier, weights_of(classifier, [0]))])[0].kind == "classifier"
    with pytest.raises(ValueError, match="observations"):
        Mixture([classifier, Classifier(BOX, Flat((3,)))], [1, 1])
    with pytest.raises(ValueError, match="each architecture"):
        Mixture([classifier], [0])
    with pytest.raises(ValueError, match="prior_base"):
        Flow(BOX, BODY, "prior_base", univariate="affine")
