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
# (path, time of change, bytes) of each file that was read -> its content. Callers may change what they get.
_READ: dict[tuple, object] = {}


def parsed(path):
    """What a YAML file says. Raises OSError, UnicodeDecodeError and yaml.YAMLError."""
    state = path.stat()
    key = (str(path.absolute()), state.st_mtime_ns, state.st_size)
    if key not in _READ:
        # libyaml is ten times as fast, and PyYAML may lack it.
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        _READ[key] = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    return copy.deepcopy(_READ[key])


def warm():
    """Read Muster's own stacks. A template that asks for a stack does so in a worker of Ansible, several times a task."""
    for path in STACKS.glob("*.yml"):
        with suppress(OSError, UnicodeDecodeError, yaml.YAMLError):  # load() says it when the stack is asked for
            parsed(path)
    known()


@cache
def known():
    """The components that a stack may have, each with its own keys and their types, from the component table."""
    table = parsed(ROOT / "playbooks/vars/components.yml")["component_table"]
    return {name: keys for entry in table for name, keys in entry.get("stack", {}).items()}


def load(name):
    """The whole stack of a name of Muster's own, or of a file when the name ends in .yml; with its sha256. Raises stack.StackError."""
    beside = Path(name).resolve().parent if name.endswith((".yml", ".yaml")) else STACKS

    def read(wanted):
        if wanted == name and beside != STACKS:
            path = Path(name)
        else:
            path = next((folder / f"{wanted}.yml" for folder in (beside, STACKS) if (folder / f"{wanted}.yml").is_file()), None)
        if path is None or not path.is_file():
            known = ", ".join(sorted(each.stem for each in STACKS.glob("*.yml")))
            raise stack.StackError(f"There is no stack {wanted}; there are {known}, or name a file that ends in .yml.")
        try:
            return parsed(path)
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise stack.StackError(f"Stack {path} cannot be read: {' '.join(str(error).split())}; mend it.") from error

    document = stack.resolve(name, read, known())
    return {**document, "sha256": stack.digest(document)}
