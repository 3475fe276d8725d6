# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A cluster on this machine: up, down and what it is."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.paths import state_dir
from localkube import LocalKubeError, config, rehearsal
from localkube.keeper import remove_cgroups
from localkube.programs import CLUSTER, DEBIAN, cni_folder, find

START_SECONDS = 180


class Cluster:
    """The cluster NAME; its files are in the state folder of the fleet of this name."""

    def __init__(self, name: str, env: Mapping[str, str] = os.environ) -> None:
        self.name, self.env = name, env
        self.folder = state_dir(name, env) / "kubernetes"
        self.kubeconfig = self.folder / "kubeconfig"
        self.cgroup = f"localkube-{name}-{hashlib.sha256(str(self.folder).encode()).hexdigest()[:8]}"
        # Data of claims, which pods of all nodes see at the same path.
        self.volumes = self.folder / "volumes"

    def alive(self) -> bool:
        """Whether a keeper holds the cluster."""
        try:
            with (self.folder / "lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def nodes(self) -> int:
        """The number of its nodes, 0 for a cluster that nobody has started."""
        return len(list(self.folder.glob("n*/kubelet.yaml")))

    def pids(self) -> tuple[int, int]:
        """The keeper, and the first node's process 1 as this machine numbers it."""
        keeper, inner = (self.folder / "pids").read_text().split()
        return int(keeper), int(inner)

    def rehearses(self) -> str:
        """The instance type that the nodes rehearse, "" for none."""
        path = self.folder / "type"
        return path.read_text().strip() if path.exists() else ""

    def up(self, nodes: int, images: list[Path], labels: Mapping[str, str] | None = None, kind: str = "") -> bool:
        """Start the cluster unless it runs; returns whether it was started. Raises LocalKubeError, and then nothing of it runs.

        kind: the instance type that the nodes rehearse. A cluster that runs keeps its type, and refuses another one.
        """
        if os.geteuid() != 0:
            raise LocalKubeError("A local cluster needs root, because it makes namespaces and mounts; run it with sudo.")
        if self.alive():
            remove = f"run make down ON=kubernetes FLEET={self.name}"
            if nodes != self.nodes():
                keeps = f"keeps the number of its nodes, which is {self.nodes()}"
                raise LocalKubeError(f"The cluster {self.name} {keeps}; {remove} before you start it with {nodes}.")
            if kind not in ("", self.rehearses()):
                keeps = f"rehearses {self.rehearses() or 'no type'}"
                raise LocalKubeError(f"The cluster {self.name} {keeps}; {remove} before you start it with {kind}.")
            self.wait()
            return False
        for name in (*CLUSTER, "coredns", *(["device-plugin"] if kind else []), *(each for names in DEBIAN.values() for each in names)):
            find(name, self.env)
        self.down()
        self.folder.mkdir(parents=True, mode=0o700)
        self.write(nodes, images, {**(labels or {}), **rehearsal.labels(kind)})
        if kind:
            rehearsal.write(kind, self.folder / "rehearsal")
            (self.folder / "type").write_text(f"{kind}\n")
        with (self.folder / "start.log").open("w") as log:
            # Its own session: Ctrl-C ends the command and not the cluster.
            subprocess.Popen(
                [sys.executable, "-m", "localkube.keeper", str(self.folder), str(nodes)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=Path(__file__).resolve().parents[1],
                env=dict(self.env),
            )
        try:
            self.wait()
        except LocalKubeError:
            kept = self.folder.with_name("kubernetes-failed")
            shutil.rmtree(kept, ignore_errors=True)
            self.stop()
            self.folder.rename(kept)
            raise
        return True

    def wait(self) -> None:
        """Wait until all nodes are ready."""
        until = time.monotonic() + START_SECONDS
        started = False
        while len(list(self.folder.glob("n*/ready"))) < self.nodes():
            started = started or self.alive()
            if time.monotonic() > until or (started and not self.alive()):
                said = (self.folder / "start.log").read_text().strip().splitlines() or ["nothing"]
                logs = self.folder.with_name("kubernetes-failed")
                raise LocalKubeError(f"The cluster {self.name} does not start; it said last: {said[-1]}. Its logs are in {logs}.")
            time.sleep(0.2)

    def write(self, nodes: int, images: list[Path], labels: Mapping[str, str]) -> None:
        """The files that the programs of the cluster read."""
        pki = self.folder / "pki"
        for each in (pki, self.folder / "etcd", self.folder / "hold", self.volumes):
            each.mkdir(mode=0o700)
        self.volumes.chmod(0o755)
        self.certificates(pki)
        kubelets = [f"system:node:node{number}" for number in range(1, nodes + 1)]
        keys = {user: secrets.token_hex(24) for user in (*config.USERS, *kubelets)}
        private(pki / "tokens.csv", config.tokens(keys))
        authority = base64.b64encode((pki / "ca.crt").read_bytes()).decode()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        (self.folder / "port").write_text(f"{port}\n")
        (self.folder / "cgroup").write_text(f"{self.cgroup}\n")
        (self.folder / "images").write_text("".join(f"{each}\n" for each in images))

        def access(path: Path, user: str, server: str = f"https://{config.API}:6443") -> None:
            private(path, config.kubeconfig(self.name, server, authority, user, keys[user]))

        for user in config.USERS:
            access(self.folder / f"{user}.kubeconfig", user)
        access(self.folder / "inside.kubeconfig", "admin")
        access(self.kubeconfig, "admin", f"https://127.0.0.1:{port}")
        (self.folder / "proxy.yaml").write_text(config.proxy(str(self.folder / "system:kube-proxy.kubeconfig")))
        (self.folder / "Corefile").write_text(config.corefile(str(self.folder / "coredns.kubeconfig")))
        runc, plugins = str(find("runc", self.env)), str(cni_folder(self.env))
        for number, user in enumerate(kubelets, 1):
            own = self.folder / f"n{number}"
            (own / "cni").mkdir(parents=True)
            (own / "cni" / "10-localkube.conflist").write_text(config.network(number))
            (own / "containerd.toml").write_text(config.containerd(str(own / "containerd"), plugins, runc, str(own / "cni")))
            (own / "kubelet.yaml").write_text(config.kubelet(str(own / "kubelet"), f"/{self.cgroup}/n{number}"))
            (own / "labels").write_text(",".join(f"{name}={value}" for name, value in labels.items()) + "\n")
            access(own / "kubeconfig", user)

    def certificates(self, pki: Path) -> None:
        """An authority, the API server's certificate of it, and the key that signs the tokens of service accounts."""
        (pki / "server.ext").write_text(config.certificate_request())
        new, key = ["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-keyout"], "/CN=localkube"
        for argv in (
            [*new, "ca.key", "-x509", "-days", "365", "-subj", key, "-out", "ca.crt"],
            [*new, "server.key", "-subj", "/CN=kube-apiserver", "-out", "server.csr"],
            ["openssl", "x509", "-req", "-in", "server.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "365",
             "-extfile", "server.ext", "-out", "server.crt"],
            ["openssl", "genrsa", "-out", "accounts.key", "2048"],
        ):  # fmt: skip
            try:
                subprocess.run(argv, cwd=pki, check=True, capture_output=True)
            except FileNotFoundError:
                raise LocalKubeError("This machine has no openssl, which makes the cluster's certificates; install openssl.") from None

    def stop(self) -> None:
        """End all processes of the cluster and remove its control groups."""
        if self.alive():
            for _try in range(50):
                with contextlib.suppress(FileNotFoundError, ValueError):
                    os.kill(self.pids()[0], signal.SIGKILL)
                    break
                time.sleep(0.1)
        if not remove_cgroups(self.cgroup):
            raise LocalKubeError(f"Processes of the cluster {self.name} do not end; see /sys/fs/cgroup for {self.cgroup}.")

    def down(self) -> bool:
        """Remove the cluster; returns whether there was one."""
        was = self.folder.exists()
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.folder.exists():
            raise LocalKubeError(f"{self.folder} cannot be removed; see what uses it.")
        return was

    def argv(self, node: str, *words: str) -> list[str]:
        """A command within the namespaces of a node."""
        if not self.alive():
            raise LocalKubeError(f"The cluster {self.name} does not run; start it with python -m localkube up {self.name}.")
        first = self.processes()
        if node not in first:
            raise LocalKubeError(f"The cluster {self.name} has no node {node}; name one of {', '.join(sorted(first))}.")
        return ["nsenter", "--target", str(first[node]), "--mount", "--net", "--pid", "--uts", "--ipc", "--", *words]

    def processes(self) -> dict[str, int]:
        """{node: its process 1 as this machine numbers it}."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                words = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
                # A program that it starts has its command line, too, for a moment.
                if words[1:4] == ["-m", "localkube.node", str(self.folder)] and re.search(
                    r"^NSpid:.*\t1$", (path / "status").read_text(), re.M
                ):
                    found[f"node{words[4]}"] = int(path.name)
            except OSError:  # it ended meanwhile
                continue
        return found


def private(path: Path, text: str) -> None:
    """Write what only root may read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
