"""Grids: which tasks, methods, budgets and runs an experiment has, as TOML.

A grid lists axes, not copies. Anything it does not say follows its protocol (`protocols`):

    protocol = "paper"
    tasks    = ["slcp", {name = "lotka_volterra", steps = 1001}]
    methods  = ["npe", {name = "bnpe", balance = ["chi2", "kl"], strength = [1, 10, 100]}]
    budgets  = [1024, 2048]
    runs     = 5

A list among the options of a task or method is an axis of its own: the second entry above is six methods, called
`bnpe[balance=chi2,strength=1]` and so on, which is also how they are written on the command line. Everything is
checked before anything runs: an unknown key, task, method or option is refused with the nearest name that exists.

Reading a grid runs no code. A user's task, `FILE.py:NAME`, is imported only where the caller asks for it with
`import_tasks=True`, which `equipoise run` does with the grid of its own command line. What planning needs to know of
it (`TaskFacts`) is stored with the grid, so that results are read without it.
"""

from __future__ import annotations

__all__ = ["PACKAGED", "Grid", "TaskFacts", "load_grid", "read_toml", "stored_grid"]

import dataclasses
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.diagnostics.recipes import RECIPES, TOLERANCES
from equipoise.losses import LOSSES, pairs_needed
from equipoise.support.checks import seed_number, true_or_false, whole_number
from equipoise.support.words import did_you_mean, shown
from equipoise.training.settings import MOST_MEMBERS, SMALL, SMALL_STEPS, Settings, batch_for

from .entries import Entry, GridError, ResolvedEntry, check_method, check_task, entries_of, resolve_entry
from .protocols import PAPER_TASKS, PROTOCOLS, Protocol, Sizes, sizes

if TYPE_CHECKING:
    from .folder import Folder

#: Grids that come with the package, by name.
PACKAGED = (
    "demo", "paper", "released", "ablation", "start", "artefact", "leakage", "mixture", "strength",
    "strength_brnpe", "rolls", "bnre_slcp", "escape", "estimate", "frontier", "frontier_series", "frontier_untuned",
)  # fmt: skip
#: The least and the most that whole numbers may be. Fewer than 50 pairs support no statement about coverage. A damaged
#: or foreign file must not make a plan that takes all memory.
BOUNDS = {
    "runs": (1, 1_000_000), "members": (1, MOST_MEMBERS), "pairs": (50, 10_000_000), "test": (50, 100_000_000),
    "transforms": (1, 1000), "stack": (1, 1_000_000), "released_pairs": (0, 10_000_000),
}  # fmt: skip
#: The same of each budget, of the width of a hidden layer, and of samples; and the most layers.
BUDGETS, WIDTHS, SAMPLES, LAYERS = (2, 1_000_000_000), (1, 100_000), (1, 1_000_000), 100
#: The most cells of a grid, which take five seconds to plan.
MOST_CELLS = 100_000
#: The most bytes of the name of a grid, which directories are called by.
LONGEST_NAME = 100
#: Kinds of networks.
NETWORKS = ("classifier", "flow")


@dataclasses.dataclass(frozen=True)
class TaskFacts:
    """What a plan needs to know of a task, without the task itself.

    Arguments:
        options: all of them, given or not; of a user's task with the digest of its source.
        x_dims: dimensions of an observation.
        planar: whether a density can be drawn: two parameters in a box.
    """

    options: tuple[tuple[str, Any], ...]
    x_dims: int
    planar: bool

    @staticmethod
    def of(name: str, options: Mapping[str, Any]) -> TaskFacts:
        """From the task itself, which for a user's one runs its file."""
        from equipoise.priors import BoxUniform
        from equipoise.tasks import task as make_task

        task = make_task(name, **options)
        planar = task.prior.dim == 2 and isinstance(task.prior, BoxUniform)
        return TaskFacts(tuple(sorted(task.options.items())), len(task.x_shape), planar)

    @staticmethod
    def stored(label: str, values: Any) -> tuple[str, TaskFacts]:
        """The facts that a grid was stored with."""
        match values:
            case {"options": dict(options), "x_dims": int(x_dims), "planar": bool(planar)}:
                return label, TaskFacts(tuple(sorted(options.items())), x_dims, planar)
        raise GridError(f"user_tasks: {label} has no options, x_dims and planar")


@dataclasses.dataclass(frozen=True)
class Grid:
    """An experiment. Made by `load_grid`, which checks it.

    Arguments:
        name: what it is called.
        protocol: see `protocols`.
        tasks: the tasks, with their options.
        methods: the methods, with theirs.
        budgets: numbers of simulations.
        runs: repetitions, each with its own simulations and weights.
        members: networks per run, where a method does not say; the run's posterior is their mixture.
        seed: of everything random.
        streams: what seeds are keyed by besides the seed, the task and the run; None for the name. Two grids of
            different names have simulations and first weights of their own. An empty string leaves the key out: seeds
            are then those of grids that were stored before there was this key.
        pairs: the size of the coverage set; None for the protocol's.
        test: the size of the test set; None for the protocol's.
        samples: draws or points behind a rank, for all networks or by network; None for the protocol's.
        recipe: how coverage is computed, see `diagnose`; None for the protocol's.
        tolerance: of the certificate, see `diagnose`; None for the protocol's.
        released_pairs: the first this many coverage pairs are judged by the released recipe as well, which gives
            `released_coverage` and `released_coverage_auc`; None for the protocol's.
        share_rolls: whether the contrastive sets of NRE-C share rolls of θ, where a method does not say; None for the
            protocol's.
        hidden: hidden layers of every network; None for the protocol's.
        transforms: of a flow; None for the protocol's.
        training: changes to the protocol's training settings. A mixture of methods ("calibrated") is trained as
            `eq.fit` does: neither this nor the sizes above concern it, and its own options say otherwise.
        gallery: whether the density of run 0 is kept for one observation, where there are two parameters.
        stack: the most members that are trained together; None for no limit.
        user_tasks: what is known of each user's task, by its label.
    """

    name: str
    protocol: str
    tasks: tuple[Entry, ...]
    methods: tuple[Entry, ...]
    budgets: tuple[int, ...]
    runs: int = 1
    members: int = 1
    seed: int = 0
    streams: str | None = None
    pairs: int | None = None
    test: int | None = None
    samples: int | tuple[tuple[str, int], ...] | None = None
    recipe: str | None = None
    tolerance: str | None = None
    released_pairs: int | None = None
    share_rolls: bool | None = None
    hidden: tuple[int, ...] | None = None
    transforms: int | None = None
    training: tuple[tuple[str, Any], ...] = ()
    gallery: bool = True
    stack: int | None = None
    user_tasks: tuple[tuple[str, TaskFacts], ...] = ()

    def __post_init__(self) -> None:
        if self.streams is None:
            object.__setattr__(self, "streams", self.name)

    def rules(self, network: str) -> Protocol:
        """The protocol with this grid's own numbers, for the networks of a kind, "flow" or "classifier"."""
        keys = ("pairs", "test", "recipe", "tolerance", "released_pairs", "share_rolls")
        own = {k: v for k in keys if (v := getattr(self, k)) is not None}
        samples = self.samples if isinstance(self.samples, int) else dict(self.samples or ()).get(network)
        own |= {} if samples is None else {"samples": samples}
        return dataclasses.replace(PROTOCOLS[self.protocol], settings=self.settings(), **own)

    def resolved(self, entry: Entry) -> ResolvedEntry:
        """What an entry of a method means here: contrastive sets share rolls as the protocol has it, unless it says."""
        found = resolve_entry(entry)
        if found.members is None:
            found = found._replace(members=max(self.members, found.folds or 1))
        if LOSSES[found.row.loss].of != "sets" or "share_rolls" in dict(entry.options):
            return found
        share = self.rules(found.row.network).share_rolls
        return found._replace(rows=(dataclasses.replace(found.row, share_rolls=share),))

    def settings(self, keep: str | None = None, training: tuple[tuple[str, Any], ...] = ()) -> Settings:
        """The training settings, with the weights that a method wants kept and its own settings."""
        own = dict(self.training) | ({} if keep is None else {"keep": keep}) | dict(training)
        return dataclasses.replace(PROTOCOLS[self.protocol].settings, **own)

    def settings_of(self, entry: Entry, budget: int, keep: str | None = None) -> Settings:
        """The training settings of a method at a budget."""
        found = self.resolved(entry)
        if not found.as_fit:
            return self.settings(keep, found.training)
        own = ({} if keep is None else {"keep": keep}) | dict(found.training)
        own.setdefault("batch_size", batch_for(budget, 0.1 if found.folds is None else 1 / found.folds, SMALL_STEPS))
        return dataclasses.replace(SMALL, **own)

    def sizes_of(self, task: str, entry: Entry) -> Sizes:
        """The sizes of the networks of a task, of a mixture its own."""
        found = self.resolved(entry)
        if not found.as_fit:
            return self.sizes(task)
        assert found.row.hidden is not None
        shape = {"flow": found.row.hidden, "transforms": found.row.transforms}
        return Sizes(standardize=True, as_fit=True, options=self.sizes(task).options, **shape)  # type: ignore[arg-type]

    def sizes(self, task: str) -> Sizes:
        """The sizes of the networks of a task."""
        own: dict[str, Any] = {} if self.hidden is None else {"classifier": self.hidden, "flow": self.hidden}
        if self.transforms is not None:
            own["transforms"] = self.transforms
        return dataclasses.replace(sizes(self.protocol, task), **own)

    def task_options(self, entry: Entry) -> dict[str, Any]:
        """The options of a task: what the protocol chooses for it, then its own."""
        return dict(self.sizes(entry.name).options) | dict(entry.options)

    def facts(self, entry: Entry) -> TaskFacts:
        """What is known of the task of an entry; nothing is imported for it."""
        if ":" not in entry.name:
            return _facts(entry.name, tuple(self.task_options(entry).items()))
        for label, facts in self.user_tasks:
            if label == entry.label:
                return facts
        raise GridError(f"{entry.label} was not imported: use `equipoise run`, or load_grid(…, import_tasks=True)")

    def config(self) -> dict[str, Any]:
        """The grid as plain data, from which `load_grid` makes it again."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for axis in ("tasks", "methods"):
            plain[axis] = [e.name if not e.options else {"name": e.name, **dict(e.options)} for e in plain[axis]]
        plain["training"] = dict(self.training)
        plain["samples"] = dict(self.samples) if isinstance(self.samples, tuple) else self.samples
        facts = {label: dataclasses.asdict(f) | {"options": dict(f.options)} for label, f in self.user_tasks}
        plain["user_tasks"] = facts or None
        return {k: list(v) if isinstance(v, tuple) else v for k, v in plain.items() if v is not None}


@lru_cache(maxsize=64)
def _facts(name: str, options: tuple[tuple[str, Any], ...]) -> TaskFacts:
    known = PAPER_TASKS.get(name)
    if known is not None and dict(options).items() <= dict(known.options).items():
        return TaskFacts(known.options, known.x_dims, known.planar)
    return TaskFacts.of(name, dict(options))


def load_grid(
    source: str | Path | Mapping[str, Any], changes: Mapping[str, Any] | None = None, *, import_tasks: bool = False
) -> Grid:
    """Read and check a grid.

    Arguments:
        source: a TOML file, the name of a packaged grid (`PACKAGED`), or the same as a mapping.
        changes: keys that replace the grid's, as given on a command line.
        import_tasks: whether tasks called `FILE.py:NAME` are imported, which runs the file. Needed to run a grid of
            them; never do it with a grid that somebody else stored.

    Example:
        >>> load_grid({"tasks": ["slcp"], "methods": ["npe"], "budgets": [1024]}).rules("flow").pairs
        1000
        >>> load_grid({"tasks": ["slpc"], "methods": ["npe"], "budgets": [1024]})
        Traceback (most recent call last):
            ...
        equipoise.experiments.entries.GridError: tasks: there is no task 'slpc'; did you mean 'slcp'? There are slcp,
        weinberg, ...
    """
    try:
        return _load(source, changes or {}, import_tasks)
    except GridError:
        raise
    except (ValueError, TypeError, OSError) as error:
        raise GridError(str(error)) from error


def _load(source: str | Path | Mapping[str, Any], changes: Mapping[str, Any], import_tasks: bool) -> Grid:
    values, name = (dict(source), "experiment") if isinstance(source, Mapping) else read_toml(source)
    values |= {k: v for k, v in changes.items() if v is not None}
    values = {"name": name, "protocol": "default"} | {k: v for k, v in values.items() if v is not None}
    known = [f.name for f in dataclasses.fields(Grid)]
    for key in values:
        if key not in known:
            raise GridError(did_you_mean(str(key), known, "key"))
    for axis in ("tasks", "methods", "budgets"):
        if axis not in values:
            raise GridError(f"the grid lacks {axis!r}; it needs tasks, methods and budgets")
    values["tasks"] = entries_of(values["tasks"], "tasks", check_task)
    values["methods"] = entries_of(values["methods"], "methods", check_method)
    values["budgets"] = _numbers("budgets", values["budgets"], *BUDGETS)
    if twice := [n for n in values["budgets"] if values["budgets"].count(n) > 1]:
        raise GridError(f"budgets: {twice[0]} is listed twice")
    if "hidden" in values:
        values["hidden"] = _numbers("hidden", values["hidden"], *WIDTHS)
        if len(values["hidden"]) > LAYERS:
            raise GridError(f"hidden has {len(values['hidden'])} layers, and {LAYERS} are the most")
    for key, bounds in BOUNDS.items():
        if key in values:
            values[key] = whole_number(key, values[key], *bounds)
    if "seed" in values:
        values["seed"] = seed_number("seed", values["seed"])
    _check_name(values["name"])
    if "samples" in values:
        values["samples"] = _samples(values["samples"])
    values["training"] = tuple(sorted(_table("training", values.get("training", {})).items()))
    stored = _table("user_tasks", values.get("user_tasks", {}))
    values["user_tasks"] = tuple(TaskFacts.stored(label, facts) for label, facts in stored.items())
    grid = Grid(**values)
    if grid.protocol not in PROTOCOLS:
        raise GridError(did_you_mean(str(grid.protocol), PROTOCOLS, "protocol"))
    if import_tasks:
        users = [entry for entry in grid.tasks if ":" in entry.name]
        facts = tuple((e.label, TaskFacts.of(e.name, grid.task_options(e))) for e in users)
        grid = dataclasses.replace(grid, user_tasks=facts)
    _check(grid)
    return grid


def read_toml(source: str | Path) -> tuple[dict[str, Any], str]:
    """The contents and the name of a grid file or packaged grid."""
    path = Path(source)
    if _is_file(path):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise GridError(f"{path} is not TOML: it is no UTF-8 ({error})") from error
    elif str(source) in PACKAGED:
        text = resources.files(__package__).joinpath("grids", f"{source}.toml").read_text(encoding="utf-8")
    else:
        raise GridError(f"there is no file {path}, and {did_you_mean(path.stem, PACKAGED, 'packaged grid')}")
    try:
        return tomllib.loads(text), path.stem
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, and thousands of brackets, too
        raise GridError(f"{source} is not TOML: {str(error)[:300]}") from error


def stored_grid(folder: Folder) -> Grid:
    """The grid that is set down in a folder; its file is named by what is wrong with it."""
    try:
        return load_grid(folder.read_grid()["grid"])
    except GridError as error:
        raise GridError(f"{folder.path / 'grid.json'}: {error}") from error


def _is_file(path: Path) -> bool:
    """Whether there is such a file; False for what no file can be called."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


# --- checks -----------------------------------------------------------------------------------------------------------


def _check_name(name: Any) -> None:
    """Refuse a name that leads out of the directory that is called by it, or that no directory can have."""
    if not isinstance(name, str):
        raise GridError(f"name is a text, got {shown(name)}")
    if not name.strip() or name[0] == "." or any(c in "/\\" or not c.isprintable() for c in name):
        raise GridError(
            f"name is what a directory can be called, without slashes or a dot at its start, got {shown(name)}"
        )
    if len(name.encode("utf-8", "replace")) > LONGEST_NAME:
        raise GridError(f"name has more than {LONGEST_NAME} bytes: {shown(name)}")


def _check(grid: Grid) -> None:
    cells = len(grid.tasks) * len(grid.methods) * len(grid.budgets) * grid.runs
    if cells > MOST_CELLS:
        raise GridError(f"the grid has {cells:,} cells, and {MOST_CELLS:,} are the most; split it")
    if grid.recipe is not None and grid.recipe not in RECIPES:
        raise GridError(did_you_mean(str(grid.recipe), RECIPES, "recipe"))
    if grid.tolerance is not None and grid.tolerance not in TOLERANCES:
        raise GridError(did_you_mean(str(grid.tolerance), TOLERANCES, "tolerance"))
    true_or_false("gallery", grid.gallery)
    if grid.share_rolls is not None:
        true_or_false("share_rolls", grid.share_rolls)
    if not isinstance(grid.streams, str) or len(grid.streams.encode("utf-8", "replace")) > LONGEST_NAME:
        raise GridError(
            f"streams is a name that seeds are keyed by, of at most {LONGEST_NAME} bytes, got {shown(grid.streams)}"
        )
    known = list(PROTOCOLS[grid.protocol].settings.numbers())
    for key, _ in grid.training:
        if key not in known:
            raise GridError(did_you_mean(key, known, "training setting"))
    rules = grid.rules("flow")
    if rules.released_pairs and rules.recipe == "released":
        raise GridError("released_pairs has nothing to add: recipe is 'released' already; leave one of them out")
    if rules.released_pairs > rules.pairs:
        raise GridError(f"released_pairs = {rules.released_pairs}, but there are {rules.pairs} coverage pairs")
    meanings: dict[Any, str] = {}
    for entry in grid.methods:
        found = grid.resolved(entry)
        settings = grid.settings_of(entry, grid.budgets[0], found.keep)
        least = max(pairs_needed(row.objective) for row in found.rows)
        _check_budgets(grid, entry, least, settings, found.folds)
        way = settings, found.recipe or grid.rules(found.row.network).recipe
        mixed = found.members, found.folds, found.calibrate, found.as_fit
        same = tuple(dataclasses.replace(row, name="", paper="") for row in found.rows), way, mixed
        if same in meanings:
            raise GridError(f"methods: {entry.label} and {meanings[same]} are the same; list one of them")
        meanings[same] = entry.label
        if grid.stack is not None and grid.stack < (found.members or 1):
            raise GridError(f"stack = {grid.stack}, but the {found.members} members of a run are trained together")
    for task in grid.tasks:
        if grid.sizes(task.name).layers and grid.facts(task).x_dims < 2:
            raise GridError(f"{task.label} has no series or image to embed")


def _check_budgets(grid: Grid, entry: Entry, least: int, settings: Settings, folds: int | None) -> None:
    for budget in grid.budgets:
        validation = int(round(budget * 0.1, 9)) if folds is None else budget // folds
        if validation < least:
            raise GridError(
                f"budgets: {budget} simulations leave {validation} for validation, and {entry.label} needs at least "
                f"{least}; the smallest budget is {(folds or 10) * least}"
            )
    if settings.batch_size is not None and settings.batch_size < least:
        raise GridError(f"training: batch_size = {settings.batch_size} is below the {least} that {entry.label} needs")


def _samples(value: Any) -> int | tuple[tuple[str, int], ...]:
    if not isinstance(value, Mapping):
        return whole_number("samples", value, *SAMPLES)
    for network in value:
        if network not in NETWORKS:
            raise GridError(f"samples: {did_you_mean(str(network), NETWORKS, 'kind of network')}")
    return tuple(
        sorted((network, whole_number(f"samples of a {network}", n, *SAMPLES)) for network, n in value.items())
    )


def _numbers(key: str, values: Any, least: int, most: int) -> tuple[int, ...]:
    if not isinstance(values, list | tuple) or not values:
        raise GridError(f"{key} is a list of whole numbers, got {shown(values)}")
    return tuple(whole_number(key, value, least, most) for value in values)


def _table(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise GridError(f"{key} is a table of settings, got {shown(value)}")
    return dict(value)
