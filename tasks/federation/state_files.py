"""Training states on disk, as npz archives of named arrays."""

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


def tree_arrays(tree: Any) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a pytree, named by path."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(place, simple=True, separator="/"): np.asarray(leaf) for place, leaf in leaves}


def read_tree(path: Path, like: Tree) -> Tree:
    """Read an npz archive of `tree_arrays` into a pytree with the structure and shapes of `like`.

    Raises:
        Refused: if names, shapes or types differ.
    """
    arrays, required = read_npz(path), tree_arrays(like)
    if {n: (a.shape, a.dtype) for n, a in arrays.items()} != {n: (a.shape, a.dtype) for n, a in required.items()}:
        raise Refused(f"{path} has arrays of a different federation: restore or remove the file")
    tree: Tree = jax.tree.unflatten(jax.tree.structure(like), [jnp.asarray(arrays[name]) for name in required])
    return tree
