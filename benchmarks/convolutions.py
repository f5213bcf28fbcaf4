"""The convolutional embedding on a GPU: kernels of our own against PyTorch's convolutions, in one run.

    python benchmarks/convolutions.py [--cases sir,lv,lv-released] [--stacks 5,10,20] [--minutes 6] [--parts ...]
    TRITON_INTERPRET=1 python benchmarks/convolutions.py --tiny        # what it prints, without a GPU

Parts, each a table in Markdown and a process of its own, so that a kernel that breaks the device breaks one table:

- tune: candidates for how each kernel is cut, on the layers that cost most; the best serve in the later parts;
- steps: the whole training step of a stack, eager but captured in a CUDA graph, beside the authors' loop;
- alone: the embedding, forward and backward, and its errors against float64;
- layers: every launch of every layer;
- compiled (not by default): the whole step after `torch.compile`;
- accuracy (not by default): the best validation losses of members trained in float32, TF32 and bf16.

Times are medians over five stretches between CUDA events, in microseconds a member and step. A variant that fails
prints its error and the others go on; what would begin after --minutes is left out, and said so.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import equipoise as eq
import training  # the script beside this one
from equipoise.methods import resolve
from equipoise.networks import Convolutional, Layout, convolutions, embeddings
from equipoise.training import PAPER
from equipoise.training.step import _PROGRAMS, compiler_available

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
Cases = dict[str, tuple[Convolutional, torch.dtype]]
CASES: Cases = {
    "sir": (Convolutional((3, 50, 50), 8, 16), torch.uint8),
    "lv": (Convolutional((2001, 2), 8, 8), torch.int16),
    "lv-released": (Convolutional((1001, 2), 10, 16), torch.int16),
}
TINY: Cases = {
    "sir": (Convolutional((3, 7, 6), 3, 16), torch.uint8),
    "lv": (Convolutional((13, 2), 3, 8), torch.int16),
}
#: How kernels may be cut: block, warps, stages, splits.
CANDIDATES: dict[str, list[tuple[int, ...]]] = {
    "fused": [(128, 4, 1), (64, 4, 1), (64, 2, 1), (128, 4, 2)],
    "convolve": [(128, 4, 1), (64, 4, 1), (256, 8, 1), (64, 2, 1)],
    "pool": [(128, 4, 1), (64, 4, 1), (64, 2, 1)],
    "unpool": [(64, 4, 1), (128, 4, 1), (32, 2, 1)],
    "weight_gradient": [(32, 1, 1, 128), (64, 1, 1, 128), (64, 4, 1, 64), (64, 2, 1, 128), (32, 1, 1, 64)],
    "weight_gradient_first": [(64, 1, 1, 256), (32, 1, 1, 256), (64, 4, 1, 128), (64, 2, 1, 256), (64, 1, 1, 128)],
}
VARIANTS = ("plain", "composed", "kernels float32", "kernels tf32", "kernels bf16")
PARTS = ("tune", "steps", "alone", "layers", "compiled", "accuracy")
#: The task and what its observations are divided by, of the cases that are trained.
TRAINED = {"sir": ("spatial_sir", 1.0), "lv": ("lotka_volterra", 100.0)}


# --- variants ---------------------------------------------------------------------------------------------------------


def plain(
    x: Tensor, loc: Tensor, scale: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], precision: str = ""
) -> Tensor:
    """The layers as the paper writes them, as grouped convolutions, channels last for images on a GPU."""
    x = (x.to(loc.dtype) - loc.unsqueeze(1)) / scale.unsqueeze(1)
    x = x.movedim(-1, 2) if x.ndim == 4 else x
    members, dims = weights[0].shape[0], x.ndim - 3
    conv, pool = (F.conv1d, F.max_pool1d) if dims == 1 else (F.conv2d, F.max_pool2d)
    last = torch.channels_last if dims == 2 and x.is_cuda else torch.contiguous_format
    x = x.transpose(0, 1).flatten(1, 2).contiguous(memory_format=last)
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        weight = weight.flatten(0, 1).contiguous(memory_format=last)
        x = conv(x, weight, bias.flatten(), padding=0 if i == 0 else 1, groups=members)
        x = pool(F.selu(x), 3, stride=2 - (i - 1) % 2, padding=1) if i > 0 else x
    return x.unflatten(1, (members, -1)).transpose(0, 1).flatten(2)


@contextmanager
def variant(name: str, body: Convolutional) -> Iterator[Convolutional]:
    """An embedding that is evaluated in a certain way."""
    kernels, embed = convolutions.KERNELS, embeddings.embed
    try:
        convolutions.KERNELS = name.startswith("kernels")
        if name == "plain":
            embeddings.embed = plain
        yield dataclasses.replace(body, precision=name.split()[1]) if convolutions.KERNELS else body
    finally:
        convolutions.KERNELS, embeddings.embed = kernels, embed


# --- timing -----------------------------------------------------------------------------------------------------------


def microseconds(function: Callable[[], object], capture: bool = True, budget: float = 0.25) -> float:
    """The median over five stretches of what a call takes, captured in a graph on a GPU."""
    if not CUDA:
        begin = time.perf_counter()
        function()
        return 1e6 * (time.perf_counter() - begin)
    if capture:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                function()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            function()
        function = graph.replay

    def stretch(count: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            function()
        end.record()
        end.synchronize()
        return 1e3 * begin.elapsed_time(end) / count

    stretch(2)
    count = max(2, min(500, int(1e6 * budget / 5 / max(stretch(2), 1.0))))
    return statistics.median(stretch(count) for _ in range(5))


@dataclasses.dataclass
class Run:
    """What a part of the benchmark is run with."""

    cases: Cases
    stacks: list[int]
    batch: int
    members: int
    deadline: float

    def attempt(self, what: str, measure: Callable[[], float | str]) -> float | str:
        """A number, or why there is none."""
        if time.monotonic() > self.deadline:
            return "no time left"
        try:
            return measure()
        except Exception as error:
            print(f"\n{what} failed:\n{traceback.format_exc(limit=-4)}", flush=True)
            return type(error).__name__
        finally:
            if CUDA:
                torch.cuda.synchronize()  # a broken device ends this part here
                torch.cuda.empty_cache()

    def observations(self, case: str, count: int) -> Tensor:
        """Snapshots of zeros and ones, or counts that wander."""
        body, dtype = self.cases[case]
        generator = torch.Generator().manual_seed(0)
        if dtype == torch.uint8:
            return (torch.rand(count, *body.x_shape, generator=generator) < 0.3).to(DEVICE, dtype)
        steps = torch.randint(-2, 3, (count, *body.x_shape), generator=generator)
        return (100 + steps.cumsum(1)).clamp(0, 3000).to(DEVICE, dtype)


def weights_of(body: Convolutional, members: int) -> tuple[Layout, Tensor]:
    """Random weights in one buffer; counts are divided by 100."""
    layout = Layout(body.shapes())
    scale = torch.full(body.statistics_shape, 100.0 if body.dims == 1 else 1.0)
    constants = {"x_loc": torch.zeros(body.statistics_shape), "x_scale": scale}
    stacks = [{n: w.unsqueeze(0) for n, w in (constants | body.init(member)).items()} for member in range(members)]
    return layout, torch.cat([layout.flatten(stack) for stack in stacks]).to(DEVICE)


def shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.1f}"


def head(cells: Sequence[str]) -> None:
    print("\n| " + " | ".join(cells) + " |\n|" + "---|" * len(cells), flush=True)


def line(*cells: str) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


# --- parts ------------------------------------------------------------------------------------------------------------


def launches(run: Run, case: str) -> dict[str, Callable[[], object]]:
    """The launches of each layer, on tensors of their sizes, by name: "1 fused", "2 convolve", …."""
    from equipoise.networks.triton import launch

    body, _ = run.cases[case]
    layout, flat = weights_of(body, run.members)
    p = layout.cut(flat)
    x = run.observations(case, run.members * run.batch).unflatten(0, (run.members, run.batch))
    prepare = partial(launch.standardise, x, p["x_loc"].flatten(1), p["x_scale"].flatten(1), torch.float32)
    found: dict[str, Callable[[], object]] = {"0 standardise": prepare}
    weights = [p[f"conv.{i}.weight"] for i in range(2, body.layers + 1)]
    weights = [convolutions.compose(p["conv.0.weight"], p["conv.0.bias"], p["conv.1.weight"]), *weights]
    h = prepare()
    for i, weight in enumerate(weights):
        weight = weight.unsqueeze(3) if body.dims == 1 else weight
        bias, step = p[f"conv.{i + 1}.bias"], convolutions.stride(i)
        out, index = launch._layer(h, weight, bias, step, "tf32", None)
        g, z = torch.randn_like(out), torch.randn(*h.shape[:-1], out.shape[-1], device=DEVICE)
        if launch.should_fuse(step, weight.shape[3], h.shape[-1]):
            found[f"{i + 1} fused"] = partial(launch._convolve, h, weight, bias, None, out, index, step, "tf32")
        else:
            apart = torch.empty_like(z)
            found[f"{i + 1} convolve"] = partial(launch._convolve, h, weight, bias, None, apart, None, 1, "tf32")
            found[f"{i + 1} pool"] = partial(launch._pool, z, step, weight.shape[3])
        if i == 0:
            found["1 weight_gradient_first"] = partial(launch._weight_gradient, g, index, h, weight, step, "tf32", True)
        else:
            found[f"{i + 1} unpool"] = partial(launch._unpool, g, index, h, weight, step)
            found[f"{i + 1} weight_gradient"] = partial(
                launch._weight_gradient, z, index, h, weight, step, "tf32", False
            )
            down = torch.empty_like(h)
            found[f"{i + 1} input_gradient"] = partial(launch._convolve, z, weight, None, h, down, None, 1, "tf32")
        h = out
    return found


def tune(run: Run) -> None:
    from equipoise.networks.triton import launch

    print(f"\n## How kernels are cut (stack of {run.members}, TF32, µs a member)")
    head(["case", "launch", "block, warps, stages, splits: µs", "best"])
    for case in list(run.cases)[:2]:
        functions = launches(run, case)
        for kernel, candidates in CANDIDATES.items():
            name = next((n for n in functions if n.split()[1] == kernel), None)
            if name is None:
                continue
            key = f"{kernel}_{run.cases[case][0].channels}"
            results: dict[tuple[int, ...], float | str] = {}
            for candidate in candidates if CUDA else candidates[:2]:
                launch.TILES[key] = launch.Tile(*candidate)
                took = run.attempt(f"{key} {candidate}", partial(microseconds, functions[name], budget=0.05))
                results[candidate] = took / run.members if isinstance(took, float) else took
            del launch.TILES[key]
            timed = {c: t for c, t in results.items() if isinstance(t, float)}
            best = min(timed, key=timed.__getitem__, default=None)
            if best is not None:
                launch.TILES[key] = launch.Tile(*best)
            notes = "; ".join(f"{','.join(map(str, c))}: {shown(t)}" for c, t in results.items())
            line(case, name, notes, f'"{key}": Tile{best}')


def layers(run: Run) -> None:
    print(f"\n## Layer by layer (stack of {run.members}, TF32, µs a member)")
    for case in list(run.cases)[:2]:
        head([f"{case}: launch", "µs"])
        total = 0.0
        for name, function in launches(run, case).items():
            took = run.attempt(f"{case} {name}", partial(microseconds, function, budget=0.03))
            took = took / run.members if isinstance(took, float) else took
            total += took if isinstance(took, float) else 0.0
            line(name, shown(took))
        line("sum", shown(total))


def gradients(made: Convolutional, layout: Layout, buffer: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """Features, and the gradient of a fixed combination of them."""
    features = made(layout.cut(buffer), x)
    cotangent = torch.randn(features.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return features.detach(), *torch.autograd.grad(features, buffer, cotangent.to(features))


def errors(run: Run, case: str, name: str) -> str:
    """The largest errors of features and gradients against float64, relative to the largest entry."""
    body, _ = run.cases[case]
    layout, flat = weights_of(body, 2)
    x = run.observations(case, 2 * min(run.batch, 32)).unflatten(0, (2, -1))
    with variant("plain", body) as made:
        want = gradients(made, layout, flat.double().requires_grad_(), x)
    with variant(name, body) as made:
        got = gradients(made, layout, flat.clone().requires_grad_(), x)
    return " / ".join(f"{((a - b).abs().max() / b.abs().max()).item():.0e}" for a, b in zip(got, want, strict=True))


def alone(run: Run) -> None:
    print(f"\n## The embedding alone (stack of {run.members}, batch {run.batch}, µs a member)")
    head(["case", "variant", "forward", "forward and backward", "error of features / gradients"])
    for case, (body, _) in run.cases.items():
        layout, flat = weights_of(body, run.members)
        x = run.observations(case, run.members * run.batch).unflatten(0, (run.members, run.batch))
        for name in VARIANTS:
            with variant(name, body) as made:
                cells = []
                for backward in (False, True):
                    step = partial(embedded, made, layout, flat.clone().requires_grad_(backward), x)
                    took = run.attempt(f"{case} {name}", partial(microseconds, step))
                    cells.append(shown(took / run.members if isinstance(took, float) else took))
            error = run.attempt(f"{case} {name} errors", partial(errors, run, case, name))
            line(case, name, *cells, shown(error))


def embedded(made: Convolutional, layout: Layout, buffer: Tensor, x: Tensor) -> object:
    features = made(layout.cut(buffer), x)
    return torch.autograd.grad(features.sum(), buffer) if buffer.requires_grad else features


def authors_microseconds(method: str, body: Convolutional, theta: Tensor, x: Tensor) -> float:
    return microseconds(training.authors_step(method, body.x_shape, theta, x, body), capture=False, budget=0.5)


def our_microseconds(method: str, body: Convolutional, theta: Tensor, x: Tensor, members: int, compiled: bool) -> float:
    _PROGRAMS.clear()
    step = training.our_step(method, body.x_shape, theta, x, members, compiled, body)
    return microseconds(step, capture=False) / members


def steps(run: Run, compiled: bool = False) -> None:
    print(f"\n## The whole step ({'compiled' if compiled else 'eager'}, batch {run.batch}, µs a member and step)")
    middle = run.stacks[len(run.stacks) // 2]
    stacks = [f"stack of {m}" for m in run.stacks]
    head(["case", "method", "variant", *stacks, "authors' loop", f"ratio, stack of {middle}"])
    for case, (body, _) in run.cases.items():
        x = run.observations(case, (16 if CUDA else 2) * run.batch)
        theta = (6 * torch.rand(len(x), 2, generator=torch.Generator().manual_seed(0)) - 3).to(DEVICE)
        for method in ("bnre", "bnpe"):
            authors = partial(authors_microseconds, method, body, theta, x)
            reference = run.attempt(f"{case} {method} authors' loop", authors)
            names = VARIANTS if method == "bnre" else ("composed", "kernels tf32", "kernels bf16")
            for name in ("kernels tf32",) if compiled else names:
                took: dict[int, float | str] = {}
                with variant(name, body) as made:
                    for members in run.stacks:
                        if name in ("plain", "composed") and members != middle:
                            took[members] = "–"
                            continue
                        ours = partial(our_microseconds, method, made, theta, x, members, compiled)
                        took[members] = run.attempt(f"{case} {method} {name}, stack of {members}", ours)
                known = isinstance(reference, float) and isinstance(took[middle], float)
                ratio = f"{reference / took[middle]:.1f}" if known else "–"
                line(case, method, name, *(shown(t) for t in took.values()), shown(reference), ratio)


def accuracy(run: Run) -> None:
    """Members with the same seeds and data, which differ in nothing but the precision of their embedding."""
    members, pairs, epochs, batch = (20, 2048, 100, 256) if CUDA else (2, 40, 1, 16)
    print(f"\n## Trained in another precision ({members} members on {pairs:,} pairs, at most {epochs} epochs)")
    head(["case", "method", "precision", "best validation loss, mean ± sd", "standard error of the mean", "seconds"])
    for case, (body, _) in run.cases.items():
        if case not in TRAINED:
            continue
        name, scale = TRAINED[case]
        task = eq.task(name)
        made = eq.simulate(task.prior, task.simulate, pairs, seed=0)
        theta, x = made.theta, made.compact()
        if body.x_shape != task.x_shape:  # the small sizes
            x = run.observations(case, pairs).cpu()
        for method in ("bnre", "bnpe"):
            for precision in ("float32", "tf32", "bf16") if CUDA else ("float32", "tf32"):  # no bf16 in the interpreter
                row = resolve(method)
                fit = partial(
                    eq.fit_many,
                    [eq.training.Member(row, seed) for seed in range(members)],
                    [(theta, x)],
                    prior=task.prior,
                    settings=dataclasses.replace(PAPER, epochs=epochs, batch_size=batch),
                    embedding=dataclasses.replace(body, precision=precision),
                    x_scale=scale,
                    device=DEVICE,
                    progress=False,
                )
                begin = time.monotonic()
                try:
                    losses = torch.tensor([float(p.history["best_loss"].values[0]) for p in fit()])
                except Exception as error:
                    print(f"\n{case} {method} {precision} failed:\n{traceback.format_exc(limit=-4)}", flush=True)
                    line(case, method, precision, type(error).__name__, "", "")
                    continue
                sd = losses.std().item()
                middle = f"{losses.mean().item():.4f} ± {sd:.4f}"
                took = f"{time.monotonic() - begin:.0f}"
                line(case, method, precision, middle, f"{sd / members**0.5:.4f}", took)


# --- the command ------------------------------------------------------------------------------------------------------


def one_part(part: str, arguments: argparse.Namespace) -> None:
    """Run a part, here and now."""
    cases = TINY if arguments.tiny else CASES
    cases = {name: cases[name] for name in (arguments.cases or ",".join(cases)).split(",")}
    batch = 4 if arguments.tiny else 256
    training.BATCH = batch
    stacks = [int(s) for s in arguments.stacks.split(",")]
    run = Run(cases, stacks, batch, 10 if CUDA else 2, time.monotonic() + 60 * arguments.minutes)
    torch.backends.cuda.matmul.allow_tf32 = True
    tiles = Path(arguments.tiles)
    if tiles.exists():
        from equipoise.networks.triton import launch

        launch.TILES.update({key: launch.Tile(**cut) for key, cut in json.loads(tiles.read_text()).items()})
    if part == "compiled":
        if compiler_available(DEVICE):
            steps(run, compiled=True)
        else:
            print("\nno compiler here: the compiled step is left out")
    else:
        {"tune": tune, "steps": steps, "alone": alone, "layers": layers, "accuracy": accuracy}[part](run)
    if part == "tune":
        tiles.write_text(json.dumps({key: dataclasses.asdict(cut) for key, cut in _tiles().items()}))


def _tiles() -> dict[str, Any]:
    from equipoise.networks.triton import launch

    return launch.TILES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="", help=f"of {', '.join(CASES)}")
    parser.add_argument("--stacks", default="5,10,20" if CUDA else "1,2")
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--parts", default=",".join(PARTS[:4]), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--tiles", default="", help="where the part 'tune' leaves its choice for the others")
    parser.add_argument("--tiny", action="store_true", help="small sizes, for a look without a GPU")
    arguments = parser.parse_args()
    begin = time.monotonic()
    if arguments.tiles:
        one_part(arguments.parts, arguments)
        return
    where = torch.cuda.get_device_name() if CUDA else "the CPU, in Triton's interpreter: times mean nothing"
    print(f"torch {torch.__version__} on {where}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for part in arguments.parts.split(","):
            left = arguments.minutes - (time.monotonic() - begin) / 60
            command = [sys.executable, __file__, "--parts", part, "--tiles", f"{folder}/tiles.json"]
            command += ["--minutes", f"{left:.3f}", "--stacks", arguments.stacks, "--cases", arguments.cases]
            done = subprocess.run([*command, *(["--tiny"] if arguments.tiny else [])])
            if done.returncode:
                print(f"\nthe part {part!r} ended early, with code {done.returncode}", flush=True)
            print(f"\n{time.monotonic() - begin:.0f} s so far", flush=True)


if __name__ == "__main__":
    main()
