# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""GPUs from real outputs of nvidia-smi, and hosts that are not what their instance type says."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue, gpu
from ansible_collections.muster.fleet.plugins.modules import gpu_facts

FIXTURES = Path(__file__).parents[1] / "fixtures/gpu"
T4, A10G, A100, ADA = "tesla-t4.xml", "a10g.xml", "a100-sxm4-v12.xml", "rtx-4000-sff-ada-v13.xml"
H200 = "h200-v13.xml"


def text(name: str) -> str:
    return (FIXTURES / name).read_text()


def bus(count: int, device: str = "2330") -> dict[str, str]:
    return {f"0000:{10 + index}:00.0": device for index in range(count)}


def host(count: int = 8, name: str = "NVIDIA H100 80GB HBM3", memory: int = 81559, *changes: tuple[str, str]) -> str:
    """The output of a host with `count` GPUs, from the recorded one of driver 595 (v13)."""
    recorded = text(ADA).replace("NVIDIA RTX 4000 SFF Ada Generation", name).replace("20475 MiB", f"{memory} MiB")
    recorded = recorded.replace("<attached_gpus>1<", f"<attached_gpus>{count}<")
    recorded = recorded.replace("<state>N/A</state>", "<state>Completed</state>").replace(
        "<status>N/A</status>", "<status>Success</status>"
    )
    head, rest = recorded.split(" <gpu ", 1)
    one, tail = rest.split(" </gpu>\n", 1)
    gpus = [" <gpu " + one.replace("00000000:06:00.0", f"00000000:{10 + index}:00.0") + " </gpu>\n" for index in range(count)]
    for old, new in changes:
        assert old in gpus[-1]
        gpus[-1] = gpus[-1].replace(old, new)
    return head + "".join(gpus) + tail


def links(count: int = 8, up: int = 18, last_up: int | None = None) -> str:
    lines = []
    for index in range(count):
        lines.append(f"GPU {index}: NVIDIA H100 80GB HBM3 (UUID: GPU-{index})")
        active = last_up if last_up is not None and index == count - 1 else up
        lines += [f"\t Link {link}: {'26.562 GB/s' if link < active else '<inactive>'}" for link in range(18)]
    return "\n".join(lines) + "\n"


def faults(instance_type: str | None = "p5.48xlarge", on_bus: int = 8, smi: str | None = None, nvlink: str | None = None) -> list[str]:
    found = gpu.facts(bus(on_bus), None if smi is None else gpu.parse_smi(smi), None if nvlink is None else gpu.parse_nvlink(nvlink))
    return gpu.faults(found, catalogue.instance_type(instance_type) if instance_type else None)


@pytest.mark.parametrize(
    ("file", "driver", "attached", "expected"),
    [
        (T4, "515.105.01", 1, {"model": "T4", "memory_mib": 15360, "ecc": "Enabled", "mig": "", "fabric_state": ""}),
        (A10G, "515.105.01", 1, {"model": "A10G", "memory_mib": 23028, "ecc": "Enabled", "remap_pending": False}),
        # The memory is the GPU's and not that of its first MIG device.
        (A100, "535.54.03", 4, {"model": "A100", "memory_mib": 81920, "mig": "Enabled", "bus": "0000:01:00.0", "fabric_state": ""}),
        (ADA, "595.84", 1, {"model": "", "memory_mib": 20475, "persistence": "Enabled", "gsp": "595.84", "remap_failure": False}),
        (H200, "580.159.04", 1, {"model": "H200", "memory_mib": 143771, "bus": "0000:00:06.0", "mig": "Disabled", "ecc": "Enabled"}),
        (H200, "580.159.04", 1, {"persistence": "Enabled", "gsp": "580.159.04", "remap_pending": False, "fabric_state": ""}),
    ],
)
def test_recorded_outputs(file, driver, attached, expected):
    read = gpu.parse_smi(text(file))
    assert (read["driver"], read["attached"], len(read["gpus"])) == (driver, attached, 1)
    assert {key: read["gpus"][0][key] for key in expected} == expected


@pytest.mark.parametrize(("file", "instance_type"), [(T4, "g4dn.xlarge"), (A10G, "g5.xlarge")])
def test_a_healthy_recorded_host_has_no_fault(file, instance_type):
    assert faults(instance_type, 1, text(file), "") == []


def test_one_real_h200_is_no_p5en():
    """Its nvidia-smi nvlink -s printed nothing."""
    said = faults("p5en.48xlarge", 1, text(H200), "")
    assert [each.partition(";")[0] for each in said] == [
        "Expected 8 x H200 of p5en.48xlarge on the PCI bus and found 1",
        "Expected 18 NVLinks up on each GPU and found 0 (GPU 0)",
        "Expected the NVLink fabric Completed, Success and found N/A, N/A (GPU 0)",
    ]
    assert faults(None, 1, text(H200), "") == []


def test_a_healthy_host_of_eight():
    read = gpu.facts(bus(8), gpu.parse_smi(host()), gpu.parse_nvlink(links()))
    assert (read["count"], read["on_bus"], read["models"], read["gpus"][7]["nvlinks"]) == (8, 8, ["H100"], 18)
    assert faults(smi=host(), nvlink=links()) == []
    # Links that nobody asked for are not links that are down.
    assert faults(smi=host()) == []
    # Ampere's fabric manager runs and nvidia-smi says N/A (bottlerocket#3873).
    ampere = host(8, "NVIDIA A100-SXM4-40GB", 40960).replace("Completed", "N/A").replace("Success", "N/A")
    assert faults("p4d.24xlarge", 8, ampere, links(up=12)) == []


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (
            {"on_bus": 7, "smi": host(7), "nvlink": links(7)},
            "Expected 8 x H100 of p5.48xlarge on the PCI bus and found 7; stop and start the instance, or replace it.",
        ),
        (
            {"smi": host(7), "nvlink": links(7)},
            "Expected the driver to have all 8 GPUs of the PCI bus and found 7; look for XID 79 in the kernel's log.",
        ),
        (
            {"instance_type": "p5e.48xlarge", "smi": host(), "nvlink": links()},
            "Expected 8 x H200 of p5e.48xlarge and found NVIDIA H100 80GB HBM3 (GPUs 0, 1, 2, 3, 4, 5, 6, 7); correct the instance type.",
        ),
        (
            {"smi": host(8, "NVIDIA H100 80GB HBM3", 81559, ("81559 MiB", "40000 MiB")), "nvlink": links()},
            "Expected 81920 MiB of memory on each GPU and found 40000 MiB (GPU 7); replace the instance.",
        ),
        (
            {"smi": host(), "nvlink": links(last_up=17)},
            "Expected 18 NVLinks up on each GPU and found 17 (GPU 7); look for XID 74 and SXid in the kernel's log.",
        ),
        (
            {"smi": host(8, "NVIDIA H100 80GB HBM3", 81559, ("Completed", "In Progress"), ("Success", "N/A")), "nvlink": links()},
            "Expected the NVLink fabric Completed, Success and found In Progress, N/A (GPU 7); see the unit nvidia-fabricmanager.",
        ),
        (
            {"instance_type": "p6e-gb200.36xlarge", "on_bus": 4, "smi": host(4, "NVIDIA GB200", 189471).replace("Success", "N/A")},
            "Expected the NVLink fabric Completed, Success and found Completed, N/A (GPUs 0, 1, 2, 3); see the unit nvidia-imex.",
        ),
        (
            {
                "instance_type": "p6e-gb200.36xlarge",
                "on_bus": 4,
                "smi": host(4, "NVIDIA GB200", 189471, ("<current_mig>N/A<", "<current_mig>Enabled<")),
            },
            "Expected MIG off on p6e-gb200.36xlarge, whose NVLink joins several hosts, and found it on (GPU 3); run nvidia-smi -mig 0.",
        ),
        ({}, "Expected a driver for 8 GPU(s) on the PCI bus and nvidia-smi gave none; see role nvidia_driver."),
        ({"instance_type": None}, "Expected a driver for 8 GPU(s) on the PCI bus and nvidia-smi gave none; see role nvidia_driver."),
        (
            {"instance_type": "trn2.48xlarge", "on_bus": 1, "smi": host(1)},
            "Expected no GPU of NVIDIA on trn2.48xlarge and found 1; correct the instance type.",
        ),
        (
            {"smi": host(8, "NVIDIA H100 80GB HBM3", 81559, ("pending>No", "pending>Yes")), "nvlink": links()},
            "Expected no row remapping of GPU memory and found one of GPU 7 pending; restart the node.",
        ),
        (
            {"smi": host(8, "NVIDIA H100 80GB HBM3", 81559, ("failure>No", "failure>Yes")), "nvlink": links()},
            "Expected no row remapping of GPU memory and found one of GPU 7 failed; replace the instance.",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(asked, says):
    assert faults(**asked) == [says]


def test_without_a_driver_the_bus_tells_another_gpu():
    said = "Expected 8 x A100 of p4d.24xlarge on the PCI bus and found the device 10de:2330; correct the instance type."
    assert faults("p4d.24xlarge", 8)[0] == said
    assert len(faults("p5.48xlarge", 8)) == 1


def test_an_output_that_is_none():
    with pytest.raises(gpu.GpuError, match="nvidia-smi -q -x printed no XML"):
        gpu.parse_smi("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")


def test_gpus_on_the_bus(tmp_path):
    """One host's PCI devices: a GPU, a VGA card of NVIDIA, an NVSwitch, a network card."""
    assert gpu.on_the_bus(str(tmp_path)) == {}
    for address, vendor, kind, device in [
        ("0000:10:00.0", "0x10de", "0x030200", "0x2330"),
        ("0000:11:00.0", "0x10de", "0x030000", "0x1eb8"),
        ("0000:12:00.0", "0x10de", "0x068000", "0x22a3"),
        ("0000:13:00.0", "0x1d0f", "0x020000", "0xec20"),
    ]:
        folder = tmp_path / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True)
        for name, value in (("vendor", vendor), ("class", kind), ("device", device)):
            (folder / name).write_text(value + "\n")
    assert gpu.on_the_bus(str(tmp_path)) == {"0000:10:00.0": "2330", "0000:11:00.0": "1eb8"}


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """A host whose nvidia-smi prints these texts; none at all without texts."""

    def make(on_bus: int, smi: str | None = None, nvlink: str = "", rc: int = 0) -> None:
        monkeypatch.setattr(gpu, "on_the_bus", lambda: bus(on_bus))
        monkeypatch.setenv("PATH", str(tmp_path) + ":/usr/bin:/bin")
        if smi is not None:
            (tmp_path / "smi").write_text(smi)
            (tmp_path / "nvlink").write_text(nvlink)
            script = tmp_path / "nvidia-smi"
            script.write_text(f"#!/bin/sh\n[ $1 = -q ] && cat {tmp_path}/smi || cat {tmp_path}/nvlink\nexit {rc}\n")
            script.chmod(script.stat().st_mode | stat.S_IXUSR)

    return make


def test_module_on_a_host_without_gpu(call, nvidia_smi):
    nvidia_smi(0)
    result = call(gpu_facts)
    assert (result["gpu"]["count"], result["faults"], result["changed"]) == (0, [], False)
    assert result["reason"] == "This host has no GPU of NVIDIA on its PCI bus."
    assert result["ansible_facts"] == {"muster_gpu": result["gpu"]}
    result = call(gpu_facts, instance_type="p5.48xlarge", check_mode=True)
    assert result["faults"] == ["Expected 8 x H100 of p5.48xlarge on the PCI bus and found 0; stop and start the instance, or replace it."]


def test_module_without_driver(call, nvidia_smi):
    nvidia_smi(8)
    result = call(gpu_facts, instance_type="p5.48xlarge")
    assert result["gpu"]["count"] == 8
    assert result["reason"] == "This host has no nvidia-smi, so only the PCI bus was read."
    assert result["faults"] == ["Expected a driver for 8 GPU(s) on the PCI bus and nvidia-smi gave none; see role nvidia_driver."]
    nvidia_smi(8, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", rc=9)
    assert call(gpu_facts)["reason"] == "nvidia-smi failed on this host."


def test_module_reads_gpus_and_links(call, nvidia_smi):
    nvidia_smi(8, host(), links(last_up=0))
    result = call(gpu_facts, instance_type="p5.48xlarge")
    assert (result["gpu"]["count"], result["gpu"]["driver"], result["reason"]) == (8, "595.84", "")
    assert result["faults"] == ["Expected 18 NVLinks up on each GPU and found 0 (GPU 7); look for XID 74 and SXid in the kernel's log."]


def test_module_names_stand_ins(call, nvidia_smi, monkeypatch):
    nvidia_smi(8, host(), links())
    assert call(gpu_facts)["gpu"]["rehearsed"] == []
    monkeypatch.setattr(gpu_facts.rehearsal, "node", lambda: {"instance_type": "p5.48xlarge"})
    assert call(gpu_facts)["gpu"]["rehearsed"] == ["devices of p5.48xlarge"]


@pytest.mark.parametrize(
    ("options", "smi", "says"),
    [
        ({"instance_type": "p5.48xlage"}, None, "The catalogue has no instance type p5.48xlage; the nearest are p5.48xlarge"),
        ({}, "no xml", "nvidia-smi -q -x printed no XML"),
    ],
)
def test_module_refuses_by_one_sentence(call, nvidia_smi, options, smi, says):
    nvidia_smi(1, smi)
    result = call(gpu_facts, **options)
    assert result["failed"] and result["msg"].startswith(says)
