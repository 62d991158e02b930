"""Training states on disk: Orbax writes them whole or not at all, and resuming gives the same bits."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from configs.errors import BadInput, Refused
from configs.home import FULL
from neorl_core.types import Params
from tasks.files.canonical import (
    canonical_json,
    digest_json,
    parse_json,
    read_json,
    sha256_hex,
    unwritable_is_bad_input,
    write_json,
)

# What fails in Orbax's threads comes back from the next call and is told in one sentence there.
logging.getLogger("absl").setLevel(logging.CRITICAL)

State = TypeVar("State")
"""A pytree of plain arrays."""

_SAID_FULL = tuple(os.strerror(code) for code in FULL)


def state_digest(state: Params) -> str:
    """SHA-256 over the path, type, shape and little-endian bytes of every array of a pytree."""
    leaves = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        array = np.asarray(leaf)
        data = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        leaves.append([name, array.dtype.name, list(array.shape), sha256_hex(data)])
    return digest_json(leaves)


class Checkpoints:
    """The checkpoints of one training run.

    Args:
        folder: where they are kept; made when absent.
        identity: what the run is (configuration, dataset digest, code digest, ...), as the JSON text of an object. A
            folder that holds another run's checkpoints is refused.
        keep: how many of the newest are retained. The one with the highest score is retained besides.

    Raises:
        Refused: when the folder belongs to another identity; the message names every difference.

    Example:
        >>> with Checkpoints(folder, '{"dataset": "ab", "seed": 3}') as checkpoints:  # doctest: +SKIP
        ...     if checkpoints.latest() is not None:
        ...         state = checkpoints.restore(state)
    """

    def __init__(self, folder: Path, identity: str, keep: int = 2) -> None:
        self.folder = folder.resolve()
        _check_identity(self.folder / "identity.json", parse_json(identity.encode()))
        # Orbax is imported where something is trained: most runs find their training done.
        import orbax.checkpoint as ocp  # type: ignore[import-untyped]
        from orbax.checkpoint import checkpoint_managers as policies

        newest = policies.LatestN(keep)
        best = policies.BestN(get_metric_fn=_score, n=1, keep_checkpoints_without_metrics=False)
        options = ocp.CheckpointManagerOptions(
            best_fn=_score,
            preservation_policy=policies.AnyPreservationPolicy([newest, best]),
            enable_async_checkpointing=True,
            cleanup_tmp_directories=True,
            create=True,
        )
        with _full_disk_is_bad_input(self.folder):
            self._manager = ocp.CheckpointManager(self.folder / "steps", options=options)

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self) -> None:
        """Wait until what is being written is on disk.

        Raises:
            BadInput: when the disk or the quota is full; earlier checkpoints stay.
        """
        with _full_disk_is_bad_input(self.folder):
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Wait for what is being written, and let go of the folder.

        Raises:
            BadInput: when the disk or the quota is full; earlier checkpoints stay.
        """
        with _full_disk_is_bad_input(self.folder):
            self._manager.close()

    def latest(self) -> int | None:
        """The newest finished checkpoint's step, or None; what a kill left half-written does not count."""
        self.wait()
        step: int | None = self._manager.latest_step()
        return step

    def best(self) -> int | None:
        """The step of the finished checkpoint with the highest score, or None where none has a score."""
        self.wait()
        scored = [step for step in self._manager.all_steps() if self._manager.metrics(step)]
        step: int | None = self._manager.best_step() if scored else None
        return step

    def save(self, step: int, state: Params, score: float | None = None) -> None:
        """Begin to write a state and return; it survives a kill once it is whole, at the latest after `wait`.

        Args:
            step: gradient steps made.
            state: a pytree of plain arrays (keys as their uint32 data, as `TrainState` holds them).
            score: an off-policy estimate of its value; one that is not finite counts as none.

        Raises:
            BadInput: when the disk or the quota is full, which may show only in the next call of any method; earlier
                checkpoints stay.
        """
        for path, leaf in jax.tree_util.tree_leaves_with_path(state):
            if jnp.issubdtype(getattr(leaf, "dtype", np.dtype(object)), jax.dtypes.prng_key):
                raise TypeError(f"expected key data at {jax.tree_util.keystr(path)}, got a typed key.")
        import orbax.checkpoint as ocp

        items = ocp.args.Composite(
            state=ocp.args.StandardSave(state),
            extra=ocp.args.JsonSave({"digest": state_digest(state)}),
        )
        with _full_disk_is_bad_input(self.folder):
            metrics = {"score": float(score)} if score is not None and np.isfinite(score) else None
            self._manager.save(step, args=items, metrics=metrics, force=True)

    def restore(self, template: State, step: int | None = None) -> State:
        """Read a state back, bit for bit.

        Args:
            template: a state of the same structure, shapes and types, such as a fresh one.
            step: which checkpoint; the newest by default.

        Returns:
            The state.

        Raises:
            BadInput: when there is no such checkpoint.
            Refused: when it has another structure or was altered.
        """
        found = self.latest() if step is None else step
        if found is None or found not in self._manager.all_steps():
            raise BadInput(f"expected a checkpoint in {self.folder}, got none at step {step}: train first.")
        import orbax.checkpoint as ocp

        items = ocp.args.Composite(
            state=ocp.args.StandardRestore(jax.tree.map(ocp.utils.to_shape_dtype_struct, template)),
            extra=ocp.args.JsonRestore(),
        )
        try:
            restored = self._manager.restore(found, args=items)
            digest = restored["extra"]["digest"]
            state: State = restored["state"]
        except (ValueError, KeyError, TypeError, OSError) as error:
            said = " ".join(str(error).split())[:300] or type(error).__name__
            raise Refused(
                f"expected checkpoint {found} to be whole and of this run's structure, got '{said}': delete "
                f"{self.folder / 'steps' / str(found)} to resume from the one before."
            ) from error
        if state_digest(state) != digest:
            raise Refused(
                f"expected the state of checkpoint {found} to have digest {digest}, got {state_digest(state)}: it was "
                f"altered, delete {self.folder / 'steps' / str(found)} to resume from the one before."
            )
        return state


def _score(metrics: Mapping[str, float]) -> float:
    return metrics["score"]


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Nested mappings as `{"a.b": value}`."""
    if not isinstance(value, Mapping):
        return {name: value}
    return {k: v for key, item in value.items() for k, v in _flat(item, f"{name}.{key}" if name else str(key)).items()}


def _check_identity(path: Path, identity: dict[str, Any]) -> None:
    if not path.exists():
        write_json(path, identity)
        return
    before = read_json(path)
    if canonical_json(before) == canonical_json(identity):
        return
    old, new = _flat(before), _flat(identity)
    differences = ", ".join(
        f"{name} {new.get(name, 'absent')!r} (checkpoint: {old.get(name, 'absent')!r})"
        for name in sorted(old.keys() | new.keys())
        if old.get(name, "absent") != new.get(name, "absent")
    )
    raise Refused(
        f"expected checkpoints of this run in {path.parent}, got another's, which differs in {differences}: restore "
        "those values, or delete the folder to train anew."
    )


@contextmanager
def _full_disk_is_bad_input(folder: Path) -> Iterator[None]:
    """Orbax reports some full disks as OSError and those met by its storage layer as ValueError."""
    with unwritable_is_bad_input(folder):
        try:
            yield
        except ValueError as error:
            if not any(text in str(error) for text in _SAID_FULL):
                raise
            raise BadInput(
                f"expected room to write a checkpoint, got a full disk or quota in {folder}: free some space there or "
                "point NEORL_HOME to another disk, then run the same command again."
            ) from error
