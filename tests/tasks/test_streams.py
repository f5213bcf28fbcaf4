"""The random streams of the compiled simulators."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from equipoise.tasks import streams


@streams.compiled
def words(key, first, out):
    state = np.empty(4, np.uint64)
    for i in range(out.shape[0]):
        streams.start(state, key, first + i)
        for j in range(out.shape[1]):
            out[i, j] = streams.next_word(state)


@streams.compiled
def reals(key, out):
    state = np.empty(4, np.uint64)
    for i in range(out.shape[0]):
        streams.start(state, key, i)
        for j in range(out.shape[1] // 2):
            out[i, j] = streams.uniform(state)
        for j in range(out.shape[1] // 2, out.shape[1]):
            out[i, j] = streams.normal(state)


def test_generator_is_xoshiro256pp() -> None:
    # The published test vector, from the state (1, 2, 3, 4).
    state = np.array([1, 2, 3, 4], np.uint64)
    expected = [41943041, 58720359, 3588806011781223, 3591011842654386, 9228616714210784205, 9973669472204895162]
    assert [int(streams.next_word(state)) for _ in expected] == expected


def test_rows_and_keys_give_different_words() -> None:
    found = []
    for seed in range(20):
        out = np.empty((500, 4), np.uint64)
        words(streams.key_of(seed, "test"), 0, out)
        found.append(out)
    everything = np.concatenate(found).ravel()
    assert len(np.unique(everything)) == everything.size  # a repeat among 40,000 words has probability 4e-11


def test_bits_are_fair_and_rows_uncorrelated() -> None:
    out = np.empty((4000, 8), np.uint64)
    words(streams.key_of(0, "test"), 0, out)
    bits = np.unpackbits(out.view(np.uint8), axis=1).astype(float) - 0.5
    # 512 columns of 4000 fair bits: 5.5 standard errors leave a false alarm in 50,000 seeds.
    assert np.abs(bits.mean(0)).max() < 5.5 * 0.5 / np.sqrt(4000)
    neighbours = (bits[1:] * bits[:-1]).mean() * 4
    assert abs(neighbours) < 5 / np.sqrt(bits[1:].size)


def test_uniforms_and_normals() -> None:
    out = np.empty((2000, 100))
    reals(streams.key_of(3, "test"), out)
    uniforms, normals = out[:, :50].ravel(), out[:, 50:].ravel()
    assert uniforms.min() >= 0 and uniforms.max() < 1
    # p-values of three tests at 1e-4: the seed is fixed, so this either always passes or never.
    assert scipy.stats.kstest(uniforms, "uniform").pvalue > 1e-4
    assert scipy.stats.kstest(normals, "norm").pvalue > 1e-4
    pairs = normals.reshape(-1, 2)
    assert scipy.stats.kstest((pairs**2).sum(1), scipy.stats.chi2(2).cdf).pvalue > 1e-4


def test_every_part_of_the_normal() -> None:
    """Layers, wedges and tail: counts in 60 bins and beyond ±3.654, where the tail has its own algorithm."""
    out = np.empty((20_000, 200))
    reals(streams.key_of(4, "test"), out)
    normals = out[:, 100:].ravel()
    edges = np.concatenate([[-np.inf, -4.5, -4.0, -3.6541528853610088], np.linspace(-3.5, 3.5, 60)])
    edges = np.concatenate([edges, [3.6541528853610088, 4.0, 4.5, np.inf]])
    counts, _ = np.histogram(normals, edges)
    expected = np.diff(scipy.stats.norm.cdf(edges)) * normals.size
    assert scipy.stats.chisquare(counts, expected).pvalue > 1e-4
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3), (6, 15)):
        values = normals**power
        assert abs(values.mean() - moment) < 5 * values.std() / np.sqrt(values.size)


def test_an_error_in_a_block_is_not_lost() -> None:
    def kernel(theta, key, first, out):
        if first > 0:
            raise RuntimeError("block broke")

    theta = np.zeros((100, 1))
    before = streams.torch.get_num_threads()
    streams.torch.set_num_threads(2)
    try:
        with pytest.raises(RuntimeError, match="block broke"):
            streams.run_rows(kernel, theta, streams.key_of(0), np.zeros(100))
    finally:
        streams.torch.set_num_threads(before)
