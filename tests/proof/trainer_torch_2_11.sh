#!/usr/bin/env bash
# The trainer's tests with the oldest torch that it takes. The rest of their environment is that of tests/unit.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."

python=$(readlink -f .venv/bin/python)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/muster
made_of() { { "$python" -V; cat "$1"; } | sha256sum | cut -c1-12; }

trainer=$cache/venv-trainer-$(made_of requirements/trainer.txt)
tools/venv.sh "$trainer" "$python" requirements/trainer.txt
oldest=$cache/venv-torch-2.11-$(made_of requirements/torch-2.11.txt)
tools/venv.sh "$oldest" "$python" requirements/torch-2.11.txt
packages() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
packages "$trainer" >"$(packages "$oldest")/trainer.pth" # comes after its own packages

"$oldest/bin/python" -c 'import torch; print("torch", torch.__version__); assert torch.__version__.startswith("2.11.")'
"$oldest/bin/python" -m pytest -q "${@:-trainer}"
