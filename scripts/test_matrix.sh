#!/usr/bin/env bash
# Runs the tests on every supported Python and at both ends of jax, each in a fresh environment.
#
#   scripts/test_matrix.sh [ROW ...] [-- PYTEST ARGUMENTS]        # scripts/test_matrix.sh 3.12 3.13 -- tests/config
#
# Rows: 3.11 (the versions of constraints.txt, with the lowest jax and flax that pyproject.toml allows), 3.12 and 3.13 (the
# newest of everything). pythonX.Y must be on the PATH. Environments are kept in ${ENVIRONMENTS:-.venv-matrix} and used again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rows=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do rows+=("$1") && shift; done
[ $# -eq 0 ] || shift
[ ${#rows[@]} -gt 0 ] || rows=(3.11 3.12 3.13)

install() {
    local row=$1 environment=$2
    [ -d "$environment" ] || "python$row" -m venv "$environment"
    case $row in
        3.11) "$environment/bin/pip" install -q -c constraints.txt -e '.[test]' ;;
        *) "$environment/bin/pip" install -q --upgrade --upgrade-strategy eager -e '.[test]' ;;
    esac
}

for row in "${rows[@]}"; do
    environment=${ENVIRONMENTS:-.venv-matrix}/$row
    install "$row" "$environment"
    echo "== $row: $("$environment/bin/python" -c '
import importlib.metadata as m, platform
print("Python", platform.python_version(), *(f"{n} {m.version(n)}" for n in ("jax", "flax", "optax", "orbax-checkpoint")))')"
    "$environment/bin/pytest" "$@"
done
