#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Writes kubernetes/MODEL-fsdp.yaml: PyTorchJobs for people who apply them by envsubst and kubectl.
It also writes kubernetes/health/node-health.yaml, which tells Kubernetes what muster-health finds on each node, and node-health-full.yaml
beside it, which runs the diagnostics on idle nodes. In kubernetes/eks it writes the files of eksctl and fsdp.yaml-template.

The names of the environment are those of the AWS reference, and those of MANIFEST_NAMES beside them. With --check nothing is written; the
exit code says whether the manifests are current.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.muster.fleet.plugins.module_utils.aws import cluster, render
from ansible_collections.muster.fleet.plugins.module_utils.health import kubernetes_agent
from ansible_collections.muster.fleet.plugins.module_utils.jobs.kubernetes import MANIFEST_NEEDED, MANIFEST_OPTIONAL

# File -> (the trainer's preset, samples of a rank, steps, steps between checkpoints and validations), as in the AWS reference.
MODELS = {
    "llama2_7b": ("llama-2-7b", 1, 100, 50, 100),
    "llama2_13b": ("llama-2-13b", 1, 50, 50, 25),
    "llama2_70b": ("llama-2-70b", 1, 30, 1000, 10),
    "llama3_1_8b": ("llama-3.1-8b", 1, 50, 50, 25),
    "llama3_1_70b": ("llama-3.1-70b", 1, 30, 1000, 10),
    "llama3_2_1b": ("llama-3.2-1b", 1, 50, 50, 100),
    "llama3_2_3b": ("llama-3.2-3b", 1, 50, 50, 100),
    "mathstral_7b": ("mathstral-7b", 1, 200, 50, 100),
    "mixtral_8x7b": ("mixtral-8x7b", 4, 200, 100, 100),
}
# The clusters of kubernetes/eks: market, and the VPC that is there already.
VPC = {"id": "vpc-0123456789abcdef0", "subnets": ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"]}
EKS: dict[str, tuple[str, dict[str, Any]]] = {
    "eks-p4d.yaml": ("on-demand", {}),
    "eks-p4d-odcr.yaml": ("reservation", {}),
    "eks-vpc-odcr-p4d.yaml": ("reservation", {**VPC, "security_group": "sg-0123456789abcdef0"}),
}
EKS_HEAD = """\
# Made by tools/kubernetes_manifests.py; `make docs` writes it anew.
# eksctl create cluster -f ./%s; put in your own ids, region and zones before.
"""
# No dollar may stand in these programs, because envsubst would replace what follows it.
CHECK = """\
import os, sys
empty = [name for name in sys.argv[1:] if not os.environ.get(name)]
sys.exit("muster: these variables are empty in the manifest: %s; source env_vars before envsubst" % " ".join(empty) if empty else 0)
"""
START = """\
import os, sys
for name in [name for name, value in os.environ.items() if name.startswith(("FI_", "NCCL_")) and not value]:
    del os.environ[name]
os.execvp(sys.argv[1], sys.argv[1:])
"""
HEAD = """\
# Made by tools/kubernetes_manifests.py; `make docs` writes it anew.
# Trains %(preset)s. docs/jobs.md says how to fill and apply it.
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: %(name)s
spec:
  elasticPolicy:
    rdzvBackend: c10d
    minReplicas: ${NUM_NODES}
    maxReplicas: ${NUM_NODES}
    maxRestarts: 100
  runPolicy:
    cleanPodPolicy: None
  pytorchReplicaSpecs:
    Worker:
      replicas: ${NUM_NODES}
      restartPolicy: OnFailure
      template:
        metadata:
          labels:
            app: %(name)s
        spec:
          nodeSelector:
            node.kubernetes.io/instance-type: "${INSTANCE_TYPE}"
          tolerations:
            - {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}
          affinity:
            podAntiAffinity:
              requiredDuringSchedulingIgnoredDuringExecution:
                - topologyKey: kubernetes.io/hostname
                  labelSelector:
                    matchLabels:
                      app: %(name)s
          volumes:
            - name: shm
              emptyDir:
                medium: Memory
                sizeLimit: ${SHM_PER_NODE}
            - name: checkpoints
              persistentVolumeClaim:
                claimName: fsx-claim
          initContainers:
            - name: values
              image: "${IMAGE_URI}"
              command:
                - python3
                - -c
                - |
%(check)s
%(needed)s
              env: &env
%(env)s
          containers:
            - name: pytorch
              image: "${IMAGE_URI}"
              command:
                - python3
                - -c
                - |
%(start)s
              args:
%(args)s
              env: *env
              resources:
                requests:
                  nvidia.com/gpu: ${GPU_PER_NODE}
                  hugepages-2Mi: ${HUGEPAGES_PER_NODE}
                  vpc.amazonaws.com/efa: ${EFA_PER_NODE}
                  cpu: "8"
                  memory: 32Gi
                limits:
                  nvidia.com/gpu: ${GPU_PER_NODE}
                  hugepages-2Mi: ${HUGEPAGES_PER_NODE}
                  vpc.amazonaws.com/efa: ${EFA_PER_NODE}
              volumeMounts:
                - {name: shm, mountPath: /dev/shm}
                - {name: checkpoints, mountPath: /checkpoints}
"""

HEALTH = """\
# Made by tools/kubernetes_manifests.py; `make docs` writes it anew.
# Runs muster-health on each node, sets the node condition %(condition)s, and taints nodes that must not train with
# %(taint)s. docs/health.md says how to apply it.
apiVersion: v1
kind: Namespace
metadata:
  name: muster-health
  labels:
    # The checks look at the host's devices, processes and mounts.
    pod-security.kubernetes.io/enforce: privileged
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: node-health, namespace: muster-health}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: muster-node-health}
rules:
  - {apiGroups: [""], resources: [nodes], verbs: [get, list, patch]}
  - {apiGroups: [""], resources: [nodes/status], verbs: [patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: muster-node-health}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: muster-node-health}
subjects:
  - {kind: ServiceAccount, name: node-health, namespace: muster-health}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: node-health, namespace: muster-health}
data:
  agent.py: |
%(agent)s
---
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: node-health
  namespace: muster-health
  labels: {app: muster-node-health}
spec:
  selector:
    matchLabels: {app: muster-node-health}
  updateStrategy:
    type: RollingUpdate
    rollingUpdate: {maxUnavailable: "10%%"}
  template:
    metadata:
      labels: {app: muster-node-health}
      # A new agent starts new pods.
      annotations: {muster/agent: %(sum)s}
    spec:
      serviceAccountName: node-health
      priorityClassName: system-node-critical
      hostPID: true
      nodeSelector: {kubernetes.io/os: linux}
      # Also on nodes that have the taint, which ends only when the checks pass again.
      tolerations:
        - {operator: Exists}
      containers:
        - name: agent
          image: "${IMAGE_URI}"
          command: [python3, /agent/agent.py, --interval=300, --, chroot, /host]
          args: [/usr/bin/muster-health, --level, periodic, --format, json]
          env:
            - name: NODE_NAME
              valueFrom:
                fieldRef: {fieldPath: spec.nodeName}
          securityContext: {privileged: true, runAsUser: 0}
          resources:
            requests: {cpu: 20m, memory: 64Mi}
            limits: {memory: 256Mi}
          volumeMounts:
            - {name: agent, mountPath: /agent, readOnly: true}
            - {name: host, mountPath: /host, mountPropagation: HostToContainer}
      volumes:
        - name: agent
          configMap: {name: node-health}
        - name: host
          hostPath: {path: /}
"""

# Days between two full looks at a node.
FULL_DAYS = 6
HEALTH_FULL = """\
# Made by tools/kubernetes_manifests.py; `make docs` writes it anew.
# Runs muster-health --level full each night on nodes that no workload uses, and sets the node condition %(condition)s. It needs
# node-health.yaml. docs/health.md says how to apply it.
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: muster-node-health-full}
description: Any workload may end a diagnosis, and a diagnosis ends none.
value: -1000
preemptionPolicy: Never
globalDefault: false
---
apiVersion: batch/v1
kind: CronJob
metadata:
  name: node-health-full
  namespace: muster-health
  labels: {app: muster-node-health-full}
spec:
  schedule: "0 2 * * *"
  concurrencyPolicy: Forbid
  startingDeadlineSeconds: 3600
  successfulJobsHistoryLimit: 1
  failedJobsHistoryLimit: 1
  jobTemplate:
    spec:
      # A pod for each node. One that finds no idle node within five hours ends with the job, and the node's turn comes another night.
      parallelism: ${NUM_NODES}
      completions: ${NUM_NODES}
      backoffLimit: ${NUM_NODES}
      activeDeadlineSeconds: 18000
      template:
        metadata:
          labels: {app: muster-node-health-full}
        spec:
          restartPolicy: Never
          serviceAccountName: node-health
          priorityClassName: muster-node-health-full
          hostPID: true
          nodeSelector:
            node.kubernetes.io/instance-type: "${INSTANCE_TYPE}"
          # Also on nodes that have the taint, which ends only when the checks pass again.
          tolerations:
            - {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}
            - {key: %(taint)s, operator: Exists, effect: NoSchedule}
          # A pod that ended keeps no other pod away, so the agent leaves a node alone that it looked at less than %(days)d days ago.
          affinity:
            podAntiAffinity:
              requiredDuringSchedulingIgnoredDuringExecution:
                - topologyKey: kubernetes.io/hostname
                  labelSelector:
                    matchLabels: {app: muster-node-health-full}
          containers:
            - name: agent
              image: "${IMAGE_URI}"
              command: [python3, /agent/agent.py, --full=%(seconds)d, --, chroot, /host]
              args: [/usr/bin/muster-health, --level, full, --format, json]
              env:
                - name: NODE_NAME
                  valueFrom:
                    fieldRef: {fieldPath: spec.nodeName}
              securityContext: {privileged: true, runAsUser: 0}
              # All GPUs of the node: only an idle node has them, and no other pod gets them meanwhile.
              resources:
                requests: {cpu: "1", memory: 2Gi, nvidia.com/gpu: "${GPU_PER_NODE}"}
                limits: {nvidia.com/gpu: "${GPU_PER_NODE}"}
              volumeMounts:
                - {name: agent, mountPath: /agent, readOnly: true}
                - {name: host, mountPath: /host, mountPropagation: HostToContainer}
          volumes:
            - name: agent
              configMap: {name: node-health}
            - name: host
              hostPath: {path: /}
"""


def listed(words: list[str], indent: int) -> str:
    return "\n".join(f'{" " * indent}- "{word}"' if "$" in word else f"{' ' * indent}- {word}" for word in words)


def block(text: str, indent: int) -> str:
    return "\n".join(" " * indent + line for line in text.splitlines())


def manifest(model: str, name: str = "") -> str:
    """The manifest of a model of MODELS, as text for envsubst."""
    preset, batch, steps, checkpoint, validation = MODELS[model]
    name = name or model.replace("_", "-") + "-fsdp"
    folder = f"/checkpoints/{name}"
    values = [f'- {{name: {each}, value: "${{{each}}}"}}' for each in (*MANIFEST_NEEDED, *MANIFEST_OPTIONAL)]
    # The token is a Secret, so that its value is in no manifest.
    values.append("- name: HF_TOKEN\n  valueFrom:\n    secretKeyRef: {name: hf-token, key: token, optional: true}")
    args = ["torchrun", "--nproc-per-node=${GPU_PER_NODE}", "--nnodes=${NUM_NODES}", "-m", "trainer", "train"]
    args += [f"--model={preset}", f"--train_batch_size={batch}", f"--val_batch_size={batch}", f"--max_steps={steps}"]
    args += [f"--checkpoint_freq={checkpoint}", f"--validation_freq={validation}"]
    args += [f"--checkpoint_dir={folder}", f"--resume_from_checkpoint={folder}"]
    return HEAD % {
        "preset": preset,
        "name": name,
        "check": block(CHECK, 18),
        "needed": listed(list(MANIFEST_NEEDED), 16),
        "env": block("\n".join(values), 16),
        "start": block(START, 18),
        "args": listed(args, 16),
    }


def health() -> str:
    """The manifest of the health checks, as text for envsubst."""
    text = Path(kubernetes_agent.__file__).read_text()
    if "$" in text:
        raise ValueError("kubernetes_agent.py has a dollar sign, which envsubst would take for a variable; write it without.")
    return HEALTH % {
        "condition": kubernetes_agent.CONDITION,
        "taint": kubernetes_agent.TAINT,
        "agent": "\n".join(line and "    " + line for line in text.splitlines()),
        "sum": hashlib.sha256(text.encode()).hexdigest()[:16],
    }


def health_full() -> str:
    """The manifest of the diagnostics, as text for envsubst."""
    seconds = FULL_DAYS * 86400
    return HEALTH_FULL % {
        "condition": kubernetes_agent.FULL_CONDITION,
        "taint": kubernetes_agent.TAINT,
        "days": FULL_DAYS,
        "seconds": seconds,
    }


def eks() -> dict[str, str]:
    """{file name: text} of what kubernetes/eks has from the cluster document and from here, under the names of AWS's sample for EKS."""
    found = {"fsdp.yaml-template": manifest("llama2_7b", "fsdp")}
    for name, (market, vpc) in EKS.items():
        nodes = {"name": "gpu", "type": "p4d.24xlarge", "count": 2, "disk": 500, "market": market}
        nodes |= {"reservation": "cr-0123456789abcdef0"} if market == "reservation" else {}
        document = {"kind": "eks", "name": "eks-p4d", "region": "us-east-1", "zones": ["us-east-1a", "us-east-1b"], "vpc": vpc}
        files = render.own_files(cluster.load({**document, "nodes": [nodes], "storage": {"lustre": {"gib": 1200}}}))
        found[name] = EKS_HEAD % name + files["eksctl.yaml"].removeprefix("---\n")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    folder = ROOT / "kubernetes"
    texts = {folder / f"{model}-fsdp.yaml": manifest(model) for model in MODELS}
    texts[folder / "health/node-health.yaml"] = health()
    texts[folder / "health/node-health-full.yaml"] = health_full()
    texts |= {folder / "eks" / name: text for name, text in eks().items()}
    others = sorted({*folder.glob("*.yaml"), *folder.glob("health/*.yaml")} - set(texts))
    old = [path for path, text in texts.items() if not path.exists() or path.read_text() != text] + others
    if check:
        for path in old:
            print(f"{path.relative_to(ROOT)} is not current; run `make docs`")
        return 1 if old else 0
    (folder / "health").mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        path.write_text(text)
    for path in others:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
