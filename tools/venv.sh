#!/usr/bin/env bash
# venv.sh FOLDER PYTHON REQUIREMENTS [--editable]: a virtual environment with hashed requirements, and with this project in it.
# A stamp in the folder names what it was made from, so that asking again costs nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1 python=$2 requirements=$3 editable=${4:-}

made_from() {
  "$python" -c 'import sys; print(sys.version)'
  sha256sum "$requirements"
  if [ -n "$editable" ]; then
    pwd
    sha256sum pyproject.toml
  fi
}

stamp=$folder/muster-stamp
wanted=$(made_from)
if [ -e "$stamp" ] && [ "$wanted" = "$(cat "$stamp")" ] && "$folder/bin/python" -c '' 2>/dev/null; then exit 0; fi

echo "setup: making $folder with $("$python" -V 2>&1) from $requirements"
rm -f "$stamp"
if ! "$folder/bin/python" -c 'import pip, sys; sys.exit(sys.version != sys.argv[1])' "${wanted%%$'\n'*}" 2>/dev/null; then
  "$python" -m venv --clear "$folder"
fi
pip=("$folder/bin/python" -m pip --quiet --disable-pip-version-check)
"${pip[@]}" install --require-hashes -r "$requirements"
if [ -n "$editable" ]; then "${pip[@]}" install --no-deps --no-build-isolation --editable .; fi
# Molecule and testinfra look for ansible's commands on PATH: the environment's own programs find each other without activation.
cat >"$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/muster_path.pth" <<'PTH'
import os, sys; b = sys.prefix + "/bin"; p = os.environ.get("PATH", os.defpath); os.environ["PATH"] = p if b in p.split(":") else b + ":" + p
PTH
printf '%s\n' "$wanted" >"$stamp"
