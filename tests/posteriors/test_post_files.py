"""Saved posteriors: what comes back, what a kill leaves, and what is refused."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributions as td
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_post_posterior import BOX, random_posterior
from torch import Tensor, nn

import equipoise as eq
from equipoise.posteriors import Posterior
from equipoise.posteriors.files import _digest, holds_model
from equipoise.support.errors import DamagedFile, MissingPart, PriorMismatch


def rewrite(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Alter a description, and give it the digest of what it is then."""
    text = path / "model.json"
    description = json.loads(text.read_text(encoding="utf-8"))
    change(description)
    if description.pop("digest", None) is not None:
        description["digest"] = _digest(description)
    text.write_text(json.dumps(description), encoding="utf-8")


def as_format_1(path: Path) -> None:
    """The same model as it was written before there were digests and hashed names."""
    description = json.loads((path / "model.json").read_text(encoding="utf-8"))
    (path / description.pop("weights")).rename(path / "model.safetensors")
    for name in ("digest", "weights_blake2b"):
        description.pop(name)
    (path / "model.json").write_text(json.dumps(description | {"format": 1}), encoding="utf-8")


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Posterior, Path]:
    g = torch.Generator().manual_seed(0)
    theta = BOX.from_uniform(torch.rand(100, 2, generator=g))
    x = torch.randn(100, 4, generator=g)
    p = eq.fit(theta, x, prior=BOX, method=eq.METHODS["bnre"].but(hidden=(8, 8)), members=2, epochs=2, progress=False)
    p.save(tmp_path / "model")
    return p, tmp_path / "model"


def test_a_saved_posterior_comes_back_the_same(saved: tuple[Posterior, Path]) -> None:
    p, path = saved
    q = eq.load(path)
    theta, x = BOX.sample((20,)), torch.randn(20, 4)
    assert torch.equal(p.log_prob(theta, x), q.log_prob(theta, x))
    assert q.record == json.loads(json.dumps(p.record))
    assert q.history.equals(p.history)
    weights = json.loads((path / "model.json").read_text(encoding="utf-8"))["weights"]
    assert sorted(f.name for f in path.iterdir()) == ["model.json", weights]
    p.save(path)  # over itself
    assert eq.load(path).n_members == 2
    with pytest.raises(FileExistsError, match="holds another model; give another directory, or overwrite=True"):
        p.members[0].save(path)
    assert eq.load(path).n_members == p.n_members
    p.members[0].save(path, overwrite=True)  # weights of the model before are removed
    assert len(list(path.iterdir())) == 2 and eq.load(path).n_members == 1


def test_every_kind_of_prior_comes_back(tmp_path: Path) -> None:
    marginals = [td.Normal(torch.tensor(1.0), torch.tensor(2.0)), td.Gamma(torch.tensor(2.0), torch.tensor(3.0))]
    for prior in (eq.IndependentPrior(marginals), eq.GaussianPrior(torch.zeros(2), torch.eye(2) + 0.3)):
        p = random_posterior("prior", prior=prior)
        p.save(tmp_path / "m", overwrite=True)
        theta, x = prior.sample((10,)), torch.randn(10, 4)
        torch.testing.assert_close(eq.load(tmp_path / "m").log_prob(theta, x), p.log_prob(theta, x))


def test_a_prior_that_takes_code_to_rebuild_is_brought_again(tmp_path: Path) -> None:
    """A log-uniform parameter: a transformed distribution, which JSON cannot describe."""
    log_uniform = td.TransformedDistribution(td.Uniform(-3.0, 0.0), [td.transforms.ExpTransform()])
    prior = eq.IndependentPrior([log_uniform, td.Normal(0.0, 1.0)])
    p = random_posterior("prior", prior=prior)
    p.save(tmp_path)
    with pytest.raises(MissingPart, match=r"TransformedDistribution.*cannot be stored without pickle.*prior=…"):
        eq.load(tmp_path)
    torch.manual_seed(0)
    theta, x = prior.sample((10,)), torch.randn(10, 4)
    torch.testing.assert_close(eq.load(tmp_path, prior=prior).log_prob(theta, x), p.log_prob(theta, x))


def test_another_prior_than_the_stored_one_is_refused(tmp_path: Path) -> None:
    p = random_posterior("prior", prior=eq.BoxUniform([0.1, 0.0], [0.9, 1.0]))
    p.save(tmp_path)
    with pytest.raises(
        PriorMismatch, match=r"trained with BoxUniform\(low=\[0.1.*prior= gives .*\[-5.0.*leave prior= out"
    ):
        eq.load(tmp_path, prior=eq.BoxUniform([-5.0, -5.0], [5.0, 5.0]))
    with pytest.raises(PriorMismatch, match="leave prior= out"):
        eq.load(tmp_path, prior=eq.BoxUniform([0.1, 0.0], [0.9, 1.00001]))
    with pytest.raises(PriorMismatch, match="leave prior= out"):
        eq.load(tmp_path, prior=eq.GaussianPrior(torch.zeros(2), torch.eye(2)))
    theta, x = p.prior.sample((10,)), torch.randn(10, 4)
    for dtype in (torch.float32, torch.float64):
        low, high = torch.tensor([0.1, 0.0], dtype=dtype), torch.tensor([0.9, 1.0], dtype=dtype)
        for same in (eq.BoxUniform(low, high), td.Independent(td.Uniform(low, high), 1)):
            torch.testing.assert_close(eq.load(tmp_path, prior=same).log_prob(theta, x), p.log_prob(theta, x))


class Square:
    """A prior of one's own: uniform on [0, side]², or with any other number of parameters."""

    def __init__(self, side: float, dim: int = 2) -> None:
        self.side, self.dim = side, dim

    def sample(self, shape: tuple[int, ...]) -> Tensor:
        return self.side * torch.rand(*shape, self.dim)

    def log_prob(self, theta: Tensor) -> Tensor:
        inside = ((theta >= 0) & (theta <= self.side)).all(-1)
        return torch.where(inside, -self.dim * math.log(self.side), -math.inf)


def test_another_prior_of_ones_own_than_before_is_refused(tmp_path: Path) -> None:
    p = random_posterior("random", prior=Square(1.0))
    p.save(tmp_path)
    theta, x = torch.rand(10, 2), torch.randn(10, 4)
    torch.testing.assert_close(eq.load(tmp_path, prior=Square(1.0)).log_prob(theta, x), p.log_prob(theta, x))
    with pytest.raises(ValueError, match=r"of 2 parameter.*of 3; bring"):
        eq.load(tmp_path, prior=Square(1.0, 3))
    for side in (2.0, 0.5):
        with pytest.raises(ValueError, match=r"another: at θ = .*was (-)?0 when the posterior was saved"):
            eq.load(tmp_path, prior=Square(side))
    rewrite(tmp_path, lambda d: d.pop("prior_densities"))  # as before there was such an entry
    torch.testing.assert_close(eq.load(tmp_path, prior=Square(1.0)).log_prob(theta, x), p.log_prob(theta, x))


def test_numbers_of_numpy_are_saved_as_numbers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    theta, x = BOX.sample((100,)), torch.randn(100, 4)
    method = eq.METHODS["nre_c"].but(gamma=np.float32(0.5), hidden=(8,))
    p = eq.fit(theta, x, prior=BOX, method=method, epochs=np.int64(2), members=1, progress=False)
    p.save(tmp_path)
    record = eq.load(tmp_path).record
    assert record["settings"]["epochs"] == 2 and record["method"]["gamma"] == 0.5


def test_what_cannot_be_described_leaves_the_model_before_as_it_was(saved: tuple[Posterior, Path]) -> None:
    p, path = saved
    before = {f.name: f.read_bytes() for f in path.iterdir()}
    q = p.members[0]
    q.record["mine"] = object()
    with pytest.raises(TypeError, match="cannot be saved as JSON"):
        q.save(path)
    assert {f.name: f.read_bytes() for f in path.iterdir()} == before


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("gpu", "device='gpu' is no device of torch's; give 'cpu', 'cuda'"),
        (torch.device("cuda:1"), "device='cuda:1' was asked for, but torch sees no GPU here"),
    ],
)
def test_a_device_that_is_not_there_is_named(
    device: str | torch.device, message: str, saved: tuple[Posterior, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    p, path = saved
    with pytest.raises(ValueError, match=message):
        p.to(device)
    with pytest.raises(ValueError, match=message):
        eq.load(path, device=device)
    with pytest.raises(ValueError, match=message):  # before files are looked at
        eq.load(path / "nowhere", device=device)
    assert p.to(None).device.type == eq.load(path, device=None).device.type == "cpu"


def test_a_part_that_is_trained_already_comes_back_with_its_statistics(tmp_path: Path) -> None:
    def embedding() -> nn.Sequential:
        return nn.Sequential(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh()), nn.Linear(6, 3))

    theta, x = BOX.sample((100,)), torch.randn(100, 4)
    body = embedding()
    for _ in range(10):
        body(3 + torch.randn(60, 4))
    body[0].requires_grad_(False)
    p = eq.fit(
        theta,
        x,
        prior=BOX,
        method=eq.METHODS["nre"].but(hidden=(8,)),
        embedding=body,
        members=2,
        epochs=2,
        progress=False,
    )
    for name, value in body[0].state_dict().items():
        if value.is_floating_point():
            assert torch.equal(p.stack[f"module.0.{name}"], value.expand(2, *value.shape)), name
    assert not torch.equal(p.stack["module.1.weight"][0], p.stack["module.1.weight"][1])
    p.save(tmp_path)
    again = eq.load(tmp_path, embedding=embedding())  # statistics that know of nothing
    assert torch.equal(again.log_prob(theta[:5], x[0]), p.log_prob(theta[:5], x[0]))


def test_what_a_user_brought_has_to_be_brought_again(tmp_path: Path) -> None:
    class Own:
        def sample(self, shape: tuple[int, ...]) -> Tensor:
            return BOX.sample(shape)

        def log_prob(self, theta: Tensor) -> Tensor:
            return BOX.log_prob(theta)

    theta, x = BOX.sample((100,)), torch.randn(100, 4)
    body = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    p = eq.fit(
        theta,
        x,
        prior=Own(),
        method=eq.METHODS["npe"].but(hidden=(8,)),
        embedding=body,
        members=1,
        epochs=1,
        progress=False,
    )
    p.save(tmp_path)
    with pytest.raises(MissingPart) as missing:
        eq.load(tmp_path)
    assert missing.value.argument == "prior"
    with pytest.raises(MissingPart) as missing:
        eq.load(tmp_path, prior=Own())
    assert missing.value.argument == "embedding"
    with (
        pytest.raises(ValueError, match=r"have shape|lacks the weights"),
        pytest.warns(UserWarning, match="not the one"),
    ):
        eq.load(tmp_path, prior=Own(), embedding=nn.Sequential(nn.Linear(4, 5), nn.Tanh()))
    with pytest.warns(UserWarning, match=r"- \(1\): Tanh\(\); \+ \(1\): ReLU\(\)") as told:
        eq.load(tmp_path, prior=Own(), embedding=nn.Sequential(nn.Linear(4, 3), nn.ReLU()))
    assert told[0].filename == __file__
    q = eq.load(tmp_path, prior=Own(), embedding=body)
    torch.testing.assert_close(q.log_prob(theta, x), p.log_prob(theta, x))


# --- kills ------------------------------------------------------------------------------------------------------------


def same(a: Posterior, b: Posterior) -> bool:
    return all(torch.equal(a.stack[name], b.stack[name]) for name in a.stack)


def save_until(posterior: Posterior, path: Path, moment: int) -> bool:
    """Save in a process that ends before its call number `moment` that changes the directory; whether it finished."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads, which the child does not use
        child = os.fork()
    if child == 0:
        calls = 0

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls > moment:
                    os._exit(1)
                return function(*arguments, **options)

            return call

        for name in ("replace", "unlink", "open", "chmod", "fsync"):
            setattr(os, name, counted(getattr(os, name)))
        try:
            posterior.save(path, overwrite=True)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")
@pytest.mark.parametrize("old", ["new format", "format 1", "nothing"])
def test_a_kill_at_any_moment_leaves_the_old_model_or_the_new_one(old: str, tmp_path: Path) -> None:
    before, after = random_posterior("prior", members=1), random_posterior("prior", members=2)
    seen, ended = set(), False
    for moment in range(60):
        path = tmp_path / str(moment)
        if old != "nothing":
            before.save(path)
            if old == "format 1":
                as_format_1(path)
        ended = save_until(after, path, moment)
        assert holds_model(path) or (old == "nothing" and not ended)
        if holds_model(path):
            found = eq.load(path)
            assert same(found, after) or (found.n_members == 1 and same(found, before) and not ended)
            seen.add(found.n_members)
        # Whatever is left, the next save is whole and leaves nothing else.
        after.save(path, overwrite=True)
        assert same(eq.load(path), after) and len(list(path.iterdir())) == 2
        if ended:
            break
    assert ended and seen == ({2} if old == "nothing" else {1, 2})


def test_a_model_is_held_only_where_it_is_whole(tmp_path: Path) -> None:
    p = random_posterior("prior", members=1)
    assert not holds_model(tmp_path / "nowhere") and not holds_model(tmp_path)
    p.save(tmp_path)
    assert holds_model(tmp_path)
    weights = next(tmp_path.glob("weights-*"))
    content = weights.read_bytes()
    weights.write_bytes(content[:-1])
    assert not holds_model(tmp_path)
    weights.unlink()
    assert not holds_model(tmp_path)
    weights.write_bytes(content)
    (tmp_path / "model.json").write_text("{}")
    assert not holds_model(tmp_path)


def test_format_1_is_read_and_replaced(tmp_path: Path) -> None:
    p = random_posterior("classifier", members=2)
    p.save(tmp_path)
    as_format_1(tmp_path)
    assert holds_model(tmp_path) and same(eq.load(tmp_path), p)
    p.save(tmp_path, overwrite=True)
    assert not (tmp_path / "model.safetensors").exists() and same(eq.load(tmp_path), p)


# --- damage -----------------------------------------------------------------------------------------------------------


def test_damaged_and_newer_files_are_named(saved: tuple[Posterior, Path]) -> None:
    _, path = saved
    weights, text = next(path.glob("weights-*")), path / "model.json"
    whole, described = weights.read_bytes(), text.read_text(encoding="utf-8")
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DamagedFile, match=f"{weights.name}.*cut short"):
        eq.load(path)
    weights.write_bytes(bytes([*whole[:-1], whole[-1] ^ 1]))
    with pytest.raises(DamagedFile, match=f"{weights.name} is not the file that model.json describes"):
        eq.load(path)
    weights.write_bytes(whole)
    rewrite(path, lambda d: d.update(format=99, equipoise="7.0"))
    with pytest.raises(DamagedFile, match=r"format 99 by Equipoise 7.0"):
        eq.load(path)
    text.write_text(described[:-20], encoding="utf-8")
    with pytest.raises(DamagedFile, match=r"model.json is damaged or cut short"):
        eq.load(path)
    text.write_text(described.replace('"members": 2', '"members": 3'), encoding="utf-8")
    with pytest.raises(DamagedFile, match=r"model.json was altered"):
        eq.load(path)
    text.write_text(described, encoding="utf-8")
    rewrite(path, lambda d: d["network"].update(hidden=[8, 9]))
    with pytest.raises(DamagedFile, match=r"have shape|model.json"):
        eq.load(path)
    text.unlink()
    with pytest.raises(FileNotFoundError, match=r"model.json is missing"):
        eq.load(path)
    for wrong, words in ((path / "typo", "it is not there"), (weights, "it is a file; give the folder")):
        with pytest.raises(FileNotFoundError, match=words):
            eq.load(wrong)


@pytest.mark.parametrize(
    ("part", "claim"),
    [
        ("network", {"transforms": 1_000_000}),
        ("network", {"hidden": [60_000, 60_000]}),
        ("network", {"hidden": [24] * 100_000}),
        ("network", {"bins": 10**9}),
        ("network", {"hidden": [-1, 24]}),
        ("embedding", {"x_shape": [10**9, 10**9]}),
        ("embedding", {"x_shape": [1 << 31]}),
        ("embedding", {"kind": "convolutional", "x_shape": [4, 8, 8], "layers": 10**9, "channels": 8}),
        ("embedding", {"kind": "convolutional", "x_shape": [4, 8, 8], "layers": 1, "channels": 10**9}),
    ],
)
def test_sizes_that_the_weights_do_not_have_are_refused_before_anything_is_built(
    part: str, claim: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_posterior("prior", members=1).save(tmp_path)
    rewrite(tmp_path, lambda d: (d["network"] if part == "network" else d["network"]["embedding"]).update(claim))
    monkeypatch.setattr("equipoise.posteriors.files.network_from_spec", lambda *a: pytest.fail("it was built"))
    with pytest.raises(DamagedFile, match=r"model\.json"):
        eq.load(tmp_path)


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10**12),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=5),
    st.lists(st.integers(-2, 70_000), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something is inside of JSON."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [p for key, part in inside for p in [(*path, key), *places(part, (*path, key))]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, dict[str, Any]]]:
    found = []
    for kind in ("classifier", "prior"):
        path = tmp_path_factory.mktemp(kind)
        random_posterior(kind, members=1).save(path)
        as_format_1(path)  # no digest, which would notice everything
        found.append((path, json.loads((path / "model.json").read_text(encoding="utf-8"))))
    return found


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_altered_descriptions_are_loaded_or_refused_by_name(
    data: st.DataObject, models: list[tuple[Path, dict[str, Any]]]
) -> None:
    path, description = data.draw(st.sampled_from(models))
    description = json.loads(json.dumps(description))
    for _ in range(data.draw(st.integers(1, 3))):
        if not (options := places(description)):
            break
        *parents, last = data.draw(st.sampled_from(options))
        holder = description
        for key in parents:
            holder = holder[key]
        if data.draw(st.booleans()):
            holder[last] = data.draw(ANYTHING)
        else:
            del holder[last]
    (path / "model.json").write_text(json.dumps(description), encoding="utf-8")
    error = None
    try:
        assert eq.load(path).n_members == 1
    except (DamagedFile, MissingPart, FileNotFoundError) as raised:
        error = raised
    assert error is None or isinstance(error, MissingPart) or str(path) in str(error)


@pytest.mark.parametrize("text", ["", "null", "[]", "3", "{}", '{"format": 1}', "[" * 100_000, "\ud800", "{'a': 1}"])
def test_what_is_no_description_is_refused_by_name(text: str, tmp_path: Path) -> None:
    random_posterior("prior", members=1).save(tmp_path)
    (tmp_path / "model.json").write_text(text, encoding="utf-8", errors="surrogatepass")
    with pytest.raises((DamagedFile, FileNotFoundError), match="model"):
        eq.load(tmp_path)


def test_saving_where_nothing_can_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file" / "model", Path("/proc/nowhere")):
        with pytest.raises(OSError, match="nothing can be written to"):
            random_posterior("random", members=1).save(folder)
