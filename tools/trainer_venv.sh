#!/usr/bin/env bash
# Makes the trainer's environment with torch, if it is missing, and prints its folder. torch is large, so its environment serves every checkout.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(readlink -f .venv/bin/python)
hash=$({ "$python" -V; cat requirements/trainer.txt; } | sha256sum | cut -c1-12)
folder=${XDG_CACHE_HOME:-$HOME/.cache}/muster/venv-trainer-$hash
tools/venv.sh "$folder" "$python" requirements/trainer.txt >&2
echo "$folder"
