"""Secure sums: keys, seeds, secret shares and masks, for sites and coordinator.

Bonawitz et al. 2017, Practical secure aggregation for privacy-preserving machine learning (CCS), figure 4. Sites must
trust the coordinator to distribute their keys unchanged. With keys of its own, the coordinator could read the numbers.
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
"""Sizes in bytes of an X25519 key, of a mask's seed, and of a share of a key or seed."""


class PublicKeys(NamedTuple):
    """A site's public keys for one sum: one for masks, one for encrypting shares."""

    mask: bytes
    seal: bytes

    @classmethod
    def read(cls, data: Bytes) -> PublicKeys:
        """Read the keys from an array.

        Raises:
            BadInput: if the size is wrong or a key is of low order.
        """
        raw = np.asarray(data, np.uint8).tobytes()
        if len(raw) != 2 * KEY:
            raise BadInput(f"two public keys must have {2 * KEY} bytes, got {len(raw)}: restart the site")
        try:
            for key in (raw[:KEY], raw[KEY:]):
                X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(key))
        except ValueError as error:
            raise BadInput(f"public key {key.hex()} is of low order and gives no secret: restart the site") from error
        return cls(raw[:KEY], raw[KEY:])


class RevealedShares(NamedTuple):
    """Shares that unmask a sum: `own` of the seeds of sites that sent numbers, `keys` of the keys of other sites."""

    own: dict[str, Share]
    keys: dict[str, Share]


class SecureSumSite:
    """The secrets and steps of one site in one secure sum. A secret is used once and never written to a file.

    Args:
        label: federation and round; unique for each sum.
    """

    def __init__(self, site: str, label: str) -> None:
        self._site, self._label = site, label
        self._mask, self._seal = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        self._own = secrets.token_bytes(SEED)
        self._public = dict[str, PublicKeys]()
        self._shares = dict[str, tuple[Share, Share]]()
        self._threshold, self._masked, self._revealed = 0, False, False

    @property
    def public(self) -> Bytes:
        """Public keys that the coordinator sends to the other sites."""
        return _bytes(self._mask.public_key().public_bytes_raw() + self._seal.public_key().public_bytes_raw())

    def seal_shares(self, public: Mapping[str, PublicKeys], threshold: int) -> dict[str, Bytes]:
        """Split this site's mask seed and mask key into shares, and return the shares encrypted for each other site.

        Args:
            public: keys of all sites of the sum, including this site.
            threshold: number of shares that recover a secret.

        Raises:
            Refused: if half of the sites could recover a secret, or this site's keys were replaced.
        """
        names = sorted(public)
        if self._site not in public or public[self._site] != PublicKeys.read(self.public):
            raise Refused(f"the keys that were sent for {self._site} are not this site's keys: check the coordinator")
        if not len(names) // 2 < threshold <= len(names):
            raise Refused(
                f"the threshold must be more than half of {len(names)} sites, got {threshold}: change minimum_sites"
            )
        self._public, self._threshold = dict(public), threshold

        def split(secret: bytes) -> dict[str, Share]:
            drawn = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
            return dict(zip(names, split_secret(int.from_bytes(secret), len(names), drawn), strict=True))

        own, key = split(self._own), split(self._mask.private_bytes_raw())
        self._shares[self._site] = own[self._site], key[self._site]
        return {
            name: _bytes(self._cipher(name, outgoing=True).encrypt(bytes(12), _pack(own[name], key[name]), None))
            for name in names
            if name != self._site
        }

    def mask_numbers(self, numbers: Numbers, sealed: Mapping[str, Bytes]) -> Numbers:
        """Decrypt the other sites' shares and return masked numbers.

        Args:
            numbers: encoded numbers, (D,).
            sealed: encrypted shares by sender; missing senders have dropped out.

        Raises:
            Refused: if a share was altered, too few sites are left, or numbers were already masked.
        """
        if self._masked:
            raise Refused(f"numbers of sum '{self._label}' were already sent: repeat the round with new keys")
        self._masked = True
        for name, data in sealed.items():
            try:
                if name == self._site or name not in self._public:
                    raise InvalidTag
                opened = self._cipher(name, outgoing=False).decrypt(bytes(12), data.tobytes(), None)
            except InvalidTag as error:
                raise Refused(
                    f"the shares are not those that {name[:80]} encrypted for {self._site}: check the coordinator"
                ) from error
            self._shares[name] = _unpack(opened)
        names = sorted(self._shares)
        if len(names) < self._threshold:
            raise Refused(f"shares of at least {self._threshold} sites are needed, got {len(names)}: repeat the round")
        pairs = [_seed_between(self._mask, self._public[n].mask) if n != self._site else bytes(SEED) for n in names]
        place, seeds = names.index(self._site), jnp.stack([*map(_key, pairs)])
        return np.asarray(add_masks(jnp.asarray(numbers), place, _key(self._own), seeds))

    def reveal(self, arrived: Sequence[str]) -> RevealedShares:
        """Return the shares that unmask the sum; a second call is refused.

        Raises:
            Refused: if shares were already revealed, a site is unknown, or too few numbers arrived.
        """
        if self._revealed or not set(arrived) <= set(self._shares) or len(set(arrived)) < self._threshold:
            fault = f"the request names {', '.join(sorted(arrived))[:200]}"
            raise Refused(
                f"shares are revealed once, after at least {self._threshold} sites of the sum sent numbers, but "
                f"{'they were already revealed' if self._revealed else fault}: check the coordinator"
            )
        self._revealed = True
        own = {name: self._shares[name][0] for name in sorted(arrived)}
        keys = {name: key for name, (_, key) in sorted(self._shares.items()) if name not in arrived}
        return RevealedShares(own, keys)

    def _cipher(self, other: str, *, outgoing: bool) -> AESGCM:
        direction = f"{self._site}>{other}" if outgoing else f"{other}>{self._site}"
        agreed = self._seal.exchange(X25519PublicKey.from_public_bytes(self._public[other].seal))
        return AESGCM(_derived(agreed, f"neorl federation share {self._label} {direction}", 32))


def unmask_total(
    masked: Mapping[str, Numbers],
    public: Mapping[str, PublicKeys],
    revealed: Mapping[str, RevealedShares],
    threshold: int,
) -> Numbers:
    """Return the sum of the numbers that arrived, without masks. The numbers of single sites stay hidden.

    Args:
        masked: masked numbers by site, each (D,).
        public: keys of all sites that exchanged shares.

    Raises:
        Refused: if too few sites revealed shares.
    """
    if len(revealed) < threshold:
        raise Refused(
            f"shares of {threshold} sites are needed to unmask the sum, got {len(revealed)}: repeat the round"
        )
    names, arrived = sorted(public), sorted(masked)
    dropped = [name for name in names if name not in masked]
    shares = [revealed[name] for name in sorted(revealed)][:threshold]
    own = [_key(_secret([each.own[name] for each in shares], SEED)) for name in arrived]
    keys = [X25519PrivateKey.from_private_bytes(_secret([each.keys[name] for each in shares], KEY)) for name in dropped]
    pairs = [[_key(_seed_between(key, public[name].mask)) for name in arrived] for key in keys]
    place = {name: i for i, name in enumerate(names)}
    total = remove_masks(
        jnp.sum(jnp.stack([jnp.asarray(masked[name]) for name in arrived]), axis=0, dtype=jnp.uint32),
        jnp.asarray([place[name] for name in arrived]),
        jnp.stack(own),
        jnp.asarray([place[name] for name in dropped], jnp.int32),
        jnp.asarray(pairs, jnp.uint32).reshape(len(dropped), len(arrived), 2),
    )
    return np.asarray(total)


def read_share(name: str, data: Bytes) -> Share:
    """Read one share of a site's secret from bytes.

    Raises:
        BadInput: if the data are not a share.
    """
    raw = np.asarray(data, np.uint8).tobytes()
    if len(raw) != 4 + POINT or int.from_bytes(raw[4:]) >= PRIME:
        raise BadInput(
            f"a share of the secret of {name[:80]} must have {4 + POINT} bytes and be below the prime, got {len(raw)} "
            "bytes: restart the site"
        )
    return Share(int.from_bytes(raw[:4]), int.from_bytes(raw[4:]))


def share_bytes(share: Share) -> Bytes:
    return _bytes(share.x.to_bytes(4) + share.y.to_bytes(POINT))


def _pack(own: Share, key: Share) -> bytes:
    return share_bytes(own).tobytes() + share_bytes(key).tobytes()


def _unpack(data: bytes) -> tuple[Share, Share]:
    parts = np.frombuffer(data, np.uint8)
    return read_share("a site", parts[: 4 + POINT]), read_share("a site", parts[4 + POINT :])


def _secret(shares: Sequence[Share], size: int) -> bytes:
    try:
        return recover_secret(shares).to_bytes(size)
    except (ValueError, OverflowError) as error:
        raise Refused(f"{len(shares)} shares give no secret of {size} bytes, one is wrong: repeat the round") from error


def _seed_between(own: X25519PrivateKey, other: bytes) -> bytes:
    return _derived(own.exchange(X25519PublicKey.from_public_bytes(other)), "neorl federation mask", SEED)


def _derived(secret: bytes, label: str, size: int) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=size, salt=None, info=label.encode()).derive(secret)


def _key(seed: bytes) -> Any:
    return jnp.asarray(np.frombuffer(seed, "<u4"))


def _bytes(data: bytes) -> Bytes:
    return np.frombuffer(data, np.uint8)
