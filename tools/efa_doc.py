#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Writes docs/efa.md: the variables that nccl_env gives each instance type, and the linter's table.

With --check nothing is written; the exit code says whether the page is current.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue
from ansible_collections.muster.fleet.plugins.module_utils.hardware.nccl_env import nccl_env
from ansible_collections.muster.fleet.plugins.module_utils.stack.env_lint import TABLE, VERDICTS
from ansible_collections.muster.fleet.plugins.plugin_utils import stack_files

PAGE = "docs/efa.md"
STACK = "aws-2026.11"
HEAD = """<!-- Made by tools/efa_doc.py; `make docs` writes it anew. -->
# EFA: the environment of collective jobs

Every launcher takes its variables from the filter `nccl_env(type, stack)`. Types without EFA get none of EFA's.

```yaml
env: "{{ 'p5.48xlarge' | muster.fleet.nccl_env(phases_stack) | items2dict('name', 'value') }}"
```

The filter leaves out what the plugin sets by itself (`NCCL_BUFFSIZE`, `NCCL_TOPO_FILE`, the tuner and others), because another value would
defeat the plugin. A plugin that does not load costs a quarter of the speed or more, and the log has one line about it. So `NCCL_NET` names
the transport: if the plugin does not load, the job ends.
"""
LINT = """
## Check your own variables

The module `stack_check` with `scopes: [env]` finds stale and harmful variables. By hand:

```sh
ansible-playbook playbooks/stack_explain.yml -e '{"muster_explain": {"types": ["p5.48xlarge"], "env": {"NCCL_PROTO": "simple"}}}'
```

It refuses a variable that aborts the job, and warns of one that is harmful or obsolete. The type and the versions of the stack change
the verdict: `FI_EFA_USE_DEVICE_RDMA=1` aborts where EFA has no RDMA (g4dn, g5, p3dn), and is fine with plugin 1.6 and on Trainium.

"""


def page() -> str:
    stack = stack_files.load(STACK)
    sets: dict[tuple, list[str]] = {}
    for name in catalogue.names():
        told = tuple(tuple(each.values()) for each in nccl_env(catalogue.instance_type(name), stack))
        sets.setdefault(told, []).append(name)
    lines = [HEAD, f"## With stack {STACK}\n"]
    for told, names in sorted(sets.items(), key=lambda each: (-len(each[0]), each[1])):
        lines.append(f"{', '.join(names)}:\n")
        if told:
            lines += ["| Variable | Reason | Source |", "| --- | --- | --- |"]
            lines += [f"| `{name}={value}` | {reason} | {source} |" for name, value, reason, source in told]
        else:
            lines.append("nothing.")
        lines.append("")
    lines[-1:] = [LINT.rstrip("\n"), "", "| Variable | Value | Verdict | Why | Source |", "| --- | --- | --- | --- | --- |"]
    special = {row[0] for row in TABLE if row[1]}
    for names, values, verdict, why, source in sorted(TABLE, key=lambda row: VERDICTS.index(row[2])):
        value = cell(values.removeprefix("(?i)")) if values else "any other" if names in special else "any"
        lines.append(f"| {cell(names)} | {value} | {verdict} | {why} | {source} |")
    return "\n".join(lines) + "\n"


def cell(pattern: str) -> str:
    """A pattern as people write a family of names."""
    text = pattern.replace(".*", "…").replace("N?CHANNELS", "(N)CHANNELS").replace("|", "\\|")
    return f"`{text}`"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args(argv).check
    path, new = ROOT / PAGE, page()
    if path.exists() and path.read_text() == new:
        return 0
    if check:
        print(f"{PAGE} is not current; run `make docs`")
        return 1
    path.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
