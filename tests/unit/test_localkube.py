# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""localkube and tools/get_kubernetes.py, as far as they can be seen without a cluster; tests/proof/local_kubernetes.py starts one."""

from __future__ import annotations

import errno
import hashlib
import ipaddress
import json
import os
import tarfile
from pathlib import Path
from types import SimpleNamespace

import get_kubernetes
import pytest
import yaml

from ansible_collections.muster.fleet.plugins.plugin_utils.downloads import DownloadError
from localkube import LocalKubeError, config, images, node, programs
from localkube.__main__ import main
from localkube.cluster import Cluster

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_no_two_nodes_share_an_address() -> None:
    ranges = [json.loads(config.network(number))["plugins"][0]["ipam"]["ranges"][0][0] for number in range(1, config.MOST_NODES + 1)]
    pods = [set(range(int(ipaddress.ip_address(each["rangeStart"])), int(ipaddress.ip_address(each["rangeEnd"])) + 1)) for each in ranges]
    own = {int(ipaddress.ip_address(config.address(number))) for number in range(1, config.MOST_NODES + 1)}
    assert len(set.union(*pods, own)) == sum(map(len, pods)) + len(own)
    network = ipaddress.ip_network(config.NETWORK)
    assert all(ipaddress.ip_address(each) in network for each in set.union(*pods, own))


def test_only_kubelets_are_nodes_and_only_the_admin_is_one() -> None:
    lines = config.tokens({**{user: f"t{n}" for n, user in enumerate(config.USERS)}, "system:node:node1": "k"}).splitlines()
    assert lines[-1] == 'k,system:node:node1,6,"system:nodes"'
    assert "t1,system:kube-controller-manager,2" in lines
    assert [line.split(",")[1] for line in lines if "masters" in line] == ["admin", "coredns"]


def test_a_kubelet_asks_for_nothing_of_the_machine() -> None:
    read = yaml.safe_load(config.kubelet("/n1/kubelet", "/localkube-a/n1"))
    assert (read["cgroupRoot"], read["oomScoreAdj"], read["podLogsDir"]) == ("/localkube-a/n1", 0, "/n1/kubelet/logs")
    assert set(yaml.safe_load(config.proxy("x"))["conntrack"].values()) == {0, "0s"}


def test_an_image_is_an_archive_whose_sums_are_right(tmp_path: Path) -> None:
    (tmp_path / "program").write_text("#!/bin/sh\n")
    (tmp_path / "program").chmod(0o700)
    layers = [images.layer_of({"/bin/program": tmp_path / "program"}, tmp_path / "a"), images.layer_of({}, tmp_path / "b")]
    images.write_archive(tmp_path / "image.tar", "localhost/x:1", layers, {"Entrypoint": ["/bin/program"], "User": "65532:65532"})
    with tarfile.open(tmp_path / "image.tar") as archive:
        [manifest] = json.load(archive.extractfile("manifest.json"))  # type: ignore[arg-type]
        document = json.load(archive.extractfile(manifest["Config"]))  # type: ignore[arg-type]
        sums = [hashlib.sha256(archive.extractfile(each).read()).hexdigest() for each in manifest["Layers"]]  # type: ignore[union-attr]
    assert manifest["RepoTags"] == ["localhost/x:1"]
    assert document["rootfs"]["diff_ids"] == [f"sha256:{each}" for each in sums]
    assert document["config"]["User"] == "65532:65532"
    with tarfile.open(layers[0]) as layer:
        # Another user than root runs it.
        assert (layer.getmember("bin/program").mode & 0o777, layer.getmember("bin/program").uname) == (0o755, "root")


def full(*_args: object, **_more: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_keeps_no_part_of_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    layer = images.layer_of({}, tmp_path / "layer.tar")
    monkeypatch.setattr(tarfile.TarFile, "add", full)

    def archives(_env: object, **_more: object) -> None:
        images.write_archive(tmp_path / "image.tar", "localhost/x:1", [layer], {})

    monkeypatch.setattr("localkube.__main__.archives", archives)
    assert main(["up", "a", "--without-trainer"]) == 1
    error = "localkube: up a failed: No space left on device; correct that and try again.\n"
    assert capsys.readouterr().err == error
    assert sorted(each.name for each in tmp_path.iterdir()) == ["layer.tar"]


def test_the_path_of_an_image_may_have_blanks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "n1").mkdir()
    (tmp_path / "images").write_text("/my cache/pause.tar\n/my cache/trainer.tar\n")
    ran: list[tuple[object, ...]] = []
    monkeypatch.setattr(node, "find", lambda name, _env: name)
    monkeypatch.setattr(node, "run", lambda *argv, **_more: ran.append(argv) or SimpleNamespace(returncode=0))
    node.Node(tmp_path, 1, 1).images()
    assert [argv[-1] for argv in ran if "import" in argv] == ["/my cache/pause.tar", "/my cache/trainer.tar"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["up", "A_b"], "Fleet name 'A_b' cannot be used"),
        (["up", "a", "--nodes", "0", "--without-trainer"], "A local cluster has 1 to 9 nodes, not 0."),
        (["up", "a", "--without-trainer"], "kubelet-1.34.2 is not there; run make kubernetes."),
        (["kubectl", "a", "get", "nodes"], "The cluster a does not run; start it with python -m localkube up a."),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(
    argv: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("localkube.__main__.archives", lambda *_args, **_more: [])
    assert main(argv) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "state").exists()


def test_a_user_without_root_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LocalKubeError, match=r"needs root.*run it with sudo"):
        Cluster("a").up(1, [])


def test_the_role_applies_what_is_built() -> None:
    versions = yaml.safe_load((ROOT / "roles/kubernetes/vars/main.yml").read_text())["__kubernetes_versions"]
    assert versions == {name: each.version for name, each in programs.OPERATORS.items()}
    module = (ROOT / "localkube/build/cluster/go.mod").read_text()
    assert f"k8s.io/kubernetes v{programs.KUBERNETES}\n" in module
    assert module.count(f" v0{programs.KUBERNETES[1:]}\n") > 20
    assert f"github.com/coredns/coredns v{programs.COREDNS}\n" in (ROOT / "localkube/build/dns/go.mod").read_text()


def test_an_operator_runs_the_image_that_the_nodes_have() -> None:
    probe = {"initialDelaySeconds": 10, "periodSeconds": 15}
    containers = [{"image": "ghcr.io/x:1", "imagePullPolicy": "Always", "readinessProbe": probe}]
    deployment = {"kind": "Deployment", "spec": {"template": {"spec": {"containers": containers}}}}
    text = yaml.safe_dump_all([deployment, {"kind": "Service", "spec": {"image": "ghcr.io/x:1"}}])
    adapted, service = yaml.safe_load_all(get_kubernetes.adapted("jobset", text))
    [container] = adapted["spec"]["template"]["spec"]["containers"]
    assert (container["image"], container["imagePullPolicy"]) == ("localhost/muster-jobset:0.11.1", "IfNotPresent")
    assert container["readinessProbe"]["periodSeconds"] == 2
    assert service["spec"]["image"] == "ghcr.io/x:1"


def test_a_release_is_taken_by_its_checksum_alone(server, tmp_path: Path) -> None:
    machine = get_kubernetes.MACHINES[os.uname().machine]
    path = f"/v{programs.KUBERNETES}/bin/linux/{machine}/kubectl"
    server.files |= {path: b"a program", f"{path}.sha256": hashlib.sha256(b"a program").hexdigest().encode()}
    programs.folder(os.environ).mkdir(parents=True)
    address = f"http://127.0.0.1:{server.server_address[1]}"
    get_kubernetes.from_release("kubectl", address)
    made = programs.built("kubectl", os.environ)
    assert (made.read_bytes(), made.stat().st_mode & 0o777) == (b"a program", 0o755)
    made.unlink()
    server.files[path] = b"another program"
    with pytest.raises(DownloadError, match="kubectl"):
        get_kubernetes.from_release("kubectl", address)
    assert list(programs.folder(os.environ).iterdir()) == []


def test_without_a_release_and_go_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(name: str) -> None:
        raise DownloadError("https://dl.example answers 403 Forbidden.")

    monkeypatch.setattr(get_kubernetes, "from_release", refuse)
    monkeypatch.setattr(get_kubernetes.shutil, "which", lambda *_args, **_more: None)
    monkeypatch.setattr(get_kubernetes.os, "access", lambda *_args: False)
    assert get_kubernetes.main([]) == 1
    assert "There is no Go to build with, and https://dl.k8s.io/release does not answer; install Go." in capsys.readouterr().err
    assert get_kubernetes.main(["--operators", "volcano"]) == 1
    assert "there is no operator volcano; name some of training-operator" in capsys.readouterr().err
