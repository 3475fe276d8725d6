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

# pip's last line says "No matching distribution" when it could not reach its index at all. The cause stands some lines before.
cause() {
  if grep -qiE 'CERTIFICATE_VERIFY_FAILED|certificate verify failed|confirming the ssl certificate' "$1"; then
    echo "pip does not trust the certificate of the package index or of a proxy before it; name your authority's file by PIP_CERT=/path/to/ca.pem."
  elif grep -qiE 'ProxyError|Cannot connect to proxy|Tunnel connection failed|Proxy Authentication Required' "$1"; then
    echo "pip cannot go through its proxy; correct HTTPS_PROXY, or the proxy in pip's configuration."
  elif grep -qiE 'Failed to establish a new connection|name resolution|ConnectTimeout|ReadTimeout|timed out|Network is unreachable' "$1"; then
    echo "pip does not reach the package index; set HTTPS_PROXY, or PIP_INDEX_URL to an index that this machine reaches."
  elif grep -qi 'No space left on device' "$1"; then
    echo "The disk of $folder or of ${TMPDIR:-/tmp} is full; free some space."
  else
    echo "pip could not install $requirements; its output above says why."
  fi
}

pip_install() {
  if ! "$folder/bin/python" -m pip --quiet --disable-pip-version-check install "$@" 2>"$said"; then
    tail -n 15 "$said" >&2
    echo "setup: $(cause "$said")" >&2
    exit 1
  fi
  cat "$said" >&2
}

said=$(mktemp)
trap 'rm -f "$said"' EXIT
pip_install --require-hashes -r "$requirements"
if [ -n "$editable" ]; then pip_install --no-deps --no-build-isolation --editable .; fi
# Molecule and testinfra look for ansible's commands on PATH: the environment's own programs find each other without activation.
cat >"$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/muster_path.pth" <<'PTH'
import os, sys; b = sys.prefix + "/bin"; p = os.environ.get("PATH", os.defpath); os.environ["PATH"] = p if b in p.split(":") else b + ":" + p
PTH
printf '%s\n' "$wanted" >"$stamp"
