"""The kernels without a GPU: their results in Triton's interpreter, and their machine code for an H200."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")

SCALARS = ("tiles", "area")
IMAGE = {"KH": 3, "BLOCK_O": 16, "OUTPUTS": 16, "PRECISION": "tf32"}
SERIES = {"KH": 1, "BLOCK_O": 16, "OUTPUTS": 8, "PRECISION": "tf32"}


@pytest.mark.slow
def test_results_in_the_interpreter() -> None:
    suite = Path(__file__).with_name("interpreted_kernels.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(suite)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=suite.parents[2], timeout=600)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert re.search(r"\d+ passed", done.stdout) and "skipped" not in done.stdout


def compiled(name: str, element: str, constants: dict[str, Any], tile: str) -> tuple[str, int, str]:
    """The PTX of a kernel for compute capability 9.0, its shared memory, and what it uses of registers and stack."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from equipoise.networks.triton import kernels, launch

    function = getattr(kernels, name)
    cut = launch.TILES[tile]
    constants = {k: v for k, v in {**constants, "BLOCK": cut.block}.items() if k in function.arg_names}
    types = dict.fromkeys((*SCALARS, *kernels.SIZES), "i32")
    types |= {n: "i32" for n in function.arg_names if n.endswith(("_member", "_image", "_channel", "_place"))}
    types |= {"index": "*u8", "weight": "*fp32", "bias": "*fp32", "partial": "*fp32", "loc": "*fp32", "scale": "*fp32"}
    signature = {n: "constexpr" if n in constants else types.get(n, element) for n in function.arg_names}
    places = {n: (i,) for i, n in enumerate(function.arg_names)}
    aligned = {places[n]: [["tt.divisibility", 16]] for n, kind in signature.items() if kind.startswith("*")}
    source = ASTSource(function, signature, {places[n]: v for n, v in constants.items()}, aligned)
    options = {"num_warps": cut.warps, "num_stages": cut.stages}
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    usage = ""
    if tool.exists():
        binary = Path(os.environ["TRITON_CACHE_DIR"]) / "kernel.cubin"
        binary.write_bytes(made.asm["cubin"])
        usage = subprocess.run([tool, "-res-usage", binary], capture_output=True, text=True, check=True).stdout
    return made.asm["ptx"], made.metadata.shared, usage


CASES = [
    ("convolve", "fused", {**IMAGE, "INPUTS": 4, "CHANNELS": 4, "TAPS": 3, "BLOCK_K": 16, "POOL": True, "STRIDE": 2}),
    ("convolve", "convolve", {**IMAGE, "INPUTS": 16, "CHANNELS": 16, "TAPS": 1, "BLOCK_K": 16}),
    ("convolve", "convolve", {**IMAGE, "INPUTS": 16, "CHANNELS": 16, "TAPS": 1, "BLOCK_K": 16, "FLIP": True}),
    ("convolve", "fused", {**SERIES, "INPUTS": 8, "CHANNELS": 8, "TAPS": 3, "BLOCK_K": 32, "POOL": True, "STRIDE": 2}),
    (
        "weight_gradient",
        "weight_gradient_first",
        {**IMAGE, "CHANNELS": 4, "TAPS": 3, "BLOCK_K": 16, "STRIDE": 2, "GATHER": True},
    ),
    ("weight_gradient", "weight_gradient", {**IMAGE, "CHANNELS": 16, "TAPS": 1, "BLOCK_K": 16}),
    ("weight_gradient", "weight_gradient", {**SERIES, "CHANNELS": 8, "TAPS": 3, "BLOCK_K": 32}),
    ("pool", "pool", IMAGE),
    ("unpool", "unpool", IMAGE),
    ("standardise", "standardise", {"INPUTS": 3, "CHANNELS": 4}),
]


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning")
@pytest.mark.parametrize("element", ["*fp32", "*bf16"])
@pytest.mark.parametrize(("name", "tile", "constants"), CASES)
def test_machine_code_for_an_h200(
    name: str, tile: str, constants: dict[str, Any], element: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    constants = {"STRIDE": 1, "POOL": False, "FLIP": False, "GATHER": False, **constants}
    ptx, shared, usage = compiled(name, element, constants, tile)
    assert shared < 100_000  # two programs fit on a multiprocessor
    if name in ("convolve", "weight_gradient"):
        assert re.search(r"wgmma\.mma_async|mma\.sync", ptx)  # on the tensor cores
    if name != "standardise":
        assert re.search(r"ld\.global\.v[24]\.b32|cp\.async\.cg", ptx)  # reads of 8 bytes or 16
    if usage:
        assert "STACK:0" in usage  # no spilled registers
