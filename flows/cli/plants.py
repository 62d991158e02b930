"""Commands about plants: what there is, what each is like, and how its own controller runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from configs.home import Home
from flows.cli.console import AsJson, emit, group, known_plant, show_table

plants = group(
    """The plants that are simulated here: list them, or show one.

    The scores are of the plant's own controller: 0 is a safe, idle action, 100 the best that is known.

    Example: neorl plants
    """
)
EPISODES = 64


@plants.callback(invoke_without_command=True, no_args_is_help=False)
def listing(context: typer.Context, as_json: AsJson = False) -> None:
    """List the plants; the group's help is this command's."""
    if context.invoked_subcommand is not None:
        return
    from configs.plant_scores import plant_scores
    from neorl_core.plants import PLANTS

    scores = plant_scores()
    table = {name: _facts(name) | {"scores": scores.get(name, {})} for name in PLANTS}
    if as_json:
        emit({"plants": table}, True)
        return
    rows = [
        (
            name,
            len(p["observation"]),
            len(p["action"]),
            p["period"],
            p["horizon"],
            f"{p['scores']['controller']['score']:.1f}" if p["scores"] else "–",
            "; ".join(f"{limit} {text}" for limit, text in p["limits"].items()),
        )
        for name, p in table.items()
    ]
    show_table(("plant", "observed", "manipulated", "period", "steps", "own controller", "hard limits"), rows)
    print("\nMore on one: neorl plants show NAME")


@plants.command()
def show(
    name: Annotated[str, typer.Argument(help="The plant.")],
    out: Annotated[Path | None, typer.Option(help="Where the picture goes; by default into the home.")] = None,
    seed: Annotated[int, typer.Option(help="Of the episodes.", min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Names, units and limits of a plant, and a picture of an episode under its controllers against the limits.

    Example: neorl plants show water_treatment --out tanks.png
    """
    name = known_plant(name)
    from tasks.adapters.reporting.plant_picture import draw_plant

    path = out or Home.locate().folder("plants") / f"{name}.png"
    found = draw_plant(name, path, seed, EPISODES)
    result = {"plant": name, **_facts(name), "episodes": EPISODES, "controllers": found, "picture": str(path)}
    if as_json:
        emit(result, True)
        return
    print(f"{name}: {result['horizon']} steps of {result['period']}; {result['about']}\n")
    rows = [("observed", *each) for each in result["observation"].items()]
    show_table(("", "name", "unit"), [*rows, *(("manipulated", *each) for each in result["action"].items())])
    print()
    show_table(("hard limit", "range"), list(result["limits"].items()))
    print()
    show_table(
        ("controller", "return", "score", f"episodes of {EPISODES} beyond a limit"),
        [(who, f"{c['return']:.4g}", f"{c['score']:.1f}", c["violated"]) for who, c in found.items()],
    )
    print(f"\npicture: {path}")


def _facts(name: str) -> dict[str, Any]:
    from importlib import import_module

    from neorl_core.plants import PLANTS

    spec = PLANTS[name].spec
    about = import_module(PLANTS.module(name)).__doc__ or ""
    return {
        "about": about.strip().splitlines()[0],
        "observation": dict(zip(spec.observation.names, spec.observation.units, strict=True)),
        "action": dict(zip(spec.action.names, spec.action.units, strict=True)),
        "limits": {c.name: f"{c.low:g} to {c.high:g} {c.unit}" for c in spec.constraints},
        "horizon": spec.horizon,
        "period": f"{spec.dt:g} {spec.time_unit}",
        "agents": [view.name for view in PLANTS[name].agents],
    }
