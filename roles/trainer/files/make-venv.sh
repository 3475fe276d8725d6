#!/bin/sh
# Makes the trainer's Python environment once: make-venv.sh FOLDER REQUIREMENTS [pip options]
# Prints "made" or "there". A folder without the stamp was left by an interrupted run, and is made again.
set -eu
venv=$1 requirements=$2
shift 2
mkdir -p "$(dirname "$venv")"
# Several hosts and fleets may share the folder: one makes it, the others wait.
exec 9>"$venv.lock"
flock 9
if [ -e "$venv/.muster-made" ]; then
    echo there
    exit 0
fi
# Not in /tmp, which may be memory: the downloads are several GB.
TMPDIR=$venv.tmp
export TMPDIR
rm -rf "$venv" "$TMPDIR"
free=$(df --output=avail -m "$(dirname "$venv")" | tail -n 1)
if [ "$free" -lt 6500 ]; then
    echo "$venv needs 6500 MiB and $((free)) MiB are free on its disk; free some, or set trainer_venv to a folder on another disk." >&2
    exit 1
fi
mkdir "$TMPDIR"
python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --require-hashes --only-binary :all: \
    --requirement "$requirements" "$@"
rm -rf "$TMPDIR"
touch "$venv/.muster-made"
echo made
