# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Each health check on a healthy node and on its fault. tests/fixtures/health/README.md says what is recorded and what is constructed."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue
from ansible_collections.muster.fleet.plugins.module_utils.health import efa_checks, gpu_checks, lookat, settings, xids
from ansible_collections.muster.fleet.plugins.module_utils.health.lookat import CannotRun, NotHere
from ansible_collections.muster.fleet.plugins.module_utils.health.run import blocks, record_of, run_checks
from ansible_collections.muster.fleet.plugins.module_utils.node import rehearsal
from ansible_collections.muster.fleet.plugins.module_utils.node.rehearsal import SAYS

FIXTURES = Path(__file__).parents[1] / "fixtures"
TYPE = "p6-b200.48xlarge"
BY_NAME = {check.name: check for check in settings.CHECKS}
ROW = {
    "name": "NVIDIA B200",
    "vbios_version": "96.00.89.00.01",
    "driver_version": "595.84",
    "persistence_mode": "Enabled",
    "mig.mode.current": "Disabled",
    "memory.total": "183359",
    "memory.used": "1",
    "ecc.mode.current": "Enabled",
    "ecc.errors.uncorrected.volatile.total": "0",
    "retired_pages.single_bit_ecc.count": "[N/A]",
    "retired_pages.double_bit.count": "[N/A]",
    "retired_pages.pending": "[N/A]",
    "pcie.link.width.current": "16",
    "pcie.link.width.max": "16",
    "pcie.link.gen.max": "5",
    "temperature.gpu": "34",
    "temperature.memory": "40",
    "clocks_event_reasons.hw_slowdown": "Not Active",
    "clocks_event_reasons.hw_thermal_slowdown": "Not Active",
    "clocks_event_reasons.hw_power_brake_slowdown": "Not Active",
    "clocks_event_reasons.sw_thermal_slowdown": "Not Active",
}
LOG = {
    "ecc_errors/aggregate/sram_threshold_exceeded": "No",
    "remapped_rows/remapped_row_corr": "0",
    "remapped_rows/remapped_row_unc": "0",
    "remapped_rows/remapped_row_pending": "No",
    "remapped_rows/remapped_row_failure": "No",
    "fabric/state": "Completed",
    "fabric/status": "Success",
    "gpu_recovery_action": "None",
}


def xml(gpus: list[dict[str, str]]) -> str:
    """`nvidia-smi -q -x` with these elements."""
    text = ""
    for each in gpus:
        body = ""
        for path, value in each.items():
            *above, last = path.split("/")
            body += "".join(f"<{name}>" for name in above) + f"<{last}>{value}</{last}>" + "".join(f"</{name}>" for name in reversed(above))
        # ElementTree finds the first of several elements of a name, so those of one parent must be one.
        for name in ("remapped_rows", "fabric"):
            body = body.replace(f"</{name}><{name}>", "")
        text += f"<gpu>{body}</gpu>"
    return f"<nvidia_smi_log>{text}</nvidia_smi_log>"


class Machine:
    """A node of 8 B200 and 8 EFA devices whose answers a test changes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.rows = [{**ROW} for _gpu in range(8)]
        self.log: list[dict[str, str]] = [dict(LOG) for _gpu in range(8)]
        self.unknown: set[str] = set()
        self.said: dict[str, Any] = {}
        self.state: dict[str, Any] = {}
        self.asked: list[list[str]] = []
        self.kmsg: list[str] = ["Linux version 6.12"]
        self.now = 1000.0
        self.name = TYPE
        self.rehearsed: dict[str, Any] = {}
        for index in range(8):
            self.file(f"sys/bus/pci/devices/0000:{index:02x}:00.0/vendor", "0x10de")
            self.file(f"sys/bus/pci/devices/0000:{index:02x}:00.0/class", "0x030200")
        for index in range(8):
            at = f"sys/class/infiniband/rdmap{index}s0"
            self.file(at + "/device/vendor", "0x1d0f")
            self.file(at + "/device/device", "0xefa2")
            self.file(at + "/ports/1/state", "4: ACTIVE")
            self.file(f"{at}/ports/1/hw_counters/retrans_pkts", "0")
        for module in efa_checks.MODULES:
            self.file(f"sys/module/{module}/refcnt", "1")
        self.file("opt/amazon/ofi-nccl/lib/libnccl-net.so", "")
        self.file("proc/sys/kernel/random/boot_id", "b1")

    def file(self, path: str, text: str) -> None:
        where = self.root / path
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_text(text)

    def run(self, argv: list[str], _limit: float) -> tuple[int, str, str]:
        self.asked.append(argv)
        line = " ".join(argv)
        for start, answer in self.said.items():
            if line.startswith(start):
                if isinstance(answer, Exception):
                    raise answer
                return answer if isinstance(answer, tuple) else (0, answer, "")
        if line == "nvidia-smi -L":
            return 0, "".join(f"GPU {i}: {row['name']} (UUID: GPU-{i})\n" for i, row in enumerate(self.rows)), ""
        if line.startswith("nvidia-smi --query-gpu="):
            fields = argv[1].partition("=")[2].split(",")
            bad = [field for field in fields if field in self.unknown]
            if bad:
                return 2, "", f'Field "{bad[0]}" is not a valid field to query.\n'
            known = [{"index": str(i), **row} for i, row in enumerate(self.rows)]
            plain = [field.replace("clocks_throttle_reasons", "clocks_event_reasons") for field in fields]
            return 0, "".join(", ".join(row[field] for field in plain) + "\n" for row in known), ""
        if line == "nvidia-smi -q -x":
            return 0, xml(self.log), ""
        if line == "nvidia-smi nvlink -s":
            return 0, "".join(f"GPU {i}: H100\n" + "".join(f"\t Link {n}: 26.562 GB/s\n" for n in range(18)) for i in range(8)), ""
        if line == "nvidia-smi nvlink -e":
            return (
                0,
                "GPU 0: B200 (UUID: GPU-0)\n" + "".join(f"\t Link 0: {kind} Errors: 0\n" for kind in ("Replay", "Recovery", "CRC")),
                "",
            )
        if "fi_info" in line:
            form = (
                "provider: efa\n    fabric: efa\n    domain: {}-rdm\n    version: 204.0\n    type: FI_EP_RDM\n    protocol: FI_PROTO_EFA\n"
            )
            return 0, "".join(form.format(path.name) for path in (self.root / "sys/class/infiniband").iterdir()), ""
        raise FileNotFoundError(argv[0])

    def node(self, **want: Any) -> lookat.Node:
        self.file("dev/kmsg", "".join(f"4,{i},{i * 1000},-;{line}\n" for i, line in enumerate(self.kmsg, 1)))
        base = settings.read("", __import__("datetime").date(2026, 11, 25))[0]
        kind = catalogue.instance_type(self.name) if self.name else None
        full = {**base, "type": kind, "instance_type": self.name, **want}
        return lookat.Node(full, run=self.run, root=str(self.root), state=self.state, now=self.now, rehearsed=self.rehearsed)

    def look(self, name: str, **want: Any) -> dict[str, Any]:
        node = self.node(**want)
        return record_of(BY_NAME[name], node, node.want, 60)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


GPU_AND_EFA = [
    "gpu_bus", "gpu_count", "gpu_model", "gpu_uniform", "gpu_ecc_mode", "gpu_ecc", "gpu_sram", "gpu_remapped_rows",
    "gpu_pcie", "gpu_throttle", "gpu_temperature", "gpu_persistence", "gpu_mig",
    "gpu_recovery", "gpu_strays", "nvlink", "nvlink_errors",
    "fabric_state", "xid", "sxid", "nccl_crash", "efa_count", "efa_ports", "efa_modules", "efa_provider", "efa_plugin", "efa_counters",
]  # fmt: skip


@pytest.mark.parametrize("name", GPU_AND_EFA)
def test_a_healthy_node_passes(machine: Machine, name: str) -> None:
    found = machine.look(name)
    assert (found["status"], found["reason"]) == ("passed", "")


FAULTS: dict[str, tuple[Any, str, str]] = {
    "gpu_bus": (lambda m: (m.root / "sys/bus/pci/devices/0000:03:00.0/class").unlink(), "7 of 8 GPUs are on the PCI bus", "replace"),
    "gpu_count": (lambda m: m.rows.pop(), "the driver lists 7 of 8 GPUs", "reboot"),
    "gpu_model": (lambda m: m.rows[2].update({"name": "NVIDIA A10G"}), "GPU 2 is A10G and not B200", "drain"),
    "gpu_uniform": (lambda m: m.rows[2].update({"vbios_version": "96.00.01"}), "2 VBIOS versions", "warning"),
    "gpu_ecc_mode": (lambda m: m.rows[2].update({"ecc.mode.current": "Disabled"}), "ECC is off on GPU 2", "reboot"),
    "gpu_ecc": (lambda m: m.rows[2].update({"ecc.errors.uncorrected.volatile.total": "3"}), "GPU 2 has 3 uncorrected ECC errors", "reset"),
    "gpu_sram": (lambda m: m.log[2].update({"ecc_errors/aggregate/sram_threshold_exceeded": "Yes"}), "GPU 2 exceeded", "replace"),
    "gpu_pcie": (lambda m: m.rows[2].update({"pcie.link.width.current": "8"}), "GPU 2 has 8 of 16 PCIe lanes", "reset"),
    "gpu_throttle": (lambda m: m.rows[2].update({"clocks_event_reasons.hw_slowdown": "Active"}), "hw_slowdown is active on GPU 2", "drain"),
    "gpu_temperature": (lambda m: m.rows[2].update({"temperature.gpu": "91"}), "GPU 2 has 91 °C", "drain"),
    "gpu_persistence": (lambda m: m.rows[2].update({"persistence_mode": "Disabled"}), "persistence is off on GPU 2", "warning"),
    "gpu_mig": (lambda m: m.rows[2].update({"mig.mode.current": "Enabled"}), "MIG is not Disabled on GPU 2", "drain"),
    "gpu_recovery": (lambda m: m.log[2].update({"gpu_recovery_action": "Reboot"}), "the driver asks for Reboot: GPU 2", "reboot"),
    "gpu_strays": (lambda m: m.rows[2].update({"memory.used": "40000"}), "no job runs and GPU 2 has 40000 MiB in use", "drain"),
    "nvlink": (
        lambda m: m.said.update({"nvidia-smi nvlink -s": "GPU 0: H100\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n"}),
        "GPU 0 has 1 of 18",
        "reset",
    ),
    "fabric_state": (lambda m: m.log[2].update({"fabric/state": "In Progress"}), "GPU 2 is In Progress, Success", "reboot"),
    "xid": (
        lambda m: m.kmsg.append("NVRM: Xid (PCI:0000:53:00): 79, pid=1, name=python, GPU has fallen off the bus."),
        "XID 79 of 0000:53:00",
        "reboot",
    ),
    "sxid": (
        lambda m: m.kmsg.append("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 46 sourcetrack timeout error"),
        "SXid 24007",
        "reset",
    ),
    "nccl_crash": (
        lambda m: m.kmsg.append("python[7]: segfault at 0 ip 0 sp 0 error 4 in libnccl.so.2.28.9[7f0+1]"),
        "crashed in libnccl",
        "warning",
    ),
    "efa_count": (lambda m: (m.root / "sys/class/infiniband/rdmap3s0/device/device").unlink(), "7 of 8 EFA devices are there", "replace"),
    "efa_ports": (lambda m: m.file("sys/class/infiniband/rdmap3s0/ports/1/state", "1: DOWN"), "the port of rdmap3s0 is DOWN", "drain"),
    "efa_modules": (lambda m: (m.root / "sys/module/efa").rename(m.root / "gone"), "the module efa is not loaded", "drain"),
    "efa_provider": (
        lambda m: m.said.update({"fi_info": (61, "", "fi_getinfo: -61 (No data available)")}),
        "no provider efa: fi_getinfo: -61",
        "drain",
    ),
    "efa_plugin": (lambda m: (m.root / "opt/amazon/ofi-nccl/lib/libnccl-net.so").unlink(), "no libnccl-net*.so", "drain"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_with_its_severity(machine: Machine, name: str) -> None:
    make, words, severity = FAULTS[name]
    make(machine)
    found = machine.look(name)
    assert found["status"] == "failed", found
    assert words in found["reason"]
    assert (found["severity"], blocks(found)) == (severity, True)
    assert found["remedy"]


@pytest.mark.parametrize(
    ("change", "words", "severity"),
    [
        ({"remapped_rows/remapped_row_pending": "Yes"}, "a row remapping of GPU 1 is pending", "reset"),
        ({"remapped_rows/remapped_row_failure": "Yes"}, "a row remapping of GPU 1 failed", "replace"),
        ({"remapped_rows/remapped_row_corr": "500", "remapped_rows/remapped_row_unc": "12"}, "GPU 1 has 512 remapped rows", "replace"),
    ],
)
def test_remapped_rows(machine: Machine, change: dict, words: str, severity: str) -> None:
    machine.log[1].update(change)
    found = machine.look("gpu_remapped_rows")
    assert (found["status"], found["severity"]) == ("failed", severity)
    assert words in found["reason"]


def test_old_gpus_retire_pages_and_new_ones_remap_rows() -> None:
    """A T4 has no row to remap, and an H100 no page to retire; asking for the other finds nothing on either."""
    names = {
        kind: [
            check.name
            for check in settings.CHECKS
            if check.when({"type": catalogue.instance_type(kind), "verdict_seconds": 0, "disks": [], "units": []})
        ]
        for kind in ("g4dn.metal", TYPE)
    }
    assert "gpu_retired_pages" in names["g4dn.metal"] and "gpu_remapped_rows" not in names["g4dn.metal"]
    assert "gpu_remapped_rows" in names[TYPE] and "gpu_retired_pages" not in names[TYPE]


def test_the_recorded_a100_with_mig_says_nothing_of_its_rows(machine: Machine) -> None:
    machine.said["nvidia-smi -q -x"] = (FIXTURES / "gpu/a100-sxm4-v12.xml").read_text()
    found = machine.look("gpu_remapped_rows")
    assert (found["status"], found["reason"]) == ("not_run", "the driver does not give remap_pending")
    assert blocks(found)


def test_an_old_driver_lacks_a_field_without_fault(machine: Machine) -> None:
    machine.unknown |= {
        f"clocks_event_reasons.{name}" for name in ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
    }
    for each in machine.log:
        del each["gpu_recovery_action"]
    assert machine.look("gpu_throttle")["status"] == "passed", "drivers below 535 have other names"
    found = machine.look("gpu_recovery")
    assert (found["status"], found["reason"], blocks(found)) == ("not_run", "drivers below 570 do not give recovery", False)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (FileNotFoundError("nvidia-smi"), "nvidia-smi is not installed"),
        (subprocess.TimeoutExpired("nvidia-smi", 20), "nvidia-smi did not end within 20 s"),
        ((9, "", ""), "the driver is not loaded"),
        ((0, "", ""), "printed a row that is cut: nothing"),
        ((0, "0, NVIDIA H100\n", ""), "printed a row that is cut: 0, NVIDIA H100"),
    ],
)
def test_nvidia_smi_that_does_not_work_is_no_pass(machine: Machine, answer: Any, words: str) -> None:
    machine.said["nvidia-smi"] = answer
    found = machine.look("gpu_ecc")
    assert found["status"] == "not_run" and words in found["reason"]
    assert blocks(found)
    assert not blocks(machine.look("gpu_ecc", allow_not_run=["gpu_ecc"]))


def test_a_driver_that_lost_a_gpu_says_which(machine: Machine) -> None:
    text = "Unable to determine the device handle for GPU3: 0000:53:00.0: GPU is lost.  Reboot the system to recover this GPU\n"
    machine.said["nvidia-smi -L"] = (0, "".join(f"GPU {i}: NVIDIA H100 80GB HBM3 (UUID: GPU-{i})\n" for i in range(8)), text)
    assert "lost GPU 3" in machine.look("gpu_count")["reason"]


def test_xids_by_the_table(machine: Machine) -> None:
    assert len(xids.BUCKET_OF) > 90
    expected = {
        13: "info",
        31: "info",
        48: "reset",
        63: "warning",
        64: "replace",
        74: "reset",
        79: "reboot",
        94: "info",
        95: "reset",
        119: "reset",
        142: "replace",
        999: "warning",
    }
    assert {code: xids.severity_of(code) for code in expected} == expected
    for text, severity in (
        ("GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", "reboot"),
        ("GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "reset"),
        ("GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", "reset"),
        ("GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", "info"),
    ):
        assert xids.severity_of(154, text) == severity, text
    assert xids.severity_of(145, "RLW_SRC_TRACK Nonfatal XC1 i0 Link 01") == "warning"
    assert xids.severity_of(145, "RLW_CTRL Fatal XC0 i0 Link 17") == "reset"
    # The kernel's fatal switch errors, and those that only count.
    assert [xids.switch_severity(code) for code in (12020, 24007, 24001, 1)] == ["reset", "warning", "info", "warning"]
    machine.kmsg += [
        "NVRM: Xid (PCI:0000:53:00): 31, pid=1, name=python, Ch 00000008",
        "NVRM: Xid (PCI:0000:53:00): 94, pid=1, name=python, Contained",
    ]
    assert machine.look("xid")["found"] == "2 XIDs, 2 of programs"
    assert machine.look("xid", xid_severity={"94": "drain"})["severity"] == "drain"


def test_xid_74_with_an_sxid_names_the_switch(machine: Machine) -> None:
    machine.kmsg += [
        "NVRM: Xid (PCI:0000:53:00): 74, pid=1, name=<unknown>, NVLink: fatal error",
        "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12020, Fatal, Link 3 egress",
    ]
    assert machine.look("sxid")["reason"].endswith("with XID 74 the switch is the suspect")


def test_acknowledged_errors_are_done_with(machine: Machine) -> None:
    machine.kmsg.append("NVRM: Xid (PCI:0000:53:00): 79, pid=1, name=python, GPU has fallen off the bus.")
    machine.state["acknowledged"] = {"b1": 2000}
    assert machine.look("xid")["status"] == "passed"
    machine.state["acknowledged"] = {"another boot": 2000}
    assert machine.look("xid")["status"] == "failed"


def test_counters_of_efa_rise_within_aws_s_limits(machine: Machine) -> None:
    path = "sys/class/infiniband/rdmap3s0/ports/1/hw_counters/retrans_pkts"
    assert machine.look("efa_counters")["status"] == "passed"
    machine.now += 300
    machine.file(path, "1000")
    assert machine.look("efa_counters")["status"] == "passed", "a burst of 1,000"
    machine.now += 300
    machine.file(path, "1301")
    assert machine.look("efa_counters")["reason"] == "retrans_pkts of rdmap3s0 rose by 301 in 300 s"
    machine.now += 300
    machine.file(path, "1500")
    assert machine.look("efa_counters")["status"] == "passed"
    machine.file("proc/sys/kernel/random/boot_id", "b2")
    machine.file(path, "9000")
    assert machine.look("efa_counters")["status"] == "passed", "the counters of another boot say nothing"


def test_errors_of_nvlink_are_those_since_the_last_look(machine: Machine) -> None:
    machine.said["nvidia-smi nvlink -e"] = "GPU 0: H100\n\t Link 0: Replay Errors: 7\n\t Link 0: CRC Errors: 0\n"
    assert machine.look("nvlink_errors")["status"] == "passed"
    machine.said["nvidia-smi nvlink -e"] = "GPU 0: H100\n\t Link 0: Replay Errors: 9\n\t Link 0: CRC Errors: 0\n"
    assert machine.look("nvlink_errors")["reason"] == "link 0 of GPU 0 has 2 more errors of kind replay"
    machine.said["nvidia-smi nvlink -e"] = "GPU 0: H100\n"
    assert machine.look("nvlink_errors")["status"] == "not_run", "no counter is no pass"


def test_dcgm_as_recorded(machine: Machine) -> None:
    """Level 2 whose one test that ran names a setting: that warns, and never passes."""
    machine.said["dcgmi"] = (226, (FIXTURES / "health/dcgm-4.2.3-partial-skip.json").read_text(), "")
    found = machine.look("dcgm")
    assert (found["status"], found["severity"], found["found"]) == ("failed", "warning", "1 results")
    assert "Persistence mode for GPU 0 is disabled" in found["reason"]


def dcgm_3(status: str, *warnings: str) -> str:
    """By the grammar of DCGM 3."""
    result = {"gpu_ids": "0", "status": status, **({"warnings": list(warnings)} if warnings else {})}
    return json.dumps(
        {"DCGM GPU Diagnostic": {"test_categories": [{"category": "Hardware", "tests": [{"name": "GPU Memory", "results": [result]}]}]}}
    )


@pytest.mark.parametrize(
    ("rc", "text", "status", "words"),
    [
        (0, dcgm_3("PASS"), "passed", ""),
        (226, dcgm_3("FAIL", "Uncorrectable ECC error"), "failed", "GPU Memory 0: Uncorrectable ECC error"),
        (0, dcgm_3("WARN"), "failed", "GPU Memory 0: warn"),
        (0, dcgm_3("SKIPPED"), "not_run", "ran no test"),
        (1, dcgm_3("PASS"), "failed", "ended with code 1 and names no failed test"),
        (0, '{"DCGM 5 Diagnostic": {}}', "not_run", "without a diagnostic that Muster knows"),
        (0, dcgm_3("PASS")[:-9], "not_run", "no JSON"),
        (0, "", "not_run", "without a diagnostic"),
        (255, "", "not_run", "ended with code 255: no host engine"),
    ],
)
def test_dcgm_fails_closed(machine: Machine, rc: int, text: str, status: str, words: str) -> None:
    machine.said["dcgmi"] = (rc, text, "no host engine" if rc == 255 else "")
    found = machine.look("dcgm")
    assert found["status"] == status
    assert words in found["reason"]


def test_loopback_of_efa(machine: Machine) -> None:
    table = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n"
    table += "1m      200     =200     400m        0.05s   8123.45     129.08       0.01\n"
    machine.said["sh -c"] = table
    assert machine.look("efa_loopback")["found"] == "8123.45 to 8123.45 MB/s"
    limits = {**settings.LIMITS, "efa_loopback_mbps": 9000}
    assert "rdmap0s0 sends 8123.45 MB/s to itself" in machine.look("efa_loopback", limits=limits)["reason"]
    machine.said["sh -c"] = (1, "", "fi_endpoint: -22")
    assert "rdmap0s0 did not reach itself: fi_endpoint: -22" in machine.look("efa_loopback")["reason"]
    machine.said["sh -c"] = (127, "", "")
    assert machine.look("efa_loopback")["reason"] == "fi_pingpong is not installed"


# An H200 that was there: driver 580.159.04, one GPU of a virtual machine without NVLink, EFA, systemd and DCGM (fixtures/health/README.md)

H200 = json.loads((FIXTURES / "health/h200-580.json").read_text())
H200_LOG = (FIXTURES / "gpu/h200-v13.xml").read_text()


@pytest.fixture
def h200(machine: Machine) -> Machine:
    machine.name = "p5en.48xlarge"
    machine.said = {"nvidia-smi -q -x": H200_LOG, **{line: tuple(answer) for line, answer in H200.items() if isinstance(answer, list)}}
    for folder in ("sys/bus/pci/devices", "sys/class/infiniband"):
        shutil.rmtree(machine.root / folder)
    machine.file("sys/bus/pci/devices/0000:00:06.0/vendor", "0x10de")
    machine.file("sys/bus/pci/devices/0000:00:06.0/class", "0x030200")
    machine.kmsg = [line.partition(";")[2] for line in H200["cat /dev/kmsg"][1].splitlines()]
    return machine


def one(**more: Any) -> dict[str, Any]:
    """Settings of a p5en.48xlarge with one GPU, which AWS does not have."""
    return {"type": {**catalogue.instance_type("p5en.48xlarge"), "gpus": 1}, **more}


def test_the_fields_are_those_that_the_real_program_answers() -> None:
    [asked] = [line for line in H200 if line.startswith("nvidia-smi --query-gpu=index,name") and line.endswith("nounits")]
    assert asked == "nvidia-smi --query-gpu=%s --format=csv,noheader,nounits" % ",".join(gpu_checks.FIELDS)
    root = ElementTree.fromstring(H200_LOG).find("gpu")
    assert root is not None
    assert [path for path in gpu_checks.XML_FIELDS.values() if root.find(path) is None] == []


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("gpu_bus", "1"), ("gpu_count", "1"), ("gpu_model", "H200"), ("gpu_uniform", "96.00.A5.00.1A"), ("gpu_ecc_mode", "Enabled"),
        ("gpu_ecc", "0"), ("gpu_sram", "not exceeded"), ("gpu_remapped_rows", "0 remapped"), ("gpu_pcie", "16 lanes"),
        ("gpu_throttle", "none"), ("gpu_temperature", "as it should be"), ("gpu_persistence", "Enabled"), ("gpu_mig", "Disabled"),
        ("gpu_recovery", "None"), ("gpu_strays", "0 GPUs in use"), ("xid", "0 XIDs"), ("sxid", "0 SXids"), ("nccl_crash", "0 crashes"),
    ],
)  # fmt: skip
def test_a_real_h200_passes(h200: Machine, name: str, found: str) -> None:
    record = h200.look(name, **one())
    assert (record["status"], record["reason"], record["found"]) == ("passed", "", found)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nvlink", "nvidia-smi nvlink -s lists no link"),
        ("nvlink_errors", "nvidia-smi nvlink -e lists no counter"),
        ("fabric_state", "nvidia-smi says N/A where fabric_state belongs"),
        ("gpu_retired_pages", "nvidia-smi says [N/A] where retired_pages.pending belongs"),
        ("fabric_manager", "systemctl is not installed"),
        ("dcgm", "dcgmi is not installed"),
        ("efa_ports", "the node has no EFA device"),
        ("efa_counters", "no EFA port has counters"),
        ("efa_loopback", "the node has no EFA device"),
    ],
)
def test_what_a_real_h200_did_not_have_does_not_pass(h200: Machine, name: str, reason: str) -> None:
    record = h200.look(name, **one())
    assert (record["status"], record["reason"], blocks(record)) == ("not_run", reason, True)


def test_a_process_that_held_memory_of_a_real_h200(h200: Machine) -> None:
    [line] = [line for line in h200.said if line.endswith("noheader,nounits") and "memory.used" in line]
    idle = h200.said[line][1]
    assert ", 143771, 0, Enabled" in idle
    used = H200["busy"]["-q -x fb_memory_usage/used"].split()[0]
    h200.said[line] = idle.replace(", 143771, 0, ", f", 143771, {used}, ")
    assert h200.look("gpu_strays", **one())["reason"] == "no job runs and GPU 0 has 4623 MiB in use"


def test_a_gpu_whose_links_are_gone_is_not_left_out(machine: Machine) -> None:
    """nvidia-smi prints nothing of a GPU without links, so seven of eight GPUs looked like all."""
    machine.said["nvidia-smi nvlink -s"] = "".join(
        f"GPU {i}: B200\n" + "".join(f"\t Link {n}: 26.562 GB/s\n" for n in range(18)) for i in range(8) if i != 3
    )
    found = machine.look("nvlink")
    assert (found["status"], found["reason"], found["found"]) == ("failed", "GPU 3 has 0 of 18 NVLinks up", "126 of 144")


@pytest.mark.parametrize("said", ["[Unknown Error]", "[GPU requires reset]"])
def test_a_value_that_one_gpu_does_not_give_is_told(machine: Machine, said: str) -> None:
    machine.rows[3]["memory.used"] = said
    found = machine.look("gpu_strays")
    assert (found["status"], found["reason"]) == ("not_run", f"nvidia-smi says {said} where memory.used of GPU 3 belongs")


# A check that looked at nothing has not passed


@pytest.mark.parametrize(
    ("name", "make", "reason", "blocked"),
    [
        ("efa_ports", lambda m: shutil.rmtree(m.root / "sys/class/infiniband"), "the node has no EFA device", True),
        (
            "efa_provider",
            lambda m: (
                m.said.update({"fi_info": m.run(["fi_info"], 1)[1]}),
                [(each / "device/device").unlink() for each in (m.root / "sys/class/infiniband").iterdir()],
            ),
            "the node has no EFA device",
            True,
        ),
        ("xid", lambda m: m.kmsg.clear(), "/dev/kmsg has no line", True),
        ("sxid", lambda m: m.kmsg.clear(), "/dev/kmsg has no line", True),
        ("nccl_crash", lambda m: m.kmsg.clear(), "/dev/kmsg has no line", True),
        ("out_of_memory", lambda m: m.kmsg.clear(), "/dev/kmsg has no line", True),
        ("mtu", lambda m: m.file("sys/class/net/eth0/operstate", "down"), "no network card of the node is up", True),
        ("drift", lambda m: m.file("etc/muster/manifest.json", EMPTY), "/etc/muster/manifest.json has no component", True),
        (
            "units",
            lambda m: m.said.update({"systemctl": "Id=munge.service\nActiveState=active\n"}),
            "systemctl says something of 1 units and not of slurmd, munge",
            True,
        ),
        ("read_only", lambda m: m.file("proc/self/mounts", "a /boot ext4 rw 0 0\n"), "/ is on no file system of the node", True),
        # These a node need not have.
        ("raid", lambda m: m.file("proc/mdstat", "Personalities : [raid0]\nunused devices: <none>\n"), "the node has no array", False),
        ("governor", lambda m: shutil.rmtree(m.root / "sys/devices/system/cpu/cpu0"), "the host sets the frequency", False),
        ("mounts", lambda m: m.file("proc/self/mounts", "/dev/root / ext4 rw 0 0\n"), "the node has no network file system", False),
    ],
)
def test_an_empty_list_is_no_pass(machine: Machine, name: str, make: Any, reason: str, blocked: bool) -> None:
    on_the_host(machine)
    want = {"units": ["slurmd", "munge"]}
    assert machine.look(name, **want)["status"] == "passed", machine.look(name, **want)
    make(machine)
    found = machine.look(name, **want)
    assert (found["status"], blocks(found)) == ("not_run", blocked)
    assert found["reason"].startswith(reason)


def test_a_file_system_without_blocks_or_inodes(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    space = type("Space", (), {"f_blocks": 0, "f_bfree": 0, "f_bavail": 0, "f_files": 0, "f_ffree": 0, "f_favail": 0})
    monkeypatch.setattr(lookat.os, "statvfs", lambda _path: space)
    found = [machine.look(name) for name in ("disk_space", "disk_inodes")]
    assert [each["reason"] for each in found] == ["the file system of / counts no blocks", "the file system of / counts no inodes"]
    assert [blocks(each) for each in found] == [True, False], "btrfs counts no inodes"


def test_a_folder_of_a_read_only_file_system(machine: Machine) -> None:
    machine.file("proc/self/mounts", "/dev/root / ext4 rw 0 0\n/dev/md0 /scratch xfs ro 0 0\n")
    machine.file("scratch/jobs/a", "")
    assert machine.look("read_only", disks=["/", "/scratch/jobs"])["reason"] == "/scratch/jobs is read-only"
    assert machine.look("read_only", disks=["/gone"])["reason"] == "/gone is on no file system of the node"


def test_a_unit_behind_an_alias_counts(machine: Machine) -> None:
    """systemctl answers with the unit's own name."""
    machine.said["systemctl"] = "Id=chronyd.service\nActiveState=failed\n"
    assert machine.look("units", units=["chrony"])["reason"] == "chrony is failed"


# The node itself

EMPTY = json.dumps({"schema": "muster.manifest/1", "stack": None, "components": {}, "packages": {}})
MEMINFO = "MemTotal:       2113929216 kB\nMemFree: 1 kB\nMemAvailable:   {} kB\nSwapTotal:             {} kB\n"
TRACKING = "A9FEA97B,169.254.169.123,4,1764064000.123456789,{},0.000001,0.000002,-10.1,0.0,0.02,0.0002,0.0001,16.2,{}\n"
UNITS = "Id=slurmd.service\nActiveState={}\n\nId=munge.service\nActiveState=active\n"


def on_the_host(machine: Machine) -> None:
    machine.file("proc/meminfo", MEMINFO.format(2000000000, 0))
    machine.file("proc/self/mounts", "/dev/root / ext4 rw,relatime 0 0\n10.0.0.1@tcp:/fsx /fsx lustre rw 0 0\n")
    machine.file("proc/modules", "efa 1 0\n")
    machine.file("proc/mdstat", "Personalities : [raid0]\nmd0 : active raid0 nvme1n1[0] nvme2n1[1]\n      7 blocks\n")
    machine.file("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc")
    machine.file("sys/devices/system/cpu/online", "0-191")
    machine.file("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance")
    machine.file("sys/class/net/eth0/mtu", "9001")
    machine.file("sys/class/net/eth0/operstate", "up")
    machine.file("sys/class/net/eth0/device/vendor", "0x1d0f")
    machine.file("lib/modules/6.12.0/modules.dep", "")
    machine.file("sys/module/efa/version", "3.1.0")
    machine.file(
        "etc/muster/manifest.json",
        json.dumps(
            {
                "schema": "muster.manifest/1",
                "stack": None,
                "components": {"slurm": {"inputs_sha256": "x", "artefacts": ["/usr/bin/srun"], "packages": {"slurmd": "24.11-1"}}},
                "packages": {},
            }
        ),
    )
    machine.file("usr/bin/srun", "")
    machine.file("usr/bin/dpkg-query", "")
    machine.said.update({
        "dpkg-query": "slurmd 24.11-1 ii \n",
        "chronyc": TRACKING.format("0.000012", "Normal"),
        "uname -r": "6.12.0\n",
        "modinfo -F version efa": "3.1.0\n",
        "stat": "lustre\n",
        "systemctl": UNITS.format("active"),
    })  # fmt: skip


HOST = {
    "memory_size": (lambda m: m.file("proc/meminfo", MEMINFO.format(1, 0).replace("2113", "1903")), "has 1859305 of 2097152 MiB"),
    "memory_available": (lambda m: m.file("proc/meminfo", MEMINFO.format(50000000, 0)), "2% of the memory is available"),
    "swap": (lambda m: m.file("proc/meminfo", MEMINFO.format(2000000000, 1024)), "swap is on"),
    "out_of_memory": (lambda m: m.kmsg.append("Out of memory: Killed process 7 (sshd)"), "Killed process 7"),
    "read_only": (lambda m: m.file("proc/self/mounts", "/dev/root / ext4 ro,relatime 0 0\n"), "/ is read-only"),
    "mounts": (lambda m: m.said.update({"stat": subprocess.TimeoutExpired("stat", 2)}), "/fsx does not answer within 2 s"),
    "clock": (lambda m: m.said.update({"chronyc": TRACKING.format("-0.060", "Normal")}), "the clock is 60 ms off"),
    "clock_source": (lambda m: m.file("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet"), "hpet"),
    "cpus": (lambda m: m.file("sys/devices/system/cpu/online", "0-99,101-191"), "191 of 192 CPUs are online"),
    "governor": (lambda m: m.file("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave"), "the CPU governor is powersave"),
    "kernel": (lambda m: m.said.update({"modinfo -F version efa": "3.2.0\n"}), "the kernel runs efa 3.1.0 and 3.2.0 is installed"),
    "units": (lambda m: m.said.update({"systemctl": UNITS.format("failed")}), "slurmd is failed"),
    "drift": (lambda m: m.said.update({"dpkg-query": "slurmd 24.11-2 ii \n"}), "slurm: package slurmd: expected 24.11-1, found 24.11-2"),
    "raid": (lambda m: m.file("proc/mdstat", "md0 : inactive nvme1n1[0]\n"), "the array md0 lacks a disk"),
    "mtu": (lambda m: m.file("sys/class/net/eth0/mtu", "1500"), "eth0 has an MTU of 1500"),
}  # fmt: skip
WANT = {"units": ["slurmd", "munge"], "mounts": ["/fsx"]}


@pytest.mark.parametrize("name", HOST)
def test_the_node_without_its_gpus(machine: Machine, name: str) -> None:
    on_the_host(machine)
    assert machine.look(name, **WANT)["status"] == "passed", machine.look(name, **WANT)
    make, words = HOST[name]
    make(machine)
    found = machine.look(name, **WANT)
    assert found["status"] == "failed", found
    assert words in found["reason"]


def test_a_mount_that_is_gone(machine: Machine) -> None:
    on_the_host(machine)
    assert machine.look("mounts", mounts=["/scratch"])["reason"] == "/scratch is not mounted"


def test_a_clock_without_a_server(machine: Machine) -> None:
    on_the_host(machine)
    machine.said["chronyc"] = "7F7F0101,,10,1764064000.1,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,16.2,Normal\n"
    assert machine.look("clock")["reason"] == "the clock follows no time server"
    machine.said["chronyc"] = "A9FEA97B,4,1764064000.1,0.000012,0.0,0.0,0.0,0.0,0.0,0.0,0.0,16.2,Normal\n"
    assert machine.look("clock")["status"] == "passed", "13 fields before chrony 4.6"
    machine.said["chronyc"] = (1, "", "506 Cannot talk to daemon")
    assert "506 Cannot talk to daemon" in machine.look("clock")["reason"]
    assert machine.look("clock")["status"] == "not_run"


def test_drift_of_stand_ins_is_no_proof(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    on_the_host(machine)
    assert machine.look("drift")["status"] == "passed"
    machine.rehearsed = {"instance_type": TYPE, "stand_ins": ["nvidia-smi"], "devices": []}
    monkeypatch.setattr(rehearsal, "of_entry", lambda entry: ["slurmd"] if "slurmd" in entry["packages"] else [])
    found = machine.look("drift")
    assert (found["status"], found["rehearsed"]) == ("not_run", "passed")


def test_a_full_disk(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    space = type("Space", (), {"f_blocks": 200, "f_bfree": 109, "f_bavail": 9, "f_files": 100, "f_ffree": 5, "f_favail": 5})
    monkeypatch.setattr(lookat.os, "statvfs", lambda _path: space)
    assert machine.look("disk_space")["reason"] == "/ is 91% full"
    assert machine.look("disk_inodes")["reason"] == "95% of the inodes of / are used"


def test_a_container_s_own_limit_counts(machine: Machine) -> None:
    on_the_host(machine)
    machine.file("sys/fs/cgroup/memory.max", str(1 << 30))
    machine.file("sys/fs/cgroup/memory.current", str((1 << 30) - (20 << 20)))
    machine.file("sys/fs/cgroup/memory.stat", "inactive_file 0\n")
    assert machine.look("memory_available")["reason"] == "1% of the memory is available"
    machine.file("sys/fs/cgroup/memory.stat", f"inactive_file {500 << 20}\n")
    assert machine.look("memory_available")["status"] == "passed", "file cache is no used memory"


def test_a_process_that_waits_in_the_kernel_twice(machine: Machine) -> None:
    stat = "7 (cat (1)) D " + " ".join(str(n) for n in range(4, 30))
    machine.file("proc/7/stat", stat)
    assert machine.look("stuck_processes")["status"] == "passed"
    assert machine.look("stuck_processes")["reason"] == "cat (1) waits in the kernel since the last check"


def test_stand_ins_never_pass(machine: Machine) -> None:
    machine.rehearsed = {"instance_type": TYPE, "stand_ins": ["nvidia-smi"], "devices": []}
    said = SAYS % "nvidia-smi" + " for it\n"
    machine.said["nvidia-smi -L"] = (0, "".join(f"GPU {i}: NVIDIA H100 80GB HBM3 (UUID: GPU-{i})\n" for i in range(8)), said)
    found = machine.look("gpu_count")
    assert (found["status"], found["rehearsed"], blocks(found)) == ("not_run", "passed", False)
    machine.said["nvidia-smi -L"] = (0, "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)\n", said)
    found = machine.look("gpu_count")
    assert (found["status"], found["rehearsed"], blocks(found)) == ("not_run", "failed", True)
    # What the stand-in does not know is no fault of the node, and no pass.
    machine.said["nvidia-smi nvlink -e"] = (1, "", said)
    found = machine.look("nvlink_errors")
    assert (found["status"], found.get("rehearsed"), blocks(found)) == ("not_run", None, False)


def test_a_check_that_hangs_is_ended(machine: Machine) -> None:
    slow = BY_NAME["gpu_bus"]._replace(run=lambda _node: time.sleep(5), limit=0.05)
    node = machine.node()
    found = record_of(slow, node, node.want, 60)
    assert (found["status"], found["reason"]) == ("not_run", "it took longer than 0.05 s")
    assert found["seconds"] < 1


def test_a_program_that_hangs_is_killed() -> None:
    start = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        lookat.run_program(["sh", "-c", "sleep 30 & sleep 30"], 0.2)
    assert time.monotonic() - start < 2


def test_an_answer_that_nobody_recorded_ends_one_check_alone(machine: Machine) -> None:
    broken = BY_NAME["gpu_bus"]._replace(run=lambda _node: {}["missing"])
    node = machine.node()
    found = record_of(broken, node, node.want, 60)
    assert found["status"] == "not_run" and "KeyError" in found["reason"] and blocks(found)


def test_a_doubtful_check_gets_a_second_look(machine: Machine) -> None:
    on_the_host(machine)
    machine.said["chronyc"] = TRACKING.format("0.2", "Normal")

    def again() -> lookat.Node:
        machine.said["chronyc"] = TRACKING.format("0.0001", "Normal")
        return machine.node(**WANT)

    waits: list[float] = []
    [record] = run_checks("periodic", machine.node(**WANT), only=["clock"], pause=waits.append, again=again)
    assert (record["status"], waits) == ("passed", [1.0])


def test_the_time_of_all_checks_is_bounded(machine: Machine) -> None:
    records = run_checks("periodic", machine.node(), seconds=0)
    assert {record["reason"] for record in records if record["status"] != "passed"} == {"no time was left for it"}


def test_each_level_has_what_the_next_one_has_not_lost(machine: Machine) -> None:
    names = {level: {check.name for check in settings.CHECKS if level in check.levels} for level in settings.LEVELS}
    assert names["periodic"] < names["full"]
    assert names["full"] - names["periodic"] == {"dcgm", "gdrcopy", "efa_loopback"}
    assert {"gpu_count", "efa_count", "efa_provider", "efa_plugin", "xid", "verdict"} <= names["prolog"]
    assert sum(check.limit for check in settings.CHECKS if check.levels == settings.EVERY) <= 120
    assert len(set(settings.NAMES)) == len(settings.CHECKS)


def test_query_and_log_refuse_what_they_cannot_read(machine: Machine) -> None:
    machine.said["nvidia-smi -q -x"] = "Failed to initialize NVML"
    with pytest.raises(CannotRun, match="printed no XML"):
        gpu_checks.log(machine.node())
    assert issubclass(NotHere, CannotRun)
