"""A shadow's proposals beside what a plant did, worked by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from configs.errors import BadInput
from configs.home import Home
from configs.load import load_run
from configs.run import OpenedRun
from flows.shadow import _drift_in_words, compare_shadow
from neorl_core.control.fallbacks import Hold
from neorl_core.networks import Normaliser, Policy
from neorl_core.safety.composite import Composite
from neorl_core.safety.support import SupportShield
from neorl_core.types import PlantSpec, Space, Transition
from tasks.data.store.episodes import Logs
from tasks.files.arrays import npz_bytes
from tasks.files.canonical import write_atomic
from tasks.ingest import ingest
from tasks.log_only.checks import applied_before
from tasks.log_only.shadow_comparison import _drift, _place, _stretches, proposals
from tasks.references import LearnedModel
from tests import small_process
from tests.judged import process_evidence

SPEC = PlantSpec(
    name="vessel",
    observation=Space(("level",), ("m",), (-np.inf,), (np.inf,)),
    action=Space(("valve",), ("1",), (0.0,), (1.0,)),
    constraints=(),
    dt=10.0,
    time_unit="s",
    horizon=10,
    score_range=(0.0, 100.0),
)


def composite() -> Composite:
    """The policy always asks for 0.5, is trusted within a level of 1 of zero, and the fallback closes by 0.2 a step."""
    normaliser = Normaliser(jnp.zeros(1), jnp.ones(1), jnp.asarray([0.5]), jnp.asarray([0.5]))
    layer = {"Dense_0": {"kernel": jnp.zeros((1, 1)), "bias": jnp.zeros(1)}}
    shield = SupportShield(
        action_low=jnp.zeros(1),
        action_high=jnp.ones(1),
        rate_limit=jnp.asarray([0.3]),
        rest=jnp.asarray([0.5]),
        hold=jnp.asarray(1, jnp.int32),
        observation_low=jnp.asarray([-9.0]),
        observation_high=jnp.asarray([9.0]),
        centre=jnp.zeros(2),
        scale=jnp.asarray([1.0, 1e6]),
        references=jnp.zeros((1, 2)),
        radius=jnp.asarray(1.0 / np.sqrt(2.0)),
        return_radius=jnp.asarray(1.0 / np.sqrt(2.0)),
    )
    return Composite(Policy(layer, normaliser), shield, Hold(jnp.zeros(1), jnp.asarray([0.2])), ())


def logs() -> Logs:
    """Two episodes of three and two steps."""
    x = np.asarray([[0.0], [0.0], [5.0], [0.0], [0.0]], np.float32)
    u = np.asarray([[0.5], [0.9], [0.9], [0.1], [0.5]], np.float32)
    zero, episode = np.zeros(5, np.float32), np.asarray([0, 0, 0, 1, 1])
    t: Any = Transition(x, u, zero, zero, x, zero)
    return Logs(t, episode, np.asarray([0, 3]), np.asarray([True, True, False, True, False]))


def test_what_was_applied_before_is_the_plants_own_and_begins_with_each_episode() -> None:
    np.testing.assert_allclose(applied_before(logs())[:, 0], [0.5, 0.5, 0.9, 0.1, 0.1])


def test_proposals_by_hand() -> None:
    found = proposals(SPEC, composite(), logs())
    np.testing.assert_allclose(found.asked[:, 0], 0.5)
    # Row 2 is far from the data: the fallback closes from the 0.9 that was applied. In row 3 the memory is new, and the
    # rate limit lets 0.1 become no more than 0.4, as in row 4.
    np.testing.assert_allclose(found.given[:, 0], [0.5, 0.5, 0.7, 0.4, 0.4], atol=1e-6)
    np.testing.assert_array_equal(found.handed_over, [False, False, True, False, False])


@pytest.mark.parametrize(
    ("reference", "newer", "told"),
    [
        # Noise has no memory, so that a block has six steps: episodes of one step contain none.
        ([40] * 120, [1] * 30, "**Drift not monitored**: no episode of the newer logs has"),
        ([1] * 3000, [40] * 4, "**Drift not monitored: needs 3 more days** in the held-out"),
        ([40], [40] * 4, "**Drift not monitored: needs 14 more days** in the held-out"),
        # Of a few blocks each may be the largest of all, and together they are still no evidence.
        ([40] * 120, [20], "**Drift not monitored**: "),
        ([40] * 120, [40] * 40, "No drift alarm in "),
    ],
)
def test_no_alarm_is_told_only_where_one_was_possible(
    reference: list[int], newer: list[int], told: str, tmp_path: Path
) -> None:
    draw = np.random.default_rng(0)
    held_out, newer_rows = (np.repeat(np.arange(len(n)), n) for n in (reference, newer))
    residuals = write_atomic(
        tmp_path / "residuals.npz", npz_bytes({"scores": draw.exponential(size=len(held_out)), "episode": held_out})
    )
    model = LearnedModel(digest="0" * 64, weights=residuals, residuals=residuals, prediction=process_evidence().model)
    scores = draw.exponential(size=len(newer_rows))
    drift = _drift(
        OpenedRun(plant="vessel"), SPEC._replace(dt=600.0), model, scores, logs()._replace(episode=newer_rows)
    )
    assert _drift_in_words(drift).startswith(told)


def test_the_largest_disagreements_come_first_and_do_not_overlap() -> None:
    found = _stretches(SPEC, logs(), proposals(SPEC, composite(), logs()))
    assert [stretch.title for stretch in found] == ["episode 1, around step 2", "episode 2, around step 1"]
    np.testing.assert_allclose(found[0].done[:, 0], [0.5, 0.9, 0.9])


@pytest.mark.parametrize(
    ("block", "place"), [(0, "episode 1, step 2"), (1, "episode 2, step 2"), (2, "episode 2, step 4")]
)
def test_an_alarm_is_placed_at_the_end_of_its_block(block: int, place: str) -> None:
    episode = np.repeat([0, 1], [3, 5])
    assert _place(block, 2, logs()._replace(episode=episode)) == place


def test_a_dataset_in_the_place_of_newer_logs_is_told_of_before_any_server_is_asked(home: Path, tmp_path: Path) -> None:
    """A run with a mapping reads no dataset, whose rows are made."""
    config, log = small_process.project(tmp_path), small_process.export(tmp_path / "log.csv", 400)
    digest = ingest(Home(home), load_run(config), [log]).digest
    with pytest.raises(BadInput, match=f"a run with a mapping needs logs, got dataset {digest[:12]}"):
        compare_shadow(Home(home), config, [Path(digest)])
