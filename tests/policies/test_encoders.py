"""Graph networks: sums along routes in both forms, and who hears of whom."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from symphony.policies import encoders
from symphony.policies.encoders import Dense, GraphEncoder, Means, TopologyEncoder, to_devices, to_rows
from symphony.policies.features import DeviceColumn, RowColumn, graph_tables
from tests.scheduling.by_hand import Books, chain, dot, work


@pytest.fixture
def books() -> Books:
    """Two jobs on the small cluster."""
    return Books(work(chain(), dot("any")))


def test_means_along_routes_are_the_same_by_matrix_and_by_index(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    t = books.t
    key = jax.random.key(0)
    row = jax.random.normal(key, (2, t.capacity.shape[0], 3)) * (t.row_group >= 0)[:, None]
    device = jax.random.normal(key, (2, t.exists.shape[0], 3))
    layer = Dense(key, 3, 3)

    def means() -> tuple[jax.Array, jax.Array]:
        """Traced anew whenever it is called."""
        return jax.jit(lambda: (to_devices(t, row, layer), to_rows(t, device)))()

    by_matrix = means()
    monkeypatch.setattr(encoders, "MAX_DENSE_ROUTES", 0)
    by_index = means()
    np.testing.assert_allclose(by_matrix[0], by_index[0], atol=1e-6)
    real = np.asarray(t.row_group) >= 0
    np.testing.assert_allclose(np.asarray(by_matrix[1])[:, real], np.asarray(by_index[1])[:, real], atol=1e-6)


def test_means_hold_equal_values_by_row_and_count_what_is_named_twice_once() -> None:
    means = Means(np.array([2, 0, 2, 2]), np.array([1, 3, 0, 1]), (3, 4))
    assert means.matrix.toarray().tolist() == [[0, 0, 0, 1], [0, 0, 0, 0], [0.5, 0.5, 0, 0]]
    assert means.indptr.tolist() == [0, 1, 1, 3] and means.indices.tolist() == [3, 0, 1]


def test_a_busy_row_is_heard_of_by_the_devices_that_share_it_and_by_their_neighbours(books: Books) -> None:
    t = books.t
    encoder = eqx.filter_jit(TopologyEncoder(jax.random.key(1), 8))
    rows, devices = jnp.zeros((t.capacity.shape[0], len(RowColumn))), jnp.zeros((t.exists.shape[0], len(DeviceColumn)))
    calm = encoder(t, rows, devices)
    busy = encoder(t, rows.at[2, 1].set(3.0), devices)  # the GPU's own link
    moved = np.abs(np.asarray(busy - calm)).max(axis=1) > 1e-6
    assert moved[2] and moved[3]  # the GPU, and the FPGA, which shares its network card
    assert not moved[:2].any()  # the CPUs share nothing with it


def test_gangs_of_a_graph_hear_of_one_another_and_of_no_other_graph(books: Books) -> None:
    g = jax.jit(graph_tables)(books.t, books.w)
    encoder = eqx.filter_jit(GraphEncoder(jax.random.key(2), 8))
    before = encoder(g)
    changed = jax.tree.map(lambda x: x, g)
    after = encoder(type(g)(**{**vars(changed), "nodes": g.nodes.at[0, 1, 0].add(2.0)}))
    moved = np.abs(np.asarray(after - before)).max(axis=-1) > 1e-6
    assert moved[0, 0] and moved[0, 1]
    assert not moved[1].any()
