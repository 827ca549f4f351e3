#!/usr/bin/env bash
# Runs the tests on every supported Python and at both ends of jax, each in a fresh environment.
#
#   scripts/test_matrix.sh [ROW ...] [-- PYTEST ARGUMENTS]        # scripts/test_matrix.sh 3.12 3.13 -- tests/config
#
# A row is a Python, and after a colon the jax: 3.11 has the versions of constraints.txt, with the lowest jax and flax that
# pyproject.toml allows; 3.12:0.11 the newest jax 0.11, and 3.13 the newest of everything. pythonX.Y must be on the PATH.
# Environments are kept in ${ENVIRONMENTS:-.venv-matrix} and used again. With uv on the PATH, uv resolves: pip takes longer.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rows=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do rows+=("$1") && shift; done
[ $# -eq 0 ] || shift
[ ${#rows[@]} -gt 0 ] || rows=(3.11 3.12:0.11 3.12 3.13)

install() {
    local python=${1%%:*} jax=${1#*:} environment=$2
    local pip=("$environment/bin/pip" install -q) newest=(--upgrade --upgrade-strategy eager)
    [ -d "$environment" ] || "python$python" -m venv "$environment"
    if command -v uv >/dev/null; then
        pip=(uv pip install -q --python "$environment/bin/python") newest=(--upgrade)
    fi
    case $1 in
        3.11) "${pip[@]}" -c constraints.txt -e '.[test]' ;;
        *:*) "${pip[@]}" "${newest[@]}" "jax==$jax.*" -e '.[test]' ;;
        *) "${pip[@]}" "${newest[@]}" -e '.[test]' ;;
    esac
}

for row in "${rows[@]}"; do
    environment=${ENVIRONMENTS:-.venv-matrix}/${row/:/-jax}
    install "$row" "$environment"
    echo "== $row: $("$environment/bin/python" -c '
import importlib.metadata as m, platform
print("Python", platform.python_version(), *(f"{n} {m.version(n)}" for n in ("jax", "flax", "optax", "orbax-checkpoint")))')"
    "$environment/bin/pytest" "$@"
done
