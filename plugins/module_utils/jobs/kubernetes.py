# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs as PyTorchJob, TrainJob, MPIJob or JobSet; the four share one pod.

The manifests follow the schemas of training operator 1.9.3, Trainer 2.2.0, MPI operator 0.8.0 and JobSet 0.11.1.
"""

from __future__ import annotations

import re
import shlex

from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue
from ansible_collections.muster.fleet.plugins.module_utils.jobs import start
from ansible_collections.muster.fleet.plugins.module_utils.jobs.document import JobError
from ansible_collections.muster.fleet.plugins.module_utils.jobs.target import gpus_of, image_of, mounts_of

# Launcher -> (API group and version, kind, plural in the API's addresses).
KINDS = {
    "pytorchjob": ("kubeflow.org/v1", "PyTorchJob", "pytorchjobs"),
    "trainjob": ("trainer.kubeflow.org/v1alpha1", "TrainJob", "trainjobs"),
    "mpijob": ("kubeflow.org/v2beta1", "MPIJob", "mpijobs"),
    "jobset": ("jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets"),
}
NAME_LABEL, IDENTITY_LABEL = "muster/job", "muster/identity"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
TYPE_LABEL = "node.kubernetes.io/instance-type"
PORT = 29500
# The variables of the committed manifests (tools/kubernetes_manifests.py). An empty value of the first is refused, one of the second unset.
MANIFEST_NEEDED = (
    "IMAGE_URI",
    "INSTANCE_TYPE",
    "NUM_NODES",
    "GPU_PER_NODE",
    "EFA_PER_NODE",
    "HUGEPAGES_PER_NODE",
    "SHM_PER_NODE",
    "FI_PROVIDER",
)
MANIFEST_OPTIONAL = (
    "FI_EFA_USE_DEVICE_RDMA",
    "FI_EFA_SET_CUDA_SYNC_MEMOPS",
    "NCCL_DEBUG",
    "NCCL_NET",
    "NCCL_NET_PLUGIN",
    "NCCL_PROTO",
    "NCCL_SOCKET_IFNAME",
    "NCCL_MNNVL_ENABLE",
    "NCCL_NVLS_ENABLE",
    "NCCL_SHM_USE_CUDA_MEMCPY",
)
# The annotation that says which run of a job this is; the first has none.
RUN = "muster/run"
# The key of the operator's SSH files in an MPIJob's pods.
SSH = "/root/.ssh"
SSHD = "mkdir -p /run/sshd; exec /usr/sbin/sshd -De -o StrictModes=no -o HostKey=%s/id_rsa -o PermitRootLogin=yes" % SSH
# Open MPI 5 does not read the operator's variables for its older parameters, so every parameter stands here; without the host file it
# would start all ranks in the launcher, and `ppr` makes that an error.
# `|| true` stands where set -e would end the launcher although the job goes well: a kill that finds mpirun ended already, and the SSH call
# that ends with the sshd that it ends.
MPIRUN = """\
# A process 1 without a trap ignores the signal.
trap 'exit 143' TERM
# The workers' names are served a little after their pods are ready.
while read -r host _; do
  for _ in $(seq 60); do getent hosts "$host" >/dev/null && break; sleep 2; done
done < /etc/mpi/hostfile
options="-o StrictHostKeyChecking=no -o ConnectionAttempts=30"
case "$(mpirun --version | head -n 1)" in
  *" 5."*) how=(--prtemca plm_ssh_args "$options") ;;
  *) how=(--mca plm_rsh_args "$options") ;;
esac
# A rank comes by SSH, without the variables of the image.
for name in PATH PYTHONPATH LD_LIBRARY_PATH; do
  [ -z "${!name:-}" ] || how+=(-x "$name")
done
main= stopped=
trap 'stopped=1; [ -z "$main" ] || kill -TERM "$main" || true' TERM # mpirun may have ended
mpirun --allow-run-as-root -n %(ranks)d --hostfile /etc/mpi/hostfile --map-by ppr:%(per_node)d:node "${how[@]}" \\
  --mca btl_tcp_if_exclude lo,docker0 %(exports)s bash -c %(rank)s rank "$@" &
main=$!
# The signal may have come before mpirun had a number.
[ -z "$stopped" ] || kill -TERM "$main" || true # mpirun may have ended
code=0
wait "$main" || code=$?
# A signal ends the first wait before mpirun has ended.
if kill -0 "$main" 2>/dev/null; then
  code=0
  wait "$main" || code=$?
fi
[ "$code" = 0 ] || exit "$code"
# A worker's sshd would keep the node. It ends with code 0 by SIGTERM, and the pod still tells where it ran. The call may end with it.
while read -r host _; do
  ssh -n $options "$host" kill 1 || true
done < /etc/mpi/hostfile
"""
MPI_RANK = """\
set -euo pipefail
export RANK="$OMPI_COMM_WORLD_RANK" LOCAL_RANK="$OMPI_COMM_WORLD_LOCAL_RANK" WORLD_SIZE="$OMPI_COMM_WORLD_SIZE"
export LOCAL_WORLD_SIZE="$OMPI_COMM_WORLD_LOCAL_SIZE"
"""


def literal(text):
    """Text that Kubernetes leaves as it is, although it replaces $(NAME) in commands, arguments and values; $$ is one dollar."""
    return re.sub(r"\$+(?=\()|\${2,}", lambda found: found.group() * 2, text)


def render(document, identity, target):
    """The manifest of a job, a mapping. document, identity: as document.load() and identity() give them; target: as target.load() gives it.

    Raises JobError for what the kind cannot express.
    """
    kind = document["launcher"]["kind"]
    version, name, _plural = KINDS[kind]
    labels = {NAME_LABEL: document["name"].strip("._-"), IDENTITY_LABEL: identity[:12]}
    if target["queue"]:
        labels[QUEUE_LABEL] = target["queue"]
    metadata = {"name": start.plain_name(document, identity), "namespace": target["namespace"], "labels": labels}
    if target.get("run"):
        metadata["annotations"] = {RUN: target["run"]}
    build = {"pytorchjob": _pytorchjob, "trainjob": _trainjob, "mpijob": _mpijob, "jobset": _jobset}[kind]
    return {"apiVersion": version, "kind": name, "metadata": metadata, "spec": build(document, metadata, target)}


def manifest_values(document, target):
    """{variable: value} of the committed manifests, for the type, stack and image of a job; source them before envsubst."""
    resources, shm = _resources(document, target)
    limits = resources.get("limits", {})
    values = {
        "IMAGE_URI": image_of(document, target),
        "INSTANCE_TYPE": target["instance_type"],
        "NUM_NODES": str(document["nodes"]),
        "GPU_PER_NODE": str(limits.get("nvidia.com/gpu", 0)),
        "EFA_PER_NODE": str(limits.get("vpc.amazonaws.com/efa", 0)),
        "HUGEPAGES_PER_NODE": limits.get("hugepages-2Mi", "0"),
        "SHM_PER_NODE": "%dMi" % shm,
        "FI_PROVIDER": "efa" if limits.get("vpc.amazonaws.com/efa") else "tcp",
    }
    found = start.environment(document, target, "")
    return {**values, **{name: found[name] for name in MANIFEST_OPTIONAL if name in found}}


def _resources(document, target):
    """(resources of a container, MiB of its /dev/shm)."""
    gpus, have = gpus_of(document, target), target["have"]
    cpus = document["procs_per_node"] * document["cpus_per_proc"]
    if have and gpus:
        resources = catalogue.k8s_resources(have["name"], gpus)
        if cpus > have["vcpus"]:
            raise JobError(
                "Job %s wants %d CPUs on each node, and %s has %d; lower procs_per_node or cpus_per_proc."
                % (document["name"], cpus, have["name"], have["vcpus"])
            )
        if target["rehearsal"]:
            resources = {**resources, "requests": {"cpu": "1"}}
    else:
        resources = {"requests": {"cpu": str(cpus)}}
    return resources, catalogue.shared_memory_mib(have, gpus)


def folder_of(metadata):
    """Where a job keeps its checkpoints on the volume. A job that runs again after it had completed does not resume."""
    again = metadata.get("annotations", {}).get(RUN, "")
    return "/checkpoints/" + metadata["name"] + ("-" + again if again else "")


def _pod(document, metadata, target, container, command):
    """The pod template that all kinds share: one container, which gets the document's words as arguments of `command`."""
    resources, shm = _resources(document, target)
    secrets = start.secrets_of(document, target)
    env = [{"name": name, "value": literal(value)} for name, value in start.environment(document, target, folder_of(metadata)).items()]
    for name, reference in secrets.items():
        if reference["from"] == "kubernetes":
            chosen = {"name": reference["secret"], "key": reference["key"]}
            env.append({"name": name, "valueFrom": {"secretKeyRef": chosen}})
    volumes = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "%dMi" % shm}},
        {"name": "checkpoints", "persistentVolumeClaim": {"claimName": target["claim"]}},
    ]
    mounts: list[dict] = [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "checkpoints", "mountPath": "/checkpoints"}]
    for number, (source, at, read_only) in enumerate(mounts_of(document)):
        volumes.append({"name": "mount-%d" % number, "hostPath": {"path": source}})
        mounts.append({"name": "mount-%d" % number, "mountPath": at, "readOnly": read_only})
    # Two pods on one node would be a job of one node that says it has two.
    alike = {"matchLabels": {IDENTITY_LABEL: metadata["labels"][IDENTITY_LABEL], "muster/role": "node"}}
    apart = {"labelSelector": alike, "topologyKey": "kubernetes.io/hostname"}
    spec = {
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
        "containers": [
            {
                "name": container,
                "image": image_of(document, target),
                "command": [literal(word) for word in command],
                "args": [literal(word) for word in document["command"]],
                "env": env,
                "resources": resources,
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }
    if target["instance_type"]:
        spec["nodeSelector"] = {TYPE_LABEL: target["instance_type"]}
    devices = [name for name in resources.get("limits", {}) if name in ("nvidia.com/gpu", "aws.amazon.com/neuron")]
    if devices:
        spec["tolerations"] = [{"key": name, "operator": "Exists", "effect": "NoSchedule"} for name in devices]
    if target["service_account"]:
        spec["serviceAccountName"] = target["service_account"]
    labels = {NAME_LABEL: metadata["labels"][NAME_LABEL], IDENTITY_LABEL: metadata["labels"][IDENTITY_LABEL], "muster/role": "node"}
    return {"metadata": {"labels": labels}, "spec": spec}


def _own(document, target):
    """The secrets that the job's shell reads itself."""
    return {name: each for name, each in start.secrets_of(document, target).items() if each["from"] != "kubernetes"}


def _torchrun(document, target, meeting):
    return ["bash", "-c", start.node_script(document, _own(document, target), meeting), "muster"]


def _pytorchjob(document, metadata, target):
    # The operator sets PET_RDZV_ENDPOINT and its like, which torchrun reads.
    command = _torchrun(document, target, ["--max-restarts=%d" % document["retries"]])
    pod = _pod(document, metadata, target, "pytorch", command)
    elastic = {
        "rdzvBackend": document["launcher"]["rendezvous"],
        "rdzvId": metadata["labels"][IDENTITY_LABEL],
        "minReplicas": document["nodes"],
        "maxReplicas": document["nodes"],
        "maxRestarts": document["retries"],
    }
    if document["launcher"]["rendezvous"] != "c10d":
        host, _colon, port = target["etcd"].partition(":")
        if not port.isdigit():
            message = "Job %s meets through etcd, and muster_target.etcd is '%s'; set it to HOST:PORT."
            raise JobError(message % (document["name"], target["etcd"]))
        elastic.update(rdzvHost=host, rdzvPort=int(port))
    elif target["etcd"]:
        raise JobError("muster_target.etcd is set, and job %s meets by c10d; set launcher.rendezvous to etcd-v2." % document["name"])
    worker = {"replicas": document["nodes"], "restartPolicy": "OnFailure" if document["retries"] else "Never", "template": pod}
    policy = _run_policy(document, "None")
    if not document["retries"]:
        # With a limit, the operator deletes the pods of a failed job, and their logs with them.
        del policy["backoffLimit"]
    return {"elasticPolicy": elastic, "runPolicy": policy, "pytorchReplicaSpecs": {"Worker": worker}}


def _run_policy(document, remove):
    """remove: which pods of an ended job the operator deletes."""
    return {"activeDeadlineSeconds": 60 * document["time_limit"], "backoffLimit": document["retries"], "cleanPodPolicy": remove}


def _trainjob(document, metadata, target):
    if document["retries"]:
        raise JobError(
            "Job %s has retries, which a TrainJob leaves to its runtime; set them to 0, or use the launcher jobset." % document["name"]
        )
    # The controller sets PET_MASTER_ADDR and its like.
    command = _torchrun(document, target, [])
    pod = _pod(document, metadata, target, "node", command)
    spec, container = pod["spec"], pod["spec"].pop("containers")[0]
    patch = {**spec, "containers": [{"name": "node", "volumeMounts": container.pop("volumeMounts")}]}
    template = {"spec": {"template": {"metadata": pod["metadata"], "spec": patch}}}
    jobs = {"replicatedJobs": [{"name": "node", "template": template}]}
    trainer = {key: value for key, value in container.items() if key in ("image", "command", "args", "env")}
    trainer.update(numNodes=document["nodes"], numProcPerNode=document["procs_per_node"], resourcesPerNode=container["resources"])
    return {
        "activeDeadlineSeconds": 60 * document["time_limit"],
        "runtimeRef": {"name": target["runtime"]},
        "trainer": trainer,
        "runtimePatches": [{"manager": "muster/fleet", "trainingRuntimeSpec": {"template": {"spec": jobs}}}],
    }


def _jobset(document, metadata, target):
    name = metadata["name"]
    first = "%s-node-0-0.%s" % (name, name)
    meeting = ['--node-rank="$JOB_COMPLETION_INDEX"', "--master-addr=%s" % first, "--master-port=%d" % PORT]
    pod = _pod(document, metadata, target, "node", _torchrun(document, target, meeting))
    pod["spec"]["restartPolicy"] = "Never"
    # A failed node ends the others, which would wait for it; the set then starts again as often as retries says.
    job = {
        "parallelism": document["nodes"],
        "completions": document["nodes"],
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "activeDeadlineSeconds": 60 * document["time_limit"],
        "template": pod,
    }
    return {
        "failurePolicy": {"maxRestarts": document["retries"]},
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": job}}],
    }


def _mpijob(document, metadata, target):
    nodes, ranks = document["nodes"], document["procs_per_node"]
    secrets = start.secrets_of(document, target)
    environment = start.environment(document, target, folder_of(metadata))
    lines = [start.venv_line(document["venv"])] if document["venv"] else []
    lines += [start.secret_lines(name, reference) for name, reference in _own(document, target).items()]
    lines.append("export MUSTER_STOP_AT=${MUSTER_STOP_AT:-$(($(date +%%s) + 60 * %d))}" % document["time_limit"])
    lines.append("export OMP_NUM_THREADS=${OMP_NUM_THREADS:-%d}" % document["cpus_per_proc"])
    meet = ["export MASTER_ADDR=%s-worker-0.%s MASTER_PORT=%d" % (metadata["name"], metadata["name"], PORT)]
    profile = start.profiled(document) or 'exec "$@"'
    rank = MPI_RANK + "\n".join([*meet, *lines, profile]) + "\n"
    exports = " ".join(
        "-x %s" % name for name in sorted([*environment, *(name for name in secrets if secrets[name]["from"] == "kubernetes")])
    )
    script = "set -euo pipefail\n" + MPIRUN % {
        "ranks": nodes * ranks,
        "per_node": ranks,
        "exports": exports,
        "rank": shlex.quote(rank),
    }
    worker = _pod(document, metadata, target, "node", ["bash", "-c", SSHD])
    del worker["spec"]["containers"][0]["args"]
    launcher = _pod(document, metadata, target, "launcher", ["bash", "-c", script, "muster"])
    # mpirun itself needs neither GPUs nor a node of its own.
    launcher["metadata"]["labels"]["muster/role"] = "launcher"
    for key in ("affinity", "nodeSelector", "tolerations"):
        launcher["spec"].pop(key, None)
    launcher["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
    return {
        "mpiImplementation": "OpenMPI",
        "sshAuthMountPath": SSH,
        "slotsPerWorker": ranks,
        "launcherCreationPolicy": "WaitForWorkersReady",
        # The workers of a failed job would keep their nodes. The launcher's log has what the ranks printed.
        "runPolicy": _run_policy(document, "Running"),
        "mpiReplicaSpecs": {
            "Launcher": {"replicas": 1, "restartPolicy": "OnFailure" if document["retries"] else "Never", "template": launcher},
            "Worker": {"replicas": nodes, "restartPolicy": "OnFailure" if document["retries"] else "Never", "template": worker},
        },
    }
