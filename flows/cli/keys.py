"""Commands about keys: the home's, which signs entries, and those of persons, who sign decisions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from configs.errors import BadInput
from configs.home import Home
from flows.cli.console import AsJson, emit, group

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from tasks.evidence.people.statement import Signatory

keys = group("The keys that sign, whose they are, and from when to when they count.")

Person = Annotated[str, typer.Option(help="Whose key: a person's; the home's own otherwise.")]
Why = Annotated[str, typer.Option(help="Why, for the record.")]
KeyFile = Annotated[
    Path | None, typer.Option("--key", help="The person's private key; the one in their configuration otherwise.")
]
By = Annotated[str, typer.Option("--by", help="Who does it; NEORL_PERSON or your user name otherwise.")]
HOME_ONLY = "in the home's name: no person's key stands behind it"


class Hand(NamedTuple):
    """Who acts: a name, and the person with their key where there is one."""

    name: str
    signatory: Signatory | None

    @property
    def told(self) -> str:
        """How a decision is signed, for whoever reads the terminal."""
        return f"signed by {self.signatory.person}" if self.signatory else HOME_ONLY


def hand_of(by: str = "", key: Path | None = None) -> Hand:
    """Who gives this command; their key is unlocked where this machine has it.

    Args:
        by: who acts; else the person that the environment names, or the login.
        key: the file of their private key.
    """
    from tasks.evidence.people.private_keys import acting, public_file, read_public, signatory_of

    if key is not None and not by:
        by = read_public(public_file(key))[0].person
    name = by or acting()
    return Hand(name, signatory_of(name, key) if name else None)


@keys.command("show")
def keys_show(as_json: AsJson = False) -> None:
    """Print the signing key's id, the persons' keys with their dates, and the trust root in force for an auditor.

    Example: neorl keys show
    """
    from tasks.evidence.ledger.ledger import Ledger
    from tasks.evidence.ledger.signing import TrustRoot, home_pin, key_id, trust_yaml
    from tasks.lifecycle.keys import told

    home = Home.locate()
    public, root = _signing_key(home), TrustRoot.locate(home)
    pins = list(root.pins)
    if key_id(public) not in root.keys:
        pins.append(home_pin(public, f"not pinned in {root.source}"))
    people = told(Ledger.open(home, write=False).entries()) if Ledger.exists(home) else []
    names = ("id", "person", "roles", "since", "until", "revoked")
    result = {
        "id": key_id(public),
        "trusted": sorted(root.keys),
        "trust_root": str(root.source),
        "pins": [pin._asdict() for pin in pins],
        "people": [dict(zip(names, row, strict=True)) for row in people],
    }
    lines = [f"signs as {result['id']}", f"trusted: {', '.join(sorted(root.keys))} ({root.source})"]
    lines += [f"{row[1]} ({row[2] or 'no role'}): {row[0]}, {_dates(row)}" for row in people]
    emit(result, as_json, [*lines, trust_yaml(*pins).decode().rstrip()])


@keys.command("init")
def keys_init(as_json: AsJson = False) -> None:
    """Make this home's signing key, unless there is one.

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
    person: Annotated[str, typer.Option(help="Whose key it is, as the record is to show the name.")],
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a person's own key, encrypted under a passphrase that only they know, outside every home.

    Example: neorl keys create --person "Ada Lovelace"
    """
    from tasks.evidence.ledger.signing import key_id, public_key
    from tasks.evidence.people.private_keys import create

    file, own = create(Home.locate(), person, key)
    name = key_id(public_key(own.public))
    result = {"id": name, "person": own.person, "public": str(file), "key": str(file.with_suffix(".pem"))}
    told = f"{own.person} signs as {name}; keep {result['key']} and its passphrase"
    emit(result, as_json, [told, f"have it enrolled: neorl keys pin --person {file} --role ROLE --why ..."])


@keys.command("pin")
def keys_pin(
    note: Annotated[str, typer.Option(help="Whose key it is.")] = "pinned by neorl keys pin",
    person: Annotated[
        Path | None, typer.Option(help="Enrol this person's key: the file that 'neorl keys create' wrote.")
    ] = None,
    role: Annotated[list[str] | None, typer.Option(help="As what that person may decide; repeat it.")] = None,
    why: Why = "enrolled after comparing the key's id with its person",
    by: By = "",
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Pin this home's public key in the project's configuration, or enrol and pin a person's.

    Signatures by any other key stop counting. Policies and witnesses that are pinned beside the home's trust root are
    copied along, but for those that the project has. The first person is enrolled in the home's name, every other one
    by the signature of a person who is enrolled.

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
    lines = [f"{name} is pinned in {PROJECT_TRUST}", *(f"copied there, too: {file}" for file in copied)]
    emit({"id": name, "pinned_in": str(PROJECT_TRUST), "copied": copied}, as_json, lines)


@keys.command("rotate")
def keys_rotate(why: Why, person: Person = "", key: KeyFile = None, by: By = "", as_json: AsJson = False) -> None:
    """Let a new key take the place of the home's or a person's; the old one signs which, in the ledger.

    Example: neorl keys rotate --why "yearly" --person "Ada Lovelace"
    """
    from tasks.evidence.ledger.ledger import Ledger
    from tasks.lifecycle.keys import rotate_home, rotate_person

    home = Home.locate()
    if person:
        name = rotate_person(Ledger.open(home), person, why, key)
    else:
        _signing_key(home)
        name = rotate_home(home, hand_of(by).name or "nobody known", why)
    source = Ledger.open(home).trust.source
    whose = person or "the home"
    emit({"id": name, "trust_root": str(source)}, as_json, [f"{whose} signs as {name} from now on, pinned in {source}"])


@keys.command("revoke")
def keys_revoke(
    name: Annotated[str, typer.Argument(metavar="KEY", help="The key's id, or the person whose key it is.")],
    why: Why,
    since: Annotated[str, typer.Option("--from", help="From when on: 2026-11-20 or an ISO time; now otherwise.")] = "",
    by: By = "",
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Let a key not count from a moment on, which may lie in the past; what rests on it is named.

    Example: neorl keys revoke "Ada Lovelace" --from 2026-11-20 --why "the laptop was stolen"
    """
    from tasks.evidence.audit.people import check_people
    from tasks.evidence.ledger.ledger import Ledger
    from tasks.lifecycle.keys import first_moment, revoke

    hand = hand_of(by, key)
    ledger = Ledger.open(Home.locate())
    entry = revoke(ledger, name, first_moment(since), hand.name, why, hand.signatory)
    ledger.entries()
    found = [c.detail for c in check_people(ledger.verified, ledger.trust) if c.name == "people" and not c.passed]
    result = {"key": entry.body["key"], "since": entry.body["since"], "entry": entry.digest, "found": found}
    lines = [f"key {entry.body['key']} does not count from {entry.body['since']} on; {hand.told}", *found]
    emit(result, as_json, lines)


def _enrol(file: Path, roles: list[str], why: str, by: str, key: Path | None, as_json: bool) -> None:
    from tasks.evidence.ledger.ledger import Ledger
    from tasks.lifecycle.keys import enrol

    hand = hand_of(by, key)
    ledger = Ledger.open(Home.locate())
    entry = enrol(ledger, file, roles, hand.name, why, hand.signatory)
    source = ledger.trust.source
    result = {"person": entry.body["person"], "entry": entry.digest, "pinned_in": str(source)}
    emit(result, as_json, [f"{entry.body['person']}'s key is enrolled and pinned in {source}; {hand.told}"])


def _signing_key(home: Home) -> Ed25519PublicKey:
    """The public half of the home's key, from its signer.

    Raises:
        BadInput: when there is no key yet.
    """
    from tasks.evidence.ledger.client import public_key

    if not home.signing_key.exists():
        raise BadInput(f"expected a signing key in {home.signing_key}, got none: make one with 'neorl keys init'.")
    return public_key(home)


def _dates(row: tuple[str, ...]) -> str:
    ended = f"revoked from {row[5]} on" if row[5] else f"until {row[4]}" if row[4] else "in force"
    return f"since {row[3]}, {ended}"
