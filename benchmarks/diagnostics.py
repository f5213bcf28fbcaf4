"""How fast coverage is, next to the peers, on the same machine in one run.

    python benchmarks/diagnostics.py                  # CPU: sbi's and lampe's flows, lampe's classifier, with accuracy
    python benchmarks/diagnostics.py --device cuda    # GPU: 40 members × 10,000 pairs, and lampe's way on the same GPU
    python benchmarks/diagnostics.py --cost           # what judging, calibrating and tempering cost on a CPU, per pair

Networks have the paper's sizes on SLCP (flow: 3 transforms, 3 × 256; classifier: 6 × 256). Peers that would take many
minutes are run on fewer pairs, which is stated; times are per pair, so that they compare. On the GPU lampe's loop is
written out here, because lampe need not be installed there: one pair at a time, a grid of 100 × 100, as
`lampe.diagnostics.expected_coverage_ni` does.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

import equipoise as eq
from equipoise.diagnostics import coverage_auc

#: What time is: wall time, or the CPU time of this process.
clock: Callable[[], float] = time.perf_counter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--pairs", type=int, default=200, help="pairs that we judge on the CPU")
    parser.add_argument("--peer-pairs", type=int, default=10, help="pairs that the slow peers judge")
    parser.add_argument("--samples", type=int, default=1000, help="samples a pair on the CPU")
    parser.add_argument("--members", type=int, default=40, help="members on the GPU")
    parser.add_argument("--gpu-pairs", type=int, default=10_000, help="pairs on the GPU")
    parser.add_argument(
        "--busy", action="store_true", help="count CPU seconds of one thread: for a machine that others use"
    )
    parser.add_argument("--cost", action="store_true", help="milliseconds of one core, without peers")
    parser.add_argument("--many", type=int, default=0, help="with --cost, judge so many pairs once, with all threads")
    options = parser.parse_args()
    if options.cost:
        warnings.simplefilter("ignore")
        cost(options)
        return
    if options.busy:
        global clock
        clock = time.process_time
        torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if options.device == "cpu":
        cpu(options)
    else:
        gpu(options)


def cpu(options: argparse.Namespace) -> None:
    task = eq.task("slcp")
    train, test = simulated(task, 1024, 0), simulated(task, options.pairs, 1)
    few = options.peer_pairs
    print(f"SLCP, {torch.get_num_threads()} threads, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")

    flow = fitted(task, train, "bnpe_init", members=1, epochs=2)
    run = partial(eq.diagnose, flow, *test, samples=options.samples, progress=False)
    run()  # the null distribution of so many pairs is simulated once
    ours = float(np.median([seconds(run) for _ in range(3)])) / options.pairs
    row("flow, HPD ranks", "pairs", "seconds a pair", "ratio")
    row(f"equipoise, {options.samples} samples, and SBC, TARP, …", options.pairs, f"{ours:.4f}", "1")
    theirs = float(np.median([lampe_flow(test, few, options.samples) for _ in range(3)]))
    row("lampe expected_coverage_mc", few, f"{theirs:.4f}", f"{theirs / ours:.1f}")
    posterior = sbi_posterior(task, train)
    theirs = sbi_recipe(posterior, test, few, options.samples)
    row("sbi run_sbc(reduce_fns=posterior.log_prob)", few, f"{theirs:.4f}", f"{theirs / ours:.1f}")
    judged = seconds(lambda: eq.diagnose(posterior, *test, samples=options.samples, progress=False)) / options.pairs
    row("the same sbi posterior through eq.diagnose", options.pairs, f"{judged:.4f}", f"{judged / ours:.1f}")

    print()
    classifier = fitted(task, train, "nre", members=1, epochs=30)
    subset = test[0][:few], test[1][:few]
    # The error of a rank: on this classifier, which saw few simulations and is smooth, and on an ideal one, the exact
    # posterior.
    ideal = Ideal(task)
    references = grid_ranks(classifier, *subset, bins=300), grid_ranks(ideal, *subset, bins=300, warp=3)
    row(
        "classifier, HPD ranks",
        "pairs",
        "seconds a pair",
        "ratio",
        "evaluations",
        "error of a rank",
        "on an ideal classifier",
    )
    started = clock()
    fixed = lampe_classifier(classifier, *subset)
    slow = (clock() - started) / few
    errors = [rms(fixed, references[0]), rms(grid_ranks(ideal, *subset, bins=100), references[1])]
    row("lampe expected_coverage_ni, 100 × 100", few, f"{slow:.4f}", "1", 10_000, *(f"{e:.4f}" for e in errors))
    for samples, words in ((128, "128 weighted points"), (511, "511 weighted points"), (1000, "interpolated")):
        with counted(classifier) as count:
            started = clock()
            ds = eq.diagnose(classifier, *test, samples=samples, progress=False)
            ours = (clock() - started) / options.pairs
        best = eq.diagnose(ideal, *test, samples=samples, progress=False)
        errors = [rms(d["rank"][0, :few].values, r) for d, r in zip((ds, best), references, strict=True)]
        cells = f"{ours:.4f}", f"{slow / ours:.1f}", count[0] // options.pairs, *(f"{e:.4f}" for e in errors)
        row(f"equipoise, {words}", options.pairs, *cells)
    print("\nratio: of a flow, how many times slower than the first row; of a classifier, how many times faster")
    print("error of a rank: root mean square, against a grid of 300 × 300, packed around 0 for the ideal classifier")


def cost(options: argparse.Namespace) -> None:
    """Process time of one thread, per pair or observation; medians of three, and 1,000 draws once."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    task = eq.task("slcp")
    train, test = simulated(task, 1024, 0), simulated(task, options.pairs, 1)
    small = eq.METHODS["npe"].but(start="prior", hidden=(128, 128), bins=4)

    def spent(run: Callable[[], object], repeats: int = 3) -> float:
        """Milliseconds a pair."""
        run()
        found = []
        for _ in range(repeats):
            began = time.process_time()
            run()
            found.append(1000 * (time.process_time() - began) / options.pairs)
        return float(np.median(found))

    for words, method in (("3 × 256 units", "bnpe_init"), ("2 × 128 units, 4 bins", small)):
        five = eq.fit(*train, prior=task.prior, method=method, members=5, epochs=2, seed=0, progress=False)
        one, warm = five.members[0], five.tempered(0.8)
        print(f"\n{words}: milliseconds of one core a pair, SLCP, {options.pairs} pairs\n")
        row("draws", "one member", "five members, mixture=False", "five and their mixture", "the same, tempered to 0.8")
        row(*["---"] * 5)
        for samples in (64, 128, 256, 1000):
            judge = partial(eq.diagnose, theta=test[0], x=test[1], samples=samples, progress=False)
            runs = (one, {}), (five, {"mixture": False}), (five, {}), (warm, {})
            repeats = 1 if samples == 1000 else 3
            row(samples, *(f"{spent(partial(judge, q, **more), repeats):.1f}" for q, more in runs))
        print()
        row("tempered to", "log_prob", "100 draws", "eq.calibrate, once")
        row(*["---"] * 4)
        for t in (0.8, 0.5):
            warm = five.tempered(t)
            runs = (lambda q=warm: q.log_prob(*test)), (lambda q=warm: q.sample_batched((100,), test[1], seed=0))
            both = [f"{spent(run, 1):.1f}" for run in runs]
            calibrated = partial(eq.calibrate, five, *test, progress=False)
            row(t, *both, f"{spent(calibrated, 1):.1f}" if t == 0.8 else "")
        if options.many:
            torch.set_num_threads(threads)
            pairs = simulated(task, options.many, 2)
            elapsed = seconds(partial(eq.diagnose, five, *pairs, progress=False))
            print(f"\n{options.many} pairs with {threads} threads: {elapsed:.0f} s")
            torch.set_num_threads(1)


def gpu(options: argparse.Namespace) -> None:
    device = torch.device(options.device)
    task = eq.task("slcp")
    train, test = simulated(task, 1024, 0), simulated(task, options.gpu_pairs, 1)
    theta, x = (t.to(device) for t in test)
    print(f"SLCP on {torch.cuda.get_device_name(device)}, {options.members} members, {options.gpu_pairs} pairs\n")
    row(
        "",
        "samples",
        "seconds",
        "standard error of the AUC over its floor",
        "|ΔAUC| to 1000 samples, in standard errors",
    )
    for method in ("bnpe_init", "npe", "nre"):
        stack = fitted(task, train, method, members=options.members, epochs=20, device=device)
        judge = partial(eq.diagnose, stack, mixture=False, progress=False)
        best = judge(theta[:1000], x[:1000], samples=1000)
        for samples in (64, 128, 256, 1000):
            run = partial(judge, theta, x, samples=samples)
            judge(theta[:500], x[:500], samples=samples)  # the first call loads kernels
            elapsed = seconds(run)
            same = judge(theta[:1000], x[:1000], samples=samples)
            inflation = float((same.coverage_auc_se / best.coverage_auc_se).max())
            shift = float((abs(same.coverage_auc - best.coverage_auc) / best.coverage_auc_se).max())
            row(method, samples, f"{elapsed:.2f}", f"{inflation:.3f}", f"{shift:.2f}")
    print()
    one = fitted(task, train, "nre", members=1, epochs=20, device=device)
    for samples in (511, 1000):
        eq.diagnose(one, theta[:1000], x[:1000], samples=samples, progress=False)
    row("one classifier", "pairs", "seconds for all pairs", "times faster")
    counted = min(1000, options.gpu_pairs)
    grid_ranks(one, theta[:50], x[:50], bins=100)
    slow = seconds(lambda: grid_ranks(one, theta[:counted], x[:counted], bins=100)) / counted * options.gpu_pairs
    row("lampe's way, 100 × 100, one pair at a time", counted, f"{slow:.2f}", "1")
    for samples in (128, 511, 1000):
        fast = seconds(partial(eq.diagnose, one, theta, x, samples=samples, progress=False))
        row(f"equipoise, samples={samples}", options.gpu_pairs, f"{fast:.2f}", f"{slow / fast:.1f}")
    subset = theta[:100], x[:100]
    reference = grid_ranks(one, *subset, bins=500)
    fixed = grid_ranks(one, *subset, bins=100)
    row("error of a rank against 500 × 500", "", f"grid 100 × 100: {rms(fixed, reference):.4f}", "")
    for samples in (128, 511, 1000):
        found = eq.diagnose(one, *subset, samples=samples, progress=False)["rank"][0].values
        row("", "", f"samples={samples}: {rms(found, reference):.4f}", "")
    area, error = coverage_auc(fixed)
    print(f"\ncoverage AUC on the grid, {len(fixed)} pairs: {float(area):+.3f} ± {float(error):.3f}")


# --- peers -----------------------------------------------------------------------------------------------------------


def lampe_flow(test: tuple[Tensor, Tensor], pairs: int, samples: int) -> float:
    """lampe's loop over a zuko flow of the same size; seconds a pair."""
    import lampe
    import zuko

    estimator = lampe.inference.NPE(2, 8, build=zuko.flows.NSF, transforms=3, hidden_features=[256] * 3)
    data = list(zip(test[0][:pairs], test[1][:pairs], strict=True))
    with quiet():
        return seconds(lambda: lampe.diagnostics.expected_coverage_mc(estimator.flow, data, n=samples)) / pairs


def lampe_classifier(posterior: eq.Posterior, theta: Tensor, x: Tensor) -> np.ndarray:
    """lampe's own function on our classifier, ranks in the order of the pairs."""
    import lampe

    prior = posterior.prior
    ranks = []

    def log_p(t: Tensor, o: Tensor) -> Tensor:
        return posterior.log_ratios(t.reshape(-1, 1, 2), o[None])[0].reshape(t.shape[:-1]) + prior.log_prob(t)

    with quiet():
        for pair in zip(
            theta, x, strict=True
        ):  # one call a pair, because it sorts its ranks; the loop inside is the same
            levels, _ = lampe.diagnostics.expected_coverage_ni(log_p, [pair], (prior.low, prior.high), bins=100)
            ranks.append(float(levels[1]))
    return np.array(ranks)


def sbi_posterior(task: eq.Task, train: tuple[Tensor, Tensor]) -> object:
    """sbi's neural spline flow with the same sizes."""
    from sbi.inference import NPE
    from sbi.neural_nets import posterior_nn
    from sbi.utils import BoxUniform

    with quiet():
        net = posterior_nn("nsf", hidden_features=256, num_transforms=3)
        inference = NPE(BoxUniform(task.prior.low, task.prior.high), density_estimator=net, show_progress_bars=False)
        inference.append_simulations(*train).train(max_num_epochs=2)
        return inference.build_posterior()


def sbi_recipe(posterior: object, test: tuple[Tensor, Tensor], pairs: int, samples: int) -> float:
    """sbi's tutorial recipe for HPD ranks; seconds a pair."""
    from sbi.diagnostics import run_sbc

    theta, x = test[0][:pairs], test[1][:pairs]
    with quiet():
        return (
            seconds(
                lambda: run_sbc(
                    theta,
                    x,
                    posterior,
                    reduce_fns=posterior.log_prob,  # type: ignore[attr-defined]
                    num_posterior_samples=samples,
                    show_progress_bar=False,
                )
            )
            / pairs
        )


class Ideal:
    """The exact posterior of a task, as the classifier that all training aims at."""

    kind, n_members, can_leak = "classifier", 1, False
    device, dtype = torch.device("cpu"), torch.float32

    def __init__(self, task: eq.Task) -> None:
        self.task, self.prior, self.x_shape = task, task.prior, task.x_shape

    def log_ratios(self, theta: Tensor, x: Tensor) -> Tensor:
        return self.task.log_likelihood(theta, x).unsqueeze(0)

    def sample_members(self, n: int, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        raise TypeError("a classifier has no draws")


@torch.no_grad()
def grid_ranks(posterior: eq.Posterior | Ideal, theta: Tensor, x: Tensor, bins: int, warp: int = 1) -> np.ndarray:
    """Ranks on a grid, one pair at a time and with a strict inequality: lampe's way, written out.

    `warp` = 3 packs the cells around the middle of the box, where exact posteriors of SLCP may be as narrow as 0.01.
    """
    prior = posterior.prior
    middle = (torch.arange(bins, device=theta.device) + 0.5) / bins * 2 - 1
    cube = torch.cartesian_prod(middle, middle)
    volume = cube.abs().pow(warp - 1).prod(-1).log()
    half = (prior.high - prior.low) / 2
    grid = (prior.low + half + half * cube.sign() * cube.abs().pow(warp)).unsqueeze(1)
    ranks = []
    for t, o in zip(theta, x, strict=True):
        log_p = posterior.log_ratios(grid, o[None]).flatten()
        own = posterior.log_ratios(t[None, None], o[None]).flatten()
        mass = log_p + volume
        ranks.append((mass[log_p > own].logsumexp(0) - mass.logsumexp(0)).exp())
    return torch.stack(ranks).double().cpu().numpy()


# --- small things ----------------------------------------------------------------------------------------------------


def simulated(task: eq.Task, n: int, seed: int) -> tuple[Tensor, Tensor]:
    data = eq.simulate(task.prior, task.simulate, n, seed=seed)
    return data.theta, data.x


def fitted(
    task: eq.Task,
    train: tuple[Tensor, Tensor],
    method: str,
    *,
    members: int,
    epochs: int,
    device: torch.device | str = "cpu",
) -> eq.Posterior:
    return eq.fit(
        *train, prior=task.prior, method=method, members=members, epochs=epochs, device=device, seed=0, progress=False
    )


@contextlib.contextmanager
def counted(posterior: eq.Posterior) -> Iterator[list[int]]:
    """How often the networks of a posterior are evaluated inside the block."""
    kind, count = type(posterior.network), [0]
    plain = kind.ratio

    def counting(self: object, p: object, code: Tensor, features: Tensor) -> Tensor:
        ratios = plain(self, p, code, features)
        count[0] += ratios.numel()
        return ratios

    kind.ratio = counting
    try:
        yield count
    finally:
        kind.ratio = plain


def seconds(function: Callable[[], object]) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    started = clock()
    function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock() - started


def rms(found: np.ndarray, reference: np.ndarray) -> float:
    return float(np.sqrt(np.mean((found - reference) ** 2)))


def row(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


if __name__ == "__main__":
    main()
