#!/usr/bin/env bash
# Makes this machine able to run Muster: system packages, then the hashed virtual environment .venv.
# What is missing is named first; where it may not be installed, one sentence names the command and nothing is changed.
#   tools/setup.sh          what `make site` needs
#   tools/setup.sh --test   also what only the tests need (git, gpg, a browser for the report)
# PYTHON=… chooses the interpreter, MUSTER_NO_INSTALL=1 forbids the package manager.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PATH:/usr/sbin:/sbin"
python_range="3.11 to 3.13"

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }
runs() { command -v "$1" >/dev/null 2>&1; }

# A candidate must run and say its version: version managers leave commands on PATH that do neither.
find_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3.13 python3.12 python3.11 python3; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
      echo "$candidate"
      return
    elif [ "$candidate" = "${PYTHON:-}" ]; then
      die "PYTHON=$PYTHON is no Python $python_range that runs: name another, or leave PYTHON unset."
    fi
  done
}

if runs apt-get; then
  family=apt
  install="apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends"
elif runs dnf; then
  family=dnf
  install="dnf install -y"
else
  family=none
  install="the system's package manager for"
fi

packages=()
# want APT_PACKAGE DNF_PACKAGE: a - means that this family needs none.
want() {
  local package=$1
  if [ "$family" = dnf ]; then package=$2; fi
  if [ "$package" != - ]; then packages+=("$package"); fi
}

want_python() {
  local version
  if [ -z "$python" ]; then
    want python3 python3.12
    want python3-venv -
  elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    want "python$version-venv" "python$version"
  fi
}

want_engine() {
  if docker info >/dev/null 2>&1; then return; fi
  runs podman || want podman podman
  runs newuidmap || want uidmap shadow-utils
  runs iptables || want iptables iptables-nft
  compgen -G '/usr/lib*/podman/netavark' >/dev/null || want netavark netavark
  compgen -G '/usr/lib*/podman/aardvark-dns' >/dev/null || want aardvark-dns aardvark-dns
  # crun cannot start systemd where the cgroup hierarchies are mixed.
  if [ "$(stat -fc %T /sys/fs/cgroup)" != cgroup2fs ]; then runs runc || want runc runc; fi
}

python=$(find_python)
want_python
want_engine
runs mmdebstrap || want mmdebstrap mmdebstrap
compgen -G '/usr/share/keyrings/debian-archive-keyring.*' >/dev/null || want debian-archive-keyring debian-keyring
runs ssh-keygen || want openssh-client openssh-clients
if [ "${1:-}" = --test ]; then
  runs git || want git git
  runs gpg || want gnupg gnupg2
  runs chromium || runs chromium-browser || runs google-chrome || want chromium chromium
fi

if [ ${#packages[@]} -gt 0 ]; then
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then as_root=(sudo -n); fi
  if [ "$family" = none ] || [ -n "${MUSTER_NO_INSTALL:-}" ] || ! "${as_root[@]}" true 2>/dev/null; then
    die "Not installed and needed: ${packages[*]}; run as root: $install ${packages[*]}"
  fi
  say "installing with $family what is missing: ${packages[*]}"
  log=$(mktemp)
  if ! "${as_root[@]}" sh -c "$install ${packages[*]}" >"$log" 2>&1 </dev/null; then
    tail -n 15 "$log" >&2
    die "The package manager failed; its output is in $log. Mend that, or install by hand: ${packages[*]}"
  fi
  rm -f "$log"
  python=$(find_python)
fi

[ -n "$python" ] || die "No Python $python_range found: install one and name it with PYTHON=/path/to/python3."
tools/venv.sh .venv "$python" requirements/dev.txt --editable
