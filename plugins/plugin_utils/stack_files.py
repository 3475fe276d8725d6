# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stack documents from files on the Ansible controller."""

from __future__ import annotations

import copy
from contextlib import suppress
from functools import cache
from pathlib import Path

import yaml

from ansible_collections.muster.fleet.plugins.module_utils.stack import document as stack

# resolve() follows the links that make a checkout a collection.
ROOT = Path(__file__).resolve().parents[2]
STACKS = ROOT / "stacks"
# name and folder -> ({file: its state when it was read}, the whole stack)
_WHOLE: dict[tuple, tuple] = {}


def _state(path):
    found = path.stat()
    return found.st_mtime_ns, found.st_size


def _parsed(path):
    # libyaml is ten times as fast, and PyYAML may lack it.
    return yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def warm():
    """Read Muster's own stacks. A template that asks for a stack does so in a worker of Ansible, several times a task."""
    for path in STACKS.glob("*.yml"):
        with suppress(stack.StackError):  # load() says it when somebody asks for the stack
            load(path.stem)


@cache
def known():
    """The components that a stack may have, each with its own keys and their types, from the component table."""
    table = _parsed(ROOT / "playbooks/vars/components.yml")["component_table"]
    return {name: keys for entry in table for name, keys in entry.get("stack", {}).items()}


def load(name):
    """The whole stack of a name of Muster's own, or of a file when the name ends in .yml; with its sha256. Raises stack.StackError."""
    beside = Path(name).resolve().parent if name.endswith((".yml", ".yaml")) else STACKS
    states, document = _WHOLE.get((name, beside), ({}, None))
    with suppress(OSError):
        if document and all(_state(path) == state for path, state in states.items()):
            return copy.deepcopy(document)
    states = {}

    def read(wanted):
        if wanted == name and beside != STACKS:
            path = Path(name)
        else:
            path = next((folder / f"{wanted}.yml" for folder in (beside, STACKS) if (folder / f"{wanted}.yml").is_file()), None)
        if path is None or not path.is_file():
            known = ", ".join(sorted(each.stem for each in STACKS.glob("*.yml")))
            raise stack.StackError(f"There is no stack {wanted}; there are {known}, or name a file that ends in .yml.")
        try:
            states[path] = _state(path)
            return _parsed(path)
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise stack.StackError(f"Stack {path} cannot be read: {' '.join(str(error).split())}; mend it.") from error

    document = stack.resolve(name, read, known())
    document["sha256"] = stack.digest(document)
    _WHOLE[name, beside] = (states, document)
    return copy.deepcopy(document)
