# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The configuration files of a cluster, as pure functions.

Node i has the address 10.244.0.i, and its pods 10.244.0.(24 i) to 10.244.0.(24 i + 23), all on one bridge. Each cluster has a network
of its own, so that all clusters have the same addresses.
"""

from __future__ import annotations

import json

import yaml

from localkube import LocalKubeError

API = "10.244.0.1"
DNS = API
NETWORK = "10.244.0.0/24"
SERVICES = "10.0.0.0/24"
FIRST_SERVICE = "10.0.0.1"
CONTAINERD = "/run/containerd/containerd.sock"
MOST_NODES = 9
# Users of the API beside the kubelets -> their groups. CoreDNS and the proxy read what the roles of these names let them read.
USERS = {
    "admin": "system:masters",
    "system:kube-controller-manager": "",
    "system:kube-scheduler": "",
    "system:kube-proxy": "",
    "coredns": "system:masters",
}


def node_count(text: str) -> int:
    """The number of nodes that somebody asks for. Raises LocalKubeError."""
    if not text.isdecimal() or not 1 <= int(text) <= MOST_NODES:
        raise LocalKubeError(f"A local cluster has 1 to {MOST_NODES} nodes, not {text}.")
    return int(text)


def address(node: int) -> str:
    return f"10.244.0.{node}"


def tokens(secrets: dict[str, str]) -> str:
    """The file of tokens that the API server reads: {user: token}; a user such as system:node:node1 is a kubelet."""
    lines = []
    for number, (user, token) in enumerate(secrets.items(), 1):
        group = "system:nodes" if user.startswith("system:node:") else USERS[user]
        lines.append(f'{token},{user},{number},"{group}"' if group else f"{token},{user},{number}")
    return "\n".join(lines) + "\n"


def kubeconfig(name: str, server: str, authority: str, user: str, token: str) -> str:
    """authority: the certificate authority's certificate in base64."""
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority-data": authority}}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
            "current-context": name,
        },
        sort_keys=False,
    )


def certificate_request() -> str:
    """What openssl needs to know of the API server's certificate."""
    names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
    alternatives = [f"DNS:{each}" for each in names] + [f"IP:{each}" for each in ("127.0.0.1", API, FIRST_SERVICE)]
    return f"subjectAltName={','.join(alternatives)}\nextendedKeyUsage=serverAuth\n"


def containerd(root: str, plugins: str, runc: str, network: str) -> str:
    """root: its folder; plugins: folder of the network plugins; network: folder with their configuration."""
    return f"""\
version = 2
root = "{root}"
state = "/run/containerd"
disabled_plugins = ["io.containerd.grpc.v1.cri.nri", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs"]
[grpc]
  address = "{CONTAINERD}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{root}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/muster-pause:1"
  # Without CAP_SYS_RESOURCE nobody may lower a process's score.
  restrict_oom_score_adj = true
  disable_apparmor = true
  disable_hugetlb_controller = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  BinaryName = "{runc}"
  SystemdCgroup = false
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{plugins}"
  conf_dir = "{network}"
"""


def network(node: int) -> str:
    """The configuration of a node's network plugins. Pods reach each other and the cluster's services, and nothing outside."""
    pods = {"subnet": NETWORK, "rangeStart": address(24 * node), "rangeEnd": address(24 * node + 23), "gateway": address(node)}
    ipam = {"type": "host-local", "dataDir": "/run/cni-ipam", "ranges": [[pods]], "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "hairpinMode": True, "ipam": ipam}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "1.0.0", "name": "localkube", "plugins": [bridge, ports]}, indent=1) + "\n"


def kubelet(root: str, cgroup: str) -> str:
    """root: the kubelet's folder; cgroup: the control group of its pods. Another kubelet with the same one would remove them."""
    small = {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%", "nodefs.inodesFree": "1%"}
    return yaml.safe_dump(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{CONTAINERD}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": cgroup,
            "failCgroupV1": False,
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "enforceNodeAllocatable": ["pods"],
            "makeIPTablesUtilChains": False,
            "clusterDNS": [DNS],
            "clusterDomain": "cluster.local",
            "resolvConf": "",
            "podLogsDir": f"{root}/logs",
            "volumePluginDir": f"{root}/volume-plugins",
            "imageGCHighThresholdPercent": 100,
            "evictionHard": small,
            "nodeStatusUpdateFrequency": "5s",
            "shutdownGracePeriod": "0s",
        }
    )


def proxy(kubeconfig_path: str) -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": kubeconfig_path},
            "mode": "iptables",
            "clusterCIDR": NETWORK,
            "oomScoreAdj": 0,
            # They would be settings of the whole machine.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        }
    )


def corefile(kubeconfig_path: str) -> str:
    return f"""\
.:53 {{
    bind {DNS}
    errors
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {kubeconfig_path}
        ttl 1
    }}
}}
"""
