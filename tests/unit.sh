#!/usr/bin/env bash
# Plain pytest on the interpreter of .venv, the unit tests on one from the other side of Python 3.12 (which has another ansible-core), then the trainer's with torch.
# PYTHON2ND names the second interpreter. Where there is none the run says so; CI=true makes that an error.
set -euo pipefail
cd "$(dirname "$0")/.."

below_312() { "$1" -c 'import sys; sys.exit(sys.version_info >= (3, 12))'; }
in_range() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }

find_second() {
  local candidate side=0
  below_312 .venv/bin/python || side=1
  for candidate in ${PYTHON2ND:+"$PYTHON2ND"} python3.13 python3.12 python3.11 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/{3.13,3.12,3.11}.*/bin/python /usr/bin/python3; do
    if in_range "$candidate"; then
      if below_312 "$candidate"; then [ $side = 1 ] || continue; else [ $side = 0 ] || continue; fi
      echo "$candidate"
      return
    fi
  done
}

# The optional extra of clusters on Kubernetes is no part of .venv, and its tests need it.
with_kubernetes() {
  "$1" -c 'import kubernetes.config' 2>/dev/null || "$1" -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/kubernetes.txt
}

with_kubernetes .venv/bin/python
second=$(find_second)
if [ -n "$second" ]; then
  folder=.venv-$("$second" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  tools/venv.sh "$folder" "$second" requirements/dev.txt --editable
  with_kubernetes "$folder/bin/python"
  # Each is one process at a time: on two cores both take as long as one.
  said=$(mktemp)
  "$folder/bin/python" -m pytest -q tests/unit >"$said" 2>&1 &
  other=$!
  trap 'kill "$other" 2>/dev/null || :; rm -f "$said"' EXIT # under set -e a trap's failing command is the script's exit code
  .venv/bin/pytest -q
  code=0
  wait "$other" || code=$?
  echo "unit tests on $("$second" -V):"
  cat "$said"
  [ "$code" = 0 ]
else
  .venv/bin/pytest -q
  echo "not_run: unit tests on a second Python; .venv has $(.venv/bin/python -V), and no interpreter from the other side of 3.12 was found: name one with PYTHON2ND"
  [ "${CI:-}" != true ]
fi

trainer=$(tools/trainer_venv.sh)
"$trainer/bin/python" -m pytest -q trainer
