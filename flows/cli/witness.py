"""Commands `neorl witness serve`, `add`, `pin` and `show`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from configs.errors import BadInput
from configs.home import Home
from flows.cli.common import AsJson, emit, group, say

if TYPE_CHECKING:
    from tasks.evidence.witness.notes import Verifier
    from tasks.evidence.witness.witness import Witness

witness = group("Manage witnesses: second parties that countersign the ledger and contribute to every seed.")

Passphrase = Annotated[
    Path | None, typer.Option(help="File with the passphrase of the witness's key; generated if omitted.")
]
Folder = Annotated[Path, typer.Argument(help="The witness's folder, with key and known heads.")]


@witness.command("serve")
def witness_serve(
    folder: Folder,
    name: Annotated[str, typer.Option(help="Name of a new witness, such as witness.example/w1.")] = "",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8710,
    passphrase_file: Passphrase = None,
) -> None:
    """Run a witness until interrupted; create a key if the folder has none.

    The witness answers every client, but signs only for ledgers added by 'neorl witness add'. If clients are on other
    machines, run the witness behind a reverse proxy with TLS.

    Example: neorl witness serve /srv/witness --name witness.example/w1
    """
    from tasks.evidence.witness.server import serve

    def ready(verifier: Verifier, at: int) -> None:
        say(f"{verifier}\nlistens on http://{host}:{at}")

    try:
        serve(_opened(folder, name, passphrase_file), host, port, ready)
    except KeyboardInterrupt:
        say("stopped")


@witness.command("add")
def witness_add(
    folder: Folder,
    key: Annotated[str, typer.Argument(help="The ledger's key, from 'neorl witness show' in that home.")],
    passphrase_file: Passphrase = None,
    as_json: AsJson = False,
) -> None:
    """Add a ledger's key to a witness. The witness then countersigns heads that this key has signed.

    Example: neorl witness add /srv/witness neorl/plant-7+5d0a12fe+AX0p...
    """
    from tasks.evidence.witness.notes import Verifier

    _existing(folder)
    verifier = Verifier.parse(key)
    _opened(folder, passphrase_file=passphrase_file).add_log(verifier)
    emit({"origin": verifier.name}, as_json, [f"heads of {verifier.name} signed by this key will be countersigned"])


@witness.command("pin")
def witness_pin(
    key: Annotated[str, typer.Argument(help="The witness's key, from the owner's 'neorl witness show FOLDER'.")],
    url: Annotated[str, typer.Argument(help="The witness's address, such as https://witness.example.")],
    required: Annotated[int, typer.Option(help="Number of pinned witnesses that must take part.", min=1, max=9)] = 1,
    origin: Annotated[str, typer.Option(help="Name of this ledger; by default as pinned, or from the key.")] = "",
    as_json: AsJson = False,
) -> None:
    """Pin a further witness for this home. The first pinned witness replaces the home's own witness.

    Example: neorl witness pin witness.example/w1+2f.. https://witness.example --required 1
    """
    from pydantic import ValidationError

    from tasks.evidence.claims import LOCAL
    from tasks.evidence.ledger.client import public_key
    from tasks.evidence.ledger.ledger import Ledger
    from tasks.evidence.ledger.signing import TrustRoot, key_id
    from tasks.evidence.witness.pinned import (
        FILE,
        Witnesses,
        check_pinned_witnesses,
        pin,
        pinned,
        witness_fault,
    )

    home = Home.locate()
    name = key_id(public_key(home))
    trust = TrustRoot.locate(home)
    before = pinned(home, trust)
    kept = [w for w in (before.witnesses if before else []) if not w.verifier.name.startswith(LOCAL) and w.key != key]
    wanted = {
        **(before.model_dump() if before else {}),
        "origin": origin or (before.origin if before else f"neorl/{name}"),
        "required": required,
        "witnesses": [*(w.model_dump() for w in kept), {"key": key, "url": url}],
    }
    try:
        found = Witnesses.model_validate(wanted)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        raise BadInput(
            f"invalid key or address '{wrong['input']}' ({wrong['msg'].removeprefix('Value error, ').lower()}): name "
            "the witness's key and an address such as https://witness.example."
        ) from error
    path = trust.source.with_name(FILE)
    if required > len(found.witnesses):
        raise BadInput(f"--required {required} exceeds the {len(found.witnesses)} pinned witnesses: pin more first.")
    if (added := found.witnesses[-1].verifier.name).startswith(LOCAL):
        raise BadInput(f"{added} is this machine's own witness: pin a witness of another party.")
    check_pinned_witnesses(found, path)
    seeds = Ledger.open(home, write=False).entries("seed") if Ledger.exists(home) else []
    uncovered = sum(witness_fault(found, entry.body["witnesses"]) is not None for entry in seeds)
    pin(path, found)
    names = [each.verifier.name for each in found.witnesses]
    lines = [f"{required} of {', '.join(names)} must take part: pinned in {path}"]
    if uncovered and uncovered == len(seeds):
        lines.append(
            f"{uncovered} earlier attempts have no such witness: 'neorl audit verify' fails until a new attempt has one"
        )
        lines.append("next: neorl retrain configs/PLANT.yaml")
    result = {"pinned": str(path), "required": required, "witnesses": names, "attempts_without_them": uncovered}
    emit(result, as_json, lines)


@witness.command("show")
def witness_show(
    folder: Annotated[Path | None, typer.Argument(help="A witness's folder; by default this home's ledger.")] = None,
    passphrase_file: Passphrase = None,
    as_json: AsJson = False,
) -> None:
    """Print a witness's key and ledgers, or this home's ledger key and witnesses.

    Example: neorl witness show
    """
    if folder is not None:
        _existing(folder)
        found = _opened(folder, passphrase_file=passphrase_file)
        sizes = {log.origin: log.checkpoint.size if log.checkpoint else 0 for log in found.logs()}
        lines = [str(found.verifier), *(f"{origin}: {size} entries" for origin, size in sizes.items())]
        emit({"key": str(found.verifier), "logs": sizes}, as_json, lines)
        return
    from tasks.evidence.audit.witnesses import check_witnesses
    from tasks.evidence.ledger.client import public_key
    from tasks.evidence.ledger.ledger import Ledger
    from tasks.evidence.ledger.signing import key_id
    from tasks.evidence.witness.notes import SIGNATURE, Verifier
    from tasks.evidence.witness.pinned import pinned

    home = Home.locate()
    public = public_key(home)
    ledger = Ledger.open(home, write=False)
    pins = pinned(home, ledger.trust)
    origin = pins.origin if pins else f"neorl/{key_id(public)}"
    own = Verifier(origin, SIGNATURE, public.public_bytes_raw())
    checks = check_witnesses(home, ledger, ledger.entries())
    names = [each.verifier.name for each in pins.witnesses] if pins else []
    result = {"key": str(own), "witnesses": names, "checks": [check._asdict() for check in checks]}
    emit(result, as_json, [f"this ledger: {own}", *(f"{check.name}: {check.detail}" for check in checks)])


def _existing(folder: Path) -> None:
    if not (folder / "key.pem").exists():
        raise BadInput(f"{folder} is not a witness's folder: create one with 'neorl witness serve {folder}'.")


def _opened(folder: Path, name: str = "", passphrase_file: Path | None = None) -> Witness:
    from tasks.evidence.witness.server import open_witness

    try:
        secret = passphrase_file.read_bytes().strip() if passphrase_file else None
    except OSError as error:
        raise BadInput(
            f"cannot read the passphrase file {passphrase_file} ({error.strerror}): correct --passphrase-file."
        ) from error
    return open_witness(folder, name, passphrase=secret)
