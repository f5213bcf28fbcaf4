"""A directory of simulations that cannot be left half written.

    pairs/
      manifest.json       what this store is: prior, seed, block size, shape of x, simulator (see `fingerprints`)
      block-000000.h5     rows 0 to block_size - 1
      block-000001.h5     …

Every block is a function of the manifest and its number: its θ and its noise come from streams keyed by the seed and
the number. Three properties follow, and none needs a server or a log.

- *Killed at any moment*, a store holds whole blocks only (a block is renamed into place, see `blocks`), and the next
  run simulates what is missing.
- *Extended in place*: a larger n adds blocks; what n rows held before, they hold after.
- *Several processes at once*: two that make the same block make the same bytes, and the second rename changes
  nothing. Claims (`flock` on `block-….claim`, released by the kernel when a process dies) only keep them from doing
  work twice; where a file system has no locks, they do.

A simulator that takes one θ at a time has a stream a row. Its blocks may then be cut short at n, to be completed
later, and what is done of a block is set down every minute and on failure in `block-….partial`.
"""

from __future__ import annotations

__all__ = ["Manifest", "Store"]

import functools
import hashlib
import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equipoise.support.words import listed

from .blocks import STORAGES, Block, CorruptBlockError, load_x, read_block, write_block, write_whole
from .columns import Column, RowsOf, Segment
from .fingerprints import Fingerprint, changes
from .pairs import Simulations, without_invalid

#: The store format. A reader refuses what is newer.
FORMAT = 1
_NAME = re.compile(r"block-(\d{6,})\.h5")
_LEFTOVER = re.compile(r"block-(\d{6,})\.(claim|partial)")


@dataclass(frozen=True)
class Manifest:
    """Everything that fixes the content of a store."""

    prior: dict[str, Any]
    simulator: str
    seed: int
    block_size: int
    #: `"block"` for simulators that take batches, `"row"` for those that take one θ at a time.
    streams: str
    dim: int
    x_shape: tuple[int, ...]
    storage: str
    #: What the simulator computes, as far as it is known; None where its name is all there is.
    code: Fingerprint | None = None

    @property
    def fingerprint(self) -> str:
        """A digest that each block carries, so that a block of another store is noticed.

        The simulator's code is not in it: a block stays what it is when other code is said to do the same.
        """
        return hashlib.blake2b(replace(self, code=None).json().encode(), digest_size=16).hexdigest()

    def json(self) -> str:
        """The manifest as it is written; without `code` where there is none, as stores had none at first."""
        fields = {k: v for k, v in asdict(self).items() if k != "code" or v is not None}
        return json.dumps({"equipoise_store": FORMAT, **fields}, indent=1, sort_keys=True)

    @staticmethod
    def read(path: Path) -> Manifest:
        """The manifest of the store at `path`."""
        file = path / "manifest.json"
        if not file.exists():
            what = "there is no manifest.json in it" if path.is_dir() else "there is no such directory"
            raise FileNotFoundError(f"{path} is not a store of simulations: {what}")
        try:
            fields = json.loads(file.read_text())
            version = fields.pop("equipoise_store")
            if version > FORMAT:
                raise ValueError(f"{path} is a store of format {version}, written by a newer Equipoise than this one")
            return Manifest(**{**fields, "x_shape": tuple(fields["x_shape"])})
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{file} is damaged ({error}); restore it, or move the directory away") from error

    def refuse_another(self, wanted: Manifest, path: Path) -> None:
        """Raise if `wanted` is not this manifest, naming what differs."""
        mine, theirs = (asdict(replace(manifest, code=None)) for manifest in (self, wanted))
        for fields in (mine, theirs):  # some priors are known by their repr alone; simulate() compares their draws
            if fields["prior"].get("kind") == "opaque":
                fields["prior"] = {"kind": "opaque", "dim": fields["prior"].get("dim")}
        differing = [f"  {k}: the store has {mine[k]!r}, this call {theirs[k]!r}" for k in mine if mine[k] != theirs[k]]
        if differing:
            named = mine["simulator"] != theirs["simulator"]
            hint = "If it is the same simulator under a new name, pass name= with the store's.\n" if named else ""
            raise ValueError(
                f"{path} holds other simulations than these:\n"
                + "\n".join(differing)
                + f"\n{hint}Use another directory, or the same settings."
            )

    def refuse_changed(self, wanted: Manifest, path: Path) -> None:
        """Raise if the simulator has another code than when the store was begun, naming what has changed."""
        if changed := changes(self.code, wanted.code):
            raise ValueError(
                f"the simulator {self.simulator!r} has changed since {path} was begun (what differs: "
                f"{listed(changed)}), and rows of two simulators must not mix. Use another directory for the new one. "
                "If the change does not matter (it computes the same, or failed where it was mended), say so once with "
                "same_simulator=True."
            )


class Store:
    """A directory of simulations, as `simulate(…, store=path)` makes and extends it.

    Arguments:
        path: the directory.

    Example:
        >>> import tempfile, equipoise as eq
        >>> prior = eq.BoxUniform([-1.0], [1.0])
        >>> folder = tempfile.mkdtemp()
        >>> pairs = eq.simulate(prior, lambda theta: theta + torch.randn_like(theta), 1000, store=folder)
        >>> len(Store(folder).read(500))
        500
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.manifest = Manifest.read(self.path)
        self._checked: set[int] = set()

    @classmethod
    def create(cls, path: str | Path, manifest: Manifest, same_simulator: bool = False) -> Store:
        """The store of this manifest: a new one, or the one that is there if it is the same.

        Where the simulator's code has changed, `same_simulator` says that this does not matter; the store then knows
        the new code.
        """
        path = Path(path)
        if manifest.storage not in STORAGES:
            raise ValueError(f"storage should be one of {', '.join(STORAGES)}, got {manifest.storage!r}")
        path.mkdir(parents=True, exist_ok=True)
        if not (path / "manifest.json").exists():
            if any(_NAME.fullmatch(p.name) for p in path.iterdir()):
                raise ValueError(f"{path} has blocks but no manifest.json; restore it, or use another directory")
            write_whole(path / "manifest.json", lambda file: _write_text(file, manifest.json()), replace=False)
        store = cls(path)
        store.manifest.refuse_another(manifest, path)
        if not same_simulator:
            store.manifest.refuse_changed(manifest, path)
        elif changes(store.manifest.code, manifest.code):
            store.manifest = replace(store.manifest, code=manifest.code)
            write_whole(path / "manifest.json", lambda file: _write_text(file, store.manifest.json()))
        return store

    def __len__(self) -> int:
        """How many rows there are without a gap, from the first."""
        return self._extent()[0]

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r}, {len(self)} rows, x {self.manifest.x_shape})"

    def block_path(self, number: int) -> Path:
        """The file of a block."""
        return self.path / f"block-{number:06d}.h5"

    def partial_path(self, number: int) -> Path:
        """The file of a block that was interrupted."""
        return self.path / f"block-{number:06d}.partial"

    def numbers(self) -> list[int]:
        """The numbers of the blocks that are there."""
        return sorted(int(m[1]) for p in self.path.iterdir() if (m := _NAME.fullmatch(p.name)))

    def block(self, number: int, *, x: bool = True) -> Block:
        """A block's arrays, checked against its digest (or its header and θ alone). Raises `CorruptBlockError`."""
        return self._read(self.block_path(number), x=x)

    def write(self, number: int, theta: np.ndarray, x: np.ndarray) -> None:
        """Put the first `len(x)` rows of a block in place, and drop what was kept of them while it was incomplete."""
        write_block(self.block_path(number), theta, x, **self._stamp)
        self.drop_partial(number)

    def write_partial(self, number: int, theta: np.ndarray, x: np.ndarray, rows: np.ndarray) -> None:
        """Set down some rows of a block that is not complete."""
        write_block(self.partial_path(number), theta, x, rows=rows, **self._stamp)

    def read_partial(self, number: int) -> Block | None:
        """What was set down of a block; None if nothing was or if it is damaged."""
        try:
            return self._read(self.partial_path(number))
        except (FileNotFoundError, CorruptBlockError):
            return None

    def drop_partial(self, number: int) -> None:
        """Remove what was set down of a block, unless the block itself is shorter."""
        partial = self.read_partial(number)
        try:
            rows = len(self.block(number, x=False).theta)
        except CorruptBlockError:
            return
        if partial is None or partial.rows.max(initial=-1) < rows:
            self.partial_path(number).unlink(missing_ok=True)

    def leftovers(self) -> list[int]:
        """Blocks with files of work in progress, by a process that is at it or was killed."""
        return sorted({int(m[1]) for p in self.path.iterdir() if (m := _LEFTOVER.fullmatch(p.name))})

    def check(self) -> list[str]:
        """Read everything and say what is wrong: a line for each block that is damaged or missing."""
        numbers, problems = self.numbers(), []
        for number in range(numbers[-1] + 1 if numbers else 0):
            try:
                self.block(number)
            except FileNotFoundError:
                problems.append(f"{self.block_path(number)} is missing")
            except CorruptBlockError as error:
                problems.append(f"{error.path}: {error.reason}")
        return problems

    def read(self, n: int | None = None, *, on_invalid: str = "drop") -> Simulations:
        """The first n rows (or all), x being read from disk when it is asked for.

        Arguments:
            n: how many rows of the store to see.
            on_invalid: what to do with rows that have NaN or infinite values: `"drop"`, `"raise"` or `"keep"`.
        """
        extent, blocks = self._extent(n)
        n = extent if n is None else n
        if n > extent:
            raise ValueError(
                f"{self.path} has {extent} rows without a gap, {n} were asked for; simulate(…, {n}, store=…) adds them"
            )
        size = self.manifest.block_size
        starts = [k * size for k in range(len(blocks))]
        invalid = [np.empty(0, np.int64), *(b.invalid + s for b, s in zip(blocks, starts, strict=True))]
        segments = [self._segment(k, min(len(b.theta), n - k * size)) for k, b in enumerate(blocks)]
        theta = np.concatenate([np.empty((0, self.manifest.dim), np.float32), *(b.theta for b in blocks)])[:n]
        return without_invalid(
            torch.from_numpy(theta),
            Column(segments, self.manifest.x_shape),
            (flat := np.concatenate(invalid))[flat < n],
            on_invalid,
            storage=self.manifest.storage,
            what="simulations",
        )

    @property
    def lazy_x(self) -> torch.Tensor | RowsOf:
        """x of all valid rows, to train on: see `Simulations.lazy_x`."""
        return self.read().lazy_x

    def _extent(self, n: int | None = None) -> tuple[int, list[Block]]:
        """The number of rows without a gap, and the blocks that hold the first n of them (without x)."""
        rows = 0
        blocks: list[Block] = []
        for number in self.numbers():
            if number != len(blocks) or rows < number * self.manifest.block_size or (n is not None and rows >= n):
                break
            blocks.append(self.block(number, x=False))
            rows += len(blocks[-1].theta)
        return rows, blocks

    def _segment(self, number: int, rows: int) -> Segment:
        return Segment(rows, functools.partial(self._load, number, rows))

    def _load(self, number: int, rows: int) -> np.ndarray:
        """The first rows of a block's x; the digest is checked the first time."""
        if number in self._checked:
            return load_x(self.block_path(number), stop=rows)
        values = self.block(number).x
        assert values is not None
        self._checked.add(number)
        return values[:rows] if values.dtype != np.float32 else load_x(self.block_path(number), stop=rows)

    def _read(self, path: Path, *, x: bool = True) -> Block:
        block = read_block(path, fingerprint=self.manifest.fingerprint, x=x)
        if block.theta.shape[1:] != (self.manifest.dim,) or block.x_shape != self.manifest.x_shape:
            raise CorruptBlockError(path, f"its shapes are {block.theta.shape} and {block.x_shape}, not the manifest's")
        return block

    @property
    def _stamp(self) -> dict[str, Any]:
        return {"storage": self.manifest.storage, "fingerprint": self.manifest.fingerprint}


def _write_text(path: Path, text: str) -> None:
    path.write_text(text + "\n")
