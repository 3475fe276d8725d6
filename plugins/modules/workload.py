#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: workload
short_description: Choose the job of a recipe
version_added: 0.2.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Reads a recipe, V(muster.recipe/1), from its folder, chooses the sizes of a model for an instance type, and makes the job document.
  - Asks the trainer's C(estimate) whether the model fits the nodes, and refuses one that does not with what would fit.
  - Runs on the host that has the recipes, which is mostly the Ansible controller. Starts no job.
options:
  folder:
    description: The folder with a folder for each recipe.
    type: path
    required: true
  recipe:
    description: Name of the recipe.
    type: str
    required: true
  model:
    description: Name of the model. Without it the recipe's first model that has a size for the type.
    type: str
    default: ""
  instance_type:
    description: The instance type. Without it that of the fleet, or CPUs.
    type: str
    default: ""
  nodes:
    description: Number of nodes, at least 1. Without it that of the recipe.
    type: int
  fleet:
    description: The nodes, as P(muster.fleet.fleet_parts#filter) gives them. Without it the launcher's service has its own nodes.
    type: list
    elements: dict
  launcher:
    description: The launcher.
    type: str
    default: slurm
  target:
    description: Where the job runs, as docs/jobs.md says for each launcher.
    type: dict
    default: {}
  trainer:
    description: What of a document lets a rank find the trainer.
    type: dict
    default: {}
  asked:
    description: What replaces a setting of the recipe, as in C(muster_workload).
    type: dict
    default: {}
  python:
    description: The Python that runs the trainer's C(estimate), 3.11 or later. Without it no memory is estimated.
    type: path
  trainer_source:
    description: The folder that has the package C(trainer).
    type: path
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
  - module: muster.fleet.job_document
  - plugin: muster.fleet.workload_result
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Choose the job
  muster.fleet.workload:
    folder: recipes
    recipe: fsdp
    model: llama3_1_8b
    instance_type: p5.48xlarge
    launcher: batch
    target: {queue: gpu, image: registry.example.com/trainer:1}
  delegate_to: localhost
  register: chosen
"""

RETURN = r"""
document:
  description: The job document.
  type: dict
  returned: success
real:
  description: In a rehearsal the document that nodes of the type would run; otherwise empty.
  type: dict
  returned: success
recipe:
  description: The recipe with the defaults of all fields.
  type: dict
  returned: success
model:
  description: Name of the model.
  type: str
  returned: success
type:
  description: The instance type, or V(cpu).
  type: str
  returned: success
ranks:
  description: Number of ranks.
  type: int
  returned: success
data:
  description: Folder of the data that somebody must make before the job runs; empty for data that are brought.
  type: str
  returned: success
tokens:
  description: Size of these data in tokens.
  type: int
  returned: success
memory:
  description: The trainer's estimate (V(muster.estimate/1)) for these nodes; empty where it knows the model or the type not.
  type: dict
  returned: success
"""

import json
import os

from ansible.module_utils.basic import AnsibleModule, missing_required_lib

from ansible_collections.muster.fleet.plugins.module_utils.basics import nearest
from ansible_collections.muster.fleet.plugins.module_utils.jobs import document as documents
from ansible_collections.muster.fleet.plugins.module_utils.jobs import recipe as recipes
from ansible_collections.muster.fleet.plugins.module_utils.jobs import workload

try:
    import yaml
except ImportError:
    yaml = None


def read(folder, name):
    """(recipe, {name: text} of its files). Raises JobError that names the nearest recipe."""
    known = sorted(each for each in os.listdir(folder) if os.path.isfile(os.path.join(folder, each, "recipe.yml")))
    if name not in known:
        raise recipes.RecipeError("The recipe %s is unknown in %s; %s" % (name, os.path.normpath(folder), nearest(name, known)))
    with open(os.path.join(folder, name, "recipe.yml"), encoding="utf-8") as file:
        recipe = recipes.load(yaml.safe_load(file.read()), name)
    texts = {}
    for each in recipe["files"]:
        with open(os.path.join(folder, name, os.path.basename(each)), encoding="utf-8") as file:
            texts[each] = file.read()
    return recipe, texts


def part_of(fleet, instance_type, name):
    """The nodes of a fleet that the job runs on. Raises JobError when the type must be named."""
    if instance_type:
        found = [part for part in fleet if part["type"] == instance_type]
        if not found:
            types = ", ".join(part["type"] or "nodes without a type" for part in fleet) or "none that may run jobs"
            raise recipes.RecipeError(
                "Recipe %s: the fleet has no nodes of %s, but %s; change workload_type." % (name, instance_type, types)
            )
        return found[0]
    if len(fleet) != 1:
        types = ", ".join(part["type"] or "one without a type" for part in fleet)
        raise recipes.RecipeError(
            "Recipe %s: the fleet has the types %s; choose one with workload_type." % (name, types or "of no usable node")
        )
    return fleet[0]


def estimates(module, lists):
    """The estimates of these lists of arguments, up to the first that fits."""
    found = []
    environment = {"PYTHONPATH": module.params["trainer_source"] or ""}
    for words in lists:
        if not words or not module.params["python"]:
            break
        status, out, error = module.run_command([module.params["python"], "-m", "trainer", *words], environ_update=environment)
        if status not in (0, 1) or not out.strip():
            raise recipes.RecipeError(
                "The trainer cannot estimate the memory: %s." % ((error or out).strip().splitlines() or ["it said nothing"])[-1]
            )
        found.append(json.loads(out))
        if found[-1]["fits"]:
            break
    return found


def main():
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "required": True},
            "recipe": {"type": "str", "required": True},
            "model": {"type": "str", "default": ""},
            "instance_type": {"type": "str", "default": ""},
            "nodes": {"type": "int"},
            "fleet": {"type": "list", "elements": "dict"},
            "launcher": {"type": "str", "default": "slurm"},
            "target": {"type": "dict", "default": {}},
            "trainer": {"type": "dict", "default": {}},
            "asked": {"type": "dict", "default": {}},
            "python": {"type": "path"},
            "trainer_source": {"type": "path"},
        },
        supports_check_mode=True,
    )
    if yaml is None:
        module.fail_json(msg=missing_required_lib("PyYAML"))
    given = module.params
    try:
        recipe, texts = read(given["folder"], given["recipe"])
        part = part_of(given["fleet"], given["instance_type"], recipe["name"]) if given["fleet"] is not None else None
        found = workload.plan(
            recipe,
            given["asked"],
            model=given["model"],
            part=part,
            kind=given["launcher"],
            instance_type=given["instance_type"] or given["target"].get("instance_type") or "",
            nodes=given["nodes"],
            trainer=given["trainer"],
            target=given["target"],
            texts=texts,
        )
        document = documents.load(found["document"])
        answers = estimates(module, found.pop("estimate"))
        if answers:
            workload.check_fits(recipe, found["model"], found["type"], answers)
    except OSError as error:
        module.fail_json(
            msg="The recipe %s cannot be read (%s: %s); look at its folder." % (given["recipe"], error.filename, error.strerror)
        )
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        module.fail_json(msg="recipe.yml of %s is not YAML: %s; mend it." % (given["recipe"], " ".join(str(error).split())))
    except documents.JobError as error:
        module.fail_json(msg=str(error))
    result = {**found, "document": document, "real": found["real"] or {}, "memory": answers[0] if answers else {}}
    module.exit_json(changed=False, recipe=recipe, **result)


if __name__ == "__main__":
    main()
