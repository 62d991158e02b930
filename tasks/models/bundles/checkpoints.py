"""Checkpoints of trainings, which Orbax writes atomically. A resumed training gives bit-identical results."""

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

# Errors in Orbax's threads surface in the next call, which reports them in one sentence.
logging.getLogger("absl").setLevel(logging.CRITICAL)

State = TypeVar("State")

_SAID_FULL = tuple(os.strerror(code) for code in FULL)


def state_digest(state: Params) -> str:
    """Return the SHA-256 over path, type, shape and little-endian bytes of every array of a pytree."""
    leaves = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        array = np.asarray(leaf)
        data = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        leaves.append([name, array.dtype.name, list(array.shape), sha256_hex(data)])
    return digest_json(leaves)


class Checkpoints:
    """Checkpoints of one training.

    Args:
        identity: JSON object that identifies the training (configuration, dataset digest, code digest, ...). A folder
            with a different identity is refused.
        keep: number of newest checkpoints to keep; the checkpoint with the highest score is also kept.

    Raises:
        Refused: if the folder has a different identity.
    """

    def __init__(self, folder: Path, identity: str, keep: int = 2) -> None:
        self.folder = folder.resolve()
        _check_identity(self.folder / "identity.json", parse_json(identity.encode()))
        # Imported here, because most runs find their training finished.
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
        """Wait until pending writes are on disk.

        Raises:
            BadInput: if the disk or quota is full; earlier checkpoints stay.
        """
        with _full_disk_is_bad_input(self.folder):
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Call `wait`, and then release the folder."""
        with _full_disk_is_bad_input(self.folder):
            self._manager.close()

    def latest(self) -> int | None:
        """Return the step of the newest complete checkpoint, or None."""
        self.wait()
        step: int | None = self._manager.latest_step()
        return step

    def best(self) -> int | None:
        """Return the step of the complete checkpoint with the highest score, or None."""
        self.wait()
        scored = [step for step in self._manager.all_steps() if self._manager.metrics(step)]
        step: int | None = self._manager.best_step() if scored else None
        return step

    def save(self, step: int, state: Params, score: float | None = None) -> None:
        """Start to write a checkpoint. After `wait`, the checkpoint is complete and survives a kill.

        Args:
            state: a pytree of plain arrays (keys as uint32 data, as in `TrainState`).
            score: off-policy estimate of the value; ignored if not finite.

        Raises:
            BadInput: if the disk or quota is full. A later call may raise this error. Earlier checkpoints stay.
        """
        for path, leaf in jax.tree_util.tree_leaves_with_path(state):
            if jnp.issubdtype(getattr(leaf, "dtype", np.dtype(object)), jax.dtypes.prng_key):
                raise TypeError(f"{jax.tree_util.keystr(path)} is a typed key: pass its key data")
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
            step: step of the checkpoint. Default: the newest.

        Raises:
            BadInput: if there is no such checkpoint.
            Refused: if the structure differs, or the checkpoint was altered.
        """
        found = self.latest() if step is None else step
        if found is None or found not in self._manager.all_steps():
            raise BadInput(f"{self.folder} has no checkpoint at step {step}: train first")
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
                f"checkpoint {found} is incomplete or of a different structure, got '{said}': delete "
                f"{self.folder / 'steps' / str(found)} to resume from the previous one"
            ) from error
        if state_digest(state) != digest:
            raise Refused(
                f"checkpoint {found} was altered: its digest is {state_digest(state)}, must be {digest}; delete "
                f"{self.folder / 'steps' / str(found)} to resume from the previous one"
            )
        return state


def _score(metrics: Mapping[str, float]) -> float:
    return metrics["score"]


def _flat(value: Any, name: str = "") -> dict[str, Any]:
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
        f"{path.parent} has checkpoints of a different training, which differs in {differences}: restore those "
        "values, or delete the folder to start again"
    )


@contextmanager
def _full_disk_is_bad_input(folder: Path) -> Iterator[None]:
    """Convert errors of a full disk, which Orbax reports as OSError or ValueError."""
    with unwritable_is_bad_input(folder):
        try:
            yield
        except ValueError as error:
            if not any(text in str(error) for text in _SAID_FULL):
                raise
            raise BadInput(
                f"disk or quota is full in {folder}, the checkpoint was not written: free space there or point "
                "NEORL_HOME to a different disk, then repeat the command"
            ) from error
