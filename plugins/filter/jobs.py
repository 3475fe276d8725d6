# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json

from ansible.errors import AnsibleFilterError

from ansible_collections.muster.fleet.plugins.module_utils.jobs import document, fleet, launchers, sweep, torchrun, workload
from ansible_collections.muster.fleet.plugins.module_utils.jobs import target as targets


def clear(function):
    """Turn the sentence of a JobError into Ansible's error."""

    def wrapped(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except document.JobError as error:
            raise AnsibleFilterError(str(error)) from error

    return wrapped


def real_files(real, target=None):
    """{file name: text} of what the instance type of a rehearsal would run: the document, and its script or manifest."""
    if not real:
        return {}
    place = {name: value for name, value in (target or {}).items() if name != "rehearsal"}
    rendered = []
    for data in real if isinstance(real, list) else [real]:
        job = document.load(data)
        files = launchers.files(job, document.identity(job), targets.load(job["launcher"]["kind"], place))
        rendered.append(next(iter(files.items())))
    name, text = rendered[0]
    if isinstance(real, list):
        text = pretty({"apiVersion": "v1", "kind": "List", "items": [json.loads(each) for _name, each in rendered]})
    return {"real.json": pretty(real), "real." + name.replace("job.", "", 1): text}


def pretty(value):
    return json.dumps(value, indent=4, sort_keys=True) + "\n"


def workload_result(text, chosen, steps=0):
    """What came of the run of a recipe, with `summary` and `log`."""
    given = {key: chosen[key] for key in ("model", "ranks", "context")}
    found = workload.judge(chosen["recipe"], text, asked_steps=int(steps or 0), **given)
    return {**found, "summary": workload.summary(found), "log": workload.log_lines(found, chosen["document"]["nodes"])}


def carried(host):
    """The image and the stack of a node, from its variables."""
    stack = ((host.get("muster_manifest") or {}).get("manifest") or {}).get("stack") or {}
    image = next((host[name] for name in ("node_health_image", "image_id", "muster_image") if host.get(name)), "")
    return {"image": image, "stack": " ".join(part for part in (stack.get("name"), (stack.get("sha256") or "")[:12]) if part)}


class FilterModule:
    """Filters for the jobs that prove a fleet."""

    def filters(self):
        return {
            "fleet_parts": clear(fleet.parts),
            "collective_jobs": clear(fleet.collectives),
            "training_jobs": clear(fleet.training),
            "carried": carried,
            "real_files": clear(real_files),
            "workload_result": clear(workload_result),
            "sweep_points": clear(sweep.points),
            "sweep_row": sweep.row,
            "sweep_table": sweep.table,
            "job_status": launchers.status_line,
            "job_outcome": launchers.outcome,
            "job_hosts": torchrun.hosts_of,
            "job_service": document.service_of,
        }
