"""Merkle trees (RFC 6962): one root hash over many records, with proofs of inclusion and consistency."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence


def leaf_hash(*parts: bytes | memoryview) -> bytes:
    """Return the hash of a record, given in parts: SHA-256 of a zero byte and the record (RFC 6962, section 2.1)."""
    return hashlib.sha256(b"".join((b"\x00", *parts))).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of two child hashes: SHA-256 of the byte 1, `left` and `right` (RFC 6962, section 2.1)."""
    return hashlib.sha256(b"\x01" + left + right).digest()


class MerkleTree:
    """A Merkle tree that grows by appending. It stores only the roots of complete subtrees: O(log n) memory."""

    def __init__(self) -> None:
        self.size = 0
        self._subtrees: list[bytes] = []

    def append(self, leaf: bytes) -> None:
        self.append_hash(leaf_hash(leaf))

    def append_hash(self, node: bytes) -> None:
        """Append a record by its `leaf_hash`."""
        # Each trailing 1 bit of the size is a complete subtree, which merges with the new leaf.
        size = self.size
        while size & 1:
            node = node_hash(self._subtrees.pop(), node)
            size >>= 1
        self._subtrees.append(node)
        self.size += 1

    def root(self) -> bytes:
        """Return the root hash of all leaves so far; without leaves, the SHA-256 of the empty string."""
        if not self._subtrees:
            return hashlib.sha256(b"").digest()
        root = self._subtrees[-1]
        for subtree in reversed(self._subtrees[:-1]):
            root = node_hash(subtree, root)
        return root


def merkle_root(leaves: Iterable[bytes]) -> bytes:
    """Return the root hash (32 bytes) of the Merkle tree over the records in `leaves` (RFC 6962, section 2.1)."""
    return root_of_hashes(map(leaf_hash, leaves))


def root_of_hashes(nodes: Iterable[bytes]) -> bytes:
    """Return the root hash (32 bytes) of the Merkle tree over records, given the `leaf_hash` of each record."""
    tree = MerkleTree()
    for node in nodes:
        tree.append_hash(node)
    return tree.root()


def inclusion_proof(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """Return a proof that record `index` is in the tree over `leaves` (RFC 6962, section 2.1.1, 'audit path').

    The proof is the sibling hashes (32 bytes) on the way from the leaf to the root; for n leaves at most ceil(log2 n)
    hashes. An index out of range raises IndexError.
    """
    if not 0 <= index < len(leaves):
        raise IndexError(f"index must be between 0 and {len(leaves) - 1}, got {index}")
    path: list[bytes] = []
    level = [leaf_hash(leaf) for leaf in leaves]
    while len(level) > 1:
        sibling = index ^ 1
        if sibling < len(level):
            path.append(level[sibling])
        paired = [node_hash(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        # A last node without a partner moves up unchanged; this gives the same tree as the recursive definition.
        level = paired + level[len(paired) * 2 :]
        index >>= 1
    return path


def verify_leaf_hash(root: bytes, node: bytes, index: int, size: int, proof: Sequence[bytes]) -> bool:
    """Check the proof that `node` is the leaf hash of record `index` in the tree of `size` records with hash `root`.

    Source: RFC 9162, section 2.1.3.2 (the same tree as RFC 6962).
    """
    if not 0 <= index < size:
        return False
    last = size - 1
    for sibling in proof:
        if last == 0:
            return False
        if index & 1 or index == last:
            node = node_hash(sibling, node)
            while not index & 1 and index:
                index >>= 1
                last >>= 1
        else:
            node = node_hash(node, sibling)
        index >>= 1
        last >>= 1
    return last == 0 and node == root


def consistency_proof(leaves: Sequence[bytes], old: int) -> list[bytes]:
    """Return a proof that the tree over `leaves` extends the tree of its first `old` leaves (RFC 6962, section 2.1.2).

    For n leaves the proof has at most ceil(log2 n) + 1 hashes of 32 bytes; for `old` = 0 or n it is empty. If `old` is
    larger than n, IndexError is raised.
    """
    if not 0 <= old <= len(leaves):
        raise IndexError(f"size of the earlier tree must be between 0 and {len(leaves)}, got {old}")
    return _subproof(leaves, old, whole=True) if 0 < old < len(leaves) else []


def _subproof(leaves: Sequence[bytes], old: int, whole: bool) -> list[bytes]:
    """Compute SUBPROOF of RFC 6962; `whole` is its argument b: whether the verifier knows this subtree's old root."""
    if old == len(leaves):
        return [] if whole else [merkle_root(leaves)]
    half = 1 << (len(leaves) - 1).bit_length() - 1
    if old <= half:
        return [*_subproof(leaves[:half], old, whole), merkle_root(leaves[half:])]
    return [*_subproof(leaves[half:], old - half, False), merkle_root(leaves[:half])]


def verify_consistency(old: int, old_root: bytes, size: int, root: bytes, proof: Sequence[bytes]) -> bool:
    """Check the proof that the tree `root` of `size` leaves extends the tree `old_root` of its first `old` leaves.

    Source: RFC 9162, section 2.1.4.2 (the same tree as RFC 6962).
    """
    if not 0 <= old <= size:
        return False
    if old == size:
        return not proof and old_root == root
    if old == 0:
        return not proof
    path = list(proof)
    if old & (old - 1) == 0:  # if `old` is a power of two, the earlier tree is one node of the later tree
        path.insert(0, old_root)
    if not path:
        return False
    index, last = old - 1, size - 1
    while index & 1:
        index >>= 1
        last >>= 1
    earlier = later = path[0]
    for node in path[1:]:
        if last == 0:
            return False
        if index & 1 or index == last:
            earlier, later = node_hash(node, earlier), node_hash(node, later)
            while not index & 1 and index:
                index >>= 1
                last >>= 1
        else:
            later = node_hash(later, node)
        index >>= 1
        last >>= 1
    return last == 0 and earlier == old_root and later == root
