"""Flows that approve a candidate or roll back to an earlier champion, without a person's key.

Both flows decide in the home's name, like `neorl approve` without a key. If the plant's safety policy requires
signatures by persons, both flows are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prefect import flow
from prefect.runtime import flow_run

from configs.errors import BadInput
from configs.home import Home
from flows import decisions
from flows.decisions import Decided
from flows.flow_run import completed, refusals_as_states, tag_run
from flows.services.locks import recorded_run

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State


def run_name_by_version() -> str:
    """Return the name of this flow run in Prefect: flow, plant and version, such as `promote chemical_reactor 3`."""
    return f"{flow_run.flow_name} {flow_run.parameters['plant']} {flow_run.parameters['version']}"


@flow(name="promote", flow_run_name=run_name_by_version, persist_result=False)
@refusals_as_states
def promote(plant: str, version: str, by: str, note: str) -> State[Decided]:
    """Approve a waiting candidate.

    Args:
        plant: the plant's name.
        version: version in MLflow's model registry.
        by: name of the person who decides.
        note: reason, stored in the ledger.

    Returns:
        The final Prefect state, with the decision as data.

    Raises:
        NeoRLError: if the candidate is unknown, a gate failed, or the safety policy requires a person's key.
    """
    with _deciding(plant, {"by": by, "note": note}) as home:
        decided = decisions.approve(home, plant, version, by, note)
        missing = f"; {decided.missing}" if decided.missing else ""
        in_force = f"in shadow: {decided.shadow}" if decided.shadow else f"champion: {decided.champion}"
        approved = f"was already approved by {decided.standing}" if decided.standing else f"is approved by {by}"
        return completed(f"version {version} of {plant} {approved}, {in_force}{missing}", decided)


@flow(name="rollback", flow_run_name=run_name_by_version, persist_result=False)
@refusals_as_states
def rollback(plant: str, version: str, by: str, why: str) -> State[Decided]:
    """Verify the evidence of an earlier champion, and make that version champion again.

    Args:
        plant: the plant's name.
        version: version of an earlier champion in MLflow's model registry.
        by: name of the person who decides.
        why: reason, stored in the ledger.

    Returns:
        The final Prefect state, with the decision as data.

    Raises:
        NeoRLError: if the version was never champion, the evidence is invalid, or the safety policy is not met.
    """
    with _deciding(plant, {"by": by, "why": why}) as home:
        decided = decisions.rollback(home, plant, version, by, why)
        return completed(f"version {version} of {plant} is champion again, by {by}: {why}", decided)


@contextmanager
def _deciding(plant: str, required: dict[str, str]) -> Iterator[Home]:
    empty = [name for name, text in required.items() if not text.strip()]
    if empty:
        raise BadInput(f"'{empty[0]}' is empty: set {' and '.join(map(repr, required))}.")
    home = Home.locate()
    with recorded_run(home, str(flow_run.id), plant):
        tag_run(plant)
        yield home
