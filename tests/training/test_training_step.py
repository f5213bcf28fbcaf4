"""The step: Adam against torch's, compiled and not."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import torch
from torch import Tensor
from training_tools import SMALL, pairs, train

from equipoise.methods import resolve
from equipoise.support.devices import fixed_threads
from equipoise.training import Member, loop
from equipoise.training import step as training_step
from equipoise.training.state import MemberState
from equipoise.training.step import Plan, update


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("loop", [True, False], ids=["loop", "tensors"])
def test_the_step_is_torchs_adam(weight_decay: float, clip: float | None, loop: bool) -> None:
    flat = torch.randn(3, 50)
    rates = torch.tensor([1e-3, 1e-2, 3e-4])
    state = MemberState.fresh(flat.clone(), 1e-3, epochs=1)
    state.learning_rate.copy_(rates)
    rows = [torch.nn.Parameter(row.clone()) for row in flat]
    optimisers = [
        torch.optim.AdamW([row], lr=float(lr), weight_decay=weight_decay) for row, lr in zip(rows, rates, strict=True)
    ]
    ones = torch.ones(1, 50)
    for step in range(20):
        gradient = torch.randn(3, 50, generator=torch.Generator().manual_seed(step))
        state.steps += 1
        given = gradient.clone() if loop else gradient.T.contiguous().T  # the loop needs rows in one piece
        update(
            state.weights,
            given,
            state.moment_1,
            state.moment_2,
            state.steps,
            state.learning_rate,
            state.active,
            ones,
            weight_decay,
            clip,
        )
        for m, (row, optimiser) in enumerate(zip(rows, optimisers, strict=True)):
            row.grad = gradient[m].clone()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_([row], clip)
            optimiser.step()
    for m, row in enumerate(rows):
        torch.testing.assert_close(state.weights[m], row.detach(), rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("clip", [None, 1.0])
def test_compiled_and_eager_training_agree(clip: float | None) -> None:
    eager, compiled = (
        train([Member(resolve("bnre_c"), 1)], [pairs()], settings=dataclasses.replace(SMALL, clip=clip, compile=on))[0]
        for on in (False, True)
    )
    assert compiled.history.attrs["compiled"] == 1 and eager.history.attrs["compiled"] == 0
    np.testing.assert_allclose(compiled.history.validation_loss, eager.history.validation_loss, rtol=2e-3, atol=2e-3)


def test_the_compiler_sees_every_network_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three problems in one process: none compiles twice, and nothing but the number of members is a symbol."""
    sizes: list[torch.Size] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[object]) -> torch.fx.GraphModule:
        sizes.extend(v.shape for v in inputs if isinstance(v, Tensor))
        return graph

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    theta, x = pairs()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for width in (2, 4, 7):
            members, given = [Member(resolve("nre"), s) for s in (1, 2)], (theta, x.repeat(1, 3)[:, :width])
            trained = train(members, [given], settings=dataclasses.replace(SMALL, compile=True))
            assert trained[0].history.attrs["compiled"] == 1
    assert len(sizes) > 3
    assert all(isinstance(n, int) for size in sizes for n in size[1:])


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("early_stop", [False, True])
def test_compiling_begins_where_what_is_left_pays_for_it(early_stop: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before the second epoch; what this process has compiled is used from the first; results are the same."""
    seen: list[bool] = []
    real = loop.step

    def watched(plan: Plan, *rest: object) -> None:
        seen.append(plan.program.fast is not None)
        real(plan, *rest)

    monkeypatch.setattr(loop, "step", watched)
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    monkeypatch.setattr(training_step, "_PROGRAMS", {})
    monkeypatch.setattr(loop, "SMALL", 0.0)
    settings = dataclasses.replace(SMALL, epochs=6, early_stop=early_stop, patience=2)
    found, compiled = [], []
    for cost in (1e9, 0.0, 1e9):
        seen.clear()
        monkeypatch.setattr(loop, "COMPILING", dict.fromkeys(("cpu", "cuda"), (cost, 0.5)))
        (p,) = train([Member(resolve("bnpe_init"), 1)], [pairs()], settings=settings)
        found.append(p.history.validation_loss.values)
        compiled.append(list(seen))
        assert p.history.attrs["compiled"] == int(seen[-1])
    steps = len(seen) // len(found[0])
    first = 2 * steps if len(seen) > 2 * steps else len(seen)
    assert compiled == [[False] * len(seen), [False] * first + [True] * (len(seen) - first), [True] * len(seen)]
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-8)


def test_small_networks_train_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = loop.step
    monkeypatch.setattr(loop, "step", lambda *given: (seen.append(torch.get_num_threads()), real(*given))[1])
    settings = dataclasses.replace(SMALL, epochs=1)
    with fixed_threads(2):
        for least in (loop.SMALL, 0.0):
            monkeypatch.setattr(loop, "SMALL", least)
            train([Member(resolve("nre"), 1)], [pairs()], settings=settings)
            assert torch.get_num_threads() == 2
    assert seen == [1] * (len(seen) // 2) + [2] * (len(seen) // 2)


def test_a_compiler_that_fails_costs_speed_and_not_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def backend(*_: object) -> None:
        raise ValueError("no such instruction")

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    members, data = [Member(resolve("rnpe"), 1)], [pairs(seed=3)]
    with pytest.warns(UserWarning, match="could not compile the training step .*no such instruction"):
        (tried,) = train(members, data, settings=dataclasses.replace(SMALL, compile=True))
    assert tried.history.attrs["compiled"] == 0
    (eager,) = train(members, data, settings=dataclasses.replace(SMALL, compile=False))
    np.testing.assert_array_equal(tried.history.validation_loss, eager.history.validation_loss)


def test_kept_weights_are_torchs_moving_average(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the weights after each step; over fewer steps at the beginning."""
    seen: list[Tensor] = []
    rates: list[float] = []

    def recorded(plan: Plan, state: MemberState, *rest: object) -> None:
        if not seen:
            seen.append(state.weights.clone())
        training_step.step(plan, state, *rest)  # type: ignore[arg-type]
        seen.append(state.weights.clone())
        rates.append(float(state.learning_rate[0]))

    monkeypatch.setattr(loop, "step", recorded)
    settings = dataclasses.replace(SMALL, epochs=3, keep="last", schedule="cycle", average=0.6, compile=False)
    (trained,) = train([Member(resolve("rnpe"), 1)], [pairs()], settings=settings)
    module = torch.nn.Linear(seen[0].shape[1], 1, bias=False)
    averaged = torch.optim.swa_utils.AveragedModel(
        module, avg_fn=lambda mean, new, n: mean.lerp(new, 1 - min(0.6, (1 + float(n)) / (10 + float(n))))
    )
    for weights in seen:
        module.weight.data.copy_(weights)
        averaged.update_parameters(module)
    kept = trained.network.layout.flatten(trained.stack)
    torch.testing.assert_close(kept, averaged.module.weight.detach(), rtol=1e-5, atol=1e-6)
    assert max(rates) == pytest.approx(settings.learning_rate, rel=0.2) and rates[-1] < 0.5 * settings.learning_rate
