"""Commands `neorl keys ...`: the home's key, which signs entries, and persons' keys, which sign decisions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from configs.errors import BadInput
from configs.home import Home
from flows.cli.common import AsJson, emit, group

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from tasks.evidence.people.statement import Signatory

keys = group("Manage signing keys: the home's and persons'.")

Person = Annotated[str, typer.Option(help="Owner of the key; by default the home.")]
Why = Annotated[str, typer.Option(help="Reason, stored in the ledger.")]
KeyFile = Annotated[Path | None, typer.Option("--key", help="Your private key's file; by default in ~/.config/neorl.")]
By = Annotated[str, typer.Option("--by", help="Your name; by default NEORL_PERSON or the user name.")]


class Actor(NamedTuple):
    """A person who gives a command, with the unlocked key if there is one."""

    name: str
    signatory: Signatory | None

    @property
    def signature(self) -> str:
        """Text for the terminal that says who signed a decision."""
        return f"signed by {self.signatory.person}" if self.signatory else "in the home's name, without a person's key"


def actor_of(by: str = "", key: Path | None = None) -> Actor:
    """Return the person who gives this command, and unlock the person's key if it is on this machine."""
    from tasks.evidence.people.private_keys import acting, public_file, read_public, signatory_of

    if key is not None and not by:
        by = read_public(public_file(key))[0].person
    name = by or acting()
    return Actor(name, signatory_of(name, key) if name else None)


@keys.command("show")
def keys_show(as_json: AsJson = False) -> None:
    """Print the home's key id, the persons' keys with dates, and the trust file for an auditor.

    Example: neorl keys show
    """
    from tasks.evidence.ledger.client import model_key
    from tasks.evidence.ledger.ledger import Ledger
    from tasks.evidence.ledger.signing import TrustRoot, home_pin, key_id, trust_yaml
    from tasks.lifecycle.keys import key_rows

    home = Home.locate()
    public, root = _signing_key(home), TrustRoot.locate(home)
    pins = list(root.pins)
    if key_id(public) not in root.keys:
        pins.append(home_pin(public, f"not pinned in {root.source}"))
    people = key_rows(Ledger.open(home, write=False).entries()) if Ledger.exists(home) else []
    names = ("id", "person", "roles", "since", "until", "revoked")
    result = {
        "id": key_id(public),
        "model_key": model_key(home),
        "trusted": sorted(root.keys),
        "trust_root": str(root.source),
        "pins": [pin._asdict() for pin in pins],
        "people": [dict(zip(names, row, strict=True)) for row in people],
    }
    lines = [f"signs as {result['id']}", f"signs bundles with the key whose file has SHA-256 {result['model_key']}"]
    lines += [f"trusted: {', '.join(sorted(root.keys))} ({root.source})"]
    lines += [f"{row[1]} ({row[2] or 'no role'}): {row[0]}, {_dates(row)}" for row in people]
    emit(result, as_json, [*lines, trust_yaml(*pins).decode().rstrip()])


@keys.command("init")
def keys_init(as_json: AsJson = False) -> None:
    """Create this home's signing key if it is missing.

    Example: neorl keys init
    """
    from tasks.evidence.ledger.ledger import Ledger
    from tasks.evidence.ledger.signing import key_id

    home = Home.locate()
    root = Ledger.open(home).trust
    name = key_id(_signing_key(home))
    emit({"id": name}, as_json, [f"signs as {name}, trusted by {root.source}"])


@keys.command("create")
def keys_create(
    person: Annotated[str, typer.Option(help="The person's name, as the ledger will show it.")],
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Create a person's key outside all homes, encrypted with a passphrase.

    Example: neorl keys create --person "Ada Lovelace"
    """
    from tasks.evidence.ledger.signing import key_id, public_key
    from tasks.evidence.people.private_keys import create

    file, own = create(Home.locate(), person, key)
    name = key_id(public_key(own.public))
    result = {"id": name, "person": own.person, "public": str(file), "key": str(file.with_suffix(".pem"))}
    lines = [
        f"{own.person} signs as {name}; keep {result['key']} and the passphrase",
        f"next: neorl keys pin --person {file} --role ROLE --why ...",
    ]
    emit(result, as_json, lines)


@keys.command("pin")
def keys_pin(
    note: Annotated[str, typer.Option(help="Note about the home's key.")] = "pinned by neorl keys pin",
    person: Annotated[
        Path | None, typer.Option(help="Public key of a person to enrol, from 'neorl keys create'.")
    ] = None,
    role: Annotated[list[str] | None, typer.Option(help="Role of that person; repeatable.")] = None,
    why: Why = "enrolled after comparing the key's id with its person",
    by: By = "",
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Pin this home's public key in the project's configuration, or enrol and pin a person's key.

    Without --person, the command writes configs/trust.yaml, after which only keys in this file count. It also copies
    the home's safety policies and witnesses, unless the project has its own. With --person, the first person is
    enrolled in the home's name; every further person needs the signature of an enrolled person.

    Example: neorl keys pin --person ada.json --role "safety engineer"
    """
    if person is not None:
        _enrol(person, role or [], why, by, key, as_json)
        return
    from tasks.evidence.ledger.signing import PROJECT_TRUST, key_id
    from tasks.lifecycle.keys import pin_home

    home = Home.locate()
    public = _signing_key(home)
    copied = [str(file) for file in pin_home(home, public, note, PROJECT_TRUST)]
    name = key_id(public)
    lines = [f"{name} is pinned in {PROJECT_TRUST}", *(f"also copied: {file}" for file in copied)]
    emit({"id": name, "pinned_in": str(PROJECT_TRUST), "copied": copied}, as_json, lines)


@keys.command("rotate")
def keys_rotate(why: Why, person: Person = "", key: KeyFile = None, by: By = "", as_json: AsJson = False) -> None:
    """Replace the home's or a person's key by a new key. The old key signs the change in the ledger.

    Example: neorl keys rotate --why "yearly" --person "Ada Lovelace"
    """
    from tasks.evidence.ledger.ledger import Ledger
    from tasks.lifecycle.keys import rotate_home, rotate_person

    home = Home.locate()
    if person:
        name = rotate_person(Ledger.open(home), person, why, key)
    else:
        _signing_key(home)
        name = rotate_home(home, actor_of(by).name or "unknown", why)
    source = Ledger.open(home).trust.source
    owner = person or "the home"
    emit({"id": name, "trust_root": str(source)}, as_json, [f"{owner} now signs as {name}, pinned in {source}"])


@keys.command("revoke")
def keys_revoke(
    name: Annotated[str, typer.Argument(metavar="KEY", help="The key's id, or the owner.")],
    why: Why,
    since: Annotated[
        str, typer.Option("--from", help="Time from which the key is invalid: a date or an ISO time; by default now.")
    ] = "",
    by: By = "",
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a key from a time on, and list the ledger entries that become invalid. The time may be in the past.

    Example: neorl keys revoke "Ada Lovelace" --from 2026-11-20 --why "the laptop was stolen"
    """
    from tasks.evidence.audit.people import check_people
    from tasks.evidence.ledger.ledger import Ledger
    from tasks.lifecycle.keys import first_moment, revoke

    actor = actor_of(by, key)
    ledger = Ledger.open(Home.locate())
    entry = revoke(ledger, name, first_moment(since), actor.name, why, actor.signatory)
    ledger.entries()
    found = [c.detail for c in check_people(ledger.verified, ledger.trust) if c.name == "people" and not c.passed]
    result = {"key": entry.body["key"], "since": entry.body["since"], "entry": entry.digest, "found": found}
    lines = [f"key {entry.body['key']} is revoked from {entry.body['since']} on; {actor.signature}", *found]
    emit(result, as_json, lines)


def _enrol(file: Path, roles: list[str], why: str, by: str, key: Path | None, as_json: bool) -> None:
    from tasks.evidence.ledger.ledger import Ledger
    from tasks.lifecycle.keys import enrol

    actor = actor_of(by, key)
    ledger = Ledger.open(Home.locate())
    entry = enrol(ledger, file, roles, actor.name, why, actor.signatory)
    source = ledger.trust.source
    result = {"person": entry.body["person"], "entry": entry.digest, "pinned_in": str(source)}
    emit(result, as_json, [f"{entry.body['person']}'s key is enrolled and pinned in {source}; {actor.signature}"])


def _signing_key(home: Home) -> Ed25519PublicKey:
    """Return the home's public key from the signer."""
    from tasks.evidence.ledger.client import public_key

    if not home.signing_key.exists():
        raise BadInput(f"no signing key in {home.signing_key}: create one with 'neorl keys init'.")
    return public_key(home)


def _dates(row: tuple[str, ...]) -> str:
    ended = f"revoked from {row[5]} on" if row[5] else f"until {row[4]}" if row[4] else "in force"
    return f"since {row[3]}, {ended}"
