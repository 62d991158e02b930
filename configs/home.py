"""Where everything that NeoRL keeps lives: one folder, `.neorl/` or `NEORL_HOME`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Home:
    """The folder that holds services' state, datasets, checkpoints, certificates, the ledger and the keys."""

    root: Path

    @classmethod
    def locate(cls) -> Home:
        """The home named by `NEORL_HOME`, else `.neorl` under the working directory."""
        return cls(Path(os.environ.get("NEORL_HOME") or ".neorl").expanduser().resolve())

    def room(self, *parts: str) -> Path:
        """A folder under the home, made when absent.

        Example:
            >>> Home.locate().room("datasets", "chemical_reactor")  # doctest: +SKIP
        """
        path = self.root.joinpath(*parts)
        path.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def ledger(self) -> Path:
        """The embedded ledger's database; a team's lies where `NEORL_LEDGER_URL` says."""
        return self.root / "ledger.db"

    @property
    def services(self) -> Path:
        """Which servers this home uses, and their processes."""
        return self.root / "services.json"

    @property
    def trust(self) -> Path:
        """The public keys pinned on first use, where the project pins none."""
        return self.root / "trust.yaml"
