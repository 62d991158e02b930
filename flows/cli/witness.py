"""Commands about witnesses: serve one, let a ledger be known to it, pin one, and say who watches."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from configs.errors import BadInput
from configs.home import Home
from flows.cli.console import AsJson, emit, group

if TYPE_CHECKING:
    from tasks.evidence.witness.notes import Verifier
    from tasks.evidence.witness.witness import Witness

witness = group("A second party that countersigns the ledger and has a part in every seed.")

Passphrase = Annotated[
    Path | None, typer.Option(help="File with the passphrase of the witness's key; a generated one otherwise.")
]
Folder = Annotated[Path, typer.Argument(help="The witness's folder, with its key and the heads that it knows.")]


@witness.command("serve")
def witness_serve(
    folder: Folder,
    name: Annotated[str, typer.Option(help="Name of a new witness, such as witness.example/w1.")] = "",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8710,
    passphrase_file: Passphrase = None,
) -> None:
    """Run a witness until it is interrupted; its key is made when the folder has none.

    It answers whoever reaches it, and signs for ledgers that 'neorl witness add' made known. Put it behind the TLS of a
    reverse proxy where others than this machine are to reach it.

    Example: neorl witness serve /srv/witness --name witness.example/w1
    """
    from tasks.evidence.witness.server import serve

    def ready(verifier: Verifier, at: int) -> None:
        print(f"{verifier}\nlistens on http://{host}:{at}", file=sys.stderr, flush=True)

    try:
        serve(_opened(folder, name, passphrase_file), host, port, ready)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)


@witness.command("add")
def witness_add(
    folder: Folder,
    key: Annotated[str, typer.Argument(help="The ledger's key, as 'neorl witness show' prints it where it is kept.")],
    passphrase_file: Passphrase = None,
    as_json: AsJson = False,
) -> None:
    """Let a witness countersign heads that this key signs; another key of a known ledger comes beside its first.

    Example: neorl witness add /srv/witness neorl/plant-7+5d0a12fe+AX0p...
    """
    from tasks.evidence.witness.notes import Verifier

    _existing(folder)
    verifier = Verifier.parse(key)
    _opened(folder, passphrase_file=passphrase_file).add_log(verifier)
    emit({"origin": verifier.name}, as_json, [f"heads of {verifier.name} that this key signs are countersigned"])


@witness.command("pin")
def witness_pin(
    key: Annotated[str, typer.Argument(help="The witness's key, as its owner's 'neorl witness show' prints it.")],
    url: Annotated[str, typer.Argument(help="Where it listens, such as https://witness.example.")],
    required: Annotated[int, typer.Option(help="How many of the pinned witnesses must take part.", min=1, max=9)] = 1,
    origin: Annotated[str, typer.Option(help="Name of this ledger; the one that is pinned, or of its key.")] = "",
    as_json: AsJson = False,
) -> None:
    """Ask for a witness from now on, beside those that are pinned; the home's own is left when the first is pinned.

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
    asked = {
        **(before.model_dump() if before else {}),
        "origin": origin or (before.origin if before else f"neorl/{name}"),
        "required": required,
        "witnesses": [*(w.model_dump() for w in kept), {"key": key, "url": url}],
    }
    try:
        found = Witnesses.model_validate(asked)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        raise BadInput(
            f"expected a witness's key and an address such as https://witness.example, got '{wrong['input']}': "
            f"{wrong['msg'].removeprefix('Value error, ').lower()}."
        ) from error
    path = trust.source.with_name(FILE)
    if required > len(found.witnesses) or found.witnesses[-1].verifier.name.startswith(LOCAL):
        raise BadInput(f"expected at most {len(found.witnesses)} required, and none of this machine's own, got others.")
    check_pinned_witnesses(found, path)
    seeds = Ledger.open(home, write=False).entries("seed") if Ledger.exists(home) else []
    left = sum(witness_fault(found, entry.body["witnesses"]) is not None for entry in seeds)
    pin(path, found)
    names = [each.verifier.name for each in found.witnesses]
    lines = [f"{required} of {', '.join(names)} must take part: pinned in {path}"]
    # An attempt that names what is pinned already says that those before it are of before.
    if left and left == len(seeds):
        lines.append(
            f"{left} attempts of before lack witnesses that are asked for: 'neorl audit verify' fails until an attempt "
            "names them, and then tells these as of before: retrain"
        )
    told = {"pinned": str(path), "required": required, "witnesses": names, "attempts_without_them": left}
    emit(told, as_json, lines)


@witness.command("show")
def witness_show(
    folder: Annotated[Path | None, typer.Argument(help="A witness's folder; this home's ledger otherwise.")] = None,
    passphrase_file: Passphrase = None,
    as_json: AsJson = False,
) -> None:
    """Print the key of a witness and what it knows; or the key of this home's ledger, and who watches it.

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
    asked = pinned(home, ledger.trust)
    origin = asked.origin if asked else f"neorl/{key_id(public)}"
    own = Verifier(origin, SIGNATURE, public.public_bytes_raw())
    checks = check_witnesses(home, ledger, ledger.entries())
    watching = [each.verifier.name for each in asked.witnesses] if asked else []
    result = {"key": str(own), "witnesses": watching, "checks": [check._asdict() for check in checks]}
    emit(result, as_json, [f"this ledger: {own}", *(f"{check.name}: {check.detail}" for check in checks)])


def _existing(folder: Path) -> None:
    if not (folder / "key.pem").exists():
        raise BadInput(f"expected a witness in {folder}, got none: 'neorl witness serve {folder}' makes one.")


def _opened(folder: Path, name: str = "", passphrase_file: Path | None = None) -> Witness:
    from tasks.evidence.witness.server import open_witness

    try:
        secret = passphrase_file.read_bytes().strip() if passphrase_file else None
    except OSError as error:
        raise BadInput(f"expected a passphrase in {passphrase_file}, got '{error.strerror}': correct it.") from error
    return open_witness(folder, name, passphrase=secret)
