"""A shadow beside the plant: its proposals on newer logs, what the plant did, and whether the plant has drifted.

Nothing here estimates what the proposals would have come to: nobody took them, and the logs cannot tell.
"""

from __future__ import annotations

import math
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
from neorl_core.safety.drift_test import YEAR, alarm_threshold, autocorrelation_time, block_means, detect
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
from tasks.log_only.learned_model import load_model, one_step_scores
from tasks.models.bundles.bundle import load_bundle
from tasks.models.plants.known import plant_of
from tasks.pictures.disagreement import Stretch, plot_disagreements
from tasks.references import CandidateRecord, Dataset, DriftFinding, LearnedModel, ShadowComparison

AGREES = 0.1
"""Difference from what was done, as a share of an action's range, within which a proposal agrees."""
CHANGED = 1e-4
"""Difference from what the policy asked for beyond which the shield intervened, as a share of the range."""
MEMORY = 2.0
"""Autocorrelation times in a block, so that blocks of scores are nearly exchangeable."""
STRETCHES, BEFORE, AFTER = 3, 20, 40
"""Pictures of the largest disagreements, and the steps that they show around each."""


class Proposals(NamedTuple):
    """What the shadow would have done at each logged step, with what was applied before it as the plant had it."""

    asked: npt.NDArray[np.floating]
    """(N, A) by the policy alone."""
    given: npt.NDArray[np.floating]
    """(N, A) by the composite."""
    handed_over: npt.NDArray[np.bool_]
    """(N,)"""


class Compared(NamedTuple):
    """A comparison in the ledger, with its picture."""

    entry: Entry
    finding: ShadowComparison
    picture: Path


def compare(home: Home, run: OpenedRun, dataset: Dataset) -> Compared:
    """Lay a shadow's proposals beside what the plant did in newer logs, and log what is found, once.

    Args:
        home: of the ledger.
        run: its plant and shadow.
        dataset: the newer logs.

    Raises:
        Refused: when nothing runs in shadow, or the logs are those that it was trained on.
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
    """The newer logs, and the numbers of their episodes that a shadow's own dataset does not hold.

    The same rows may come in another file, or in a folder with newer ones.

    Args:
        own: what the shadow was trained on and judged by.
        newer: the newer logs.

    Raises:
        Refused: when a source is the shadow's own, however it was read, or no other episodes are left.
    """
    store = reader.StoredDataset.open(newer.store, newer.digest)
    unseen = new_episodes(store, reader.StoredDataset.open(own.store, own.digest))
    # A comparison is given what came last. Drift is looked for in all that came, where the champion's own are expected.
    if {s.sha256 for s in own.sources} & {s.sha256 for s in newer.sources} or not unseen.size:
        raise Refused(
            f"expected logs that the shadow of {own.plant} has not seen, got those of its own dataset: give newer ones."
        )
    return store, unseen


def known_comparison(entries: Sequence[Entry], run: OpenedRun, shadow: Entry, dataset: Dataset) -> Entry | None:
    """The comparison of a shadow with these logs at this rate of false alarms, if it is in the ledger.

    Args:
        entries: the plant's comparisons.
        run: its shadow's rate of false alarms.
        shadow: its entry.
        dataset: the newer logs.
    """
    wanted = (shadow.digest, dataset.digest, run.shadow.alarms_per_year)
    found = ((e, e.read(ShadowComparison)) for e in entries)
    return next((e for e, c in found if (c.shadow, c.dataset, c.drift.alarms_per_year) == wanted), None)


def shadow_of(ledger: Ledger, plant: str) -> tuple[shadows.ShadowInForce, CandidateRecord]:
    """The shadow of a process and the record of its candidate.

    Raises:
        Refused: when it has none.
    """
    watched = shadows.shadow(ledger.entries(), plant)
    if watched is None:
        raise Refused(f"expected a shadow of {plant}, got none: retrain it, and approve what passes.")
    return watched, record_of(ledger.entry(watched.entry.body["candidate"])).at(ledger.home.root)


def proposals(spec: PlantSpec, composite: Composite, logs: Logs) -> Proposals:
    """The shadow's answers along logged episodes; its memory begins anew with each.

    Args:
        spec: the process.
        composite: of policy, shield and fallback.
        logs: what the plant did.
    """
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
    """Watch block means of the model's errors against those of the held-out episodes."""
    reference = read_npz(model.residuals)
    length = max(math.ceil(MEMORY * autocorrelation_time(reference["scores"])), 1)
    known = block_means(reference["scores"], reference["episode"], length)
    new = block_means(scores, logs.episode, length)
    # `time_unit` of a process that a mapping describes is the second.
    threshold = alarm_threshold(YEAR / (spec.dt * length), run.shadow.alarms_per_year)
    found = detect(known, new, threshold)
    return DriftFinding(
        blocks=len(new),
        step_seconds=spec.dt,
        block_steps=length,
        reference_blocks=len(known),
        alarms_per_year=run.shadow.alarms_per_year,
        # Nothing watched is evidence of nothing: the factor that it starts from, 1.
        log_evidence=float(found.log_evidence.max()) if len(new) else 0.0,
        log_threshold=found.log_threshold,
        alarm=None if found.alarm is None else _place(found.alarm, length, logs),
    )


def _place(block: int, length: int, logs: Logs) -> str:
    """The last step of a block in words."""
    blocks = np.bincount(logs.episode) // length
    episode = int(np.searchsorted(np.cumsum(blocks), block, side="right"))
    step = (block - int(blocks[:episode].sum()) + 1) * length
    return f"episode {episode + 1}, step {step}"


def _stretches(spec: PlantSpec, logs: Logs, made: Proposals) -> list[Stretch]:
    """The steps around the largest disagreements, which do not overlap."""
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
