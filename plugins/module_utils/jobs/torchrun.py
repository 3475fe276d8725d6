# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs as torchrun on plain hosts over SSH. A node's ranks are a systemd unit, so that they outlive the connection."""

from __future__ import annotations

import shlex

from ansible_collections.muster.fleet.plugins.module_utils.jobs import run as jobs
from ansible_collections.muster.fleet.plugins.module_utils.jobs import start
from ansible_collections.muster.fleet.plugins.module_utils.jobs.document import JobError
from ansible_collections.muster.fleet.plugins.module_utils.jobs.run import last_line
from ansible_collections.muster.fleet.plugins.module_utils.jobs.target import gpus_of
from ansible_collections.muster.fleet.plugins.module_utils.node.network import in_order

# Roles nccl and neuron write these files. The job's own env comes later and wins.
NODE_ENVIRONMENT = """\
for file in /etc/profile.d/muster-nccl.sh /etc/profile.d/muster-neuron.sh; do
  if [ -r "$file" ]; then . "$file"; fi
done"""


def unit_name(document, identity):
    """The systemd unit of a job's ranks, the same on each host."""
    return "muster-job-%s.service" % start.plain_name(document, identity)


def render(document, identity, target):
    """[{host, script, start}] for each node of the job: what the host's bash reads, and the command that starts it.

    Raises JobError for what plain hosts cannot do.
    """
    name, hosts = document["name"], target["hosts"]
    for field in ("image", "mounts"):
        if document[field]:
            raise JobError("Job %s has %s, and the launcher torchrun runs on the hosts themselves; use venv." % (name, field))
    if document["nodes"] > len(hosts):
        raise JobError("Job %s wants %d nodes, and muster_target has %d hosts; lower nodes." % (name, document["nodes"], len(hosts)))
    gpus = gpus_of(document, target)
    folder = "%s/%s" % (target["folder"].rstrip("/"), start.plain_name(document, identity))
    # Below the ephemeral ports, and mostly another one for each job.
    port = 20000 + int(identity[:8], 16) % 10000
    environment = start.environment(document, target, folder)
    if target["have"] and target["have"]["accelerator"] == "nvidia" and gpus < target["have"]["gpus"]:
        environment.setdefault("CUDA_VISIBLE_DEVICES", ",".join(str(number) for number in range(gpus)))
    exports = ["export %s=%s" % (variable, shlex.quote(value)) for variable, value in sorted(environment.items())]
    secrets = start.secrets_of(document, target)
    out = []
    for number, host in enumerate(hosts[: document["nodes"]]):
        meeting = [
            "--max-restarts=%d" % document["retries"],
            "--node-rank=%d" % number,
            "--master-addr=%s" % shlex.quote(hosts[0]["address"]),
            "--master-port=%d" % port,
        ]
        words = " ".join(shlex.quote(word) for word in document["command"])
        script = "#!/bin/bash\nset -- %s\n%s" % (words, start.node_script(document, secrets, meeting, [NODE_ENVIRONMENT, *exports]))
        out.append({"host": host["name"], "script": script, "start": unit_command(document, identity, target, folder)})
    return out


def hostfile(document, target):
    """The hosts in the order of the ranks, as mpirun of Open MPI and DeepSpeed read them."""
    return "".join("%s slots=%d\n" % (each["address"], document["procs_per_node"]) for each in target["hosts"][: document["nodes"]])


def again(target, stored, text):
    """Put the hosts of a job that has not ended first, in the order of its host file `text`, whatever order the inventory has by now."""
    if not stored or stored["state"] in jobs.FINAL_STATES:
        return
    places = {line.split()[0]: place for place, line in enumerate(text.splitlines()) if line.strip()}
    target["hosts"].sort(key=lambda host: places.get(host["address"], len(places)))


def unit_command(document, identity, target, folder):
    """The words of systemd-run for the unit. It writes how it ended into the file `end`, because systemd forgets units that succeeded."""
    ended = 'echo "$SERVICE_RESULT $EXIT_CODE $EXIT_STATUS" > %s' % shlex.quote(folder + "/end")
    properties = {
        "User": target["user"],
        "WorkingDirectory": folder,
        "RuntimeMaxSec": 60 * document["time_limit"],
        "StandardOutput": "append:%s/output.txt" % folder,
        "StandardError": "append:%s/output.txt" % folder,
        "LimitMEMLOCK": "infinity",
        # The ranks get SIGTERM and save their state.
        "TimeoutStopSec": 120,
        "ExecStopPost": "/bin/sh -c %s" % shlex.quote(ended),
    }
    words = ["systemd-run", "--unit=" + unit_name(document, identity), "--collect", "--quiet"]
    words += ["--property=%s=%s" % item for item in properties.items()]
    return [*words, "/bin/bash", folder + "/job.sh"]


UNREACHABLE = 255  # the exit status of ssh itself
ACTIVE = ("active", "activating", "deactivating", "reloading")
RESULTS = {"success": "COMPLETED", "timeout": "TIMEOUT", "oom-kill": "OUT_OF_MEMORY"}
PROBE = """\
cd %(folder)s 2>/dev/null || exit 0
[ ! -e job.sh ] || echo "began $(stat -c %%Y job.sh)"
echo "state $(systemctl show --property=ActiveState --value %(unit)s)"
[ ! -e cancelled ] || echo "cancelled yes"
[ ! -e end ] || echo "ended $(stat -c %%Y end) $(cat end)\""""
PREPARE = """\
set -e
install -d -o %(user)s -m 0755 %(folder)s
cd %(folder)s
rm -f end cancelled output.txt
cat > job.sh
chown %(user)s job.sh
chmod 0640 job.sh"""


def ssh_words(variables):
    """The words that reach a host by SSH, from its variables of Ansible."""
    words = ["ssh", "-o", "BatchMode=yes"]
    if variables.get("ansible_port"):
        words += ["-p", str(variables["ansible_port"])]
    if variables.get("ansible_ssh_private_key_file"):
        words += ["-i", variables["ansible_ssh_private_key_file"]]
    for name in ("ansible_ssh_common_args", "ansible_ssh_extra_args"):
        words += shlex.split(variables.get(name) or "")
    address = variables.get("ansible_host") or variables["inventory_hostname"]
    user = variables.get("ansible_user")
    return [*words, "%s@%s" % (user, address) if user else address]


def hosts_of(names, hostvars):
    """[{name, address, ssh, become}] of the inventory's hosts, for muster_target.hosts. address: where the other hosts reach it.

    Ranks follow this order, so neighbours in the network stand beside each other.
    """
    layers = {name: hostvars[name].get("muster_network_nodes") for name in names}
    domains = {name: hostvars[name].get("muster_ultraserver") for name in names}
    out = []
    for name in in_order(names, layers, domains):
        variables = hostvars[name]
        address = variables.get("ansible_host") or name
        become = variables.get("ansible_user", "root") != "root"
        out.append({"name": name, "address": address, "ssh": ssh_words({"inventory_hostname": name, **variables}), "become": become})
    return out


class Hosts(jobs.Service):
    """One job on plain hosts. run(words, text) -> (rc, stdout, stderr) of a command on this machine that reads `text`."""

    title = "systemd"

    def __init__(self, *, run, nodes, target, unit, **settings):
        super().__init__(**settings)
        self.run, self.nodes, self.unit, self.user = run, nodes, unit, target["user"]
        self.hosts = {each["name"]: each for each in target["hosts"]}
        self.folder = "%s/%s" % (target["folder"].rstrip("/"), unit[len("muster-job-") : -len(".service")])

    def on(self, host, script, text=""):
        """(rc, stdout, stderr) of a script on a host, as root."""
        have = self.hosts[host]
        words = [*(["sudo", "-n"] if have.get("become") else []), "bash", "-c", script]
        return self.run([*have["ssh"], " ".join(shlex.quote(word) for word in words)], text)

    def _probe(self, host):
        """{began, state, cancelled, ended} of a host as far as it has them; {"away": why} when it does not answer."""
        rc, out, err = self.on(host, PROBE % {"folder": shlex.quote(self.folder), "unit": self.unit})
        if rc == UNREACHABLE:
            return {"away": last_line(err)}
        return dict(line.split(" ", 1) for line in out.splitlines() if " " in line)

    def _found(self):
        return {each["host"]: self._probe(each["host"]) for each in self.nodes}

    def live(self):
        """The unit's name while it runs on one host at least."""
        found = self._found()
        away = [host for host, have in found.items() if "away" in have]
        if len(away) == len(found):
            message = "Host %s does not answer (%s); look at it, or at the inventory's ansible_host and ansible_user."
            raise jobs.RunError(message % (away[0], found[away[0]]["away"]))
        return self.unit if any(have.get("state") in ACTIVE for have in found.values()) else None

    def submit(self, options):
        """Write the scripts, then start the units; all hosts or none."""
        for each in self.nodes:
            rc, _out, err = self.on(each["host"], "command -v systemd-run >/dev/null || { echo it has no systemd >&2; exit 1; }")
            if rc:
                raise jobs.Refused("Host %s cannot run job %s: %s; mend it or leave it out." % (each["host"], self.name, last_line(err)))
        for each in self.nodes:
            values = {"user": shlex.quote(self.user), "folder": shlex.quote(self.folder)}
            rc, _out, err = self.on(each["host"], PREPARE % values, each["script"])
            if rc:
                raise jobs.Refused("Host %s cannot keep job %s: %s; mend it." % (each["host"], self.name, last_line(err)))
        for each in self.nodes:
            rc, _out, err = self.on(each["host"], " ".join(shlex.quote(word) for word in each["start"]))
            if rc:
                self._stop()
                raise jobs.Refused(
                    "Host %s does not start job %s: %s; the other hosts stopped it." % (each["host"], self.name, last_line(err))
                )
        return self.unit

    def _stop(self):
        for each in self.nodes:
            self.on(each["host"], "systemctl stop %s 2>/dev/null" % self.unit)

    def cancel(self, job_id):
        """End the job on all hosts."""
        for each in self.nodes:
            self.on(each["host"], "touch %s/cancelled" % shlex.quote(self.folder))
        self._stop()

    def record(self, job_id):
        """The hosts' states as one record of Service. One host that failed fails the job."""
        found = self._found()
        begun = [int(have["began"]) for have in found.values() if "began" in have]
        if not begun:
            return None
        ends = {host: have["ended"].split() for host, have in found.items() if "ended" in have and have.get("state") not in ACTIVE}
        # systemd forgets a unit at a restart of the host, and then nothing wrote its end.
        lost = [host for host, have in found.items() if "began" in have and host not in ends and have.get("state") not in ACTIVE]
        bad = {host: end for host, end in ends.items() if end[1] != "success" or end[3] != "0"}
        away = [host for host, have in found.items() if "away" in have]
        state, reason, code = "RUNNING", "None", 0
        if any("cancelled" in have for have in found.values()):
            state = "CANCELLED"
        elif lost:
            state, reason, code = "NODE_FAIL", "the unit ended without a trace on %s" % ", ".join(lost), 1
        elif bad:
            host, end = next(iter(bad.items()))
            state = RESULTS.get(end[1], "FAILED") if end[1] != "success" else "FAILED"
            code = int(end[3]) if end[3].isdigit() else 1
            reason = "%s: %s %s" % (host, end[2], end[3])
        elif len(ends) == len(found):
            state = "COMPLETED"
        elif away:
            reason = "no answer from %s" % ", ".join(away)
        return {
            "job_id": self.unit,
            "state": state,
            "reason": reason,
            "exit_code": code,
            "signal": 0,
            "nodes": [each["host"] for each in self.nodes],
            "submitted": min(begun),
            "started": min(begun),
            "ended": max([int(end[0]) for end in ends.values()], default=None) if state in jobs.FINAL_STATES else None,
            "elapsed_s": None,
            "restarts": 0,
            "ready": sum(1 for have in found.values() if have.get("state") in ACTIVE),
        }

    def over(self, job_id, record):
        """Stop what still runs on other hosts, and fetch the outputs."""
        if record is None:
            raise jobs.RunError("No host has job %s any more; run it again with rerun." % self.name, "run it again with rerun")
        self._stop()
        self.fetch_output(job_id)
        return record

    def fetch_output(self, job_id):
        """The output of the host with rank 0 becomes output.txt, that of another host output-HOST.txt."""
        for number, each in enumerate(self.nodes):
            rc, out, _err = self.on(each["host"], "cat %s/output.txt 2>/dev/null || true" % shlex.quote(self.folder))
            if rc == 0:
                self.store.prepare({"output-%s.txt" % each["host"] if number else "output.txt": out})
