"""Equipoise beside sbi, lampe and BayesFlow: the same simulations and cores, one problem after another.

    python benchmarks/peers.py [--problems choose,slcp] [--budgets 1000,2000] [--methods equipoise,sbi-maf]
                               [--threads 1] [--networks 5] [--again] [--quick] [--no-verdicts]
                               [--out results/peers.csv]

Each fit runs in a process of its own. Measured are

- CPU and wall seconds of the fit alone: not of imports, simulating and judging. CPU seconds include child processes.
  Every method has trained once on 64 pairs before, so what is imported or compiled by a first fit is in no time.
- the mean log posterior density of 2,000 fresh pairs, of single networks and of mixtures with equal weights. Densities
  are cut to the prior's support and renormalised, as sbi's `log_prob` and `sample` are.
- the verdict on these pairs: of `eq.diagnose` for peers, from weighted points (`temperatures.py`) for Equipoise.

sbi's NPE has its defaults (MAF or NSF, x z-scored, no embedding) and sees x flattened. lampe has no training loop:
here its NPE trains a neural spline flow as in its tutorials (Adam at 1e-3, gradients clipped at 1, x and θ z-scored),
with sbi's validation share and patience. BayesFlow's `BasicWorkflow` has its defaults (affine coupling flow, 100 epochs
of batches of 32, no validation) on keras' torch backend, and standardises x too. It computes only where `--methods`
names it: the project does not depend on it. `pip install "bayesflow>=2"` beside torch is what it needs.

A peer's networks are trained one after another. `--networks 1` trains one: enough to compare times, as with
`--threads 2`. Rows of one network and of mixtures stand side by side in the file.

Rows are appended to the file as they come. What is in it is not computed again, unless `--again`, and of several rows
for the same fit the last counts. The table is then printed from the file (`results/speed.py`).
"""

from __future__ import annotations

import argparse
import copy
import csv
import importlib.metadata
import importlib.util
import io
import itertools
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

import equipoise as eq
from equipoise.support.randomness import integer, isolated
from problems import Problem, named, prior_entropy
from temperatures import TEMPERATURES, judged, looked_at

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "results"))
from speed import FIELDS, key_of, read, table  # noqa: E402

#: Variants of Equipoise: what `eq.fit` is given beside simulations and prior.
VARIANTS: dict[str, dict[str, Any]] = {"equipoise": {}, "equipoise-5": {"members": 5}}
METHODS = (*VARIANTS, "sbi-maf", "sbi-nsf", "lampe-nsf")
#: Methods that compute only where they are named, and what installs them.
ON_DEMAND = {"bayesflow": 'pip install "bayesflow>=2"'}
#: Networks of a peer, and those of everything where it shall be quick.
NETWORKS, FEW = 5, 2
#: Seeds of the simulations: those that train, and those that judge.
TRAIN, FRESH = 0, 10_000
#: Draws for each x that measure the mass inside the prior: those that decide, and how many follow.
FIRST, DRAWS, MORE = 16, 32, 512
#: Numbers of repeated x that are held at once.
LIMIT = 2**25


class Network(NamedTuple):
    """One trained network of a peer, as a density over all of θ's space.

    Arguments:
        log_prob: from θ `(N, D)` and flattened x `(N, K)` to `(N,)`.
        sample: from a number n and flattened x `(N, K)` to `(n, N, D)`.
        cpu, wall: the seconds that training took.
    """

    log_prob: Callable[[Tensor, Tensor], Tensor]
    sample: Callable[[int, Tensor], Tensor]
    cpu: float = math.nan
    wall: float = math.nan


# --- the peers --------------------------------------------------------------------------------------------------------


def sbi_network(kind: str, prior: Any, theta: Tensor, x: Tensor, epochs: int) -> Network:
    """One network of sbi, trained with its defaults."""
    from sbi.inference import NPE  # imported by `warm_up`, outside the time

    inference = NPE(prior, density_estimator=kind, show_progress_bars=False)
    inference.append_simulations(theta, x).train(max_num_epochs=epochs)
    estimator = inference.build_posterior().posterior_estimator
    return Network(
        lambda t, o: estimator.log_prob(t[None], condition=o)[0], lambda n, o: estimator.sample((n,), condition=o)
    )


def lampe_network(kind: str, prior: Any, theta: Tensor, x: Tensor, epochs: int) -> Network:
    """One flow of lampe's NPE: a tenth of the pairs validates, and training stops 20 epochs after the best."""
    import zuko
    from lampe.inference import NPE, NPELoss
    from lampe.utils import GDStep

    (at, size), (x_at, x_size) = ((v.mean(0), v.std(0).clamp(min=1e-6)) for v in (theta, x))
    estimator = NPE(
        theta.shape[1],
        x.shape[1],
        build={"nsf": zuko.flows.NSF}[kind],
        transforms=3,
        hidden_features=(64, 64, 64),
        activation=torch.nn.ELU,
    )
    loss = NPELoss(estimator)
    step = GDStep(torch.optim.Adam(estimator.parameters(), lr=1e-3), clip=1.0)
    z, o = (theta - at) / size, (x - x_at) / x_size
    order = torch.randperm(len(z))
    held, used = order[: len(z) // 10], order[len(z) // 10 :]
    best, since, kept = math.inf, 0, copy.deepcopy(estimator.state_dict())
    for _ in range(min(epochs, 1000)):
        for batch in used[torch.randperm(len(used))].split(256):
            step(loss(z[batch], o[batch]))
        with torch.no_grad():
            found = float(loss(z[held], o[held]))
        if found < best:
            best, since, kept = found, 0, copy.deepcopy(estimator.state_dict())
        elif (since := since + 1) >= 20:
            break
    estimator.load_state_dict(kept)
    log_size = size.log().sum()
    return Network(
        lambda t, o: estimator((t - at) / size, (o - x_at) / x_size) - log_size,
        lambda n, o: estimator.flow((o - x_at) / x_size).sample((n,)) * size + at,
    )


def bayesflow_network(kind: str, prior: Any, theta: Tensor, x: Tensor, epochs: int) -> Network:
    """One coupling flow of BayesFlow's `BasicWorkflow`, trained with its defaults; x is standardised as θ is."""
    import keras
    from bayesflow import BasicWorkflow

    keras.utils.set_random_seed(int(torch.randint(2**31, ())))
    names = {"inference_variables": "theta", "inference_conditions": "x"}
    workflow = BasicWorkflow(**names, standardize="all")
    workflow.fit_offline(
        {"theta": theta.numpy(), "x": x.numpy()}, verbose=0, **({"epochs": epochs} if epochs < 100 else {})
    )

    def log_prob(t: Tensor, o: Tensor) -> Tensor:
        return torch.as_tensor(workflow.log_prob({"theta": t.numpy(), "x": o.numpy()}))

    def sample(n: int, o: Tensor) -> Tensor:
        draws = workflow.sample(num_samples=n, conditions={"x": o.numpy()})["theta"]
        return torch.as_tensor(draws).to(o).transpose(0, 1)

    return Network(log_prob, sample)


PEERS = {"sbi": sbi_network, "lampe": lampe_network, "bayesflow": bayesflow_network}


def draw(network: Network, n: int, x: Tensor) -> Tensor:
    """n draws for each x, with shape `(n, N, D)`; in blocks, since x is repeated for every draw."""
    blocks = x.split(max(1, LIMIT // (n * x.shape[1])))
    return torch.cat([network.sample(n, block) for block in blocks], 1)


def inside(network: Network, prior: Any, x: Tensor) -> Tensor:
    """log of the mass inside the prior's support for each x, with shape `(N,)`.

    With n draws of which a share p lies inside, E log p̂ = log p - (1 - p) / 2np + O(1/n²): that is corrected for. A
    first few draws decide how many follow, and are not counted: the others are then independent of that choice. What
    remains of the bias is below 0.001 for p > 0.02.
    """
    if isinstance(prior, eq.GaussianPrior):
        return torch.zeros(len(x))

    def share(n: int, some: Tensor) -> Tensor:
        return prior.contains(draw(network, n, some)).double().mean(0)

    p, n = torch.empty(len(x), dtype=torch.float64), torch.empty(len(x), dtype=torch.float64)
    many = share(FIRST, x) < 0.5
    for rows, draws in ((many, MORE), (~many, DRAWS)):
        if bool(rows.any()):
            p[rows], n[rows] = share(draws, x[rows]), float(draws)
    p = p.maximum(0.5 / n)
    return (p.log() + (1 - p) / (2 * n * p)).float()


def fit_peer(method: str, problem: Problem, theta: Tensor, x: Tensor, options: dict[str, Any]) -> list[Network]:
    """The networks of a peer, each with a seed of its own."""
    package, _, kind = method.partition("-")
    found = []
    for m in range(options["networks"]):
        with isolated(integer(0, "peers", method, m)):
            cpu, wall = cpu_seconds(), time.perf_counter()
            network = PEERS[package](kind, problem.prior, theta, x, options["epochs"])
            found.append(network._replace(cpu=cpu_seconds() - cpu, wall=time.perf_counter() - wall))
    return found


# --- one fit, in a process of its own ---------------------------------------------------------------------------------


def cpu_seconds() -> float:
    """CPU seconds of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def warm_up(method: str) -> None:
    """Fit 64 pairs once: imports and compiles what a first fit does. numba keeps what it compiled, once per machine."""
    prior = eq.BoxUniform([0, 0], [1, 1])
    theta = torch.rand(64, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if method in VARIANTS:
            eq.fit(theta, theta, prior=prior, epochs=1, progress=False)
        else:
            package, _, kind = method.partition("-")
            PEERS[package](kind, prior, theta, theta, 1)


def scored(values: Tensor) -> dict[str, float]:
    """The mean of log densities with shape `(N,)`, and its standard error."""
    return {"log_prob": float(values.mean()), "log_prob_se": float(values.std() / len(values) ** 0.5)}


def work(problem: Problem, budget: int, method: str, options: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of one fit."""
    warm_up(method)
    theta, x = problem.simulate(budget, TRAIN)
    fresh, fresh_x = problem.simulate(options["pairs"], FRESH)
    common: dict[str, Any] = {"pairs": options["pairs"], "entropy": prior_entropy(problem)}
    if problem.log_posterior is not None:
        common["exact"] = float(problem.log_posterior(fresh, fresh_x).double().mean())
    if method in VARIANTS:
        common["version"] = eq.__version__
        rows = [ours(problem, (theta, x), (fresh, fresh_x), VARIANTS[method], options)]
    else:
        common["version"] = importlib.metadata.version(method.partition("-")[0])
        rows = theirs(problem, (theta, x.flatten(1)), (fresh, fresh_x.flatten(1)), method, options)
    load = os.getloadavg()[2]
    return [common | row | {"load": load} for row in rows]


def ours(problem: Problem, pairs: Any, fresh: Any, keywords: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """`eq.fit`, judged: one row for the mixture."""
    limits = {"epochs": options["epochs"], "members": FEW} if options["quick"] else {}
    cpu, wall = cpu_seconds(), time.perf_counter()
    posterior = eq.fit(*pairs, prior=problem.prior, **{"progress": False, **limits, **keywords})
    row: dict[str, Any] = {"cpu_s": cpu_seconds() - cpu, "wall_s": time.perf_counter() - wall}
    begin = time.perf_counter()
    seen = looked_at(posterior, *fresh, seed=0)
    at = int(abs(TEMPERATURES - posterior.temperature).argmin())
    found = judged({name: values[at : at + 1] for name, values in seen.items()})
    verdict = "overconfident" if found["p_over"] <= 0.05 else "inconclusive"
    if verdict == "inconclusive" and found["p_cert"] <= 0.05:
        verdict = "certified conservative"
    with torch.no_grad():
        singles = [float(m.log_prob(*fresh).mean()) for m in posterior.tempered(1.0).members]
    row |= scored(torch.from_numpy(seen["log_prob"][at])) | {"members": len(singles), "leakage": 0.0}
    row |= {"singles": sum(singles) / len(singles), "verdict": verdict, "coverage_auc": float(found["auc"][0])}
    return row | {"judge_s": time.perf_counter() - begin}


def mixture(networks: Sequence[Network]) -> Callable[[Tensor], Any]:
    """Networks with equal weights, as `eq.diagnose` takes a flow: from x to what draws and has densities."""

    def sample(x: Tensor, shape: tuple[int]) -> Tensor:
        each = -(-shape[0] // len(networks))
        draws = torch.cat([draw(network, each, x) for network in networks])
        return draws[torch.randperm(len(draws))[: shape[0]]]

    def log_prob(x: Tensor, theta: Tensor) -> Tensor:
        rows, many = theta.flatten(0, -2), x.expand(*theta.shape[:-1], x.shape[-1]).flatten(0, -2)
        size = max(1, LIMIT // x.shape[-1])
        parts = [
            torch.stack([network.log_prob(t, o) for network in networks]).logsumexp(0)
            for t, o in zip(rows.split(size), many.split(size), strict=True)
        ]
        return torch.cat(parts).unflatten(0, theta.shape[:-1]) - math.log(len(networks))

    return lambda x: SimpleNamespace(sample=partial(sample, x), log_prob=partial(log_prob, x))


def theirs(problem: Problem, pairs: Any, fresh: Any, method: str, options: dict[str, Any]) -> list[dict[str, Any]]:
    """A peer's networks, judged: one row for the first of them, one for the mixture."""
    networks = fit_peer(method, problem, *pairs, options)
    theta, x = fresh
    begin = time.perf_counter()
    with torch.no_grad(), isolated(integer(0, "peers", method, "judge")):
        logs = torch.stack([inside(network, problem.prior, x) for network in networks])
        each = torch.stack([network.log_prob(theta, x) for network in networks]) - logs
        last: dict[str, Any] = {}
        try:
            if not options["verdicts"]:
                raise ValueError("verdicts are not wanted")
            whole = eq.diagnose(mixture(networks), theta, x, prior=problem.prior, samples=64, progress=False)
            last = {
                "verdict": str(whole["verdict"].values[-1]),
                "coverage_auc": float(whole["coverage_auc"].values[-1]),
            }
        except ValueError as error:  # draws or densities that are not finite
            print(f"{method} was not judged: {error}", file=sys.stderr)
    spent = time.perf_counter() - begin
    rows = []
    for count in sorted({1, len(networks)}):
        row = scored(each[:count].logsumexp(0) - math.log(count))
        row |= {name + "_s": sum(getattr(n, name) for n in networks[:count]) for name in ("cpu", "wall")}
        row |= {"members": count, "singles": float(each.mean()), "judge_s": spent}
        row["leakage"] = 1 - float(logs[:count].exp().mean().clamp(max=1))
        rows.append(row | (last if count == len(networks) else {}))
    return rows


# --- all fits ---------------------------------------------------------------------------------------------------------


def spawned(problem: str, budget: int, method: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of one fit, from a process of its own; none if it failed, which is said."""
    names = [f"{library}_NUM_THREADS" for library in ("OMP", "MKL", "OPENBLAS", "NUMBA")]
    environment = os.environ | dict.fromkeys(names, str(options.threads))
    environment |= {"KERAS_BACKEND": "torch"}  # BayesFlow's
    with tempfile.TemporaryDirectory() as folder:  # sbi writes logs where it runs
        file = Path(folder, "rows.json")
        words = ["--worker", str(file), "--problems", problem, "--budgets", str(budget), "--methods", method]
        words += ["--pairs", str(options.pairs), "--networks", str(options.networks)]
        words += ["--quick"] if options.quick else []
        words += ["--no-verdicts"] if options.no_verdicts else []
        done = subprocess.run(
            [sys.executable, __file__, *words], cwd=folder, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            print(f"{problem}, {budget:,}, {method}: failed\n{done.stderr[-600:]}", file=sys.stderr, flush=True)
            return []
        rows: list[dict[str, Any]] = json.loads(file.read_text())
    return rows


def append(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Rows at the end of the file, in one write."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.DictWriter(text, FIELDS, lineterminator="\n")
    if not file.exists():
        writer.writeheader()
    writer.writerows(
        {k: f"{v:.5g}" if isinstance(v, float) else v for k, v in row.items() if k in FIELDS} for row in rows
    )
    with file.open("a", encoding="utf-8") as stream:
        stream.write(text.getvalue())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", default="all", help="names of problems, or of groups: choose, confirm, paper")
    parser.add_argument("--budgets", default="2000")
    parser.add_argument("--methods", default=",".join(METHODS), help="also bayesflow, where it is installed")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--networks", type=int, help="networks of each peer: 5, or 2 with --quick")
    parser.add_argument("--pairs", type=int, default=2000, help="fresh pairs that judge")
    parser.add_argument("--again", action="store_true", help="compute also what is in the file")
    parser.add_argument("--quick", action="store_true", help="few networks and three epochs, to see that all runs")
    parser.add_argument("--no-verdicts", action="store_true", help="measure times and densities alone")
    parser.add_argument("--out", type=Path, default=HERE.parent / "results" / "peers.csv")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    problems, methods = named(options.problems.split(",")), options.methods.split(",")
    if unknown := sorted(set(methods) - {*METHODS, *ON_DEMAND}):
        parser.error(f"no method is called {', '.join(unknown)}; there are {', '.join([*METHODS, *ON_DEMAND])}")
    for method, how in ON_DEMAND.items():
        if method in methods and importlib.util.find_spec(method) is None:
            parser.error(f"{method} is not installed, and the project does not depend on it: {how}")
    options.networks = options.networks or (FEW if options.quick else NETWORKS)
    budgets = [int(b) for b in options.budgets.split(",")]
    limits = {"networks": options.networks, "epochs": 3 if options.quick else 2**31 - 1}
    settings = limits | {"pairs": options.pairs, "quick": options.quick, "verdicts": not options.no_verdicts}
    if options.worker is not None:
        warnings.simplefilter("ignore")
        options.worker.write_text(json.dumps(work(problems[0], budgets[0], methods[0], settings)))
        return 0
    there = set() if options.again else set(read(options.out))
    failed = False
    for problem, budget, method in itertools.product(problems, budgets, methods):
        which = {"problem": problem.name, "budget": budget, "method": method, "threads": options.threads}
        if key_of(which | {"members": NETWORKS if method in VARIANTS else options.networks}) in there:
            continue
        rows = [which | row | {"group": problem.group} for row in spawned(problem.name, budget, method, options)]
        failed |= not rows
        append(options.out, rows)
        for row in rows:
            print(
                f"{problem.name}, {budget:,}, {method}, {row['members']} members: {row['log_prob']:.3f} in "
                f"{row['cpu_s']:.1f} CPU s, {row['wall_s']:.1f} s",
                flush=True,
            )
    print("\n" + table(read(options.out), options.threads))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
