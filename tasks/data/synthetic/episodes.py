"""Generate a dataset of simulated episodes: simulate batches, check every row, and write the rows to disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from operator import itemgetter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict

from configs.errors import BadInput
from neorl_core.control.behaviour import Behaviour, play
from neorl_core.plants.base import EpisodeResult
from neorl_core.types import Plant
from tasks.data.formats.exports import Flat
from tasks.data.store.records import Provenance, Record
from tasks.data.store.row_checks import Quarantine, RowChecker
from tasks.data.store.schema import ALWAYS, CHOICE, Rows
from tasks.data.store.writer import DatasetWriter
from tasks.data.synthetic.behaviours import MEDIUM, Policy, policy_of, score
from tasks.files.canonical import digest_json, file_sha256, make_folder, unwritable_is_bad_input
from tasks.files.spec import spec_record
from tasks.models.plants.known import KnownPlant, plant_at

BATCH_BYTES = 2**25
"""Approximate size of the rows that are simulated at once, in bytes."""
MAX_BATCH = 8192
Progress = Callable[[int, int, str], None]


class Scores(Record):
    """Mean return, scores and limit violations of episodes."""

    # JSON has no infinite numbers, so infinite returns are written as text.
    model_config = ConfigDict(ser_json_inf_nan="strings")

    mean_return: float
    score: float
    """Mean score, on the plant's scale from 0 to 100."""
    deviation: float
    violating: float
    """Share of episodes that violate a limit."""

    def __str__(self) -> str:
        return (
            f"mean score {self.score:.1f} (deviation {self.deviation:.1f}), mean return "
            f"{self.mean_return:.5g}, {self.violating:.1%} of episodes violate a limit"
        )


class GeneratedEpisodes(Scores):
    plant: str
    behaviour: str
    episodes: int
    seed: int
    rows: int
    path: Path
    """Folder of the plant's datasets, or the HDF5 file."""
    digest: str | None
    """Digest of the dataset; None for a file."""
    sha256: str | None
    """SHA-256 of the file; None for a dataset."""
    expert: str
    noise: float | None = None
    detuned: float | None = None
    medium_score: float | None = None
    chosen: bool = False
    parts: dict[str, Scores]
    quarantined: int
    reasons: dict[str, int]

    def lines(self) -> list[str]:
        noise, shrunk = f"noise of {self.noise or 0:.0%} of half the range", f"{self.detuned or 0:.1%} towards idling"
        shrunk = f"with gains and range reduced by {shrunk}"
        if self.chosen:
            noise = f"a random choice in {self.noise or 0:.0%} of the steps"
            shrunk = f"idling in {self.detuned or 0:.1%} of the steps"
        policy = {
            "random": "uniformly random actions",
            "pid": f"the plant's own controller as found, with {noise}",
            "medium": f"the {self.expert} {shrunk}, with {noise}",
            "expert": f"the {self.expert}, without noise",
            "mixed": "episodes in turn of " + ", ".join(self.parts),
        }[self.behaviour]
        lines = [f"{self.plant}, {self.behaviour}: {policy}", f"  {Scores.__str__(self)}"]
        if len(self.parts) > 1:
            lines += [f"  {name}: {part}" for name, part in self.parts.items()]
        found = self.medium_score
        if found is not None and not MEDIUM[0] <= found <= MEDIUM[1]:
            lines.append(f"  no share gives a score between a third and a half; the nearest is {found:.1f}")
        lines += [f"  left out: {count:,} row(s), {reason}" for reason, count in self.reasons.items()]
        name = f"dataset {self.digest}" if self.digest else f"SHA-256 {self.sha256}"
        return [*lines, f"{self.rows:,} rows in {self.episodes:,} episodes in {self.path}", name]


def generate(
    named: str | KnownPlant, behaviour: str, episodes: int, seed: int, out: Path, progress: Progress | None = None
) -> GeneratedEpisodes:
    """Simulate episodes and write them; on one processor architecture, equal arguments give an equal digest.

    Args:
        named: a plant, a plant's name, or a plant file.
        behaviour: the policy, a name in `behaviours.BEHAVIOURS`.
        out: folder for the dataset. If the name ends in .hdf5 or .h5: a file to write in the layout of D4RL.

    Raises:
        BadInput: the plant or behaviour is unknown, the file exists already, or the disk is full.
    """
    known = plant_at(named) if isinstance(named, str) else named
    plant = known.simulator()
    policy = policy_of(plant, behaviour)
    flat = out.suffix in (".hdf5", ".h5")
    if flat and out.exists():
        raise BadInput(f"{out} exists already: remove it or name another path.")
    home = out.parent if flat else out
    make_folder(home)
    recipe = {
        "plant": spec_record(plant.spec),
        "behaviour": behaviour,
        "episodes": episodes,
        "seed": seed,
        "expert": policy.expert,
        "parts": list(policy.parts),
        **policy.calibration(),
        "code": known.sources(__name__),
    }
    quarantine = Quarantine(home / "quarantine" / digest_json(recipe), plant.spec)
    checker = RowChecker(plant.spec, quarantine, f"{behaviour}-{seed}")
    results: list[EpisodeResult] = []
    rows = 0
    keys = (*ALWAYS, "costs") if plant.spec.constraints else ALWAYS
    with unwritable_is_bad_input(out), DatasetWriter(home, plant.spec) if not flat else nullcontext() as writer:
        with Flat(out, keys) if flat else nullcontext() as file:
            to = file if file is not None else writer
            assert to is not None
            for result, block in _checked(_batches(plant, policy, episodes, seed), checker):
                if result is not None:
                    results.append(result)
                    if progress:
                        progress(sum(len(r.ret) for r in results), episodes, "episodes")
                to.append(block)
                rows += len(block["rewards"])
        quarantine.close()
        scores, parts = _scores(plant, policy, results)
        digest = None
        if writer is not None:
            results_record = scores.model_dump(mode="json")
            results_record["parts"] = {name: part.model_dump(mode="json") for name, part in parts.items()}
            digest = writer.commit(Provenance.model_validate({**recipe, **results_record}))
    return GeneratedEpisodes(
        **scores.model_dump(),
        plant=known.name,
        behaviour=behaviour,
        episodes=episodes,
        seed=seed,
        rows=rows,
        path=out,
        digest=digest,
        sha256=file_sha256(out) if digest is None else None,
        expert=policy.expert,
        **policy.calibration(),
        chosen=plant.spec.choices is not None,
        parts=parts,
        quarantined=quarantine.count,
        reasons=dict(quarantine.reasons),
    )


def _batches(plant: Plant, policy: Policy, episodes: int, seed: int) -> Iterator[tuple[EpisodeResult, Rows]]:
    """Yield results and rows batch by batch; all batches have the same size, so that JAX compiles only once."""
    spec = plant.spec
    step = 4 * (2 * spec.observation.size + spec.action.size + len(spec.constraints) + 4)
    size = int(min(max(BATCH_BYTES // (step * spec.horizon), 1), MAX_BATCH, episodes))
    root = jax.random.key(seed)
    values = np.array([[float(x) for x in part] for part in policy.parts.values()], np.float32)
    for start in range(0, episodes, size):
        index = np.arange(start, start + size)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(root, jnp.asarray(index, jnp.uint32))
        each = Behaviour(*(jnp.asarray(column[index % len(values)]) for column in values.T))
        played = jax.device_get(play(plant, policy.base, policy.base_params, each, keys, trace=True))
        played = jax.tree.map(itemgetter(slice(episodes - start)), played)
        rows = rows_of(played)
        # Files store a discrete action as an integer.
        rows = rows if spec.choices is None else rows | {"actions": rows["actions"].astype(CHOICE)}
        yield played._replace(trajectory=None), rows


def rows_of(played: EpisodeResult) -> Rows:
    """Convert recorded episodes, arrays (E, H, ...), to rows; an episode that does not terminate ends by timeout."""
    trajectory = played.trajectory
    assert trajectory is not None
    alive = np.asarray(trajectory.alive)
    last = alive & ~np.pad(alive[:, 1:], ((0, 0), (0, 1)))
    excess = np.maximum(-np.asarray(trajectory.margins)[alive], np.float32(0)).astype(np.float32)
    terminated = np.asarray(trajectory.terminated)
    return {
        "observations": np.asarray(trajectory.observations)[alive],
        "actions": np.asarray(trajectory.actions)[alive],
        "rewards": np.asarray(trajectory.rewards)[alive],
        "next_observations": np.asarray(trajectory.next_observations)[alive],
        "costs": np.asarray((excess > 0).any(axis=1), np.float32),
        "terminals": terminated[alive],
        "timeouts": (last & ~terminated)[alive],
        "constraint_costs": excess,
    }


def _checked(
    batches: Iterator[tuple[EpisodeResult, Rows]], checker: RowChecker
) -> Iterator[tuple[EpisodeResult | None, Rows]]:
    for result, rows in batches:
        yield result, checker.push(rows)
    if (rest := checker.flush()) is not None:
        yield None, rest


def _scores(plant: Plant, policy: Policy, results: list[EpisodeResult]) -> tuple[Scores, dict[str, Scores]]:
    returns = np.concatenate([np.asarray(r.ret, np.float64) for r in results])
    violated = np.concatenate([np.asarray(r.violated) for r in results])
    part = np.arange(len(returns)) % len(policy.parts)

    def of(which: npt.NDArray[np.bool_]) -> Scores:
        scores = score(plant, returns[which])
        return Scores(
            mean_return=float(returns[which].mean()),
            score=float(scores.mean()),
            deviation=float(scores.std()),
            violating=float(violated[which].mean()),
        )

    parts = {name: of(part == i) for i, name in enumerate(policy.parts) if (part == i).any()}
    return of(np.ones(len(returns), bool)), parts
