# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults of the settings of role slurm, which Slurm's own parsers do not report as well. One sentence each, before anything starts."""

from __future__ import annotations

import os
import re

from ansible_collections.muster.fleet.plugins.module_utils.basics import nearest
from ansible_collections.muster.fleet.plugins.module_utils.slurm import services
from ansible_collections.muster.fleet.plugins.module_utils.slurm.accounting import SlurmAccountingError, associations, order, parent_of
from ansible_collections.muster.fleet.plugins.module_utils.slurm.conf import SlurmConfError, gres_of_type, own_gres, topologies, with_type


def names_in(text):
    """The words of a text."""
    return tuple(text.split())


# The options that `sacctmgr modify` knows and `sacctmgr show` prints by the same name, in 22.05 and 24.11.
LIMITS = names_in("""
    GrpJobs GrpJobsAccrue GrpSubmit GrpSubmitJobs GrpTRES GrpTRESMins GrpTRESRunMins GrpWall MaxJobs MaxSubmit MaxSubmitJobs MaxTRES
    MaxTRESMins MaxTRESMinsPerJob MaxTRESPerJob MaxTRESPerNode MaxWall MaxWallDurationPerJob Priority
""")
ASSOCIATION_KEYS = LIMITS + names_in("DefaultQOS Fairshare MaxJobsAccrue QOS QosLevel Share")
QOS_KEYS = LIMITS + names_in("""
    Description Flags GraceTime LimitFactor MaxJobsAccruePerAccount MaxJobsAccruePerUser MaxJobsPerAccount MaxJobsPerUser
    MaxSubmitJobsPerAccount MaxSubmitJobsPerUser MaxTRESPerAccount MaxTRESPerUser MaxTRESRunMinsPerAccount MaxTRESRunMinsPerUser MinTRES
    MinTRESPerJob Preempt PreemptExemptTime PreemptMode UsageFactor UsageThreshold
""")
GRES_KEYS = names_in("AutoDetect Cores Count File Flags Links MultipleFiles Name Type")
DETECTORS = names_in("full nrt nvidia nvml off oneapi rsmi")
JOB_CONTAINER_KEYS = names_in("""
    AutoBasePath BasePath CloneNSEpilog CloneNSEpilog_Wait CloneNSScript CloneNSScript_Wait Dirs EntireStepInNS InitScript NodeName Shared
""")

# Since 23.11 Slurm runs several scripts for each of these.
SEVERAL_SCRIPTS = ("Prolog", "Epilog")


def lowered(params):
    """Options by their names in lower case, as Slurm compares them."""
    return {key.lower(): value for key, value in (params or {}).items()}


def words(value):
    """A list, or text with commas, as names."""
    items = value if isinstance(value, (list, tuple)) else str(value).split(",")
    # +name and -name change a list of QOS.
    return [str(item).strip().lstrip("+-") for item in items if str(item).strip()]


def known_keys(where, params, known):
    return [
        "%s has the unknown option %s; %s" % (where, key, nearest(key, known))
        for key in params or {}
        if key.lower() not in [name.lower() for name in known]
    ]


def twice(what, names, remedy):
    return ["%s %s is there twice; %s." % (what, name, remedy) for name in sorted({name for name in names if names.count(name) > 1})]


def accounting(config, qos, accounts, users, partitions):
    """Sentences about QOS, accounts and users."""
    found = twice("The QOS", [each["name"] for each in qos], "leave one of them in slurm_qos")
    found += twice("The account", [each["name"] for each in accounts], "leave one of them in slurm_accounts")
    found += twice("The user", [each["name"] for each in users], "leave one of them in slurm_users")
    store = str(lowered(config).get("accountingstoragetype", ""))
    qualities = {"normal", *(each["name"] for each in qos)}
    names = {"root", *(each["name"] for each in accounts)}
    limited = [("the QOS %s (slurm_qos)" % each["name"]) for each in qos]
    for each in qos:
        found += known_keys("The QOS %s" % each["name"], each.get("params"), QOS_KEYS)
    owners = [("The account %s" % each["name"], each.get("params")) for each in accounts]
    owners += [("The user %s" % user["name"], link["params"]) for user in users for link in associations(user)]
    for where, params in owners:
        found += known_keys(where, params, ASSOCIATION_KEYS)
        limited += ["the limits of " + where[0].lower() + where[1:]] if params else []
        for key in ("qos", "qoslevel", "defaultqos"):
            for name in words(lowered(params).get(key) or ""):
                if name not in qualities:
                    found.append("%s names the QOS %s, which slurm_qos does not have; %s" % (where, name, nearest(name, qualities)))
    for partition in partitions:
        params = lowered(partition.get("params"))
        for key in ("qos", "allowqos", "denyqos"):
            for name in words(params.get(key) or ""):
                if name not in qualities and name.upper() != "ALL":
                    message = "The partition %s names the QOS %s, which slurm_qos does not have; %s"
                    found.append(message % (partition["name"], name, nearest(name, qualities)))
                elif key == "qos":
                    limited.append("the QOS of partition %s" % partition["name"])
    if limited and not store.endswith("/slurmdbd"):
        message = "AccountingStorageType is %s, and without slurmdbd Slurm has no QOS and no limits: remove %s, or leave accounting on."
        found.append(message % (store or "not set", limited[0]))
    for account in accounts:
        if parent_of(account) not in names:
            message = "The account %s has the parent %s, which slurm_accounts does not have; %s"
            found.append(message % (account["name"], parent_of(account), nearest(parent_of(account), names)))
    for user in users:
        for link in associations(user):
            if link["account"] not in names:
                message = "The user %s has the account %s, which slurm_accounts does not have; %s"
                found.append(message % (user["name"], link["account"], nearest(link["account"], names)))
            if link["partition"] and link["partition"] not in [partition["name"] for partition in partitions]:
                message = "The user %s has an association in the partition %s, which slurm_partitions does not have; %s"
                known = [partition["name"] for partition in partitions]
                found.append(message % (user["name"], link["partition"], nearest(link["partition"], known)))
    if not found:
        try:
            order(accounts)
        except SlurmAccountingError as error:
            found.append(str(error))
    return found


def groups(nodegroups, partitions):
    """Sentences about node groups and partitions."""
    names = [group["name"] for group in nodegroups]
    found = twice("The node group", names, "leave one of them in slurm_nodegroups")
    found += twice("The partition", [partition["name"] for partition in partitions], "leave one of them in slurm_partitions")
    for partition in partitions:
        for name in partition["nodegroups"]:
            if name not in names:
                message = "The partition %s names the node group %s, which slurm_nodegroups does not have; %s"
                found.append(message % (partition["name"], name, nearest(name, names)))
    owner: dict = {}
    for group in nodegroups:
        for host in group["hosts"]:
            if owner.setdefault(host, group["name"]) != group["name"]:
                message = "The host %s is in the node groups %s and %s; a node has one node line, so leave it in one of them."
                found.append(message % (host, owner[host], group["name"]))
    return found


def gres_names(text):
    """`gpu:h100:8,shard:16` -> [gpu, shard]."""
    return [part.split(":")[0].strip() for part in re.sub(r"\([^)]*\)", "", str(text)).split(",") if part.strip()]


def gres(config, nodegroups, devices):
    """Sentences about generic resources: named in GresTypes, and with a device behind each."""
    types = words(lowered(config).get("grestypes") or "")
    names = [group["name"] for group in nodegroups]
    found = []
    for group in nodegroups:
        wanted = gres_names(lowered(group.get("params")).get("gres") or "")
        for name in wanted:
            if name not in types:
                message = "The node group %s has the gres %s, which is not in GresTypes; add it to slurm_config."
                found.append(message % (group["name"], name))
                continue
            lines = [line for line in devices if group["name"] in (line.get("nodegroups") or names)]
            detected = [line for line in lines if str(lowered(line.get("params")).get("autodetect", "off")).lower() not in ("off", "false")]
            described = [line for line in lines if lowered(line.get("params")).get("name") == name]
            if not detected and not described:
                message = (
                    "The node group %s has the gres %s and no device for it: add a line to slurm_gres with AutoDetect,"
                    " or with Name and File (Count alone, for what has no device)."
                )
                found.append(message % (group["name"], name))
    for line in devices:
        found += known_keys("A line of slurm_gres", line.get("params"), GRES_KEYS)
        how = str(lowered(line.get("params")).get("autodetect", "off")).lower()
        # YAML reads a bare off as false.
        if how not in DETECTORS and how != "false":
            found.append("slurm_gres has AutoDetect %s, which Slurm does not know; %s" % (how, nearest(how, DETECTORS)))
        for name in line.get("nodegroups") or []:
            if name not in names:
                message = "slurm_gres names the node group %s, which slurm_nodegroups does not have; %s"
                found.append(message % (name, nearest(name, names)))
    return found


def types_of(nodegroups, types, gpu_hosts):
    """Sentences about node groups whose hosts differ from each other or from the group, and about GPUs that Slurm would not know."""
    found, with_gpus = [], set(gpu_hosts)
    for group in nodegroups:
        kinds: dict = {}
        for host in group["hosts"]:
            if types.get(host):
                kinds.setdefault(types[host], host)
        named = group.get("instance_type")
        if len(kinds) > 1:
            message = (
                "The node group %s (slurm_nodegroups) has hosts of several instance types (%s); give each type a node group of its own."
            )
            found.append(message % (group["name"], ", ".join("%s: %s" % item for item in sorted(kinds.items()))))
        for kind, host in kinds.items():
            if named and len(kinds) == 1 and kind != named:
                message = "The node group %s (slurm_nodegroups) has the instance_type %s and its host %s is a %s; correct one of them."
                found.append(message % (group["name"], named, host, kind))
        bare = [host for host in group["hosts"] if host in with_gpus]
        if bare and not named and not own_gres(group):
            message = (
                "The node group %s (slurm_nodegroups) has the GPU node %s and no GPUs, so no job would see one; put the node into the"
                " inventory group of its type, such as muster_type_p5_48xlarge, or give the node group an instance_type or a Gres."
            )
            found.append(message % (group["name"], bare[0]))
    return found


def network(topology, nodegroups, partitions):
    """Sentences about the topologies, and about partitions that name one."""
    names = [named["name"] for named in topologies(topology)] if topology else []
    found = twice("The topology", names, "give each of slurm_topology.topologies a name of its own")
    beside = [key for key in ("switches", "blocks", "block_sizes") if topology.get("topologies") and topology.get(key)]
    if beside:
        found.append("slurm_topology has topologies and, beside them, %s; move that into one of them." % beside[0])
    for named in topologies(topology):
        where = "The topology %s of slurm_topology" % named["name"] if topology.get("topologies") else "slurm_topology"
        found += one_network(where, named, nodegroups)
    for partition in partitions:
        name = lowered(partition.get("params")).get("topology")
        if name is not None and name not in names:
            message = "The partition %s names the topology %s, which slurm_topology does not have; %s"
            found.append(message % (partition["name"], name, nearest(name, names)))
    return found


def one_network(where, topology, nodegroups):
    """Sentences about one topology."""
    names = [group["name"] for group in nodegroups]
    switches = [switch["name"] for switch in topology.get("switches") or []]
    found = []
    if topology.get("switches") and topology.get("blocks"):
        found.append("%s has switches and blocks; Slurm sees a network as one of them, so leave one out." % where)
    if topology.get("blocks") and not topology.get("block_sizes"):
        found.append("%s has blocks and no block_sizes; name the number of nodes that one block has." % where)
    for each in (topology.get("switches") or []) + (topology.get("blocks") or []):
        for key, variable, known in (("nodegroups", "slurm_nodegroups", names), ("switches", "slurm_topology", switches)):
            for name in each.get(key) or []:
                if name not in known:
                    message = "%s has %s above %s, which %s does not have; %s"
                    found.append(message % (where, each["name"], name, variable, nearest(name, known)))
    return found


def adoption(config, pam_adopt):
    """Sentences about ssh for users with a job: what Slurm needs to find a job's processes, and the admins' way in."""
    if not pam_adopt:
        return []
    found = []
    if "admins" not in pam_adopt:
        found.append("slurm_pam_adopt has no admins; name the groups that come in by ssh without a job, or [] for root alone.")
    for name in pam_adopt.get("admins") or []:
        if not re.fullmatch(r"[^\s:,]+", str(name)):
            found.append("slurm_pam_adopt.admins has %r, which is not the name of a group; name one group in each entry." % name)
    for key, needed in (("PrologFlags", "Contain"), ("ProctrackType", "proctrack/cgroup"), ("TaskPlugin", "task/cgroup")):
        if needed.lower() not in str(lowered(config).get(key.lower(), "")).lower().split(","):
            found.append("slurm_pam_adopt needs %s in %s, or a job has no processes to add to; add it to slurm_config." % (needed, key))
    return found


def site_scripts(scripts):
    """Sentences about scripts that do not exist here, and about hooks that take one script."""
    found = []
    for script in scripts:
        if not os.path.isabs(script["path"]) or not os.path.isfile(script["path"]):
            found.append("slurm_scripts names %s, which is not a file on this machine; give its whole path." % script["path"])
    single = [script["hook"] for script in scripts if script["hook"] not in SEVERAL_SCRIPTS]
    for hook in sorted({hook for hook in single if single.count(hook) > 1}):
        found.append("slurm_scripts has two scripts for %s, and Slurm runs one; leave one of them." % hook)
    return found


def of_version(said, topology, partitions, scripts):
    """Sentences about what this version of Slurm cannot do. said: the output of `slurmctld -V`; [] when it has no version."""
    match = re.search(r"(\d+)\.(\d+)", said)
    if not match:
        return []
    version = (int(match[1]), int(match[2]))
    found, needs = [], ["slurm_topology.topologies"] if topology.get("topologies") else []
    needs += [
        "The Topology of partition %s (slurm_partitions)" % each["name"] for each in partitions if "topology" in lowered(each.get("params"))
    ]
    if needs and version < (25, 5):
        message = "%s needs Slurm 25.05 or newer and this controller has %s; give one topology for all, or upgrade Slurm first."
        found.append(message % (needs[0], match[0]))
    for script in scripts:
        if script["hook"] in SEVERAL_SCRIPTS and version < (23, 11):
            message = "This Slurm runs only one %s, the role's own; %s needs Slurm 23.11 or newer, or slurm_config with a %s of yours."
            found.append(message % (script["hook"], script["path"], script["hook"]))
    return found


def faults(
    config,
    *,
    version=None,
    own=None,
    nodegroups=(),
    partitions=(),
    qos=(),
    accounts=(),
    users=(),
    gres_lines=(),
    topology=None,
    job_container=None,
    scripts=(),
    pam_adopt=None,
    controllers=(),
    database=None,
    rest=None,
    secrets="",
    environ=None,
    types=None,
    gpu_hosts=(),
):
    """All sentences about the settings of role slurm; with `version` only those about what that version of Slurm cannot do.

    `config` has the role's defaults, `own` only the site's settings: the default state folder is no shared folder of several controllers.
    types: {compute host: its instance type or ""}.
    """
    if version is not None:
        return of_version(version, topology or {}, partitions, scripts)
    typed, lines = [], list(gres_lines)
    try:
        for group in nodegroups:
            typed.append(with_type(group))
            line = gres_of_type(group, gres_lines)
            lines += [{"nodegroups": [group["name"]], "params": line}] if line else []
    except SlurmConfError as error:
        return [str(error)]
    found = (
        groups(typed, partitions)
        + types_of(nodegroups, types or {}, gpu_hosts)
        + gres(config, typed, lines)
        + accounting(config, qos, accounts, users, partitions)
    )
    found += network(topology or {}, typed, partitions) + known_keys("slurm_job_container", job_container, JOB_CONTAINER_KEYS)
    found += adoption(config, pam_adopt) + site_scripts(scripts)
    return found + services.faults(
        controllers, config if own is None else own, database or {}, rest or {}, secrets=secrets, environ=environ or {}
    )
