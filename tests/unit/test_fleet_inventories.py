# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The inventories of Slurm, Kubernetes and HyperPod: hosts, groups and one sentence for each error.

The JSON of Slurm is constructed after data_parser v0.0.41 (lists and wrapped numbers) and v0.0.37 (text); that of Kubernetes after an
EKS node with the device plugins of NVIDIA and EFA. botocore checks the answers of HyperPod against its model.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.session import get_session
from botocore.stub import Stubber
from botocore.validate import ParamValidator

from ansible_collections.muster.fleet.plugins.inventory import hyperpod as hyperpod_plugin
from ansible_collections.muster.fleet.plugins.module_utils.slurm.text import SlurmError
from ansible_collections.muster.fleet.plugins.plugin_utils import hyperpod_hosts, kubernetes_hosts, slurm_hosts

ROOT = Path(__file__).parents[2]
NODE = {
    "name": "p5-1",
    "address": "10.0.0.11",
    "state": ["IDLE", "DRAIN"],
    "partitions": ["main", "gpu"],
    "features": ["p5.48xlarge", "az1"],
    "active_features": ["p5.48xlarge", "az1"],
    "gres": "gpu:h100:8(S:0-1)",
    "reason": "bad disk",
    "cpus": 192,
    "real_memory": 2000000,
}
OLD = {**NODE, "name": "old-1", "state": "IDLE", "partitions": "main", "features": "x,y", "active_features": "", "gres": "", "reason": ""}
NEW = {**NODE, "name": "p5-2", "state": ["ALLOCATED"], "cpus": {"set": True, "infinite": False, "number": 192}}
TOPOLOGY = """\
SwitchName=top Level=1 LinkSpeed=1 Nodes=old-1,p5-[1-2] Switches=s[1-2]
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=p5-[1-2]
SwitchName=s2 Level=0 LinkSpeed=1 Nodes=old-1
"""


def slurm_json(*nodes: dict) -> str:
    return json.dumps({"nodes": list(nodes), "errors": [], "warnings": []})


def test_nodes_of_slurm() -> None:
    hosts = {each["name"]: each for each in slurm_hosts.hosts_of(slurm_json(NODE, OLD, NEW), TOPOLOGY)}
    one = hosts["p5-1"]
    assert one["variables"] == {
        "ansible_host": "10.0.0.11",
        "slurm_state": ["idle", "drain"],
        "slurm_partitions_of": ["main", "gpu"],
        "slurm_features": ["p5.48xlarge", "az1"],
        "slurm_reason": "bad disk",
        "slurm_gres_of": {"gpu": 8},
        "slurm_cpus": 192,
        "slurm_memory_mib": 2000000,
        "instance_type": "p5.48xlarge",
        "muster_network_nodes": ["top", "s1"],
    }
    assert {"muster_compute", "muster_gpu", "muster_efa", "muster_type_p5.48xlarge", "slurm_state_drain", "slurm_partition_gpu"} <= set(
        one["groups"]
    )
    assert {"slurm_gpu_h100", "muster_layer1_top", "muster_layer2_s1", "slurm_feature_az1"} <= set(one["groups"])
    assert hosts["old-1"]["variables"]["slurm_features"] == ["x", "y"]
    assert "muster_gpu" not in hosts["old-1"]["groups"]
    assert hosts["p5-2"]["variables"]["slurm_cpus"] == 192
    assert [each["name"] for each in slurm_hosts.hosts_of(slurm_json(NODE, OLD, NEW), states=["idle"], partitions=["gpu"])] == ["p5-1"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("slurm_load_node error", "scontrol printed no JSON"),
        ('{"nodes": [{"nam', "scontrol printed no JSON"),
        ("{}", "scontrol printed JSON without a list of nodes"),
        ('{"nodes": [{"state": []}]}', "without a list of nodes"),
        (
            '{"errors": [{"description": "Unable to contact slurm controller"}], "nodes": []}',
            "scontrol says: Unable to contact slurm controller.",
        ),
    ],
)
def test_json_that_is_not_slurm_s(text: str, words: str) -> None:
    with pytest.raises(SlurmError, match=words):
        slurm_hosts.hosts_of(text)


KUBERNETES = {
    "metadata": {
        "name": "ip-10-0-0-11.ec2.internal",
        "labels": {
            "node.kubernetes.io/instance-type": "p5.48xlarge",
            "topology.kubernetes.io/zone": "us-west-2a",
            "topology.k8s.aws/network-node-layer-1": "nn-1",
            "topology.k8s.aws/network-node-layer-2": "nn-2",
            "topology.k8s.aws/network-node-layer-3": "nn-3",
        },
    },
    "spec": {"providerID": "aws:///us-west-2a/i-0123456789abcdef0", "taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
    "status": {
        "addresses": [{"type": "InternalIP", "address": "10.0.0.11"}],
        "allocatable": {"cpu": "191450m", "nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "32"},
        "conditions": [
            {"type": "Ready", "status": "True"},
            {"type": "AcceleratedHardwareReady", "status": "True"},
            {"type": "DiskPressure", "status": "True"},
        ],
        "nodeInfo": {"kubeletVersion": "v1.34.1"},
    },
}


def test_nodes_of_kubernetes() -> None:
    [host] = kubernetes_hosts.hosts_of(json.dumps({"items": [KUBERNETES]}))
    variables = host["variables"]
    assert (variables["ansible_host"], variables["instance_id"]) == ("10.0.0.11", "i-0123456789abcdef0")
    assert (variables["kubernetes_gpus"], variables["kubernetes_efa_devices"], variables["kubernetes_neuron_devices"]) == (8, 32, 0)
    assert variables["muster_network_nodes"] == ["nn-1", "nn-2", "nn-3"]
    assert "muster_ultraserver" not in variables and not any("ultraserver" in each for each in host["groups"])
    assert variables["kubernetes_taints"] == ["nvidia.com/gpu=:NoSchedule"]
    assert {"kubernetes_ready", "muster_gpu", "muster_efa", "muster_az_us-west-2a", "muster_layer3_nn-3"} <= set(host["groups"])
    assert "kubernetes_condition_DiskPressure" in host["groups"]
    cordoned = {**KUBERNETES, "spec": {"unschedulable": True}, "status": {**KUBERNETES["status"], "conditions": []}}
    [host] = kubernetes_hosts.hosts_of(json.dumps({"items": [cordoned]}))
    assert {"kubernetes_not_ready", "kubernetes_cordoned"} <= set(host["groups"])
    for text in ("error: no context", '{"kind": "Status"}'):
        with pytest.raises(kubernetes_hosts.KubernetesError, match="kubectl printed"):
            kubernetes_hosts.hosts_of(text)


def test_nodes_of_kubernetes_that_share_nvlink() -> None:
    """HyperPod on EKS sets this label."""
    metadata = {"name": "gb", "labels": {"topology.k8s.aws/ultraserver-id": "us-0a1"}}
    [host] = kubernetes_hosts.hosts_of(json.dumps({"items": [{**KUBERNETES, "metadata": metadata}]}))
    assert host["variables"]["muster_ultraserver"] == "us-0a1"
    assert "muster_ultraserver_us-0a1" in host["groups"]


def inventory(folder: Path, name: str, text: str, path: str = "", **env: str) -> tuple[dict[str, Any], str]:
    """(what ansible-inventory prints as JSON, its errors) of one file."""
    (folder / name).write_text(text)
    known = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"], **env}
    argv = [str(Path(sys.executable).parent / "ansible-inventory"), "-i", str(folder / name), "--list"]
    done = subprocess.run(argv, cwd=ROOT, env=known, capture_output=True, text=True, check=False)
    return (json.loads(done.stdout) if done.returncode == 0 else {}), done.stderr


def tool(folder: Path, name: str, script: str) -> str:
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / name).write_text("#!/bin/sh\n" + script)
    (folder / "bin" / name).chmod(0o755)
    return str(folder / "bin")


def test_slurm_through_ansible(tmp_path: Path) -> None:
    (tmp_path / "nodes.json").write_text(slurm_json(NODE, NEW))
    (tmp_path / "topology").write_text(TOPOLOGY)
    path = tool(tmp_path, "scontrol", f'case "$2" in nodes) cat {tmp_path}/nodes.json;; *) cat {tmp_path}/topology;; esac\n')
    keyed = "keyed_groups: [{key: instance_type, prefix: it}]\n"
    found, err = inventory(tmp_path, "slurm.yml", f"plugin: muster.fleet.slurm\ntopology: true\n{keyed}", path)
    assert err == ""
    assert found["slurm_nodes"]["hosts"] == ["p5-1", "p5-2"]
    assert found["muster_type_p5_48xlarge"]["hosts"] == found["it_p5_48xlarge"]["hosts"] == ["p5-1", "p5-2"]
    assert found["_meta"]["hostvars"]["p5-1"]["slurm_reason"] == {"__ansible_unsafe": "bad disk"}, "never a template"
    tool(tmp_path, "scontrol", "echo 'slurm_load_nodes error: Unable to contact slurm controller (connect failure)' >&2; exit 1\n")
    _found, err = inventory(tmp_path, "slurm.yml", "plugin: muster.fleet.slurm\n", path)
    assert err.strip().endswith("Unable to contact slurm controller (connect failure); look at scontrol ping.")
    assert err.count("\n") == 1
    _found, err = inventory(tmp_path, "slurm.yml", "plugin: muster.fleet.slurm\npartition: [main]\n", path)
    assert "unknown option partition; the nearest is partitions." in err


def test_kubernetes_through_ansible(tmp_path: Path) -> None:
    (tmp_path / "nodes.json").write_text(json.dumps({"items": [KUBERNETES]}))
    path = tool(tmp_path, "kubectl", f'echo "$@" >{tmp_path}/argv; cat {tmp_path}/nodes.json\n')
    found, err = inventory(tmp_path, "kubernetes_fleet.yml", "plugin: muster.fleet.kubernetes_fleet\ncontext: training\n", path)
    assert err == ""
    assert found["kubernetes_nodes"]["hosts"] == ["ip-10-0-0-11.ec2.internal"]
    assert (tmp_path / "argv").read_text() == "--context=training get nodes --output=json --request-timeout=60s\n"
    tool(tmp_path, "kubectl", "echo 'error: You must be logged in to the server (Unauthorized)' >&2; exit 1\n")
    _found, err = inventory(tmp_path, "kubernetes_fleet.yml", "plugin: muster.fleet.kubernetes_fleet\n", path)
    assert err.strip().endswith("You must be logged in to the server (Unauthorized); log in again.")


def test_slurmrestd_through_ansible(tmp_path: Path) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            good = self.headers["X-SLURM-USER-TOKEN"] == "secret"
            self.send_response(200 if good else 401)
            self.end_headers()
            self.wfile.write(slurm_json(NODE).encode() if good else b"")

        def log_message(self, *_args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    text = f"plugin: muster.fleet.slurm\nurl: http://127.0.0.1:{server.server_port}\n"
    try:
        found, err = inventory(tmp_path, "slurm.yml", text, SLURM_JWT="secret")
        assert (found["slurm_nodes"]["hosts"], err) == (["p5-1"], "")
        _found, err = inventory(tmp_path, "slurm.yml", text, SLURM_JWT="old")
        assert err.strip().endswith("slurmrestd refuses the token (401); run export $(scontrol token) again.")
        assert "old" not in err.replace(str(tmp_path), "")
    finally:
        server.shutdown()
        server.server_close()


ARN = "arn:aws:sagemaker:us-west-2:111122223333:cluster/abcd1234efgh"
CLUSTER = {"ClusterArn": ARN, "ClusterName": "training", "ClusterStatus": "InService", "InstanceGroups": []}
SUMMARY = {
    "InstanceGroupName": "worker",
    "InstanceId": "i-0123456789abcdef0",
    "InstanceType": "ml.p5.48xlarge",
    "LaunchTime": "2026-11-01T00:00:00Z",
    "InstanceStatus": {"Status": "Running", "Message": ""},
}
DETAILS = {
    **{key: value for key, value in SUMMARY.items()},
    "PrivatePrimaryIp": "10.0.0.11",
    "PrivateDnsHostname": "ip-10-0-0-11",
    "LifeCycleConfig": {"SourceS3Uri": "s3://bucket/scripts", "OnCreate": "on_create.sh"},
    "Placement": {"AvailabilityZone": "us-west-2a", "AvailabilityZoneId": "usw2-az1"},
}


def test_nodes_of_hyperpod() -> None:
    host = hyperpod_hosts.host_of(CLUSTER, DETAILS, "us-west-2", "work")
    variables = host["variables"]
    assert host["name"] == "worker-i-0123456789abcdef0"
    assert variables["hyperpod_ssm_target"] == "sagemaker-cluster:abcd1234efgh_worker-i-0123456789abcdef0"
    assert "--target sagemaker-cluster:abcd1234efgh_worker-i-0123456789abcdef0 " in variables["ansible_ssh_common_args"]
    assert variables["ansible_ssh_common_args"].endswith('--region us-west-2 --profile work"')
    assert (variables["instance_type"], variables["hyperpod_lifecycle_script"]) == ("p5.48xlarge", "on_create.sh")
    assert {"hyperpod_training", "hyperpod_group_worker", "hyperpod_status_running", "hyperpod_slurm", "muster_gpu", "muster_efa"} <= set(
        host["groups"]
    )
    eks = {**CLUSTER, "Orchestrator": {"Eks": {"ClusterArn": "arn:aws:eks:us-west-2:111122223333:cluster/e"}}}
    assert "hyperpod_eks" in hyperpod_hosts.host_of(eks, SUMMARY, "us-west-2")["groups"]


def test_nodes_of_hyperpod_that_share_nvlink() -> None:
    known = get_session().get_service_model("sagemaker").operation_model("DescribeClusterNode").output_shape.members["NodeDetails"]
    details = {**DETAILS, "InstanceType": "ml.p6e-gb200.36xlarge", "UltraServerInfo": {"Id": "us-0a1", "Type": "ml.u-p6e-gb200x72"}}
    assert not ParamValidator().validate({**details, "LaunchTime": 1}, known).has_errors()
    host = hyperpod_hosts.host_of(CLUSTER, details, "us-west-2")
    assert host["variables"]["muster_ultraserver"] == "us-0a1"
    assert "muster_ultraserver_us-0a1" in host["groups"]
    host = hyperpod_hosts.host_of(CLUSTER, DETAILS, "us-west-2")
    assert "muster_ultraserver" not in host["variables"] and not any("ultraserver" in each for each in host["groups"])


def test_hyperpod_asks_for_each_node(monkeypatch: pytest.MonkeyPatch) -> None:
    client = boto3.client("sagemaker", region_name="us-west-2", aws_access_key_id="x", aws_secret_access_key="y")
    stub = Stubber(client)
    stub.add_response(
        "list_clusters",
        {"ClusterSummaries": [{"ClusterArn": ARN, "ClusterName": "training", "CreationTime": 1, "ClusterStatus": "InService"}]},
    )
    stub.add_response("describe_cluster", CLUSTER)
    stub.add_response("list_cluster_nodes", {"ClusterNodeSummaries": [SUMMARY]}, {"ClusterName": "training"})
    stub.add_response("describe_cluster_node", {"NodeDetails": DETAILS}, {"ClusterName": "training", "NodeId": "i-0123456789abcdef0"})
    stub.add_client_error("list_clusters", "ExpiredTokenException", "The security token included in the request is expired")
    monkeypatch.setattr(hyperpod_plugin.Accounts, "client", lambda _self, _service, _region, _role="": client)
    plugin = hyperpod_plugin.InventoryModule()
    monkeypatch.setattr(plugin, "get_option", {"clusters": [], "details": True}.get)
    options = {"region": "us-west-2", "profile": "", "endpoint_url": "", "access_key": "", "secret_key": "", "session_token": ""}
    with stub:
        [host] = plugin._ask(options)
        assert host["variables"]["private_ip_address"] == "10.0.0.11"
        with pytest.raises(ValueError, match=r"The AWS credentials have expired .*; log in again"):
            plugin._ask(options)
