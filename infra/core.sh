#!/usr/bin/env bash
# Install the core alone, import all its modules and run its tests: infra/core.sh PYTHON [TESTS...]
# This shows that the core needs none of the packages above it.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
shift
uv=$PWD/.venv/bin/uv
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$uv" venv -q --python "$python" "$folder/venv"
alone=$folder/venv/bin/python
# The lock file constrains versions and hashes.
"$uv" pip install -q --python "$alone" -c requirements.lock hatchling editables pytest pytest-xdist pytest-timeout hypothesis
"$uv" pip install -q --python "$alone" -c requirements.lock --no-build-isolation -e .
"$alone" - <<'END'
import importlib
import importlib.util
import pkgutil
import sys

import neorl_core

for above in ("prefect", "mlflow", "pydantic", "polars", "h5py", "pandas", "gymnasium", "matplotlib"):
    assert importlib.util.find_spec(above) is None, f"{above} was installed with the core: remove the dependency"
count = 0
for module in pkgutil.walk_packages(neorl_core.__path__, "neorl_core."):
    try:
        importlib.import_module(module.name)
        count += 1
    except ModuleNotFoundError as error:
        # The wrappers need the extra `gym`.
        if error.name not in ("gymnasium", "pettingzoo", "PIL"):
            raise
print(f"Python {sys.version.split()[0]}: {count} modules of the core imported, nothing above it installed")
END
# `python -m` puts this folder first in the path, so that the tests find their helpers.
# Tests of the wrappers need Gymnasium and PettingZoo.
"$alone" -m pytest --ignore tests/neorl_core/test_wrappers.py --ignore tests/neorl_core/test_environments.py "${@:-tests/neorl_core}"
