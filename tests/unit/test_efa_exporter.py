# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The exporter of EFA's counters on trees of sysfs: what it reads, what it leaves out, and what it says of files that it cannot read."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.containers import rehearsal
from ansible_collections.muster.fleet.plugins.module_utils.containers.stand_ins import system as stand_in
from ansible_collections.muster.fleet.plugins.module_utils.observe import muster_endpoint

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "roles/efa_exporter/files/muster-efa-exporter.py"
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")


@pytest.fixture(scope="module")
def exporter() -> ModuleType:
    sys.modules.setdefault("muster_endpoint", muster_endpoint)
    spec = importlib.util.spec_from_file_location("muster_efa_exporter", PROGRAM)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tree(folder: Path, kind: str = "p6-b200.48xlarge", **counters: int) -> Path:
    """The /sys of a rehearsed type, eight EFA devices and two of the NVLink subnet, with these counters on every port and device."""
    files, links = stand_in.sys_files(rehearsal.rehearsal(kind), [], {"nvidia_driver": "595.84", "neuron": ""})
    for path, text in files.items():
        name = path.rsplit("/", 1)[-1]
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(f"{counters[name]}\n" if "hw_counters" in path and name in counters else text)
    for path, target in links.items():
        os.symlink(folder / target.removeprefix("/sys/"), folder / path)
    return folder


def served(exporter: ModuleType, folder: Path | None = None, efa: object = None) -> dict[tuple[str, str, str], float]:
    """{(metric, device, port): value}."""
    text = muster_endpoint.render((efa or exporter.Efa(str(folder))).collect()).decode()
    out = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            found = SAMPLE.match(line)
            assert found, line
            labels = dict(re.findall(r'(\w+)="([^"]*)"', found[2] or ""))
            out[found[1], labels.get("device", ""), labels.get("port", "")] = float(found[3])
    return out


def test_all_counters_of_the_reference_have_their_names(exporter: ModuleType) -> None:
    assert (len(exporter.OF_DEVICES), len(exporter.OF_PORTS), len(exporter.COUNTERS)) == (12, 23, 35)
    assert set(stand_in.DEVICE_COUNTERS.split()) == set(exporter.OF_DEVICES)
    assert set(stand_in.PORT_COUNTERS.split()) | {"lifespan"} == set(exporter.OF_PORTS)


def test_counters_of_ports_and_of_devices_have_their_labels(exporter: ModuleType, tmp_path: Path) -> None:
    found = served(exporter, tree(tmp_path, tx_bytes=2**63, cmds_err=7))
    devices = {device for name, device, _port in found if name == "node_amazonefa_info"}
    assert len(devices) == found["node_amazonefa_devices", "", ""] == 8
    for device in devices:
        assert found["node_amazonefa_tx_bytes", device, "1"] == 2**63
        assert found["node_amazonefa_cmds_err", device, ""] == 7
        assert found["node_amazonefa_port_up", device, "1"] == 1
        assert found["node_amazonefa_read_errors_total", device, ""] == 0
    names = {name.removeprefix("node_amazonefa_") for name, _device, _port in found}
    assert set(exporter.COUNTERS) - names == {"lifespan"}, "the tree has all but that one"


def test_values_are_whole_and_types_are_those_of_counters(exporter: ModuleType, tmp_path: Path) -> None:
    text = muster_endpoint.render(exporter.Efa(str(tree(tmp_path, tx_bytes=2**64 - 1))).collect()).decode()
    assert "# TYPE node_amazonefa_tx_bytes counter" in text
    assert 'port="1"} 18446744073709551615\n' in text, "a float would lose the last bits"


def test_only_the_devices_of_efa_s_driver(exporter: ModuleType, tmp_path: Path) -> None:
    folder = tree(tmp_path)
    [first, second, *_rest] = sorted(path.name for path in (folder / "class/infiniband").iterdir() if path.name.startswith("rdmap"))
    for device, driver in ((first, "efa"), (second, "mlx5_core")):
        (tmp_path / "drivers" / driver).mkdir(parents=True, exist_ok=True)
        os.symlink(tmp_path / "drivers" / driver, folder / "class/infiniband" / device / "device/driver")
    devices = {device for name, device, _port in served(exporter, folder) if name == "node_amazonefa_info"}
    assert first in devices and second not in devices and len(devices) == 7
    assert not any(device.startswith("ibp") for device in devices), "the NVLink subnet is no EFA"


def test_a_file_that_vanishes_is_left_out_and_counted(exporter: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tree(tmp_path)
    efa = exporter.Efa(str(folder))
    device = sorted(path.name for path in (folder / "class/infiniband").iterdir() if path.name.startswith("rdmap"))[0]
    gone = folder / "class/infiniband" / device / "ports/1/hw_counters/rx_drops"
    gone.write_text("nonsense\n")
    plain = exporter.read

    def reads(path: str) -> str:
        if path.endswith(f"{device}/hw_counters/mmap_err"):
            raise FileNotFoundError(path)
        return plain(path)

    monkeypatch.setattr(exporter, "read", reads)
    found = served(exporter, efa=efa)
    assert ("node_amazonefa_rx_drops", device, "1") not in found and ("node_amazonefa_mmap_err", device, "") not in found
    assert found["node_amazonefa_read_errors_total", device, ""] == 2
    assert found["node_amazonefa_rx_pkts", device, "1"] == 0
    gone.write_text("3\n")
    found = served(exporter, efa=efa)
    assert found["node_amazonefa_rx_drops", device, "1"] == 3
    assert found["node_amazonefa_read_errors_total", device, ""] == 3, "it counts on"


def test_a_node_without_devices_says_so(exporter: ModuleType, tmp_path: Path) -> None:
    assert served(exporter, tmp_path) == {("node_amazonefa_devices", "", ""): 0}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--listen=0.0.0.0:0"],
            "0.0.0.0:0 can be reached from other machines and needs TLS; name the folder of its secrets, or use 127.0.0.1.",
        ),
        (["--listen=9109"], "Address 9109 is not HOST:PORT; give one such as 127.0.0.1:9109."),
        (
            ["--listen=127.0.0.1:0", "--secrets=/nowhere"],
            "/nowhere/cert.pem cannot be read; run the configure phase of the exporter's role again.",
        ),
    ],
)
def test_refusals(arguments: list[str], said: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "plugins/module_utils/observe")}
    done = subprocess.run([sys.executable, PROGRAM, *arguments], capture_output=True, text=True, check=False, env=env, timeout=20)
    assert (done.returncode, done.stderr) == (1, f"muster-efa-exporter: {said}\n")
