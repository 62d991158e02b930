"""Comparison of a shadow's proposals with the plant's actions on newer logs, and drift detection.

Returns of the proposals are not estimated, because the logs do not show the effect of the proposals.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from configs.errors import Refused
from configs.home import Home
from configs.run import OpenedRun
from neorl_core.networks import policy_act
from neorl_core.safety.composite import Composite, composite_controller
from neorl_core.safety.drift_detection import YEAR, alarm_threshold, block_means, detect
from neorl_core.safety.support import SupportShield, inside_support
from neorl_core.types import Params, PlantSpec, Process
from tasks.data.store import reader
from tasks.data.store.episodes import Logs, new_episodes, read_logs
from tasks.evidence.decisions import shadows
from tasks.evidence.decisions.queue import record_of
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import Ledger, artefact
from tasks.files.arrays import read_npz
from tasks.log_only.checks import applied_before
from tasks.log_only.drift import days_needed, season_rows, stream_length
from tasks.log_only.learned_model import load_model, one_step_scores
from tasks.models.bundles.bundle import load_bundle
from tasks.models.plants.known import plant_of
from tasks.pictures.trajectories import Stretch, plot_disagreements
from tasks.references import CandidateRecord, Dataset, DriftFinding, LearnedModel, ShadowComparison

AGREES = 0.1
"""Largest difference between proposal and action, as a share of the range, that counts as agreement."""
CHANGED = 1e-4
"""Difference from the policy's action, as a share of the range, that counts as an intervention of the shield."""
STRETCHES, BEFORE, AFTER = 3, 20, 40
"""Number of pictures of large disagreements, and steps shown around each."""


class Proposals(NamedTuple):
    """The shadow's actions at each logged step. The shadow knows which action the plant applied before."""

    asked: npt.NDArray[np.floating]
    """(N, A), actions of the policy without shield."""
    given: npt.NDArray[np.floating]
    """(N, A), actions of the composite."""
    handed_over: npt.NDArray[np.bool_]
    """(N,), whether the fallback gave the action."""


class Compared(NamedTuple):
    """A comparison with its ledger entry and its picture."""

    entry: Entry
    finding: ShadowComparison
    picture: Path


def compare(home: Home, run: OpenedRun, dataset: Dataset) -> Compared:
    """Compare a shadow's proposals with the plant's actions in newer logs. The result is logged in the ledger once.

    Raises:
        Refused: if there is no shadow, or the shadow was trained on these logs.
    """
    ledger, spec = Ledger.open(home), plant_of(run).spec
    watched, candidate = shadow_of(ledger, run.plant)
    store, unseen = unseen_episodes(candidate.dataset, dataset)
    assert candidate.model is not None
    name = f"{watched.entry.digest[:12]}-{dataset.digest[:12]}-{run.shadow.alarms_per_year:g}"
    picture = home.folder("shadows", run.plant) / f"{name}.png"
    same = known_comparison(ledger.entries("comparison", run.plant), run, watched.entry, dataset)
    if same is not None and picture.is_file():
        return Compared(same, same.read(ShadowComparison), picture)
    logs = read_logs(store, unseen)
    folder = home.folder("bundles", run.plant) / candidate.composite[:24]
    composite: Composite = load_bundle(folder, candidate.composite, run.source)[1]
    made = proposals(spec, composite, logs)
    plot_disagreements(picture, spec, _stretches(spec, logs, made))
    if same is not None:
        return Compared(same, same.read(ShadowComparison), picture)
    finding = _finding(run, spec, watched.entry, candidate.model, composite, logs, made, store)
    files = [artefact(home, picture, "disagreements"), artefact(home, dataset.manifest, "dataset manifest")]
    entry = ledger.append("comparison", finding, plant=run.plant, artefacts=files)
    return Compared(entry, finding, picture)


def unseen_episodes(own: Dataset, newer: Dataset) -> tuple[reader.StoredDataset, npt.NDArray[np.int64]]:
    """Return the newer logs, and the indices of episodes that the shadow's dataset does not contain.

    The same rows may arrive in a different file, or in a folder together with newer rows.

    Raises:
        Refused: if a source belongs to the shadow's dataset, or no new episodes are left.
    """
    store = reader.StoredDataset.open(newer.store, newer.digest)
    unseen = new_episodes(store, reader.StoredDataset.open(own.store, own.digest))
    # A comparison gets the latest files. Drift detection gets all files, including the champion's own.
    if {s.sha256 for s in own.sources} & {s.sha256 for s in newer.sources} or not unseen.size:
        raise Refused(
            f"the shadow of {own.plant} was trained on dataset {own.digest[:12]}, which has these logs: name newer logs"
        )
    return store, unseen


def known_comparison(entries: Sequence[Entry], run: OpenedRun, shadow: Entry, dataset: Dataset) -> Entry | None:
    """Find the logged comparison of a shadow with these logs at this rate of false alarms."""
    wanted = (shadow.digest, dataset.digest, run.shadow.alarms_per_year)
    found = ((e, e.read(ShadowComparison)) for e in entries)
    return next((e for e, c in found if (c.shadow, c.dataset, c.drift.alarms_per_year) == wanted), None)


def shadow_of(ledger: Ledger, plant: str) -> tuple[shadows.ShadowInForce, CandidateRecord]:
    """Return a plant's shadow and the candidate's record.

    Raises:
        Refused: if the plant has no shadow.
    """
    watched = shadows.shadow(ledger.entries(), plant)
    if watched is None:
        raise Refused(f"{plant} has no shadow: retrain the plant, and approve a candidate that passes every gate")
    return watched, record_of(ledger.entry(watched.entry.body["candidate"])).at(ledger.home.root)


def proposals(spec: PlantSpec, composite: Composite, logs: Logs) -> Proposals:
    """Return the shadow's actions along logged episodes. The shadow's memory is reset at the start of each episode."""
    controller, policy = composite_controller(Process(spec)), composite.policy
    assert policy is not None
    first = np.zeros(len(logs.episode), bool)
    first[logs.starts] = True

    @jax.jit
    def along(observation: jax.Array, applied: jax.Array, begins: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        def step(memory: Params, row: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[Params, tuple[jax.Array, ...]]:
            x, before, new = row
            fresh = controller.init(composite, x)
            memory = jax.tree.map(lambda a, b: jnp.where(new, a, b), fresh, memory)
            memory, action = controller.act(composite, memory, x, before)
            seen = x if composite.history is None else memory.seen
            return memory, (policy_act(policy, seen), action, memory.handed_over)

        asked, given, handed = jax.lax.scan(
            step, controller.init(composite, observation[0]), (observation, applied, begins)
        )[1]
        return asked, given, handed

    rows = jnp.asarray(logs.transitions.observation), jnp.asarray(applied_before(logs)), jnp.asarray(first)
    return Proposals(*(np.asarray(found) for found in along(*rows)))


def _finding(
    run: OpenedRun,
    spec: PlantSpec,
    shadow: Entry,
    model: LearnedModel,
    composite: Composite,
    logs: Logs,
    made: Proposals,
    store: reader.StoredDataset,
) -> ShadowComparison:
    shield, t = composite.shield, logs.transitions
    assert isinstance(shield, SupportShield)
    width = np.asarray(spec.action.high) - np.asarray(spec.action.low)
    apart = np.abs(made.given - np.asarray(t.action)) / width
    changed = (np.abs(made.given - made.asked) / width > CHANGED).any(axis=1)
    inside = jax.jit(jax.vmap(inside_support, (None, 0, 0, None)))
    supported = np.asarray(inside(shield, jnp.asarray(t.observation), jnp.asarray(t.action), shield.radius))
    scores = one_step_scores(load_model(model, spec), logs)
    return ShadowComparison(
        shadow=shadow.digest,
        dataset=store.digest,
        rows=len(apart),
        episodes=len(logs.starts),
        left_out=len(store.episode_digests) - len(logs.starts),
        agreement=float((apart <= AGREES).all(axis=1).mean()),
        support=float(supported.mean()),
        interventions=float((made.handed_over | changed).mean()),
        difference={
            name: float(np.sqrt(np.mean(apart[:, i] ** 2, dtype=np.float64)))
            for i, name in enumerate(spec.action.names)
        },
        model_error=float(scores.mean()),
        drift=_drift(run, spec, model, scores, logs),
    )


def _drift(
    run: OpenedRun, spec: PlantSpec, model: LearnedModel, scores: npt.NDArray[np.float64], logs: Logs
) -> DriftFinding:
    """Compare block means of the model's errors with those of held-out episodes."""
    reference = read_npz(model.residuals)
    length = stream_length((reference["scores"],))
    known = block_means(reference["scores"], reference["episode"], length)
    rows = len(reference["scores"])
    needs = days_needed(rows, len(known), length, spec.dt, season_rows(spec.dt))
    new = block_means(scores, logs.episode, length) if not needs else np.empty(0)
    # Mappings describe plants with time in seconds.
    threshold = alarm_threshold(YEAR / (spec.dt * length), run.shadow.alarms_per_year)
    found = detect(known, new, threshold)
    return DriftFinding(
        blocks=len(new),
        step_seconds=spec.dt,
        block_steps=length,
        reference_blocks=len(known),
        alarms_per_year=run.shadow.alarms_per_year,
        # Without a block the evidence has its initial value, 1.
        log_evidence=float(found.log_evidence.max()) if len(new) else 0.0,
        log_threshold=found.log_threshold,
        alarm=None if found.alarm is None else _place(found.alarm, length, logs),
        needs_days=needs,
    )


def _place(block: int, length: int, logs: Logs) -> str:
    """Describe the last step of a block."""
    blocks = np.bincount(logs.episode) // length
    episode = int(np.searchsorted(np.cumsum(blocks), block, side="right"))
    step = (block - int(blocks[:episode].sum()) + 1) * length
    return f"episode {episode + 1}, step {step}"


def _stretches(spec: PlantSpec, logs: Logs, made: Proposals) -> list[Stretch]:
    """Return the steps around the largest disagreements, without overlap."""
    action = np.asarray(logs.transitions.action)
    width = np.asarray(spec.action.high) - np.asarray(spec.action.low)
    apart = (np.abs(made.given - action) / width).max(axis=1)
    found, left = list[Stretch](), apart.copy()
    while len(found) < STRETCHES and left.max() > 0:
        worst = int(left.argmax())
        episode = np.flatnonzero(logs.episode == logs.episode[worst])
        rows = episode[(episode >= worst - BEFORE) & (episode < worst + AFTER)]
        title = f"episode {logs.episode[worst] + 1}, around step {worst - episode[0] + 1}"
        found.append(Stretch(title, rows - episode[0], action[rows], made.given[rows], made.handed_over[rows]))
        left[rows] = 0
    return found
