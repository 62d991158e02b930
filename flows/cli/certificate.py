"""Commands `neorl certificate show` and `verify`."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from configs.errors import BadInput
from configs.home import Home
from flows.cli.common import AsJson, emit, emit_checks, fresh_compilation, group

if TYPE_CHECKING:
    from tasks.evidence.claims import Statement

certificate = group("Show or check a safety certificate.")

Certificate = Annotated[Path, typer.Argument(help="The certificate's file, *.dsse.json.")]
Trust = Annotated[
    Path | None, typer.Option(help="File of accepted public keys; default: configs/trust.yaml, else the home's.")
]


@certificate.command("show")
def certificate_show(file: Certificate, trust: Trust = None, as_json: AsJson = False) -> None:
    """Check a certificate's signature, and print the certificate's contents.

    Example: neorl certificate show certificate.dsse.json
    """
    from tasks.evidence.certificate import read_certificate
    from tasks.evidence.ledger.signing import TrustRoot

    statement = read_certificate(file, TrustRoot.locate(Home.locate(), trust)).model_dump(mode="json", by_alias=True)
    emit(statement, as_json, [json.dumps(statement, indent=2, sort_keys=True, ensure_ascii=False)])


@certificate.command("verify")
def certificate_verify(
    file: Certificate,
    rerun: Annotated[bool, typer.Option("--rerun", help="Repeat every rollout and compare the violations.")] = False,
    challenge: Annotated[str, typer.Option(help="Repeat the test with your own seed (hexadecimal).")] = "",
    bundle: Annotated[Path | None, typer.Option(help="Folder of the certified bundle; by default in the home.")] = None,
    plant: Annotated[
        str | None, typer.Option(help="The plant's file, such as plants/tank.py, if the plant is not built in.")
    ] = None,
    trust: Trust = None,
    as_json: AsJson = False,
) -> None:
    """Verify a certificate offline. Exit code 1 if a check fails.

    The output also lists skipped checks. --rerun and --challenge need exactly the composite, simulator, shield, code
    and lock file that were certified.

    Example: neorl certificate verify certificate.dsse.json --rerun
    """
    from tasks.evidence.bundle_signature import check_signatures, signatures_of
    from tasks.evidence.certificate import Check, read_certificate, verify_certificate
    from tasks.evidence.ledger.ledger import Ledger
    from tasks.evidence.ledger.signing import TrustRoot

    home, repeating = Home.locate(), rerun or bool(challenge)
    try:
        seed = bytes.fromhex(challenge) if challenge else None
    except ValueError as error:
        raise BadInput(f"--challenge must be hexadecimal, got '{challenge}': write it like 00ff.") from error
    root = TrustRoot.locate(home, trust)
    statement = read_certificate(file, root)
    folder = bundle or _bundle_of(home, statement)
    found: dict[str, str] = {}
    repeat = None
    if folder is not None:
        from tasks.models.bundles.manifest import stored_digest

        found["composite"] = stored_digest(folder)
    if repeating:
        if folder is None:
            raise BadInput(f"the bundle of {file} is not in {home.root}: name it with --bundle.")
        from tasks.evaluation.relowering import lowered_apart
        from tasks.evaluation.repetition import materials_here, repeat_with
        from tasks.models.user_code.loading import find_code

        code = find_code(plant, Path.cwd()) if plant else None
        lowered = lowered_apart(folder, code, statement.predicate.scope)
        found |= materials_here(folder, lowered)
        repeat = repeat_with(folder, lowered, file)
    with fresh_compilation() if repeating else nullcontext():
        checks = verify_certificate(
            file,
            root,
            artefacts=found,
            ledger=Ledger.open(home, trust=trust, write=False) if Ledger.exists(home) else None,
            repeat=repeat,
            rerun=rerun,
            challenge=seed,
        )
    if folder is not None and (signatures := signatures_of(folder)):
        fault = check_signatures(folder)
        checks.append(
            Check("signature", fault is None, fault or f"{signatures[0].name}: the bundle's OpenSSF signature")
        )
    emit_checks(checks, as_json)


def _bundle_of(home: Home, statement: Statement) -> Path | None:
    folder = home.root / "bundles" / statement.predicate.scope.plant / statement.composite[:24]
    return folder if folder.is_dir() else None
