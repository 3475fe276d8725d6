# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cluster autoscaler of an EKS cluster: it starts a group's nodes, the first one included, when pods wait for them, and ends idle ones.

eksctl makes its service account with the permissions of EC2 Auto Scaling; the manifests here are what Kubernetes gets.
"""

from __future__ import annotations

from typing import Any

NAME, NAMESPACE = "cluster-autoscaler", "kube-system"
# The groups that it may change have both tags. EKS puts them on managed groups.
ENABLED, OWNED = "k8s.io/cluster-autoscaler/enabled", "k8s.io/cluster-autoscaler/%s"
IMAGE = "registry.k8s.io/autoscaling/cluster-autoscaler:v%s.0"
READ = ["get", "list", "watch"]
# API group, resources, verbs: what its own examples for AWS allow.
CLUSTER_RULES = (
    ("", ["events", "endpoints"], ["create", "patch"]),
    ("", ["pods/eviction"], ["create"]),
    ("", ["pods/status"], ["update"]),
    ("", ["nodes"], [*READ, "update"]),
    ("", ["namespaces", "pods", "services", "replicationcontrollers", "persistentvolumeclaims", "persistentvolumes"], READ),
    ("apps", ["daemonsets", "replicasets", "statefulsets"], READ),
    ("policy", ["poddisruptionbudgets"], READ),
    ("storage.k8s.io", ["storageclasses", "csinodes", "csidrivers", "csistoragecapacities", "volumeattachments"], READ),
    ("batch", ["jobs", "cronjobs"], READ),
    ("resource.k8s.io", ["deviceclasses", "resourceclaims", "resourceslices"], READ),
    ("coordination.k8s.io", ["leases"], ["create", "get", "update"]),
)
OWN_RULES = (("", ["configmaps"], [*READ, "create", "update", "delete"]),)


def needed(groups):
    """Whether a node group can grow or shrink."""
    return any(each["min"] < each["max"] for each in groups)


def service_account():
    """What eksctl makes, with a role of IAM."""
    return {"metadata": {"name": NAME, "namespace": NAMESPACE}, "wellKnownPolicies": {"autoScaler": True}}


def discovery_tags(cluster_name):
    """The tags by which it finds a group that EKS does not manage."""
    return {ENABLED: "true", OWNED % cluster_name: "owned"}


def manifests(cluster_name, region, version):
    """What kubectl applies. version: of Kubernetes, whose autoscaler has the same."""
    return [
        *_role("ClusterRole", CLUSTER_RULES),
        *_role("Role", OWN_RULES),
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": _metadata("Deployment"),
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": {"app": NAME}},
                "template": {"metadata": {"labels": {"app": NAME}}, "spec": _pod(cluster_name, region, version)},
            },
        },
    ]


def _pod(cluster_name, region, version):
    found = ",".join([ENABLED, OWNED % cluster_name])
    container: dict[str, Any] = {
        "name": NAME,
        "image": IMAGE % version,
        "command": [
            "./cluster-autoscaler",
            "--cloud-provider=aws",
            "--node-group-auto-discovery=asg:tag=" + found,
            # A group without capacity is left for the next one that fits.
            "--expander=least-waste",
            "--max-node-provision-time=15m",
            "--skip-nodes-with-local-storage=false",
            "--stderrthreshold=info",
        ],
        "env": [{"name": "AWS_REGION", "value": region}],
        "resources": {"requests": {"cpu": "100m", "memory": "600Mi"}, "limits": {"memory": "600Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    return {
        "serviceAccountName": NAME,
        "priorityClassName": "system-cluster-critical",
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }


def _role(kind, rules):
    """A role and its binding to the service account."""
    return [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": kind,
            "metadata": _metadata(kind),
            "rules": [{"apiGroups": [group], "resources": resources, "verbs": verbs} for group, resources, verbs in rules],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": kind + "Binding",
            "metadata": _metadata(kind),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": NAME},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
        },
    ]


def _metadata(kind):
    return {"name": NAME, **({} if kind.startswith("Cluster") else {"namespace": NAMESPACE})}
