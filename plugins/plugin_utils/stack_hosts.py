# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which stack, type and system a host has, and what the rules say of a fleet. Each distinct combination is judged once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ansible_collections.muster.fleet.plugins.module_utils.aws.hosts import launch_from
from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue
from ansible_collections.muster.fleet.plugins.module_utils.hardware.nccl_env import nccl_env
from ansible_collections.muster.fleet.plugins.module_utils.report.run_record import named_hosts
from ansible_collections.muster.fleet.plugins.module_utils.stack.document import StackError
from ansible_collections.muster.fleet.plugins.module_utils.stack.rules import Case, judge, override_faults, refusals, sentence
from ansible_collections.muster.fleet.plugins.plugin_utils import stack_files

NAMES = {"Amazon": "amzn", "RedHat": "rhel"}
# The groups whose hosts have hardware that the catalogue describes.
ACCELERATED = {"muster_gpu", "muster_neuron", "muster_efa"}
# What a launch says of where an instance is.
PLACES = ("availability_zones", "subnets")
# What of a host's variables the rules depend on.
WANTED = ("instance_type", "muster_stack", "muster_stack_name", "muster_rule_overrides", "muster_launch")


class Host(NamedTuple):
    """What the rules need of a host. `stack` is a name, a whole document, or None while the host's system is not known."""

    name: str
    groups: tuple[str, ...] = ()
    instance_type: str = ""
    stack: Any = None
    system: str = ""
    arch: str = ""
    kernel: str = ""
    overrides: Mapping[str, str] = {}
    launch: Mapping[str, Any] = {}


def system_of(facts: Mapping[str, Any]) -> str:
    """The operating system as stacks name it, from the facts that Ansible gathered; "" without them. The role phases derives the same."""
    name = facts.get("distribution")
    if not name:
        return ""
    version = facts["distribution_version" if name == "Ubuntu" else "distribution_major_version"]
    return NAMES.get(name, name.lower()) + version


def stack_of(variables: Mapping[str, Any], system: str) -> Any:
    """The stack that a host's variables name; without one that of its system, as the role phases chooses it."""
    named = variables.get("muster_stack") or variables.get("muster_stack_name")
    if named or not system:
        return named or None
    return "debian-" + system[len("debian") :] if system.startswith("debian") else "aws-2026.11"


def host_of(name: str, groups: Iterable[str], variables: Mapping[str, Any], facts: Mapping[str, Any]) -> Host:
    """A host from its variables (those in WANTED) and facts."""
    groups = tuple(groups)
    system, arch = system_of(facts), facts.get("architecture", "")
    launch = launch_from(variables.get("muster_launch") or {})
    if "muster_compute" not in groups:
        launch.pop("threads_per_core", None)  # ParallelCluster and PCS have their own Slurm
    return Host(
        name,
        groups,
        variables.get("instance_type") or "",
        stack_of(variables, system),
        system,
        "arm64" if arch == "aarch64" else arch,
        facts.get("kernel", ""),
        variables.get("muster_rule_overrides") or {},
        launch,
    )


def types_of(host: Host, wanted: Iterable[str] = ()) -> list[str]:
    """The types that a host has, or that it may have when nothing says which: those of the catalogue with what its groups promise.

    Raises CatalogueError for a type that the catalogue does not have, unless it can be one without accelerators, such as c7i.large.
    """
    named = list(wanted) or [host.instance_type] * bool(host.instance_type)
    if not named:
        return [name for name in catalogue.names() if _may_be(host, catalogue.instance_type(name))]
    if not wanted and not catalogue.described(host.instance_type) and not set(host.groups) & ACCELERATED:
        return []
    return [catalogue.instance_type(name)["name"] for name in named]


def _may_be(host: Host, kind: Mapping[str, Any]) -> bool:
    accelerated = {"nvidia": "muster_gpu", "neuron": "muster_neuron"}[kind["accelerator"]] in host.groups
    return accelerated and host.arch in ("", kind["arch"]) and (bool(kind["efa"]) or "muster_efa" not in host.groups)


def launched_together(hosts: Iterable[Host]) -> list[Host]:
    """The hosts, each with the zones and subnets of all hosts of its type, because a job runs on all of them."""
    hosts = list(hosts)
    places: dict[str, dict[str, set[str]]] = {}
    for host in hosts:
        for key in PLACES:
            places.setdefault(host.instance_type, {}).setdefault(key, set()).update(host.launch.get(key) or ())
    return [
        host._replace(launch={**host.launch, **{key: sorted(places[host.instance_type][key]) for key in PLACES}}) if host.launch else host
        for host in hosts
    ]


def judge_fleet(
    hosts: Iterable[Host], types: Iterable[str] = (), scopes: Iterable[str] = ("stack",), **inputs: Any
) -> dict[str, list[str]]:
    """Sentences by {refused, overridden, warned, unfit, not_run, judged}, each once; hosts that are alike are judged together.

    `types` counts instead of the hosts' own, `inputs` are those of a Case beside stack, type and system. A host without a type must work as
    one type at least; `unfit` says as which it does not. Without scopes only the stacks themselves are checked.
    """
    hosts = list(hosts)
    out: dict[str, dict[str, None]] = {key: {} for key in ("refused", "overridden", "warned", "unfit", "not_run", "judged")}
    out["refused"].update(dict.fromkeys(_invalid_stacks(hosts)))
    alike: dict[str, list[Host]] = {}
    for host in launched_together(hosts) if scopes and not out["refused"] else []:
        alike.setdefault(json.dumps(host[1:], sort_keys=True, default=str), []).append(host)
    for same in alike.values():
        names = named_hosts(each.name for each in same)
        for key, sentences in _judge_alike(same[0], names, list(types), tuple(scopes), inputs).items():
            out[key].update(dict.fromkeys(sentences))
    return {key: list(sentences) for key, sentences in out.items()}


def _invalid_stacks(hosts: Iterable[Host]) -> list[str]:
    named: dict[str, list[str]] = {}
    for host in hosts:
        if isinstance(host.stack, str):
            named.setdefault(host.stack, []).append(host.name)
    said = []
    for name, whose in named.items():
        try:
            stack_files.load(name)
        except StackError as error:
            said.append("%s: %s" % (named_hosts(whose), error))
    return said


def _judge_alike(host: Host, names: str, types: list[str], scopes: tuple[str, ...], inputs: dict[str, Any]) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {key: [] for key in ("refused", "overridden", "warned", "unfit", "not_run", "judged")}
    out["refused"] += override_faults(host.overrides)
    overrides = {} if out["refused"] else host.overrides
    try:
        kinds = types_of(host, types)
    except catalogue.CatalogueError as error:
        out["refused"].append(str(error) if types else "%s: %s" % (names, error))
        return out
    if not kinds:
        return out
    stack = stack_files.load(host.stack) if isinstance(host.stack, str) else host.stack
    if stack is None and "stack" in scopes:
        out["not_run"].append("The stack of %s is not known before its system is." % names)
        scopes = tuple(each for each in scopes if each != "stack")
    stack = dict(stack or {"name": "unknown"})
    named = bool(types or host.instance_type)
    whom = " (%s)" % names if named and not types else ""
    unfit: list[list[str]] = []
    for name in kinds:
        told = judge(_case(host, stack, catalogue.instance_type(name), inputs), scopes)
        where = "%s with stack %s%s%s" % (name, stack["name"], " on " + host.system if host.system else "", whom)
        said = {verdict: [each for each in told if each["verdict"] == verdict] for verdict in ("warned", "not_run")}
        bad, forced = refusals(told, overrides)
        out["judged"].append(where)
        out["overridden"] += ["Rule %s is overridden for %s: %s." % (rule, where, why.strip().rstrip(".")) for rule, why in forced.items()]
        if not named:
            unfit += [[sentence(each) for each in bad]] if bad else []
            out["unfit"] += ["%s: %s" % (where, sentence(each)) for each in bad]
            continue
        out["refused"] += ["%s: %s" % (where, sentence(each)) for each in bad]
        out["warned"] += ["%s: %s" % (where, sentence(each)) for each in said["warned"]]
        out["not_run"] += ["%s: rule %s has not run, because %s." % (where, each["rule"], each["says"]) for each in said["not_run"]]
    if unfit and len(unfit) == len(kinds):
        reasons = " ".join(dict.fromkeys(each[0] for each in unfit))
        out["refused"].append("Stack %s works as none of the %d types that %s may be: %s" % (stack["name"], len(kinds), names, reasons))
    return out


def _case(host: Host, stack: dict[str, Any], kind: dict[str, Any], inputs: dict[str, Any]) -> Case:
    """A job's environment is laid over that of the nodes, which nccl_env derives."""
    env = inputs.get("env")
    if env is not None:
        env = {**{each["name"]: each["value"] for each in nccl_env(kind, stack)}, **env}
    launch = inputs.get("launch") or host.launch
    return Case(stack, kind, system=host.system, kernel=host.kernel, **{**inputs, "launch": launch, "env": env})


def overridden(host: Host, types: Iterable[str] = ()) -> dict[str, str]:
    """{rule: reason} of the overrides that are in force on a host: those without which its stack would be refused."""
    told = [
        each
        for name in types_of(host, types)
        for each in judge(Case(host.stack, catalogue.instance_type(name), system=host.system), ("stack",))
    ]
    return refusals(told, host.overrides)[1]
