#!/usr/bin/env bash
# All that can be said of the sources without running them. Every check runs; the failed ones are named at the end.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
export LC_ALL=C.UTF-8 # ansible-lint and ansible-test refuse a locale that is not UTF-8
PATH="$PWD/.venv/bin:$PATH"
failed=()
check() {
  local name=$1
  shift
  echo "lint: $name"
  "$@" || failed+=("$name")
}
# A stub archive stands for a vendor's source, whose scripts follow the vendor's rules.
mapfile -t scripts < <(git ls-files --cached --others --exclude-standard '*.sh' '.ci/run' ':!.config/molecule/stub_archives')

# The two slowest checks run side by side, each on one core.
sanity=$(mktemp)
tests/sanity/run.sh >"$sanity" 2>&1 &
sanity_pid=$!
trap 'kill "$sanity_pid" 2>/dev/null || :; rm -f "$sanity"' EXIT

check "ruff" ruff check --quiet .
check "ruff format" ruff format --check --quiet .
# Modules run under the node's Python.
check "ruff for Python 3.9" ruff check --quiet --target-version py39 --select E9,F plugins/modules plugins/module_utils
check "mypy" mypy
check "shellcheck" shellcheck "${scripts[@]}"
check "changelog fragments" antsibull-changelog lint
check "role READMEs (make docs)" python tools/role_readmes.py --check
check "catalogue (make docs)" python tools/catalogue.py --check
check "docs/efa.md (make docs)" python tools/efa_doc.py --check
check "kubernetes/ (make docs)" python tools/kubernetes_manifests.py --check
check "cloudformation/ (make docs)" python tools/cloudformation.py --check
check "tests/fixtures/architectures (make docs)" python tools/cluster_files.py --check
check "alarms and dashboards (make docs)" python tools/observe.py --check
check "docs/support.md (make docs)" python tests/proofs.py table
# Pages, links and headings, as mkdocs sees them.
site() {
  tools/venv.sh .venv-docs .venv/bin/python requirements/docs.txt && python tools/docs_site.py build/docs-source >/dev/null &&
    .venv-docs/bin/mkdocs build --strict --quiet --config-file build/docs-source/mkdocs.yml --site-dir ../docs
}
check "documentation site (make docs-site)" site
check "ansible-lint" ansible-lint -q --nocolor
finish_sanity() {
  local code=0
  wait "$sanity_pid" || code=$?
  cat "$sanity"
  return "$code"
}
check "ansible-test sanity" finish_sanity

[ ${#failed[@]} -eq 0 ] || { printf 'lint: failed: %s\n' "${failed[@]}"; exit 1; }
