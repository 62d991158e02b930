"""Rules and texts by which ledger entries are judged and written, by version.

Every signed entry names the version (`rules`; an entry without it has version 1), and an audit judges each entry by
its own version. The signer writes the newest version only, and versions never decrease along the chain.

To add, remove or change a gate, or to change a sentence of `texts`, append a version:

    VERSIONS[5] = VERSIONS[4]._replace(simulated={**VERSIONS[4].simulated, "noise": verdicts.noise})

A rule of writing that changes compares the entry's version: `if entry.rules >= 5`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from configs.errors import Refused
from tasks.references import Evidence, Gate, ProcessEvidence
from tasks.versions import texts, verdicts

Verdict = Callable[[Any], bool | None]
"""Evidence -> passed, failed, or None if an earlier gate made the attempt pointless."""


class Version(NamedTuple):
    """Rules and texts of one version; a later version is an earlier one with parts replaced."""

    simulated: Mapping[str, Verdict]
    """Gates of a candidate with a simulator, in order of cost."""
    fallback: tuple[str, ...]
    """Gates of the plant's own controller, which was not trained."""
    log_only: Mapping[str, Verdict]
    """Gates of a candidate of a log-only plant, in order of cost."""
    simulators: frozenset[str]
    """Plants with a simulator, for which evidence of a log-only plant is refused."""
    texts: texts.Texts

    def required(self, log_only: bool, fallback: bool) -> tuple[str, ...]:
        """Return the names of the gates that a candidate must pass, in order.

        Args:
            log_only: whether its plant has no simulator.
            fallback: whether it is the plant's own controller.
        """
        if log_only:
            return tuple(self.log_only)
        return self.fallback if fallback else tuple(self.simulated)

    def verdicts(self, evidence: Evidence | ProcessEvidence) -> dict[str, bool | None]:
        """Return every gate's verdict on the evidence, in order."""
        gates = self.log_only if isinstance(evidence, ProcessEvidence) else self.simulated
        return {name: verdict(evidence) for name, verdict in gates.items()}

    def fault(self, gates: tuple[Gate, ...], evidence: Evidence | ProcessEvidence, fallback: bool) -> str | None:
        """Return what is wrong with a candidate's gates: an incomplete set, or a verdict that the evidence contradicts.

        Args:
            gates: as written.
            evidence: the numbers beside them.
            fallback: whether the candidate is the plant's own controller.
        """
        required, names = (
            self.required(isinstance(evidence, ProcessEvidence), fallback),
            tuple(gate.name for gate in gates),
        )
        if names != required:
            return f"the gates must be {', '.join(required)}, got {', '.join(names) or 'no gate'}"
        verdicts = self.verdicts(evidence)
        for gate in gates:
            if gate.passed is not verdicts[gate.name]:
                return (
                    f"gate {gate.name} must be {WORDS[verdicts[gate.name]]} by its evidence, got {WORDS[gate.passed]}"
                )
        return None

    @property
    def gate_names(self) -> tuple[str, ...]:
        """Names of all gates."""
        return tuple(dict.fromkeys([*self.simulated, *self.fallback, *self.log_only]))


WORDS = {True: "passed", False: "failed", None: "not run"}

V1 = Version(
    simulated={
        "data": verdicts.data,
        "simulator": verdicts.simulator,
        "ope": verdicts.ope,
        "rollouts": verdicts.rollouts,
        "champion": verdicts.champion,
        "fallback": verdicts.fallback,
        "statistical": verdicts.statistical,
        "servability": verdicts.servability,
    },
    fallback=("fallback",),
    log_only={
        "data": verdicts.data,
        "learned_model": verdicts.learned_model,
        "ope": verdicts.ope,
        "bounds": verdicts.bounds,
        "shield": verdicts.shield,
        "fallback": verdicts.log_only_fallback,
        "servability": verdicts.servability,
    },
    simulators=frozenset(
        {
            "chemical_reactor",
            "double_mass",
            "hvac_control",
            "industrial_benchmark",
            "power_grid",
            "pumping_station",
            "robot_assembly",
            "steel_annealing",
            "supply_chain",
            "water_treatment",
        }
    ),
    texts=texts.V1,
)

V2 = V1._replace(texts=texts.V2)
V3 = V2._replace(simulated={**V2.simulated, "statistical": verdicts.statistical_of_one_program})
"""Certificates bind lowered programs, and plants with equal limits share a lineage."""
V4 = V3._replace(
    simulated={**V3.simulated, "ope": verdicts.not_worse_by_logs, "champion": verdicts.champion_by_rollouts}
)
"""Rollouts select and compare candidates with a simulator; held-out logs are a veto."""
VERSIONS: dict[int, Version] = {1: V1, 2: V2, 3: V3, 4: V4}


def newest() -> int:
    """Return the version that new entries have."""
    return max(VERSIONS)


def current() -> Version:
    """Return the rules and texts of new entries."""
    return VERSIONS[newest()]


def version_of(number: int) -> Version:
    """Return the rules and texts of a version.

    Raises:
        Refused: if this NeoRL does not know the version.
    """
    if number not in VERSIONS:
        raise Refused(f"uses rules version {number}, this NeoRL knows up to {newest()}: upgrade NeoRL.")
    return VERSIONS[number]
