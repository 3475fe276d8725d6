# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""EFA devices from a real output of fi_info and constructed sysfs, and hosts that are not what their instance type says."""

from __future__ import annotations

import http.server
import stat
import threading
from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue, efa
from ansible_collections.muster.fleet.plugins.modules import efa_facts

P4DE = (Path(__file__).parents[1] / "fixtures/efa/fi_info-p4de.txt").read_text()
NAMES = ["rdmap144s27", "rdmap160s27", "rdmap16s27", "rdmap32s27"]


def add(root: Path, name: str, *, vendor: str = "0x1d0f", device: str = "0xefa1", gid: str = "", state: str = "4: ACTIVE") -> None:
    """A device in sysfs, as the driver and the kernel lay it out."""
    pci = root / "sys/devices/pci0000:00" / f"0000:{name[-2:]}:1b.0"
    port = pci / "infiniband" / name / "ports/1"
    (port / "gids").mkdir(parents=True)
    for path, value in ((pci / "vendor", vendor), (pci / "device", device), (port / "state", state), (port / "gids/0", gid)):
        path.write_text(value + "\n")
    (pci / "infiniband" / name / "device").symlink_to(pci)
    place = root / "sys/class/infiniband"
    place.mkdir(parents=True, exist_ok=True)
    (place / name).symlink_to(pci / "infiniband" / name)


@pytest.fixture
def p4de(tmp_path: Path) -> Path:
    """A p4de.24xlarge whose devices are those of the recorded output."""
    for index, name in enumerate(NAMES):
        add(tmp_path, name, gid=f"fe80:0000:0000:0000:10d8:baff:fec9:06c{index}")
    (tmp_path / "sys/module/efa").mkdir(parents=True)
    (tmp_path / "sys/module/efa/version").write_text("3.3.1\n")
    (tmp_path / "opt/amazon").mkdir(parents=True)
    (tmp_path / "opt/amazon/efa_installed_packages").write_text("# EFA installer version: 1.51.0\n# Debug packages installed: no\n")
    return tmp_path


def read(root: Path, text: str | None = P4DE, cards: dict[str, int] | None = None) -> dict:
    devices = efa.with_cards(efa.devices(str(root)), cards or {})
    return efa.facts(devices, None if text is None else efa.parse_fi_info(text), efa.versions(str(root), "libfabric: 2.7.0amzn2.0\n"))


def faults(found: dict, instance_type: str | None = "p4de.24xlarge") -> list[str]:
    return efa.faults(found, catalogue.instance_type(instance_type) if instance_type else None)


def test_recorded_fi_info():
    infos = efa.parse_fi_info(P4DE)
    assert len(infos) == 4
    assert infos[0] == {
        "provider": "efa",
        "fabric": "efa",
        "domain": "rdmap16s27-rdm",
        "version": "119.0",
        "type": "FI_EP_RDM",
        "protocol": "FI_PROTO_EFA",
    }
    assert efa.domains(infos) == NAMES
    # Without -t it prints the datagram endpoints as well, and newer ones a second fabric.
    more = P4DE.replace("-rdm", "-dgrm").replace("FI_EP_RDM", "FI_EP_DGRAM") + P4DE.replace("fabric: efa", "fabric: efa-direct") + P4DE
    assert efa.domains(efa.parse_fi_info(more)) == NAMES
    # NCCL cannot use a device that only has datagrams.
    last = P4DE.rindex("provider:")
    fewer = P4DE[:last] + P4DE[last:].replace("FI_EP_RDM", "FI_EP_DGRAM").replace("-rdm", "-dgrm")
    assert efa.domains(efa.parse_fi_info(fewer)) == [name for name in NAMES if name != "rdmap160s27"]
    assert efa.parse_fi_info("fi_getinfo: -61 (No data available)\n") == []


def test_a_healthy_host(p4de):
    found = read(p4de)
    assert (found["count"], found["provider"], found["fabrics"], found["domains"]) == (4, "efa", ["efa"], NAMES)
    assert found["versions"] == {"driver": "3.3.1", "installer": "1.51.0", "libfabric": "2.7.0amzn2.0"}
    assert found["devices"][2] == {
        "name": "rdmap16s27",
        "device": "0xefa1",
        "bus": "0000:27:1b.0",
        "state": "ACTIVE",
        "mac": "12:d8:ba:c9:06:c2",
        "p2p": "",
        "card": None,
    }
    assert faults(found) == []
    assert faults(found, None) == []


def test_devices_of_the_nvlink_subnet_are_no_efa(tmp_path):
    """A p6-b200.48xlarge has devices of InfiniBand that are not EFA's."""
    for index in range(8):
        add(tmp_path, f"rdmap{index}s{index}0", device="0xefa3")
    add(tmp_path, "ibp1s81", vendor="0x15b3", device="0x101d")
    # An EFA device has both Amazon's vendor id and EFA's device id.
    add(tmp_path, "ibp1s82", vendor="0x15b3", device="0xefa1")
    add(tmp_path, "ibp1s83", vendor="0x1d0f", device="0x101d")
    assert len(efa.devices(str(tmp_path))) == 8


@pytest.mark.parametrize(
    ("gid", "mac"),
    [
        ("fe80:0000:0000:0000:10d8:baff:fec9:06c1", "12:d8:ba:c9:06:c1"),
        ("fe80:0000:0000:0000:0000:0000:0000:0000", ""),
        ("0000:0000:0000:0000:0000:ffff:0a00:0001", ""),
        ("", ""),
    ],
)
def test_mac_of_a_gid(gid, mac):
    assert efa.mac_of(gid) == mac


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda root: {"found": read(root), "instance_type": "p5.48xlarge"},
            "Expected 32 EFA devices of p5.48xlarge and found 4; compare the launch template's interfaces with ec2_interfaces.",
        ),
        (
            lambda root: {"found": read(root), "instance_type": "g5.xlarge"},
            "Expected 0 EFA devices of g5.xlarge and found 4; compare the launch template's interfaces with ec2_interfaces.",
        ),
        (
            lambda root: {"found": read(root, None)},
            "Expected libfabric's provider efa for 4 device(s) and fi_info gave none; see role efa.",
        ),
        (
            lambda root: {"found": read(root, P4DE.replace("rdmap160s27", "rdmap32s27"))},
            "Expected libfabric to offer every EFA device and found none for rdmap160s27; see role efa.",
        ),
        (
            lambda root: (root / "sys/class/infiniband/rdmap32s27/ports/1/state").write_text("1: DOWN\n") and {"found": read(root)},
            "Expected every EFA port ACTIVE and found rdmap32s27 DOWN; look for efa in the kernel's log.",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(p4de, change, says):
    assert faults(**change(p4de)) == [says]


def test_the_card_without_efa_is_named(p4de):
    (p4de / "sys/class/infiniband/rdmap160s27").unlink()
    cards = {f"12:d8:ba:c9:06:c{index}": card for index, card in ((0, 0), (2, 1), (3, 3))}
    found = read(p4de, P4DE.replace("rdmap160s27", "rdmap32s27"), cards)
    assert [device["card"] for device in found["devices"]] == [0, 1, 3]
    assert faults(found) == [
        "Expected 4 EFA devices of p4de.24xlarge and found 3; compare the launch template's interfaces with ec2_interfaces.",
        "Expected EFA on the network cards of p4de.24xlarge and found none on 2.",
    ]


class Metadata(http.server.BaseHTTPRequestHandler):
    """The part of the instance's metadata service (version 2) that has the network cards."""

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def do_PUT(self) -> None:
        self.answer(200 if self.headers.get("X-aws-ec2-metadata-token-ttl-seconds") else 400, "token")

    def do_GET(self) -> None:
        if self.headers.get("X-aws-ec2-metadata-token") != "token":
            self.answer(401, "")
        elif self.path.startswith("/latest/meta-data/network/interfaces/macs/12:d8:ba:c9:06:c") and self.path.endswith("/network-card"):
            self.answer(200, self.path.split("/")[-2][-1])
        else:
            self.answer(404, "")

    def log_message(self, *args) -> None:
        pass


@pytest.fixture
def metadata():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def fi_info(tmp_path, monkeypatch):
    """Puts a fi_info that prints the recorded output before the real one."""
    script = tmp_path / "fi_info"
    (tmp_path / "printed").write_text(P4DE)
    script.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo "libfabric: 2.7.0amzn2.0"; else cat {tmp_path}/printed; fi\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(efa_facts, "PATHS", [])


def there(monkeypatch, root: Path) -> None:
    devices, versions = efa.devices, efa.versions
    monkeypatch.setattr(efa, "devices", lambda: devices(str(root)))
    monkeypatch.setattr(efa, "versions", lambda fi_info: versions(str(root), fi_info))


def test_module_asks_for_the_cards(call, monkeypatch, p4de, fi_info, metadata):
    there(monkeypatch, p4de)
    result = call(efa_facts, instance_type="p4de.24xlarge", metadata_url=metadata)
    assert [device["card"] for device in result["efa"]["devices"]] == [0, 1, 2, 3]
    assert (result["faults"], result["reason"], result["changed"]) == ([], "", False)
    assert result["efa"]["versions"]["libfabric"] == "2.7.0amzn2.0"
    assert result["ansible_facts"] == {"muster_efa": result["efa"]}
    # When the service does not answer, only the cards are unknown.
    result = call(efa_facts, instance_type="p4de.24xlarge", metadata_url="http://127.0.0.1:1")
    assert [device["card"] for device in result["efa"]["devices"]] == [None] * 4
    assert result["faults"] == []


def test_module_on_a_host_without_efa(call, monkeypatch, tmp_path):
    there(monkeypatch, tmp_path)
    monkeypatch.setattr(efa_facts, "open_url", lambda *args, **options: pytest.fail("asked for metadata"))
    result = call(efa_facts, check_mode=True)
    assert (result["efa"]["count"], result["faults"]) == (0, [])
    assert result["reason"] == "This host has no EFA device in /sys/class/infiniband."
    result = call(efa_facts, instance_type="p4d.24xlarge")
    assert result["faults"][0].startswith("Expected 4 EFA devices of p4d.24xlarge and found 0")


def test_module_refuses_an_unknown_type(call):
    result = call(efa_facts, instance_type="p4d.24xlage")
    assert result["failed"] and result["msg"].startswith("The catalogue has no instance type p4d.24xlage; the nearest are p4d.24xlarge")
