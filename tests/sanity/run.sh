#!/usr/bin/env bash
# ansible-test sanity on the collection as people get it: built, installed, no link to the checkout and no git above it, whose .gitignore counts.
# ansible-test wants a real path that ends in ansible_collections/muster/fleet, which a checkout with links cannot give it.
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=$PWD/.venv/bin
stage=$(mktemp -d)
log=$stage/log
trap 'rm -rf "$stage"' EXIT

"$bin/ansible-galaxy" collection build --output-path "$stage" >/dev/null
ANSIBLE_COLLECTIONS_PATH=$stage "$bin/ansible-galaxy" collection install "$stage"/*.tar.gz -p "$stage" --offline --no-deps --force >/dev/null
cd "$stage/ansible_collections/muster/fleet"

# Only .venv's Python: ansible-test would try every python3.x on PATH, and some version managers leave dead ones there.
version=$("$bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
sanity() {
  PATH="$bin:$PATH" "$bin/ansible-test" sanity --local --color no --python "$version" "$@" 2>&1 | tee "$log" || return
  # With nothing to look at it ends well.
  ! grep -q 'All targets skipped' "$log"
}

if sanity "$@"; then exit; fi
# ansible-test fetches pip for its environments from a host of its own. Where that one is not reached it names the file it wants, and Python's
# own copy of pip serves as well.
wanted=$(sed -n 's/^The bootstrap script can be manually downloaded and saved to: //p' "$log" | head -n 1)
[ -n "$wanted" ] || exit 1
printf 'import ensurepip\nensurepip.bootstrap(upgrade=True)\n' >"$wanted"
sanity "$@"
