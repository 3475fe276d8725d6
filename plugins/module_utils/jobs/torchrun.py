# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs as torchrun on plain hosts over SSH. A node's ranks are a systemd unit, so that they outlive the connection."""

from __future__ import annotations

import shlex

from ansible_collections.muster.fleet.plugins.module_utils.jobs import start
from ansible_collections.muster.fleet.plugins.module_utils.jobs.document import JobError
from ansible_collections.muster.fleet.plugins.module_utils.jobs.target import gpus_of

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
