"""The `neorl` command for users: exit codes, one-sentence errors, JSON, and help with examples."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ruamel.yaml import YAML

from configs.errors import BadInput
from configs.home import LAYOUT, Home
from flows.cli.main import PANELS, run
from neorl_core.safety.composite import make_composite
from tasks.models.bundles.manifest import MANIFEST
from tasks.models.plants.known import plant_named
from tasks.training.train import keep_bundle
from tests.evidence import PLANT, certify, crown, open_ledger

if TYPE_CHECKING:
    from flows.services.servers import Services

PROJECT = Path(__file__).parents[3]
NEORL = Path(sys.executable).with_name("neorl")
# Commands listed in design.md, 'Running it'.
COMMANDS = {
    *("up", "down", "status", "doctor", "init", "generate", "ingest", "validate", "export", "train"),
    *("retrain", "check", "candidates", "approve", "reject", "withdraw", "rollback", "monitor", "shadow", "extend"),
    *("history", "report", "backup", "restore", "migrate", "prune", "bom", "watch", "metrics", "serve"),
    *("register", "members", "tune", "learn"),
}


def test_every_command_has_help_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert {command.__name__ for commands in PANELS.values() for command in commands} == COMMANDS
    subcommands = [
        ["plants"],
        ["plants", "show"],
        ["certificate", "show"],
        ["certificate", "verify"],
        ["audit", "verify"],
        ["audit", "export"],
    ]
    subcommands += [["keys", name] for name in ("show", "init", "pin")]
    subcommands += [["policy", name] for name in ("show", "draft", "sign")]
    for words in [*([name] for name in sorted(COMMANDS)), *subcommands]:
        assert run([*words, "--help"]) == 0
        shown = capsys.readouterr().out
        assert f"neorl {' '.join(words)}" in shown.split("Example:")[1].replace('eval "$(', ""), words
        # Commands that run until stopped print no JSON.
        assert ("--json" in shown) == (words != ["serve"]), words


@pytest.mark.slow
def test_a_full_disk_gives_a_one_sentence_error(home: Path) -> None:
    # A limit on file size stands for a full disk: EFBIG instead of ENOSPC.
    command = f"ulimit -f 20; exec {NEORL} generate chemical_reactor --weeks 0.5 --out {home}"
    # Coverage and compilation caches would write further files.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "JAX_COMP"))}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "neorl: cannot write (" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["retain"], 2, "'neorl' has no command 'retain': did you mean 'retrain'?"),
        (["audit", "verfy"], 2, "'neorl audit' has no command 'verfy': did you mean 'verify'?"),
        (["generate", "chemical_recator", "--out", "x"], 2, "did you mean 'chemical_reactor'?"),
        (["up", "--prefect-port", "many"], 2, "'--prefect-port': Input should be a valid integer"),
        (["approve", "chemical_reactor"], 2, "Missing argument 'version': see 'neorl approve --help'."),
        (["audit", "verify", "--heads", "x"], 2, "see 'neorl audit verify --help'."),
        (["ingest", "configs/duble_mass.yaml", "--data", "x"], 2, "did you mean 'double_mass.yaml'?"),
        (["ingest", "configs/double_mass.yaml"], 2, "double_mass.yaml needs --data FILE and no other option"),
        (
            ["ingest", "configs/double_mass.yaml", "--data", "x", "--max-quarantined", "0.1"],
            2,
            "double_mass.yaml needs --data FILE and no other option",
        ),
        (
            ["ingest", "configs/double_mass.yaml", "--data", "x", "--max-gaps", "0.1"],
            2,
            "needs --data FILE and no other option",
        ),
        (["ingest", "x.npz", "--data", "y.npz"], 2, "--data needs a run's file as argument, got x.npz"),
        (["ingest", "none.npz"], 2, "there is no source none.npz"),
        (["generate", "double_mass", "--behaviour", "historian"], 2, "name it with --out"),
        (["generate", "double_mass", "--behaviour", "best"], 2, "'best' is not a behaviour: choose from random, pid"),
        (
            ["generate", "double_mass", "--behaviour", "pid", "--weeks", "1"],
            2,
            "--weeks 1 needs --behaviour historian",
        ),
        (["export", "abcdef", "--to", "minari", "--out", "x"], 2, "no datasets have a digest that begins with abcdef"),
        (["report", "double_mass"], 2, "has no report of double_mass"),
        (["history", "double_mass"], 2, "there is no ledger at"),
        (["certificate", "verify", "none.json", "--challenge", "xyz"], 2, "--challenge must be hexadecimal, got 'xyz'"),
        (["audit", "verify"], 2, "there is no ledger at"),
        (["audit", "verify", "--head", "none"], 2, "cannot read a signed head from none"),
        (["status", "--export"], 3, "does not answer: start it with 'neorl up'"),
    ],
)
def test_errors_are_one_sentence_with_an_exit_code(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, sentence: str
) -> None:
    assert run([*arguments, "--json"]) == code
    captured = capsys.readouterr()
    assert captured.err.startswith("neorl: ")
    assert captured.err.count("\n") == 1
    assert sentence in captured.err
    assert json.loads(captured.out.splitlines()[-1]) == {
        "error": captured.err.removeprefix("neorl: ").rstrip("\n"),
        "exit_code": code,
    }


def test_installed_command_has_exit_codes_and_no_traceback(home: Path) -> None:
    done = subprocess.run([NEORL, "status"], capture_output=True, text=True, cwd=PROJECT)
    assert (done.returncode, done.stderr) == (3, "")
    assert "stopped" in done.stdout
    done = subprocess.run([NEORL, "retain"], capture_output=True, text=True, cwd=PROJECT)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


def test_version_is_the_installed_one(capsys: pytest.CaptureFixture[str]) -> None:
    from importlib import metadata

    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"neorl {metadata.version('neorl')}\n"


def test_shell_completion_is_light() -> None:
    """Run the request of the script that `neorl --show-completion bash` prints."""
    heavy = "{'jax', 'prefect', 'mlflow', 'polars', 'numpy', 'psutil'}"
    code = (
        "import atexit, sys\n"
        f"atexit.register(lambda: print('loaded', {heavy} & set(sys.modules)))\n"
        "from flows.cli.main import main\nmain()"
    )
    asked = {**os.environ, "_NEORL_COMPLETE": "complete_bash", "COMP_WORDS": "neorl re", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=asked, capture_output=True, text=True, cwd=PROJECT, check=False
    )
    assert done.stdout.split("loaded")[0].split() == ["register", "restore", "retrain", "reject", "report"], done.stderr
    assert done.stdout.strip().endswith("loaded set()")
    # The shell of the test itself is irrelevant.
    told = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [sys.executable, "-m", "flows", "--show-completion", "bash"]
    shown = subprocess.run(command, env=told, capture_output=True, text=True, cwd=PROJECT)
    assert "_NEORL_COMPLETE=complete_bash" in shown.stdout


@pytest.mark.parametrize(
    "words", [["status"], ["up"], ["down"], ["doctor"], ["history", "double_mass"], ["keys", "init"], ["candidates"]]
)
def test_an_unusable_home_gives_a_one_sentence_error(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NEORL_HOME", str(tmp_path / "file" / "home"))
    assert run([*words, "--json"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("neorl: cannot use the folder ")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "words", [["up"], ["down"], ["keys", "init"], ["generate", "double_mass", "--behaviour", "expert"]]
)
def test_a_home_in_a_read_only_folder_gives_an_error(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Even root cannot create a folder in /proc.
    monkeypatch.setenv("NEORL_HOME", "/proc/neorl")
    assert run([*words, "--json"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("neorl: cannot use the folder /proc/neorl")
    assert said.count("\n") == 1


def test_help_imports_nothing_heavy() -> None:
    heavy = "{'jax', 'prefect', 'mlflow', 'pydantic', 'great_expectations', 'polars', 'numpy', 'matplotlib'}"
    code = f"import sys, flows.cli.main; found = {heavy} & set(sys.modules); assert not found, found"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PROJECT)


def test_starting_servers_imports_nothing_heavy(tmp_path: Path) -> None:
    """`neorl up` waits beside the servers that it starts."""
    heavy = "{'jax', 'prefect', 'mlflow', 'pydantic', 'cryptography', 'sqlalchemy', 'numpy'}"
    code = (
        "import sys, pathlib\n"
        "from configs.home import Home\n"
        "from flows.services import servers\n"
        f"servers.start_signer(Home(pathlib.Path({str(tmp_path)!r})), print)\n"
        "servers.deployments.declared()\n"
        f"found = {heavy} & set(sys.modules); assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PROJECT)


def test_audit_does_not_import_jax() -> None:
    heavy = "{'jax', 'flax', 'jaxtyping', 'polars', 'matplotlib', 'prefect', 'mlflow'}"
    code = f"import sys, tasks.evidence.audit.audit; found = {heavy} & set(sys.modules); assert not found, found"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PROJECT)


@pytest.mark.slow
def test_importing_the_flow_imports_nothing_heavy() -> None:
    """Reports, MLflow's client and checkpoints are needed only by runs that compute something."""
    heavy = (
        "{'mlflow', 'great_expectations', 'matplotlib', 'jinja2', 'orbax', 'polars', 'pandas', 'scipy.stats', 'lark'}"
    )
    code = f"import sys, flows.retrain, flows.cli.retrain_summary\nfound = {heavy} & set(sys.modules)"
    code += "\nassert not found, found"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PROJECT)


def test_debug_mode_shows_the_traceback(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEORL_DEBUG", "1")
    with pytest.raises(BadInput):
        run(["report", "double_mass"])


def test_plants_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plants"]) == 0
    assert "chemical_reactor" in capsys.readouterr().out
    assert run(["plants", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)["plants"]
    # truth.md 1.1: the reactor's temperature limits.
    assert table["chemical_reactor"]["limits"] == {"reactor temperature": "316 to 332 K"}
    assert table["robot_assembly"]["limits"] == {"contact force": "at most 40 N"}


@pytest.mark.slow
def test_plant_is_shown_with_its_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "masses.png"
    assert run(["plants", "show", "double_mass", "--out", str(picture), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    # truth.md 1.4: the saturated LQR with the true model scores 97.8.
    assert shown["controllers"]["plant controller"]["score"] == pytest.approx(97.8, abs=1.0)
    assert shown["controllers"]["plant controller"]["violated"] == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert run(["plants", "show", "double_mas"]) == 2
    assert "double_mass" in capsys.readouterr().err


@pytest.mark.slow
def test_the_champion_is_shown_beside_the_tuned_controller(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = open_ledger(Home(home))
    plant = plant_named(PLANT)
    bundle = keep_bundle(Home(home), make_composite(plant.simulator()), plant)
    certify(ledger, bundle.digest)
    version = crown(ledger, bundle.digest).body["version"]
    assert run(["plants", "show", PLANT, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["controllers"]
    # The composite without a policy is the tuned controller.
    assert found[f"champion, version {version}"] == pytest.approx(found["plant controller"], rel=1e-4)
    # An altered champion is refused.
    manifest = bundle.folder / MANIFEST
    manifest.write_bytes(manifest.read_bytes().replace(b"332.0", b"333.0"))
    assert run(["plants", "show", PLANT, "--json"]) == 1
    assert "composite.json was altered" in capsys.readouterr().err


@pytest.mark.slow
def test_logs_are_generated_and_ingested(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "logs"
    assert run(["generate", "chemical_reactor", "--out", str(out), "--weeks", "0.2", "--json"]) == 0
    made = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert Path(made["path"]).parent == out
    config = str(PROJECT / "configs" / "chemical_reactor.yaml")
    assert run(["ingest", config, "--data", made["path"], "--json"]) == 0
    dataset = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert dataset["sources"][0]["sha256"] == made["sha256"]
    assert run(["ingest", config, "--data", made["path"]]) == 0
    assert f"dataset {dataset['digest']}" in capsys.readouterr().out


@pytest.mark.slow
def test_episodes_are_generated_exported_and_ingested(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["generate", "double_mass", "--behaviour", "expert", "--episodes", "3", "--json"]) == 0
    made = json.loads(capsys.readouterr().out.splitlines()[-1])
    out = str(tmp_path / "double_mass-v0")
    assert run(["export", made["digest"][:12], "--to", "minari", "--out", out]) == 0
    said = capsys.readouterr().out
    assert f"300 rows in 3 episodes as minari in {out}" in said
    assert "left out: names, units, limits and provenance" in said
    assert run(["ingest", out, "--plant", "double_mass"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("double_mass-v0: Minari, recognised as the Minari dataset double_mass-v0, 3 episode(s)\n")
    assert "300 rows in 3 episodes" in said


@pytest.mark.parametrize(
    ("plant", "file"), [("chemical_reactor", "historian.parquet"), ("double_mass", "episodes.hdf5")]
)
def test_generated_log_is_where_the_deployment_reads_it(
    home: Path, capsys: pytest.CaptureFixture[str], plant: str, file: str
) -> None:
    size = ["--weeks", "0.2"] if plant == "chemical_reactor" else ["--episodes", "3"]
    assert run(["generate", plant, *size, "--json"]) == 0
    made = Path(json.loads(capsys.readouterr().out.splitlines()[-1])["path"])
    assert made == home / "generated" / plant / file
    declared = YAML(typ="safe").load((PROJECT / "prefect.yaml").read_text())["deployments"]
    assert [f".neorl/generated/{plant}/{file}"] in [
        deployment.get("parameters", {}).get("data") for deployment in declared
    ]


@pytest.mark.slow
def test_keys_and_an_empty_ledger(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["keys", "init", "--json"]) == 0
    name = json.loads(capsys.readouterr().out)["id"]
    assert run(["keys", "show"]) == 0
    assert f"signs as {name}" in capsys.readouterr().out
    assert run(["keys", "init"]) == 0
    assert name in capsys.readouterr().out
    assert run(["history", "double_mass"]) == 0
    assert "no champion yet" in capsys.readouterr().out
    assert run(["audit", "verify"]) == 0
    assert "chain" in capsys.readouterr().out


@pytest.mark.slow
def test_audit_sets_the_exit_code(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from configs.home import Home
    from tasks.evidence.ledger.client import stop
    from tasks.evidence.ledger.ledger import Ledger
    from tasks.evidence.rules import NoteBody

    ledger = Ledger.open(Home(home))
    ledger.append("note", NoteBody(text="looked at it"), plant="double_mass")
    (home / "elsewhere.head").write_text(ledger.signed_head())
    assert run(["audit", "verify", "--head", str(home / "elsewhere.head"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"] is True
    stop(Home(home))
    with sqlite3.connect(home / "ledger.db") as database:
        for name in [row[0] for row in database.execute("select name from sqlite_master where type = 'trigger'")]:
            database.execute(f"drop trigger {name}")
        database.execute("delete from ledger")
    assert run(["audit", "verify", "--head", str(home / "elsewhere.head")]) == 1
    captured = capsys.readouterr()
    assert "FAIL  head" in captured.out
    assert "checks failed: " in captured.err
    # Debug mode must not replace the result by a traceback.
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("NEORL_DEBUG", "1")
        assert run(["audit", "verify", "--json"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    assert (told["passed"], told["exit_code"]) == (False, 1)
    assert "heads" in {check["name"] for check in told["checks"] if not check["passed"]}
    assert told["error"].startswith("checks failed: ")


def test_up_and_status_show_running_services(
    services: Services, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEORL_HOME", str(services.home.root))
    assert run(["up"]) == 0
    assert "all services ran already" in capsys.readouterr().out
    assert run(["status"]) == 0
    assert services.mlflow.url in capsys.readouterr().out
    assert run(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["environment"]["PREFECT_API_URL"] == services.prefect_api
    assert run(["status", "--export"]) == 0
    assert f"export PREFECT_API_URL={services.prefect_api}" in capsys.readouterr().out
    assert run(["doctor", "--json"]) in (0, 1)  # 1 if installed versions differ from the lock
    findings = {f["name"]: f for f in json.loads(capsys.readouterr().out.splitlines()[0])["findings"]}
    assert findings["Prefect"]["ok"]
    assert services.prefect.url in findings["Prefect"]["detail"]


def test_commands_without_need_of_a_home_ignore_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.write_text("a file")
    assert run(["plants"]) == 0
    assert run(["status"]) == 2


@pytest.mark.parametrize(
    "words", [["retrain", "run.yaml", "--data", "nowhere.csv"], ["monitor", "chemical_reactor"], ["plants"]]
)
def test_jax_cache_is_in_the_home(words: list[str], home: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    from flows.services.servers import down

    if words[0] != "retrain":
        Home(home).folder("datasets")
    # A retraining starts its servers, which keep running, before it reads a log.
    request.addfinalizer(lambda: down(Home(home)))
    (tmp_path / "run.yaml").write_text("plant: chemical_reactor\n")
    script = f"from flows.cli.main import run; run({words}); import jax; print(jax.config.jax_compilation_cache_dir)"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    variables = {**clean, "NEORL_HOME": str(home), "PYTHONPATH": str(PROJECT)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=True)
    assert Path(done.stdout.splitlines()[-1]).is_relative_to(home), done.stderr
    # A new home is private and records its layout.
    assert Home(home).layout == LAYOUT
    assert {stat.S_IMODE(path.stat().st_mode) for path in (home, home / "cache", home / "cache" / "jax")} == {0o700}


def test_reading_commands_create_no_home(home: Path) -> None:
    script = "from flows.cli.main import run; run(['plants'])"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    subprocess.run([sys.executable, "-c", script], env={**clean, "NEORL_HOME": str(home)}, check=True)
    assert not home.exists()
