#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: job_document
short_description: Read and check a job document
version_added: 0.1.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Reads a job document, V(muster.job/1), from a YAML or JSON file and refuses what no launcher could run, before anything is submitted.
  - Runs on the host that has the file, which is mostly the Ansible controller. Nothing in the file is taken as a template.
options:
  path:
    description: The file.
    type: path
    required: true
  launcher:
    description: The launcher of a document that names none. Without it V(slurm).
    type: str
  home:
    description:
      - What lets a rank find the fleet's trainer, a mapping with V(image) or V(venv), V(mounts) and V(env).
      - A document that has neither image nor venv gets it; its own variables and mounts win.
    type: dict
    default: {}
    version_added: 0.6.0
  target:
    description: Where the job runs, as docs/jobs.md says for each launcher; Slurm needs none.
    type: dict
    default: {}
  verb:
    description: What a user asks of the job. With V(render) the answer has what the launcher gives its service.
    type: str
    default: run
requirements:
  - PyYAML
attributes:
  check_mode:
    support: full
    description: Reads only.
  diff_mode:
    support: none
    description: Changes nothing.
seealso:
  - module: muster.fleet.slurm_job
"""

EXAMPLES = r"""
- name: Read a job document
  muster.fleet.job_document:
    path: hello.yml
  delegate_to: localhost
  register: hello

- name: Run it
  muster.fleet.slurm_job:
    job: "{{ hello.document }}"
"""

RETURN = r"""
document:
  description: The document with the defaults of all fields that the file does not have.
  type: dict
  returned: success
rendered:
  description: File names and texts of what the launcher gives its service.
  type: dict
  returned: when O(verb=render)
state:
  description: The state that the module of the launcher brings the job to; empty for V(render).
  type: str
  returned: success
  sample: finished
identity:
  description: The sha256 of the document, by which a job is known.
  type: str
  returned: success
"""

import os

from ansible.module_utils.basic import AnsibleModule, missing_required_lib

from ansible_collections.muster.fleet.plugins.module_utils.jobs import document as job
from ansible_collections.muster.fleet.plugins.module_utils.jobs import launchers
from ansible_collections.muster.fleet.plugins.module_utils.jobs import target as targets

try:
    import yaml
except ImportError:
    yaml = None


def main():
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "launcher": {"type": "str"},
            "home": {"type": "dict", "default": {}},
            "target": {"type": "dict", "default": {}},
            "verb": {"type": "str", "default": "run"},
        },
        supports_check_mode=True,
    )
    if yaml is None:
        module.fail_json(msg=missing_required_lib("PyYAML"))
    path = os.path.abspath(module.params["path"])
    try:
        with open(path, encoding="utf-8") as file:
            document = job.load(job.at_home(yaml.safe_load(file.read()), module.params["home"]), module.params["launcher"])
        identity = job.identity(document)
        kind = document["launcher"]["kind"]
        target = targets.load(kind, {} if kind == "slurm" else module.params["target"])
        state = launchers.state_of(module.params["verb"])
        rendered = {} if state else {"rendered": launchers.files(document, identity, target)}
    except OSError as error:
        module.fail_json(msg="Job document %s cannot be read (%s): name a file." % (path, error.strerror))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        module.fail_json(msg="Job document %s is not YAML: %s; mend it." % (path, " ".join(str(error).split())))
    except job.JobError as error:
        module.fail_json(msg="%s: %s" % (path, error))
    module.exit_json(changed=False, document=document, identity=identity, state=state, **rendered)


if __name__ == "__main__":
    main()
