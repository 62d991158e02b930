"""States as arrays by name, and back: what coordinator and sites keep between rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from configs.errors import Refused
from tasks.files.arrays import read_npz

Tree = TypeVar("Tree")


def arrays_of(tree: Any) -> dict[str, npt.NDArray[Any]]:
    """A tree's arrays, each by its place."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(place, simple=True, separator="/"): np.asarray(leaf) for place, leaf in leaves}


def read_tree(path: Path, like: Tree) -> Tree:
    """A tree that was written as an npz archive of `arrays_of`.

    Args:
        path: of the archive.
        like: a tree of the same structure and shapes.

    Raises:
        Refused: when the file holds another tree.
    """
    arrays, expected = read_npz(path), arrays_of(like)
    if {n: (a.shape, a.dtype) for n, a in arrays.items()} != {n: (a.shape, a.dtype) for n, a in expected.items()}:
        raise Refused(f"expected what was kept of this federation in {path}, got another's: restore or remove it.")
    found: Tree = jax.tree.unflatten(jax.tree.structure(like), [jnp.asarray(arrays[name]) for name in expected])
    return found
