"""Merkle trees against RFC 6962: published values, the recursive definition, and proofs that must fail."""

from __future__ import annotations

import hashlib

import pytest

from tasks.files.merkle import (
    MerkleTree,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    merkle_root,
    verify_consistency,
    verify_leaf_hash,
)

# Leaves and roots from the tests of the Certificate Transparency reference implementation.
LEAVES = [
    bytes.fromhex(text)
    for text in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


def recursive_root(leaves: list[bytes]) -> bytes:
    """The recursive definition of RFC 6962, section 2.1."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\x00" + leaves[0]).digest()
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return hashlib.sha256(b"\x01" + recursive_root(leaves[:k]) + recursive_root(leaves[k:])).digest()


def test_published_roots() -> None:
    # The empty tree.
    assert merkle_root([]).hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    for size, root in enumerate(ROOTS, start=1):
        assert merkle_root(iter(LEAVES[:size])).hex() == root


@pytest.mark.parametrize("size", [*range(34), 63, 64, 65, 100])
def test_streaming_equals_recursive_definition(size: int) -> None:
    leaves = [f"record {i}".encode() for i in range(size)]
    assert merkle_root(leaves) == recursive_root(leaves)


def test_memory_is_logarithmic() -> None:
    tree = MerkleTree()
    for i in range(5000):
        tree.append(i.to_bytes(4))
        assert len(tree._subtrees) <= 13
    assert tree.size == 5000


@pytest.mark.parametrize("size", [*range(1, 18), 31, 33])
def test_inclusion_proofs_of_all_records(size: int) -> None:
    leaves = [f"record {i}".encode() for i in range(size)]
    root = merkle_root(leaves)
    for index, leaf in enumerate(leaves):
        proof = inclusion_proof(leaves, index)
        assert len(proof) <= (size - 1).bit_length()
        assert verify_leaf_hash(root, leaf_hash(leaf), index, size, proof)
        assert not verify_leaf_hash(root, leaf_hash(leaf + b"x"), index, size, proof)
        assert not verify_leaf_hash(root, leaf_hash(leaf), index, size, [*proof, root])
        if proof:
            assert not verify_leaf_hash(root, leaf_hash(leaf), index, size, proof[:-1])
            assert not verify_leaf_hash(root, leaf_hash(leaf), (index + 1) % size, size, proof)


def test_index_out_of_range_is_refused() -> None:
    with pytest.raises(IndexError, match="between 0 and 7"):
        inclusion_proof(LEAVES, 8)
    assert not verify_leaf_hash(merkle_root(LEAVES), leaf_hash(LEAVES[0]), 8, 8, [])


def test_a_node_cannot_pose_as_a_leaf() -> None:
    left, right = (hashlib.sha256(b"\x00" + leaf).digest() for leaf in LEAVES[:2])
    assert merkle_root([left + right]) != merkle_root(LEAVES[:2])


# Consistency proofs from the same tests.
CONSISTENCY = {
    (1, 1): [],
    (1, 8): [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ],
    (6, 8): [
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
    (2, 5): [
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ],
}


@pytest.mark.parametrize(("sizes", "proof"), CONSISTENCY.items())
def test_published_consistency_proofs(sizes: tuple[int, int], proof: list[str]) -> None:
    old, size = sizes
    assert [node.hex() for node in consistency_proof(LEAVES[:size], old)] == proof


def test_consistency_proofs_fail_for_other_trees() -> None:
    leaves = [f"record {i}".encode() for i in range(20)]
    roots = [merkle_root(leaves[:size]) for size in range(21)]
    for size in range(21):
        for old in range(size + 1):
            proof = consistency_proof(leaves[:size], old)
            assert verify_consistency(old, roots[old], size, roots[size], proof)
            if old:
                assert not verify_consistency(old, merkle_root([b"x", *leaves[1:old]]), size, roots[size], proof)
                assert not verify_consistency(old, roots[old], size, merkle_root([b"x", *leaves[1:size]]), proof)
            assert not verify_consistency(old, roots[old], size, roots[size], [*proof, bytes(32)])
            if proof:
                assert not verify_consistency(old, roots[old], size, roots[size], proof[:-1])
                assert not verify_consistency(old, roots[old], size, roots[size], [bytes(32), *proof[1:]])
    assert not verify_consistency(3, roots[3], 2, roots[2], [])
    with pytest.raises(IndexError, match="between 0 and 20"):
        consistency_proof(leaves, 21)
