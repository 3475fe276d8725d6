# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from ansible.errors import AnsibleFilterError

from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue
from ansible_collections.muster.fleet.plugins.module_utils.hardware import nccl_env as environment
from ansible_collections.muster.fleet.plugins.module_utils.stack import document as logic
from ansible_collections.muster.fleet.plugins.module_utils.stack.together import together
from ansible_collections.muster.fleet.plugins.plugin_utils import stack_files, stack_hosts


def stack_source(stack, component, system, arch, mirror=""):
    """The source of a component; fails with the sentence that says why it has none."""
    try:
        logic.validate({key: value for key, value in stack.items() if key != "sha256"}, stack_files.known())
    except logic.StackError as error:
        raise AnsibleFilterError(str(error)) from error
    said = logic.refusal(stack, component, system, arch)
    if said:
        raise AnsibleFilterError(said)
    return logic.redirected(logic.source_of(stack, component, system, arch), mirror)


def stack_refusals(stack, components, system, arch, require_signed=False):
    """One sentence for each of the components that cannot be installed there."""
    return [said for said in (logic.refusal(stack, name, system, arch, require_signed) for name in components) if said]


def stack_doubts(table, names, stack, system, arch, *, require_signed=False):
    """The components of a host whose roles must be asked, because the stack refuses something of them or only HTTPS vouches for it."""

    def doubtful(name):
        return name not in stack or logic.refusal(stack, name, system, arch, require_signed) or logic.notice(stack, name, system, arch)

    return [entry["name"] for entry in table if entry["name"] in names and any(doubtful(each) for each in entry.get("stack", {}))]


def stack_verified(stack, components, system, arch):
    """How the downloads of these components are verified."""
    return logic.verified(stack, components, system, arch)


def stack_faults(names):
    """One sentence for each stack that is missing or invalid."""
    said = []
    for name in dict.fromkeys(names):
        try:
            stack_files.load(name)
        except logic.StackError as error:
            said.append(str(error))
    return said


def stack_overrides(stack, overrides, types, *, groups, system, arch):
    """{rule: reason} of the overrides that are in force on a node with this stack."""
    host = stack_hosts.Host("", tuple(groups), "", stack, system, arch, overrides=overrides)
    try:
        return stack_hosts.overridden(host, types)
    except catalogue.CatalogueError as error:
        raise AnsibleFilterError(str(error)) from error


def nccl_env(kind, stack):
    """The variables of a type, by its name or whole."""
    try:
        return environment.nccl_env(catalogue.instance_type(kind) if isinstance(kind, str) else kind, stack)
    except catalogue.CatalogueError as error:
        raise AnsibleFilterError(str(error)) from error


def stack_together(facts, kind=""):
    """One sentence for each rule that the container and its host break together. Without a container there is none."""
    if facts.get("container") is None:
        return []
    try:
        have = catalogue.instance_type(kind) if kind else None
    except catalogue.CatalogueError as error:
        raise AnsibleFilterError(str(error)) from error
    return together(facts["host"], facts["container"], have)


class FilterModule:
    """Filters of the stack document."""

    def filters(self):
        return {
            "stack_source": stack_source,
            "stack_refusals": stack_refusals,
            "stack_doubts": stack_doubts,
            "stack_verified": stack_verified,
            "stack_faults": stack_faults,
            "stack_overrides": stack_overrides,
            "stack_together": stack_together,
            "nccl_env": nccl_env,
        }
