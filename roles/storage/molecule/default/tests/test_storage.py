# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What role storage sets up on a server and on a client; the mount itself only where the kernel has NFS."""

from __future__ import annotations

import pytest

PATH = "/srv/shared-fs"
UNIT = r"srv-shared\x2dfs.mount"


@pytest.fixture
def serves(host):
    return host.ansible.get_variables()["inventory_hostname"] == "storage-1"


@pytest.fixture
def server(serves):
    if not serves:
        pytest.skip("a test of the server; this node is a client")


@pytest.fixture
def client(serves):
    if serves:
        pytest.skip("a test of a client; this node is the server")


@pytest.fixture
def nfs(host, serves):
    if ("nfsd" if serves else "nfs4") not in host.file("/proc/filesystems").content_string.split():
        pytest.skip("the kernel of this machine has no NFS")


def test_export_names_each_client(host, server):
    lines = host.file("/etc/exports.d/muster.exports").content_string.splitlines()
    assert lines[1:] == [f"{PATH} compute-1(rw,sync,no_subtree_check,sec=sys,root_squash)"]


def test_server_offers_only_nfs_4(host, server):
    """nfsconf reads the configuration as rpc.nfsd does."""
    assert host.check_output("nfsconf --get nfsd vers3") == "n"
    assert host.check_output("nfsconf --get nfsd threads") == "64"


def test_folder_of_the_server(host, server):
    assert (host.file(PATH).mode, host.file(PATH).user) == (0o755, "root")
    assert host.file(f"{PATH}/.muster-storage").mode == 0o1777


def test_systemd_understands_the_mount(host, client):
    """Ask systemd itself: a unit name that does not fit the path fails the test."""
    assert host.check_output(f"systemd-escape --path --suffix=mount {PATH}") == UNIT
    shown = host.check_output(f"systemctl show --property=LoadState,What,Where,Type,After '{UNIT}'")
    fields = dict(line.split("=", 1) for line in shown.splitlines())
    assert {key: fields[key] for key in ("LoadState", "What", "Where", "Type")} == {
        "LoadState": "loaded",
        "What": f"storage-1:{PATH}",
        "Where": PATH,
        "Type": "nfs4",
    }
    # _netdev: after the network, and stopped before it.
    assert "remote-fs-pre.target" in fields["After"].split()
    assert "Options=_netdev,hard,noatime,nconnect=4\n" in host.file(f"/etc/systemd/system/{UNIT}").content_string
    assert host.run(f"systemd-analyze verify '/etc/systemd/system/{UNIT}'").stderr == ""


def test_mounted_and_shared(host, client, nfs):
    assert host.check_output(f"findmnt --noheadings --output=SOURCE --types nfs4 --target {PATH}") == f"storage-1:{PATH}"
    assert host.file(f"{PATH}/.muster-storage/compute-1").content_string == host.file(f"{PATH}/.muster-storage/word").content_string


def test_nothing_of_nfs_failed(host):
    assert host.check_output("systemctl list-units --state=failed --no-legend --plain '*nfs*' '*rpc*' 'srv-*'") == ""
