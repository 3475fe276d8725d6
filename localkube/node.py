# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Process 1 of a node: makes the node's file systems and network, starts its programs, and starts again those that end.

python -m localkube.node FOLDER NUMBER NODES, within the namespaces that keeper.py made. The first node has the control plane too, and
starts the other nodes in namespaces below its own, so that they all end with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from localkube import config, rehearsal
from localkube.programs import cni_folder, find

# Settings of the whole machine that a kubelet writes.
SYSCTLS = ("kernel/panic", "kernel/panic_on_oops", "vm/overcommit_memory", "vm/panic_on_oom")
# Folders in which a kubelet, containerd or a network plugin leaves files at fixed places.
COVERED = ("/var/lib", "/var/log", "/opt", "/usr/libexec")
HUGE_PAGES = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
NAMESPACES = ("--mount", "--pid", "--uts", "--ipc", "--fork", "--mount-proc", "--kill-child=SIGKILL")
BEGAN = time.monotonic()


def run(*argv: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(each) for each in argv], check=check, capture_output=True, text=True)


def until(done: Callable[[], bool], pause: float = 0.2) -> None:
    while not done():
        time.sleep(pause)


class Node:
    """One node of a cluster, seen from within."""

    def __init__(self, folder: Path, number: int, nodes: int) -> None:
        self.state, self.number, self.nodes = folder, number, nodes
        self.name = f"node{number}"
        self.folder = folder / f"n{number}"
        self.rehearsal = folder / "rehearsal"  # only there when the nodes rehearse an instance type
        self.kubectl = [find("kubectl", os.environ), "--kubeconfig", folder / "inside.kubeconfig"]
        self.own: set[int] = set()  # programs, which their threads reap

    def say(self, what: str) -> None:
        print(f"{time.monotonic() - BEGAN:5.1f} s: {self.name}: {what}", flush=True)

    def mounts(self) -> None:
        """What the programs write stays within the node."""
        run("mount", "--make-rshared", "/")
        run("mount", "-t", "tmpfs", "tmpfs", "/run")
        for folder in ("/run/containerd", "/run/lock", "/run/state"):
            os.makedirs(folder)
        run("mount", "--bind", self.state, "/run/state")
        for each in SYSCTLS:
            private = Path("/run") / f"sysctl.{each.replace('/', '.')}"
            private.write_text(Path("/proc/sys", each).read_text())
            run("mount", "--bind", private, Path("/proc/sys", each))
        for folder in COVERED:
            if os.path.isdir(folder):
                over = Path("/run/over") / folder.strip("/").replace("/", "-")
                for part in ("upper", "work"):
                    (over / part).mkdir(parents=True)
                run("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={folder},upperdir={over}/upper,workdir={over}/work", folder)
        run("mount", "--bind", "/run/state", self.state)

    def rehearse(self) -> None:
        """Carry what the instance type has: device files, entries in /sys, tools."""
        # The namespaces of the other nodes begin as a copy of the first node's, which must not have a rehearsal in it yet.
        others = [self.state / f"n{number}" / "has-namespaces" for number in range(1, self.nodes + 1)]
        until(lambda: all(each.exists() for each in others))
        for argv in (rehearsal.cover(), [sys.executable, self.rehearsal / "stand-in", "boot", self.rehearsal]):
            done = run(*argv, check=False)
            if done.returncode != 0:
                sys.exit(f"{self.name} cannot rehearse its type: {done.stderr.strip()}")
        # The kubelet would count the pages of this machine, which nobody may reserve for a rehearsal. It only reads their number.
        if os.path.exists(HUGE_PAGES):
            run("mount", "--bind", self.rehearsal / "huge-pages", HUGE_PAGES)

    def offers_devices(self) -> bool:
        """Whether the kubelet knows all devices of the type."""
        said = run(*self.kubectl, "get", f"node/{self.name}", "--output=jsonpath={.status.allocatable}", check=False).stdout
        wanted = json.loads((self.rehearsal / "allocatable.json").read_text())
        return wanted.items() <= json.loads(said or "{}").items()

    def network(self) -> None:
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "cni0", "type", "bridge")
        run("ip", "address", "add", f"{config.address(self.number)}/24", "dev", "cni0")
        run("ip", "link", "set", "cni0", "up")
        # Addresses of services have no route of their own; the proxy's rules see them before they would leave.
        run("ip", "route", "add", "default", "dev", "cni0")
        if self.number > 1:
            run("ip", "link", "set", "up0", "master", "cni0")
            run("ip", "link", "set", "up0", "up")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")

    def keep(self, name: str, *options: object) -> None:
        """Start a program, and start it again when it ends, but not while the file hold/NAME is there."""
        argv = [str(find(name, os.environ)), *map(str, options)]
        hold = self.state / "hold" / f"{name}.{self.name}"

        def loop() -> None:
            with (self.folder / "log" / name).open("ab") as log:
                while True:
                    until(lambda: not hold.exists())
                    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                    self.own.add(process.pid)
                    (self.folder / f"{name}.pid").write_text(f"{process.pid}\n")
                    while process.poll() is None:
                        if hold.exists():
                            process.kill()
                        time.sleep(0.2)
                    time.sleep(1)

        threading.Thread(target=loop, daemon=True).start()

    def reap(self) -> None:
        """Reap the processes that lost their parent, for good."""
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            if ended and ended.si_pid not in self.own:
                os.waitpid(ended.si_pid, 0)
            else:
                time.sleep(0.5)

    def ready(self) -> bool:
        return run(*self.kubectl, "get", "--raw", "/readyz", check=False).returncode == 0

    def control_plane(self) -> None:
        state, at = self.state, "http://127.0.0.1"
        serves = [f"--listen-client-urls={at}:2379", f"--advertise-client-urls={at}:2379", f"--listen-peer-urls={at}:2380"]
        self.keep("etcd", f"--data-dir={state}/etcd", "--enable-v2", *serves)
        self.keep(
            "kube-apiserver",
            f"--etcd-servers={at}:2379",
            f"--tls-cert-file={state}/pki/server.crt",
            f"--tls-private-key-file={state}/pki/server.key",
            f"--cert-dir={state}/pki",
            "--secure-port=6443",
            "--bind-address=0.0.0.0",
            f"--advertise-address={config.API}",
            f"--service-account-key-file={state}/pki/accounts.key",
            f"--service-account-signing-key-file={state}/pki/accounts.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--token-auth-file={state}/pki/tokens.csv",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--service-cluster-ip-range={config.SERVICES}",
            "--allow-privileged=true",
            "--kubelet-preferred-address-types=InternalIP",
        )
        until(self.ready)
        self.say("the API server is ready")
        self.keep(
            "kube-controller-manager",
            f"--kubeconfig={state}/system:kube-controller-manager.kubeconfig",
            f"--service-account-private-key-file={state}/pki/accounts.key",
            f"--root-ca-file={state}/pki/ca.crt",
            "--use-service-account-credentials",
            "--allocate-node-cidrs=false",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            "--node-monitor-grace-period=20s",
        )
        scheduler = f"{state}/system:kube-scheduler.kubeconfig"
        self.keep(
            "kube-scheduler",
            f"--kubeconfig={scheduler}",
            f"--authentication-kubeconfig={scheduler}",
            f"--authorization-kubeconfig={scheduler}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
        )
        self.keep("coredns", "-conf", state / "Corefile")

    def start_others(self) -> None:
        for number in range(2, self.nodes + 1):
            space, link = f"n{number}", f"v{number}"
            run("ip", "netns", "add", space)
            run("ip", "link", "add", link, "type", "veth", "peer", "name", "up0", "netns", space)
            run("ip", "link", "set", link, "master", "cni0")
            run("ip", "link", "set", link, "up")
            program = [sys.executable, "-m", "localkube.node", self.state, number, self.nodes]
            argv = ["nsenter", f"--net=/run/netns/{space}", "--", "unshare", *NAMESPACES, "--", *program]
            process = subprocess.Popen([str(each) for each in argv])
            self.own.add(process.pid)
            (self.state / f"n{number}" / "outer.pid").write_text(f"{process.pid}\n")

    def images(self) -> None:
        """Import the images, that of the pods' first process before the others."""
        ctr = [find("ctr", os.environ), "--address", config.CONTAINERD, "--namespace", "k8s.io"]
        until(lambda: run(*ctr, "version", check=False).returncode == 0)
        for archive in (self.state / "images").read_text().splitlines():
            run(*ctr, "images", "import", archive)
            (self.folder / "pause-is-there").touch()
        (self.folder / "images-are-there").touch()
        self.say("the images are imported")

    def start(self) -> None:
        import socket

        socket.sethostname(self.name)
        (self.folder / "has-namespaces").touch()
        self.mounts()
        self.network()
        for each in ("log", "kubelet"):
            (self.folder / each).mkdir(exist_ok=True)
        self.keep("containerd", "--config", self.folder / "containerd.toml")
        importing = threading.Thread(target=self.images)
        importing.start()
        if self.number == 1:
            self.control_plane()
            self.start_others()
        if self.rehearsal.exists():
            self.rehearse()
        until(lambda: (self.folder / "pause-is-there").exists() and self.ready())
        self.keep("kube-proxy", f"--config={self.state}/proxy.yaml", f"--hostname-override={self.name}")
        self.keep(
            "kubelet",
            f"--config={self.folder}/kubelet.yaml",
            f"--kubeconfig={self.folder}/kubeconfig",
            f"--node-ip={config.address(self.number)}",
            f"--hostname-override={self.name}",
            f"--root-dir={self.folder}/kubelet",
            f"--cert-dir={self.folder}/kubelet/pki",
            f"--node-labels={(self.folder / 'labels').read_text().strip()}",
        )
        wait = [*self.kubectl, "wait", "--for=condition=Ready", f"node/{self.name}", "--timeout=5s"]
        until(lambda: run(*wait, check=False).returncode == 0)
        until(lambda: run(*self.kubectl, "get", "serviceaccount", "default", check=False).returncode == 0)
        importing.join()
        if self.rehearsal.exists():
            plugin = [*self.kubectl, "apply", "--server-side", "--filename", self.rehearsal / "device-plugin.json"]
            until(lambda: self.number > 1 or run(*plugin, check=False).returncode == 0)
            self.say("waits for the device plugin")
            until(self.offers_devices)
        self.say("ready")
        (self.folder / "ready").touch()


def main(argv: list[str]) -> None:
    folder, number, nodes = Path(argv[0]), int(argv[1]), int(argv[2])
    own = [cni_folder(os.environ), *(find(name, os.environ).parent for name in ("runc", "containerd", "iptables"))]
    # containerd starts its shim, and the network plugins iptables, by PATH.
    os.environ["PATH"] = os.pathsep.join(dict.fromkeys([*map(str, own), *os.environ["PATH"].split(os.pathsep), "/usr/sbin", "/sbin"]))
    node = Node(folder, number, nodes)
    node.start()
    node.reap()


if __name__ == "__main__":
    main(sys.argv[1:])
