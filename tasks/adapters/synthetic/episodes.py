"""Episodes of a plant's simulator as a dataset: played by vmap in batches, checked as any rows, streamed to disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from operator import itemgetter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from configs.errors import BadInput
from neorl_core.control.behaviour import Behaviour, play
from neorl_core.plants import PLANTS
from neorl_core.plants.base import EpisodeResult
from neorl_core.types import Plant
from tasks.adapters.files.canonical import digest_json, file_sha256, no_space_is_bad_input
from tasks.adapters.files.provenance import sources_digest
from tasks.adapters.files.spec import spec_record
from tasks.adapters.formats.exports import Flat
from tasks.adapters.store.records import Provenance
from tasks.adapters.store.row_checks import Quarantine, RowChecker
from tasks.adapters.store.schema import ALWAYS, Rows
from tasks.adapters.store.writer import DatasetWriter
from tasks.adapters.synthetic.behaviours import MEDIUM, Policy, policy_of, score

BATCH_BYTES = 2**25
"""Of the rows of episodes that are played at once."""
MAX_BATCH = 8192
Progress = Callable[[int, int, str], None]


def generate(
    plant_name: str, behaviour: str, episodes: int, seed: int, out: Path, progress: Progress | None = None
) -> dict[str, Any]:
    """Play episodes and write them; the same arguments give the same digest on one architecture.

    Args:
        plant_name: a plant of the table.
        behaviour: one of `behaviours.BEHAVIOURS`.
        episodes: how many.
        seed: of starts, disturbances, noise and exploration.
        out: folder of datasets, or a file in D4RL's layout where the name ends in .hdf5 or .h5.
        progress: told of episodes.

    Returns:
        {plant, behaviour, episodes, seed, rows, path, digest (of the dataset) or sha256 (of the file), return, score,
        parts: the same by part, violating: share of episodes, expert, quarantined, ...}.

    Raises:
        BadInput: for an unknown plant or behaviour, or when the disk is full.
    """
    plant, policy = PLANTS[plant_name], policy_of(PLANTS[plant_name], behaviour)
    flat = out.suffix in (".hdf5", ".h5")
    if flat and out.exists():
        raise BadInput(f"expected nothing at {out}, got a file: remove it or name another path.")
    home = out.parent if flat else out
    home.mkdir(parents=True, exist_ok=True)
    recipe = {
        "plant": spec_record(plant.spec),
        "behaviour": behaviour,
        "episodes": episodes,
        "seed": seed,
        "expert": policy.expert,
        "parts": list(policy.parts),
        **policy.about,
        "code": sources_digest(__name__, PLANTS.module(plant_name)),
    }
    quarantine = Quarantine(home / "quarantine" / digest_json(recipe), plant.spec)
    checker = RowChecker(plant.spec, quarantine, f"{behaviour}-{seed}")
    results: list[EpisodeResult] = []
    rows = 0
    keys = (*ALWAYS, "costs") if plant.spec.constraints else ALWAYS
    with no_space_is_bad_input(out), DatasetWriter(home, plant.spec) if not flat else nullcontext() as writer:
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
        about = _account(plant, policy, results)
        name = (
            {"sha256": file_sha256(out)}
            if writer is None
            else {"digest": writer.commit(Provenance.model_validate({**recipe, **about}))}
        )
    return {
        **{"plant": plant_name, "behaviour": behaviour, "episodes": episodes, "seed": seed, "rows": rows},
        **{"path": str(out), **name, "expert": policy.expert, **policy.about, **about},
        "quarantined": quarantine.count,
        "reasons": dict(quarantine.reasons),
    }


def _batches(plant: Plant, policy: Policy, episodes: int, seed: int) -> Iterator[tuple[EpisodeResult, Rows]]:
    """Results and rows of batches of episodes, all of one size so that one program serves all."""
    spec = plant.spec
    step = 4 * (2 * spec.observation.size + spec.action.size + len(spec.constraints) + 4)
    size = int(min(max(BATCH_BYTES // (step * spec.horizon), 1), MAX_BATCH, episodes))
    root = jax.random.key(seed)
    parts = list(policy.parts.values())
    for start in range(0, episodes, size):
        index = np.arange(start, start + size)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(root, jnp.asarray(index, jnp.uint32))
        each = Behaviour(
            *(jnp.asarray([parts[i % len(parts)][field] for i in index], jnp.float32) for field in range(2))
        )
        played = jax.device_get(play(plant, policy.base, policy.base_params, each, keys, trace=True))
        played = jax.tree.map(itemgetter(slice(episodes - start)), played)
        yield played._replace(trajectory=None), rows_of(played)


def rows_of(played: EpisodeResult) -> Rows:
    """The steps of traced episodes (E, H) as rows; the last of an episode that did not terminate is a timeout."""
    trajectory = played.trajectory
    assert trajectory is not None
    alive = np.asarray(trajectory.alive)
    last = alive & ~np.pad(alive[:, 1:], ((0, 0), (0, 1)))
    excess = np.maximum(-trajectory.margins[alive], np.float32(0)).astype(np.float32)
    rows: dict[str, npt.NDArray[Any]] = {
        "observations": trajectory.observations[alive],
        "actions": trajectory.actions[alive],
        "rewards": trajectory.rewards[alive],
        "next_observations": trajectory.next_observations[alive],
        "costs": (excess > 0).any(axis=1).astype(np.float32),
        "terminals": trajectory.terminated[alive],
        "timeouts": (last & ~trajectory.terminated)[alive],
        "constraint_costs": excess,
    }
    return rows


def _checked(
    batches: Iterator[tuple[EpisodeResult, Rows]], checker: RowChecker
) -> Iterator[tuple[EpisodeResult | None, Rows]]:
    for result, rows in batches:
        yield result, checker.push(rows)
    if (rest := checker.flush()) is not None:
        yield None, rest


def _account(plant: Plant, policy: Policy, results: list[EpisodeResult]) -> dict[str, Any]:
    """Mean return and score, of all episodes and of each part."""
    returns = np.concatenate([np.asarray(r.ret, np.float64) for r in results])
    violated = np.concatenate([np.asarray(r.violated) for r in results])
    part = np.arange(len(returns)) % len(policy.parts)

    def of(which: npt.NDArray[np.bool_]) -> dict[str, float]:
        scores = score(plant, returns[which])
        return {
            "return": _plain(returns[which].mean()),
            "score": _plain(scores.mean()),
            "deviation": _plain(scores.std()),
            "violating": _plain(violated[which].mean()),
        }

    parts = {name: of(part == i) for i, name in enumerate(policy.parts) if (part == i).any()}
    return {**of(np.ones(len(returns), bool)), "parts": parts}


def _plain(value: Any) -> Any:
    return float(value) if np.isfinite(value) else str(value)


def in_words(result: dict[str, Any]) -> list[str]:
    """What was made, a line for each thing that a reader should check."""
    what = {
        "random": "uniformly random actions",
        "pid": f"the plant's own controller with noise of {result.get('noise', 0):.0%} of half the range",
        "medium": f"the {result['expert']} with a share of {result.get('blend', 0):.3g} of random actions",
        "expert": f"the {result['expert']}, without noise",
        "mixed": "episodes in turn of " + ", ".join(result["parts"]),
    }[result["behaviour"]]
    lines = [f"{result['plant']}, {result['behaviour']}: {what}", f"  {_means(result)}"]
    if len(result["parts"]) > 1:
        lines += [f"  {name}: {_means(part)}" for name, part in result["parts"].items()]
    found = result.get("medium_score")
    if found is not None and not MEDIUM[0] <= found <= MEDIUM[1]:
        lines.append(f"  no blend is between a third and half of the scale: this one, at {found:.1f}, is the nearest")
    lines += [f"  left out: {count:,} row(s), {reason}" for reason, count in result["reasons"].items()]
    name = f"dataset {result['digest']}" if "digest" in result else f"SHA-256 {result['sha256']}"
    return [*lines, f"{result['rows']:,} rows in {result['episodes']:,} episodes in {result['path']}", name]


def _means(part: dict[str, Any]) -> str:
    return (
        f"mean score {float(part['score']):.1f} (deviation {float(part['deviation']):.1f}), mean return "
        f"{float(part['return']):.5g}, {float(part['violating']):.1%} of episodes violate a limit"
    )
