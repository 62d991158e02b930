"""Commands about evidence: certificate, report, audit, keys."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from configs.errors import BadInput, Refused
from configs.home import Home
from flows.cli.console import AsJson, emit, group, known_plant

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from tasks.adapters.ledger.certificate import Check
    from tasks.adapters.ledger.claims import Statement
    from tasks.adapters.ledger.signing import TrustRoot

certificate = group("Show or check a safety certificate.")
audit = group("Check that nothing was altered.")
keys = group("The key that signs, and the keys that are trusted.")

Certificate = Annotated[Path, typer.Argument(help="A certificate, *.dsse.json.")]
Trust = Annotated[Path | None, typer.Option(help="File of pinned public keys, in place of the project's.")]


@certificate.command("show")
def certificate_show(file: Certificate, trust: Trust = None, as_json: AsJson = False) -> None:
    """Print what a certificate says, after checking its signature.

    Example: neorl certificate show certificate.dsse.json
    """
    import json

    from tasks.adapters.ledger.certificate import read_certificate
    from tasks.adapters.ledger.signing import TrustRoot

    statement = read_certificate(file, TrustRoot.locate(Home.locate(), trust)).model_dump(mode="json", by_alias=True)
    emit(statement, as_json, [json.dumps(statement, indent=2, sort_keys=True, ensure_ascii=False)])


@certificate.command("verify")
def certificate_verify(
    file: Certificate,
    rerun: Annotated[bool, typer.Option("--rerun", help="Repeat every rollout and compare the counts.")] = False,
    challenge: Annotated[str, typer.Option(help="Run the test with this seed (hexadecimal) too.")] = "",
    bundle: Annotated[Path | None, typer.Option(help="The certified bundle; the home's own otherwise.")] = None,
    plant: Annotated[
        str | None, typer.Option(help="To run the test again: the file of a plant of your own, such as plants/tank.py.")
    ] = None,
    trust: Trust = None,
    as_json: AsJson = False,
) -> None:
    """Check a certificate again, offline; 1 is the exit code when anything does not hold.

    Example: neorl certificate verify certificate.dsse.json --rerun
    """
    from tasks.adapters.ledger.certificate import read_certificate, verify_certificate
    from tasks.adapters.ledger.ledger import Ledger
    from tasks.adapters.ledger.signing import TrustRoot

    home = Home.locate()
    try:
        seed = bytes.fromhex(challenge) if challenge else None
    except ValueError as error:
        raise BadInput(
            f"expected hexadecimal digits after --challenge, got '{challenge}': write it as 00ff."
        ) from error
    root = TrustRoot.locate(home, trust)
    folder = bundle or _bundle_of(home, read_certificate(file, root))
    found: dict[str, str] = {}
    repeat = None
    if folder is not None:
        from tasks.adapters.models.bundle import stored_digest

        found["composite"] = stored_digest(folder)
    if rerun or seed is not None:
        if folder is None:
            raise BadInput(
                f"expected the bundle that {file} certifies, got none in {home.root}: name it with --bundle."
            )
        from tasks.adapters.plants.code import find_code
        from tasks.certify import repeat_with

        repeat = repeat_with(folder, find_code(plant, Path.cwd()) if plant else None)
    checks = verify_certificate(
        file,
        root,
        artefacts=found,
        ledger=Ledger.open(home, trust=trust, write=False) if Ledger.exists(home) else None,
        repeat=repeat,
        rerun=rerun,
        challenge=seed,
    )
    _conclude(checks, as_json)


@audit.command("verify")
def audit_verify(
    head: Annotated[list[Path] | None, typer.Option("--head", help="A report or a signed head kept elsewhere.")] = None,
    trust: Trust = None,
    as_json: AsJson = False,
) -> None:
    """Check the ledger and every file that it vouches for; 1 is the exit code when anything was altered.

    The ledger is also held against the signed heads in this home's reports, in MLflow's tags where it answers, and in
    the files given.

    Example: neorl audit verify --head report-from-last-month.html
    """
    from tasks.adapters.ledger.audit import audit as check
    from tasks.adapters.ledger.ledger import Ledger, read_heads, report_heads
    from tasks.adapters.ledger.signing import TrustRoot

    home = Home.locate()
    heads = [text for path in head or [] for text in read_heads(path)]
    heads += report_heads(home)
    if Ledger.exists(home):
        heads += _registry_heads(home, TrustRoot.locate(home, trust))
    _conclude(check(home, heads, trust).checks, as_json)


@keys.command("show")
def keys_show(as_json: AsJson = False) -> None:
    """Print the signing key's id and public half, and the trust root in force.

    Example: neorl keys show
    """
    from tasks.adapters.ledger.signing import TrustRoot, key_id, trust_yaml

    home = Home.locate()
    public, root = _signing_key(home), TrustRoot.locate(home)
    result = {"id": key_id(public), "trusted": sorted(root.keys), "trust_root": str(root.source)}
    lines = [f"signs as {result['id']}", f"trusted: {', '.join(sorted(root.keys))} ({root.source})"]
    emit(result, as_json, [*lines, trust_yaml(public, "").decode().rstrip()])


@keys.command("init")
def keys_init(as_json: AsJson = False) -> None:
    """Make this home's signing key, unless there is one.

    Example: neorl keys init
    """
    from tasks.adapters.ledger.ledger import Ledger
    from tasks.adapters.ledger.signing import key_id

    home = Home.locate()
    root = Ledger.open(home).trust
    name = key_id(_signing_key(home))
    emit({"id": name}, as_json, [f"signs as {name}, trusted by {root.source}"])


@keys.command("pin")
def keys_pin(
    note: Annotated[str, typer.Option(help="Whose key it is.")] = "pinned by neorl keys pin", as_json: AsJson = False
) -> None:
    """Pin this home's public key in the project's configuration: signatures by any other key stop counting.

    Example: neorl keys pin --note "plant 7, signing host"
    """
    from tasks.adapters.files.canonical import write_atomic
    from tasks.adapters.ledger.signing import PROJECT_TRUST, TrustRoot, key_id, trust_yaml

    public = _signing_key(Home.locate())
    if PROJECT_TRUST.exists() and key_id(public) not in TrustRoot.read(PROJECT_TRUST).keys:
        raise Refused(
            f"expected no other pinned keys, got some in {PROJECT_TRUST}: add this one there by hand after asking "
            "their owner."
        )
    if not PROJECT_TRUST.exists():
        write_atomic(PROJECT_TRUST, trust_yaml(public, note))
    name = key_id(public)
    emit({"id": name, "pinned_in": str(PROJECT_TRUST)}, as_json, [f"{name} is pinned in {PROJECT_TRUST}"])


def report(plant: Annotated[str, typer.Argument(help="The plant's name.")], as_json: AsJson = False) -> None:
    """Name the newest report of a plant, one HTML file that opens offline.

    Example: neorl report chemical_reactor
    """
    folder = Home.locate().root / "reports" / known_plant(plant)
    files = sorted(folder.glob("*.html"), key=lambda p: p.stat().st_mtime)
    if not files:
        raise BadInput(f"expected a report of {plant} in {folder}, got none: 'neorl retrain' writes one.")
    result = {"report": str(files[-1]), "reports": [str(f) for f in files]}
    emit(result, as_json, [str(files[-1])])


def _signing_key(home: Home) -> Ed25519PublicKey:
    """The public half of the home's key, from its signer.

    Raises:
        BadInput: when there is no key yet.
    """
    from tasks.adapters.ledger.client import public_key

    if not home.signing_key.exists():
        raise BadInput(f"expected a signing key in {home.signing_key}, got none: make one with 'neorl keys init'.")
    return public_key(home)


def _bundle_of(home: Home, statement: Statement) -> Path | None:
    folder = home.root / "bundles" / statement.predicate.scope.plant / statement.composite[:24]
    return folder if folder.is_dir() else None


def _registry_heads(home: Home, trust: TrustRoot) -> list[str]:
    """The heads in MLflow's tags that name a pinned key: a team's MLflow may hold those of other ledgers too.

    None where MLflow does not answer, for an audit needs no server.
    """
    from flows.services.servers import mlflow_address

    address = mlflow_address(home)
    if address is None:
        return []
    from tasks.adapters.ledger.ledger import signed_by
    from tasks.adapters.registry.registry import Registry

    return signed_by(Registry(address).tagged("neorl.ledger_head"), trust.keys)


def _conclude(checks: Sequence[Check], as_json: bool) -> None:
    passed = all(check.passed for check in checks)
    lines = [f"{'ok  ' if check.passed else 'FAIL'}  {check.name}: {check.detail}" for check in checks]
    emit({"passed": passed, "checks": [check._asdict() for check in checks]}, as_json, lines)
    if not passed:
        names = ", ".join(check.name for check in checks if not check.passed)
        raise Refused(f"expected every check to hold, got failures in {names}: restore the originals from a backup.")
