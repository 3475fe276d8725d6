#!/usr/bin/python

# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: node_health
short_description: Install muster-health on a node, and record its checks
version_added: 0.5.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Installs the program C(muster-health), which needs nothing but Python, and writes its settings when the program can read them.
    A node without a verdict gets its first one before the settings are in place.
  - Runs the checks of a level and returns them as check records. A failed check with the severity C(info) or C(warning) is a warning of
    the task, all others fail the host in Muster's verdict.
attributes:
  check_mode:
    support: full
    description: Says what would change. Checks run all the same.
  diff_mode:
    support: full
    description: Shows the settings.
options:
  state:
    description: V(installed) writes program and settings, V(checked) runs the checks.
    type: str
    choices: [installed, checked]
    required: true
  settings:
    description: The content of C(/etc/muster/health.json), without it the file stays as it is. For V(state=installed).
    type: dict
  level:
    description: The checks to run. For V(state=checked).
    type: str
    choices: [prolog, periodic, full]
    default: periodic
"""

EXAMPLES = r"""
- name: Install muster-health
  muster.fleet.node_health:
    state: installed
    settings: {schema: muster.health/1, instance_type: p5.48xlarge, units: [slurmd], disks: [/]}

- name: Check the node
  muster.fleet.node_health:
    state: checked
"""

RETURN = r"""
files:
  description: The files that changed, or would.
  type: list
  elements: str
  returned: state=installed
muster_checks:
  description: The check records.
  type: list
  elements: dict
  returned: state=checked
  sample:
    - check: disk_space
      component: node_health
      expected: less than 90%
      found: 41%
      level: node
      reason: ""
      remedy: Free space on the file system.
      seconds: 0.001
      severity: drain
      status: passed
"""

import datetime
import json
import os
import sys

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.basics import read_text
from ansible_collections.muster.fleet.plugins.module_utils.health import program
from ansible_collections.muster.fleet.plugins.module_utils.health.run import blocks, run_checks, sentence
from ansible_collections.muster.fleet.plugins.module_utils.health.settings import DRAINING, PATH, SettingsError, read

PACKAGE = "ansible_collections.muster.fleet.plugins.module_utils."
HOME = "/usr/lib/muster/health"
PROGRAM = "/usr/bin/muster-health"
PARTS = ("basics", "hardware", "health", "node")  # what the program is made of
START = """#!/usr/bin/python3 -I
# Written by Muster (role node_health).
import sys

sys.path.insert(0, "%s")
from %shealth.program import main  # noqa: E402

raise SystemExit(main())
"""


def sources():
    """{path: text} of the program: Ansible has sent the modules that it imports along with this one."""
    out = {PROGRAM: START % (HOME, PACKAGE)}
    for name, module in sorted(sys.modules.items()):
        loader = getattr(module, "__loader__", None)
        if name.startswith(PACKAGE) and name[len(PACKAGE) :].split(".")[0] in PARTS and hasattr(loader, "get_source"):
            folder = hasattr(module, "__path__")
            path = os.path.join(HOME, *name.split("."), "__init__.py") if folder else os.path.join(HOME, *name.split(".")) + ".py"
            out[path] = loader.get_source(name) or ""
    for path in [path for path in out if path.startswith(HOME)]:
        parts = os.path.dirname(path)[len(HOME) + 1 :].split(os.sep)
        for depth in range(1, len(parts) + 1):
            out.setdefault(os.path.join(HOME, *parts[:depth], "__init__.py"), "")
    return out


def first_verdict(module, settings):
    """Run the checks once before the settings are in place: from then on, Slurm's prolog refuses jobs on a node without a verdict."""
    if os.path.exists(os.path.join(program.STATE, "state.json")):
        return
    tried = PATH + ".first"
    program.replace_file(tried, settings, 0o644)
    rc, _out, err = module.run_command([PROGRAM, "--level", "periodic", "--settings", tried, "--state", program.STATE])
    os.remove(tried)
    # 1 and 2 are verdicts, too. They drain nothing here.
    if rc not in (0, 1, 2, 3):
        module.fail_json(msg="The first run of %s failed, so no settings were written: %s" % (PROGRAM, " ".join(err.split())))


def install(module):
    texts = sources()
    before, after = "", ""
    if module.params["settings"] is not None:
        after = json.dumps(module.params["settings"], indent=1, sort_keys=True) + "\n"
        try:
            notes = read(after, datetime.date.today())[1]
        except SettingsError as error:
            module.fail_json(msg="The health checks cannot have these settings, so nothing was changed: %s" % error)
        for note in notes:
            module.warn(note)
        before = read_text(PATH, "")
        texts[PATH] = after
    changed = [path for path, text in texts.items() if read_text(path, None if os.path.exists(path) else "\0") != text]
    if not module.check_mode:
        for path in changed:
            if path != PATH:
                program.replace_file(path, texts[path], 0o755 if path == PROGRAM else 0o644)
        if after:
            first_verdict(module, after)
        if PATH in changed:
            program.replace_file(PATH, after, 0o644)
    diff = {"before": before, "after": after, "before_header": PATH, "after_header": PATH}
    module.exit_json(changed=bool(changed), files=changed, diff=diff)


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["installed", "checked"], "required": True},
            "settings": {"type": "dict"},
            "level": {"type": "str", "choices": ["prolog", "periodic", "full"], "default": "periodic"},
        },
        supports_check_mode=True,
    )
    if module.params["state"] == "installed":
        install(module)
    state = program.remembered(os.path.join(program.STATE, "state.json"))
    try:
        node, notes = program.the_node(state=state)
    except SettingsError as error:
        module.fail_json(msg=str(error))
    records = run_checks(module.params["level"], node, again=lambda: program.the_node(state=state)[0])
    for note in notes:
        module.warn(note)
    mild = [record for record in records if blocks(record) and record["severity"] not in DRAINING]
    for record in mild:
        module.warn(sentence(record))
    # Failures that the settings allow, or that do not stop a node from training, do not change the verdict.
    judged = [record for record in records if record["status"] != "passed" and record not in mild and not record["allowed"]]
    module.exit_json(changed=False, muster_checks=records, ansible_facts={"muster_checks_node_health_node": judged})


if __name__ == "__main__":
    main()
