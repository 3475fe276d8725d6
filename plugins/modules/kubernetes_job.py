#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
---
module: kubernetes_job
short_description: Run a job on Kubernetes, once
version_added: 0.2.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Applies a PyTorchJob, TrainJob, MPIJob or JobSet by server-side apply, waits for its end and keeps logs and result on this host.
  - Uses the context that O(target) names and no other.
extends_documentation_fragment:
  - muster.fleet.job
  - muster.fleet.job.service
requirements:
  - kubernetes
"""

EXAMPLES = r"""
- name: Train on two nodes and wait for the end
  muster.fleet.kubernetes_job:
    job:
      name: train
      command: [python, -m, trainer, train, --max_steps, "200"]
      image: registry.example.com/trainer:1
      nodes: 2
      procs_per_node: 8
      launcher: {kind: pytorchjob}
    target:
      context: my-cluster
      namespace: training
      instance_type: p5.48xlarge
"""

RETURN = r"""
result:
  description: V(muster.job_result/1), as M(muster.fleet.slurm_job) returns it, with Slurm's words for states. Its values stand beside it
    as well.
  returned: always but for a wrong document
  type: dict
  sample: {state: COMPLETED, exit_code: 0, restarts: 0}
folder:
  description: The job's folder in the store.
  returned: always but for a wrong document
  type: str
  sample: /home/ann/.local/state/muster/local/jobs/train-2f604121ef80
document:
  description: The job document with its defaults filled in.
  returned: always but for a wrong document
  type: dict
  sample: {}
remedy:
  description: What to do about a failure.
  returned: failure
  type: str
  sample: raise time_limit or ask for less work
log:
  description: The output of a job that failed.
  returned: failure
  type: str
  sample: /home/ann/.local/state/muster/local/jobs/train-2f604121ef80/output.txt
"""
import json

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.jobs import kubernetes
from ansible_collections.muster.fleet.plugins.module_utils.jobs.document import KUBERNETES, JobError
from ansible_collections.muster.fleet.plugins.module_utils.jobs.kubernetes_run import Kubernetes, Unreachable
from ansible_collections.muster.fleet.plugins.module_utils.jobs.module import SERVICE_OPTIONS, run_in_service

try:
    # Without the package, Python may take a folder of this name for it; that has no such parts.
    import urllib3
    from kubernetes import client as official_client
    from kubernetes import config as official_config
except ImportError:
    official_config = None


def connection(target):
    """The request() of a Kubernetes service, by the official client. Raises JobError without the client or the context."""
    if official_config is None:
        raise JobError("Python has no kubernetes, which kubernetes_job needs; install the package kubernetes in Ansible's Python.")
    where = target["kubeconfig"] or "~/.kube/config or KUBECONFIG"
    if not target["context"]:
        raise JobError("muster_target has no context; name the one of %s whose cluster gets the job." % where)
    try:
        client = official_config.new_client_from_config(config_file=target["kubeconfig"] or None, context=target["context"])
    except official_config.ConfigException as error:
        said = " ".join(str(error).split()).rstrip(".")
        raise JobError("The context %s of %s cannot be used (%s); name one that it has." % (target["context"], where, said)) from error

    def request(method, path, query, body, kind):
        try:
            answer = client.call_api(
                path,
                method,
                query_params=list(query.items()),
                header_params={"Accept": "application/json, */*", "Content-Type": kind},
                body=body,
                auth_settings=["BearerToken"],
                response_type="str",
                _preload_content=False,
                _return_http_data_only=False,
                _request_timeout=30,
            )
            status, text = answer[1], answer[0].data
        except official_client.exceptions.ApiException as error:
            status, text = error.status, error.body or b""
        except urllib3.exceptions.HTTPError as error:
            raise Unreachable(" ".join(str(error).split())) from error
        text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        if path.endswith("/log") and status < 300:
            return status, text
        try:
            return status, json.loads(text)
        except ValueError:
            return status, {"message": text}

    return request


def main():
    module = AnsibleModule(argument_spec=SERVICE_OPTIONS, supports_check_mode=True)

    def make(document, identity, target, common):
        return Kubernetes(request=connection(target), manifest=kubernetes.render(document, identity, target), document=document, **common)

    run_in_service(module, KUBERNETES, make, (JobError,))


if __name__ == "__main__":
    main()
