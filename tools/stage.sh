#!/usr/bin/env bash
# stage.sh NAME BUDGET_SECONDS -- COMMAND…: runs one stage of the tests, tells its time, stops it at 1.5 times its budget.
# It is stopped as by Ctrl-C, so that pytest and Ansible take down what they started.
set -uo pipefail
name=$1 budget=$2
shift 3

timeout --signal=INT --kill-after=60 $((budget * 3 / 2)) "$@" &
child=$!
trap 'kill -INT "$child"' INT TERM
wait "$child"
code=$?
# A signal ends the first wait before the stage has ended.
if kill -0 "$child" 2>/dev/null; then
  wait "$child"
  code=$?
fi

case $code in
  124 | 137) result="stopped at 1.5 times its budget" ;;
  0) result="passed" ;;
  *) result="failed" ;;
esac
echo "stage $name: $SECONDS s of $budget s, $result"
exit "$code"
