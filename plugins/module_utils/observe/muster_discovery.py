# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which targets follow from the nodes that Slurm has now, and the files that Prometheus reads them from.

Settings are what `scrape.discovery` gives. Role monitoring copies this file to /usr/lib/muster, so it imports only the standard library.
"""

from __future__ import annotations

import concurrent.futures
import ipaddress
import json
import os
import re
import socket
import tempfile

METRIC = "muster_slurm_node_on"
SUCCESS = "muster_discovery_last_success_time_seconds"
UNWATCHED = "muster_discovery_unwatched_nodes"
# Node exporter of the monitoring host serves it.
TEXTFILE = "/var/lib/prometheus/node-exporter/muster_discovery.prom"
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", re.ASCII)
FEATURE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]*", re.ASCII)


class DiscoveryError(ValueError):
    """There is no list of nodes to follow; the text is one sentence for the user."""


def query(settings):
    """The expression whose result `nodes_of` reads."""
    return '%s{job="muster",fleet=%s}' % (METRIC, json.dumps(settings["fleet"]))


def is_ip(text):
    """Tell whether a text is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def nodes_of(result):
    """{name: {address, features, cloud, on}} of Prometheus' answer. One bad entry makes the whole list a bad one."""
    out: dict = {}
    if not isinstance(result, list) or not result:
        raise DiscoveryError("Prometheus knows no node of Slurm; look at muster-exporter and scontrol ping on the controller.")
    for each in result:
        try:
            labels, value = each["metric"], each["value"][1]
            name, address, features = labels["node"], labels["address"], labels.get("features", "")
        except (TypeError, KeyError, IndexError):
            raise DiscoveryError("Prometheus answers with an entry that is no node: %.80r." % (each,)) from None
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise DiscoveryError("Slurm names a node %.80r, which is no name of a host; look at scontrol show nodes." % (name,))
        if not isinstance(address, str) or not (NAME.fullmatch(address) or is_ip(address)):
            raise DiscoveryError("Slurm gives node %s the address %.80r, which is none; look at its NodeAddr." % (name, address))
        if name in out:
            raise DiscoveryError("Two controllers have node %s; only the first controller may run muster-exporter." % name)
        if value not in ("0", "1"):
            raise DiscoveryError("Prometheus says %.80r of node %s, which is neither 0 nor 1." % (value, name))
        kinds = [kind for kind in str(features).split(",") if FEATURE.fullmatch(kind)]
        out[name] = {"address": address, "features": kinds, "cloud": labels.get("cloud") == "true", "on": value == "1"}
    return out


def endpoint(address, port):
    """HOST:PORT of an address."""
    return "%s:%d" % ("[%s]" % address if ":" in address else address, port)


def knock(address):
    """Tell whether something listens at HOST, PORT."""
    try:
        socket.create_connection(address, timeout=2).close()
    except (OSError, UnicodeError):
        return False
    return True


def targets(settings, nodes):
    """({job: [file_sd entries]}, {job: [entries of nodes that the inventory lacks]}). nodes: what `nodes_of` gives."""
    out: dict = {job: [] for job in settings["ports"]}
    new: dict = {job: [] for job in settings["ports"]}
    for name, node in sorted(nodes.items()):
        # Hosts that are more than a node of Slurm are targets in any case, by the inventory.
        if not node["on"] or name in settings["others"]:
            continue
        kind = next((each for each in node["features"] if each in settings["types"]), None)
        labels = {"fleet": settings["fleet"], "instance": name, **({"instance_type": kind} if kind else {})}
        host = {"jobs": settings["types"].get(kind, ["node"]), "labels": labels, "address": node["address"]}
        known = settings["nodes"].get(name)
        if known:
            # A node of the cloud has another address after each start, and its NodeAddr is its name until then.
            host = {**known, "address": node["address"] if node["cloud"] and is_ip(node["address"]) else known["address"]}
        for job in host["jobs"]:
            (out if known else new)[job].append(entry(settings, host, job))
    return out, new


def entry(settings, host, job):
    """A host's entry of file_sd."""
    return {"targets": [endpoint(host["address"], settings["ports"][job])], "labels": host["labels"]}


def answered(entries, before, knocks=knock):
    """Those of the entries that were targets before, or where something listens now."""
    asked = [each for each in entries if each not in before]
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        # HOST of [HOST]:PORT without its brackets.
        parts = [each["targets"][0].rpartition(":") for each in asked]
        found = list(pool.map(knocks, [(host.strip("[]"), int(port)) for host, _colon, port in parts]))
    quiet = [each for each, good in zip(asked, found) if not good]  # noqa: B905 - strict= is not in Python 3.9
    return [each for each in entries if each not in quiet]


def write(path, text):
    """Write a file at once, and only when its text changes; tell whether it did."""
    try:
        with open(path, encoding="utf-8") as file:
            if file.read() == text:
                return False
    except (OSError, ValueError):
        pass
    handle, new = tempfile.mkstemp(prefix=".", suffix=".new", dir=os.path.dirname(path))
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(new, 0o644)
        os.replace(new, path)
    except BaseException:
        os.unlink(new)
        raise
    return True


def target_file(settings, job):
    """The file of a job's targets."""
    return os.path.join(settings["folder"], "%s-%s.json" % (settings["fleet"], job))


def succeeded(textfile=TEXTFILE):
    """When the targets last followed Slurm, in seconds since 1970; 0 when they never did."""
    try:
        with open(textfile, encoding="utf-8") as file:
            found = re.search(r"^%s (\d+)$" % SUCCESS, file.read(), re.MULTILINE)
    except (OSError, ValueError):
        found = None
    return int(found[1]) if found else 0


def note(when, unwatched=0, textfile=TEXTFILE):
    """Tell Prometheus when the targets last followed Slurm, and how many nodes have no node exporter."""
    lines = []
    for name, text, value in (
        (SUCCESS, "When the targets last followed Slurm's nodes; 0 is never.", when),
        (UNWATCHED, "Nodes that Slurm has, the inventory lacks, and whose node exporter has never answered.", unwatched),
    ):
        lines += ["# HELP %s %s" % (name, text), "# TYPE %s gauge" % name, "%s %d" % (name, value)]
    return write(textfile, "\n".join(lines) + "\n")


def read(settings, job):
    """The entries in a job's file; [] when there is none."""
    try:
        with open(target_file(settings, job), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return []
    return found if isinstance(found, list) else []


def follow(settings, result, now, knocks=knock, textfile=TEXTFILE):
    """Bring the files in line with Prometheus' answer; a sentence. A DiscoveryError changes neither the files nor the metric."""
    try:
        nodes = nodes_of(result)
    except DiscoveryError:
        start(settings, textfile)
        raise
    known, new = targets(settings, nodes)
    changed, unwatched = [], []
    for job, entries in known.items():
        # A node that never answered has no exporter, as its image may have none. One that answered once and no more is down.
        watched = answered(new[job], read(settings, job), knocks)
        unwatched += [each["labels"]["instance"] for each in new[job] if job == "node" and each not in watched]
        wanted = sorted(entries + watched, key=lambda each: each["labels"]["instance"])
        if write(target_file(settings, job), json.dumps(wanted, indent=1) + "\n"):
            changed.append(job)
    note(int(now), len(unwatched), textfile)
    said = ["%d of Slurm's %d nodes are on" % (sum(node["on"] for node in nodes.values()), len(nodes))]
    if unwatched:
        said.append("%d have no node exporter (%s)" % (len(unwatched), ", ".join(unwatched[:5])))
    return "; ".join([*said, "new targets for " + ", ".join(changed) if changed else "no change"])


def start(settings, textfile=TEXTFILE):
    """Until Slurm has answered once, the inventory says which nodes there are."""
    for job in settings["ports"]:
        if not os.path.exists(target_file(settings, job)):
            entries = [entry(settings, host, job) for _name, host in sorted(settings["nodes"].items()) if job in host["jobs"]]
            write(target_file(settings, job), json.dumps(entries, indent=1) + "\n")
    if not os.path.exists(textfile):
        note(0, 0, textfile)


def count(settings):
    """How many targets the files have."""
    total = 0
    for job in settings["ports"]:
        try:
            with open(target_file(settings, job), encoding="utf-8") as file:
                total += len(json.load(file))
        except OSError:
            raise DiscoveryError("%s does not exist; look at journalctl -u muster-discovery." % target_file(settings, job)) from None
    return total


def current(settings, within, now, changed, textfile=TEXTFILE):
    """A sentence that the targets follow Slurm; DiscoveryError when they do not. changed: when the settings were written."""
    when = succeeded(textfile)
    look = "look at journalctl -u muster-discovery on the monitoring host"
    if not when:
        raise DiscoveryError("The targets have never followed Slurm's nodes; %s." % look)
    if now - when > within:
        raise DiscoveryError("The targets last followed Slurm's nodes %d s ago; %s." % (now - when, look))
    if when < int(changed):
        raise DiscoveryError("The targets have not followed Slurm's nodes since the inventory changed; %s." % look)
    return "current: %d targets of Slurm's nodes, %d s old" % (count(settings), now - when)
