#!/usr/bin/env bash
# The tests on containers, in two lanes: Ansible mostly waits for its nodes, so two fleets on two cores take little longer than one.
# One lane has the fleet `e2e` and its faults, the other the rehearsal and what needs no fleet. tests/unit.sh has run the other folders.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
beside=(tests/e2e/test_10_bad_input.py tests/e2e/test_11_bad_slurm.py tests/e2e/test_25_rehearsal.py)
ignored=("${beside[@]/#/--ignore=}" --ignore=tests/e2e/test_50_image.py)

said=$(mktemp)
trap 'rm -f "$said"' EXIT
set -m # without job control, bash starts commands in the background with SIGINT ignored
.venv/bin/pytest --engine --durations=15 "${beside[@]}" >"$said" 2>&1 &
second=$!
.venv/bin/pytest --engine --durations=15 "${ignored[@]}" tests/e2e &
first=$!
# pytest takes down its fleets after SIGINT.
trap 'kill -INT "$first" "$second" 2>/dev/null' INT TERM

failed=0
for lane in "$first" "$second"; do
  code=0
  wait "$lane" || code=$?
  # A signal ends the first wait before the lane has ended.
  if kill -0 "$lane" 2>/dev/null; then wait "$lane" || code=$?; fi
  [ "$code" = 0 ] || failed=1
done
echo "the lane beside it:"
cat "$said"
exit "$failed"
