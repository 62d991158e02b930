"""Hook of MkDocs for `make docs`: add API pages of the core, made from its docstrings."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

MODULES = {
    "core": (
        "The core",
        [
            "types",
            "fit",
            "networks",
            "recurrent",
            "history",
            "graph.layout",
            "graph.policy",
            "graph.graphs",
            "graph.agent_layout",
            "graph.communication",
            "graph.single_agent",
            "plants.linked",
            "plants.base",
            "training.loop",
            "training.optimisers",
            "world_model",
        ],
    ),
    "algorithms": ("Algorithms", ["algorithms"]),
    "ope": ("Off-policy evaluation", ["ope.agreement", "ope.fqe", "ope.model_based", "ope.metrics"]),
    "federated": (
        "Federation",
        [
            "federated.federate",
            "federated.rounds",
            "federated.methods",
            "federated.fedora",
            "federated.aggregate",
            "federated.gossip",
            "federated.secure",
            "federated.privacy",
            "federated.accountant",
        ],
    ),
    "safety": ("Safety", ["safety.bounds", "safety.certify", "safety.composite", "safety.drift_detection"]),
}
"""Title and modules of each page."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add one page for each entry of MODULES."""
    for name, (title, modules) in MODULES.items():
        files.append(File.generated(config, f"reference/api/{name}.md", content=interface(title, modules)))
    return files


def interface(title: str, modules: list[str]) -> str:
    """Return the Markdown of a page that mkdocstrings fills; the name of a package means all its modules."""
    lines = [f"# {title}", ""]
    for name in modules:
        module = importlib.import_module(f"neorl_core.{name}")
        inside = sorted(p.stem for p in Path(str(module.__file__)).parent.glob("*.py")) if _is_package(module) else [""]
        for part in inside:
            if part != "__init__":
                lines += [f"::: neorl_core.{name}{'.' if part else ''}{part}", ""]
    return "\n".join(lines)


def _is_package(module: types.ModuleType) -> bool:
    return hasattr(module, "__path__")
