# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs as torchrun on plain hosts over SSH. A node's ranks are a systemd unit, so that they outlive the connection.

On a host the job's user owns the working folder FOLDER. Root keeps the job's script, output and state in FOLDER.unit, where the user
cannot put a link that leads root to another file.
"""

from __future__ import annotations

import posixpath
import shlex
import subprocess

from ansible_collections.muster.fleet.plugins.module_utils.jobs import run as jobs
from ansible_collections.muster.fleet.plugins.module_utils.jobs import start
from ansible_collections.muster.fleet.plugins.module_utils.jobs.document import JobError
from ansible_collections.muster.fleet.plugins.module_utils.jobs.ranks import failed_rank, with_rank
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


def folder_of(target, name):
    """The folder on the hosts in which a job works; root keeps its own files of the job in FOLDER.unit."""
    return posixpath.join(posixpath.normpath("/" + target["folder"].lstrip("/")), name)


def render(document, identity, target):
    """[{host, script, start, secrets}] for each node of the job: what the host's bash reads, the command that starts it, {secret: file}.

    Raises JobError for what plain hosts cannot do.
    """
    name, hosts = document["name"], target["hosts"]
    for field in ("image", "mounts"):
        if document[field]:
            raise JobError("Job %s has %s, and the launcher torchrun runs on the hosts themselves; use venv." % (name, field))
    if document["nodes"] > len(hosts):
        raise JobError("Job %s wants %d nodes, and muster_target has %d hosts; lower nodes." % (name, document["nodes"], len(hosts)))
    if not target["folder"].startswith("/"):
        raise JobError("muster_target.folder must be the absolute path of a folder on the hosts, not %s." % target["folder"])
    gpus = gpus_of(document, target)
    folder = folder_of(target, start.plain_name(document, identity))
    # Below the ephemeral ports, and mostly another one for each job.
    port = 20000 + int(identity[:8], 16) % 10000
    environment = start.environment(document, target, folder)
    if target["have"] and target["have"]["accelerator"] == "nvidia" and gpus < target["have"]["gpus"]:
        environment.setdefault("CUDA_VISIBLE_DEVICES", ",".join(str(number) for number in range(gpus)))
    exports = ["export %s=%s" % (variable, shlex.quote(value)) for variable, value in sorted(environment.items())]
    secrets = start.secrets_of(document, target)
    files = {name: reference["path"] for name, reference in secrets.items() if reference["from"] == "file"}
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
        command = unit_command(document, identity, target, folder)
        out.append({"host": host["name"], "script": script, "start": command, "secrets": files})
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
    ended = 'echo "$SERVICE_RESULT $EXIT_CODE $EXIT_STATUS" > %s' % shlex.quote(folder + ".unit/end")
    properties = {
        "User": target["user"],
        "WorkingDirectory": folder,
        "RuntimeMaxSec": 60 * document["time_limit"],
        "StandardOutput": "append:%s.unit/output.txt" % folder,
        "StandardError": "append:%s.unit/output.txt" % folder,
        "LimitMEMLOCK": "infinity",
        # The ranks get SIGTERM and save their state.
        "TimeoutStopSec": 120,
        "ExecStopPost": "/bin/sh -c %s" % shlex.quote(ended),
    }
    words = ["systemd-run", "--unit=" + unit_name(document, identity), "--collect", "--quiet"]
    words += ["--property=%s=%s" % item for item in properties.items()]
    return [*words, "/bin/bash", folder + ".unit/job.sh"]


UNREACHABLE = 255  # the exit status of ssh itself
ACTIVE = ("active", "activating", "deactivating", "reloading")
RESULTS = {"success": "COMPLETED", "timeout": "TIMEOUT", "oom-kill": "OUT_OF_MEMORY"}
# Seconds that a host may take to answer; TimeoutStopSec and the transfer of an output take longer.
ANSWER_SECONDS, LONG_SECONDS = 60, 300
# Ends the shell unless only root can change where a path leads. It refuses links, because the owner of a link may replace it.
TRUSTED = """\
trusted() {
  here=$1
  while [ ! -d "$here" ]; do here=$(dirname -- "$here"); done
  real=$(cd -- "$here" && pwd -P)
  [ "$real" = "$here" ] || { echo "$here leads through a link; set muster_target.folder to a folder below $real" >&2; exit 1; }
  while :; do
    case "$(stat -c %u -- "$here")" in
      0 | "$(id -u)") ;;
      *) echo "$here belongs to $(stat -c %U -- "$here"); give it to root, or set muster_target.folder to a folder of root" >&2; exit 1 ;;
    esac
    [ -z "$(find "$here" -maxdepth 0 -perm /022 ! -perm -1000)" ] || {
      echo "others than root may write to $here; change its mode, or set muster_target.folder to a folder of root" >&2; exit 1; }
    [ "$here" != / ] || break
    here=$(dirname -- "$here")
  done
}
"""
# The shell of ExecStopPost writes `end` as the job's user, so the file is there already.
PREPARE = """\
set -e
trusted %(kept)s
install -d -m 0755 %(kept)s
install -d -o %(user)s -m 0755 %(folder)s
cd %(kept)s
rm -f end cancelled output.txt job.sh
umask 077
: > end
: > output.txt
cat > job.sh
chown %(user)s end output.txt job.sh"""
PROBE = """\
cd %(kept)s 2>/dev/null || exit 0
(trusted %(kept)s) 2>/dev/null || exit 0
[ ! -e job.sh ] || echo "began $(stat -c %%Y job.sh)"
echo "state $(systemctl show --property=ActiveState --value %(unit)s)"
[ ! -e cancelled ] || echo "cancelled yes"
[ ! -s end ] || echo "ended $(stat -c %%Y end) $(head -c 200 end | tr -c '[:alnum:]-' ' ')\""""
CANCEL = "cd %(kept)s && touch cancelled"
FETCH = """\
cd %(kept)s 2>/dev/null || exit 0
trusted %(kept)s
size=$(stat -c %%s output.txt 2>/dev/null) || exit 0
if [ "$size" -le %(most)d ]; then
  head -c %(most)d output.txt
else
  head -c $((%(most)d / 4)) output.txt
  printf '\\n%(left_out)s (%%d bytes)\\n' $((size - %(most)d))
  tail -c $((%(most)d / 4 * 3)) output.txt | head -c $((%(most)d / 4 * 3))
fi"""


def command(words, text="", seconds=ANSWER_SECONDS):
    """(rc, stdout, stderr) of a command on this machine that reads `text`; a command that takes longer has not reached its host."""
    try:
        done = subprocess.run(words, input=text.encode(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=seconds, check=False)
    except FileNotFoundError:
        return UNREACHABLE, "", "%s is not installed" % words[0]
    except subprocess.TimeoutExpired:
        return UNREACHABLE, "", "no answer within %d s" % seconds
    # A job prints what it likes.
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def ssh_words(variables):
    """The words that reach a host by SSH, from its variables of Ansible."""
    words = ["ssh", "-o", "BatchMode=yes"]
    if variables.get("ansible_port"):
        words += ["-p", str(variables["ansible_port"])]
    if variables.get("ansible_ssh_private_key_file"):
        words += ["-i", variables["ansible_ssh_private_key_file"]]
    for name in ("ansible_ssh_common_args", "ansible_ssh_extra_args"):
        words += shlex.split(variables.get(name) or "")
    # ssh takes the first value of an option, so those of the inventory win. These end a connection whose other side is gone.
    words += ["-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3"]
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
    """One job on plain hosts. run(words, text, seconds) -> (rc, stdout, stderr), as command() gives it."""

    title = "systemd"

    def __init__(self, *, run, nodes, target, unit, **settings):
        super().__init__(**settings)
        self.run, self.nodes, self.unit, self.user = run, nodes, unit, target["user"]
        self.hosts = {each["name"]: each for each in target["hosts"]}
        folder = folder_of(target, unit[len("muster-job-") : -len(".service")])
        quoted = {"folder": folder, "kept": folder + ".unit", "user": self.user, "unit": unit}
        self.values = {**{key: shlex.quote(value) for key, value in quoted.items()}, "most": jobs.OUTPUT_BYTES, "left_out": jobs.LEFT_OUT}

    def on(self, host, script, text="", seconds=ANSWER_SECONDS):
        """(rc, stdout, stderr) of a script on a host, as root."""
        have = self.hosts[host]
        words = [*(["sudo", "-n"] if have.get("become") else []), "bash", "-c", script]
        return self.run([*have["ssh"], " ".join(shlex.quote(word) for word in words)], text, seconds)

    def _probe(self, host):
        """{began, state, cancelled, ended} of a host as far as it has them; {"away": why} when it does not answer."""
        rc, out, err = self.on(host, TRUSTED + PROBE % self.values)
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
            look = ["command -v systemd-run >/dev/null || { echo it has no systemd >&2; exit 1; }"]
            nobody = "it has no user %s; make one, or set muster_target.user" % self.user
            look.append("id -u -- %s >/dev/null 2>&1 || { echo %s >&2; exit 1; }" % (shlex.quote(self.user), shlex.quote(nobody)))
            for name, path in each["secrets"].items():
                lost = "user %s cannot read %s, the file of the secret %s" % (self.user, path, name)
                words = shlex.quote(self.user), shlex.quote(path), shlex.quote(lost)
                look.append("runuser -u %s -- test -r %s || { echo %s >&2; exit 1; }" % words)
            rc, _out, err = self.on(each["host"], "\n".join(look))
            if rc:
                raise jobs.Refused("Host %s cannot run job %s: %s; mend it or leave it out." % (each["host"], self.name, last_line(err)))
        for each in self.nodes:
            rc, _out, err = self.on(each["host"], TRUSTED + PREPARE % self.values, each["script"])
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
            self.on(each["host"], "systemctl stop %s 2>/dev/null" % self.unit, seconds=LONG_SECONDS)

    def cancel(self, job_id):
        """End the job on all hosts."""
        for each in self.nodes:
            self.on(each["host"], CANCEL % self.values)
        self._stop()

    def record(self, job_id):
        """The hosts' states as one record of Service. One host that failed fails the job."""
        found = self._found()
        begun = [_seconds(have["began"]) for have in found.values() if "began" in have]
        if not begun:
            return None
        ends = {host: _end(have["ended"]) for host, have in found.items() if "ended" in have and have.get("state") not in ACTIVE}
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
            "ended": max([end[0] for end in ends.values()], default=None) if state in jobs.FINAL_STATES else None,
            "elapsed_s": None,
            "restarts": 0,
            "ready": sum(1 for have in found.values() if have.get("state") in ACTIVE),
        }

    def over(self, job_id, record):
        """Stop what still runs on other hosts, and fetch the outputs."""
        if record is None:
            raise jobs.RunError("No host has job %s any more; run it again with rerun." % self.name, "run it again with rerun")
        self._stop()
        return with_rank(record, self.fetch_output(job_id))

    def fetch_output(self, job_id):
        """The output of the host with rank 0 becomes output.txt, that of another host output-HOST.txt.

        Returns the failed_rank() of each.
        """
        found = []
        for number, each in enumerate(self.nodes):
            rc, out, _err = self.on(each["host"], TRUSTED + FETCH % self.values, seconds=LONG_SECONDS)
            if rc == 0:
                self.store.prepare({"output-%s.txt" % each["host"] if number else "output.txt": out})
                found.append(failed_rank(out))
        return found


def _seconds(text):
    """The time of a file as stat prints it. The job's user may set it to anything."""
    return int(text) if text.isdigit() and len(text) < 12 else 0


def _end(text):
    """[time, result, code, status] of a unit from its file `end`, which the job's user may have changed."""
    time, *said = text.split() or [""]
    return [_seconds(time), *(said if len(said) == 3 else ("unknown", "unreadable", "end"))]
