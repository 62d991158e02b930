"""A site's and the coordinator's part in a secure sum: keys, seeds, shares of both, and what is told in the end.

Bonawitz et al. 2017, Practical secure aggregation for privacy-preserving machine learning (CCS), figure 4, for a
coordinator that keeps to the protocol: it hands the sites each other's keys, and who replaced these could read along.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from configs.errors import BadInput, Refused
from neorl_core.federated.secure import add_masks, remove_masks
from neorl_core.federated.shamir import PRIME, Share, recover_secret, split_secret

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.uint32]

KEY, SEED, POINT = 32, 8, 66
"""Bytes of an X25519 key, of a mask's seed, and of a share of either."""


class Public(NamedTuple):
    """A site's public keys for one sum: one for seeds of masks, one by which shares are sealed."""

    mask: bytes
    seal: bytes

    @classmethod
    def read(cls, data: Bytes) -> Public:
        """Of an array that was sent.

        Raises:
            BadInput: when it is of another size.
        """
        raw = np.asarray(data, np.uint8).tobytes()
        if len(raw) != 2 * KEY:
            raise BadInput(f"expected two public keys of {KEY} bytes, got {len(raw)} bytes.")
        try:
            for key in (raw[:KEY], raw[KEY:]):
                X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(key))
        except ValueError as error:
            raise BadInput("expected public keys that share a secret, got one of low order.") from error
        return cls(raw[:KEY], raw[KEY:])


class Revealed(NamedTuple):
    """Shares that a site tells in the end: of own seeds of who arrived, and of mask keys of who did not."""

    own: dict[str, Share]
    keys: dict[str, Share]


class Masks:
    """A site's part in one sum. What it holds is used once and forgotten.

    Args:
        site: its name.
        label: of federation and round, which no other sum has.
    """

    def __init__(self, site: str, label: str) -> None:
        self._site, self._label = site, label
        self._mask, self._seal = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        self._own = secrets.token_bytes(SEED)
        self._public = dict[str, Public]()
        self._shares = dict[str, tuple[Share, Share]]()
        self._threshold, self._added, self._told = 0, False, False

    @property
    def public(self) -> Bytes:
        """The keys that the coordinator hands to the others."""
        return _bytes(self._mask.public_key().public_bytes_raw() + self._seal.public_key().public_bytes_raw())

    def sealed(self, public: Mapping[str, Public], threshold: int) -> dict[str, Bytes]:
        """Shares of the own seed and of the mask's key, for each other site in a form that only it can read.

        Args:
            public: keys of all sites of the sum, this one's among them.
            threshold: shares that recover a secret.

        Raises:
            Refused: when there are too few sites for a secret to be one, or this site's keys are not its own.
        """
        names = sorted(public)
        if self._site not in public or public[self._site] != Public.read(self.public):
            raise Refused("expected this site's own keys among those of the sum, got others.")
        if not len(names) // 2 < threshold <= len(names):
            raise Refused(f"expected shares of more than half of {len(names)} sites to be needed, got {threshold}.")
        self._public, self._threshold = dict(public), threshold

        def shared(secret: bytes) -> dict[str, Share]:
            drawn = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
            return dict(zip(names, split_secret(int.from_bytes(secret), len(names), drawn), strict=True))

        own, key = shared(self._own), shared(self._mask.private_bytes_raw())
        self._shares[self._site] = own[self._site], key[self._site]
        return {
            name: _bytes(self._cipher(name, outgoing=True).encrypt(bytes(12), _packed(own[name], key[name]), None))
            for name in names
            if name != self._site
        }

    def add(self, numbers: Numbers, sealed: Mapping[str, Bytes]) -> Numbers:
        """Numbers with masks on them, after what the others sealed for this site is opened.

        Args:
            numbers: (D,), encoded.
            sealed: by the site that sealed it; whose is missing has dropped out.

        Raises:
            Refused: when something was altered, too few are left, or it was asked before.
        """
        if self._added:
            raise Refused("expected to be asked for numbers once in a sum, got asked again.")
        self._added = True
        for name, data in sealed.items():
            try:
                if name == self._site or name not in self._public:
                    raise InvalidTag
                opened = self._cipher(name, outgoing=False).decrypt(bytes(12), data.tobytes(), None)
            except InvalidTag as error:
                raise Refused(f"expected shares that {name[:80]} sealed for this site, got others.") from error
            self._shares[name] = _unpacked(opened)
        names = sorted(self._shares)
        if len(names) < self._threshold:
            raise Refused(f"expected shares of {self._threshold} sites at least, got {len(names)}.")
        pairs = [_seed_between(self._mask, self._public[n].mask) if n != self._site else bytes(SEED) for n in names]
        told = add_masks(jnp.asarray(numbers), names.index(self._site), _key(self._own), jnp.stack([*map(_key, pairs)]))
        return np.asarray(told)

    def reveal(self, arrived: Sequence[str]) -> Revealed:
        """Shares by which the coordinator takes the masks off, once.

        Args:
            arrived: sites whose masked numbers arrived.

        Raises:
            Refused: when it was asked before, or too few arrived for a sum to hide each.
        """
        if self._told or not set(arrived) <= set(self._shares) or len(set(arrived)) < self._threshold:
            raise Refused(
                "expected to be asked once, of sites that take part and enough of them, got another question."
            )
        self._told = True
        own = {name: self._shares[name][0] for name in sorted(arrived)}
        return Revealed(own, {name: key for name, (_, key) in sorted(self._shares.items()) if name not in arrived})

    def _cipher(self, other: str, *, outgoing: bool) -> AESGCM:
        """Of one direction between two sites in one sum, for the one message that goes that way."""
        way = f"{self._site}>{other}" if outgoing else f"{other}>{self._site}"
        agreed = self._seal.exchange(X25519PublicKey.from_public_bytes(self._public[other].seal))
        return AESGCM(_derived(agreed, f"neorl federation share {self._label} {way}", 32))


def total_of(
    sent: Mapping[str, Numbers], public: Mapping[str, Public], revealed: Mapping[str, Revealed], threshold: int
) -> Numbers:
    """The sum of the encoded numbers that arrived, without masks; the terms stay hidden.

    Args:
        sent: masked numbers (D,) by site.
        public: keys of all sites that exchanged shares.
        revealed: what sites told in the end.
        threshold: shares that recover a secret.

    Raises:
        Refused: when too few told.
    """
    if len(revealed) < threshold:
        raise Refused(f"expected shares of {threshold} sites, got {len(revealed)}.")
    names, arrived = sorted(public), sorted(sent)
    dropped = [name for name in names if name not in sent]
    told = [revealed[name] for name in sorted(revealed)][:threshold]
    own = [_key(_secret([one.own[name] for one in told], SEED)) for name in arrived]
    keys = [X25519PrivateKey.from_private_bytes(_secret([one.keys[name] for one in told], KEY)) for name in dropped]
    pairs = [[_key(_seed_between(key, public[name].mask)) for name in arrived] for key in keys]
    at = {name: place for place, name in enumerate(names)}
    total = jnp.sum(jnp.stack([jnp.asarray(sent[name]) for name in arrived]), axis=0, dtype=jnp.uint32)
    shaped = jnp.asarray(pairs, jnp.uint32).reshape(len(dropped), len(arrived), 2)
    found = remove_masks(
        total,
        jnp.asarray([at[name] for name in arrived]),
        jnp.stack(own),
        jnp.asarray([at[name] for name in dropped], jnp.int32),
        shaped,
    )
    return np.asarray(found)


def points_of(name: str, data: Bytes) -> Share:
    """A share that was sent.

    Raises:
        BadInput: when it is none.
    """
    raw = np.asarray(data, np.uint8).tobytes()
    if len(raw) != 4 + POINT or int.from_bytes(raw[4:]) >= PRIME:
        raise BadInput(f"expected a share of the secret of {name[:80]}, got {len(raw)} bytes.")
    return Share(int.from_bytes(raw[:4]), int.from_bytes(raw[4:]))


def point_bytes(share: Share) -> Bytes:
    """A share as it is sent."""
    return _bytes(share.x.to_bytes(4) + share.y.to_bytes(POINT))


def _packed(own: Share, key: Share) -> bytes:
    return point_bytes(own).tobytes() + point_bytes(key).tobytes()


def _unpacked(data: bytes) -> tuple[Share, Share]:
    parts = np.frombuffer(data, np.uint8)
    return points_of("a site", parts[: 4 + POINT]), points_of("a site", parts[4 + POINT :])


def _secret(told: Sequence[Share], size: int) -> bytes:
    try:
        return recover_secret(told).to_bytes(size)
    except (ValueError, OverflowError) as error:
        raise Refused("expected shares of one secret, got others: a site told a wrong one.") from error


def _seed_between(own: X25519PrivateKey, other: bytes) -> bytes:
    return _derived(own.exchange(X25519PublicKey.from_public_bytes(other)), "neorl federation mask", SEED)


def _derived(secret: bytes, label: str, size: int) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=size, salt=None, info=label.encode()).derive(secret)


def _key(seed: bytes) -> Any:
    return jnp.asarray(np.frombuffer(seed, "<u4"))


def _bytes(data: bytes) -> Bytes:
    return np.frombuffer(data, np.uint8)
