# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Writes what derives from the catalogue of instance types: Python data for the modules, devices.json for the trainer, a page of docs.

catalogue/types.yml is kept by hand, catalogue/api.json is what DescribeInstanceTypes says of the same types. With --api FILE api.json
is made anew from the JSON of `aws ec2 describe-instance-types` (or from a dictionary of types, as moto ships it; .gz is read too);
types.yml is never written. With --check nothing is written: what is not current is named.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
HEAD = '''# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The catalogue's data; module_utils/hardware/catalogue.py reads it. Written by tools/catalogue.py from catalogue/: change that instead."""

from __future__ import annotations

'''
PAGE = """# The catalogue of instance types

`tools/catalogue.py` writes this page from `catalogue/types.yml` (kept by hand, with sources) and `catalogue/api.json`
(DescribeInstanceTypes). `{{ 'p5.48xlarge' | muster.fleet.instance_type }}` gives everything about a type;
[instance_types.md](instance_types.md) says how to use it.

Units: GPU memory in GiB of one GPU, NVLink in GB/s of one GPU (both directions), network in Gbit/s, NVMe in GB. `+` behind EFA:
GPUDirect RDMA.

"""
TITLES = "| Type | vCPU | Memory GiB | Accelerators | GiB each | NVLink | EFA | Generation | Network | NVMe | CPU | Boot | bf16 TFLOP/s |"
OTHERS = """
## Types without support

`begin.yml` and everything that asks the catalogue refuse these types of EC2 with this reason.

| Types | Accelerator | Why |
| --- | --- | --- |
"""
# What docs/catalogue.md shows of a type and nothing else reads.
PAGE_ONLY = ("cpu",)
POINTS = """
## Published bus bandwidth

`muster.fleet.nccl_results` compares with these points, in 1e9 bytes a second.

| Type | Nodes | Collective | Size | busbw | Source | Date | Stack |
| --- | ---: | --- | ---: | ---: | --- | --- | --- |
"""


def from_api(answer: dict[str, Any]) -> dict[str, Any]:
    """One type of DescribeInstanceTypes as a line of api.json."""
    cpu, network, storage = answer["VCpuInfo"], answer["NetworkInfo"], answer.get("InstanceStorageInfo", {})
    gpu = (answer.get("GpuInfo", {}).get("Gpus") or [{}])[0]
    neuron = (answer.get("NeuronInfo", {}).get("NeuronDevices") or [{}])[0]
    device = gpu or neuron
    disks = (storage.get("Disks") or [{}])[0]
    cards: list[list[Any]] = []
    for card in sorted(network["NetworkCards"], key=lambda card: card["NetworkCardIndex"]):
        index, tail = card["NetworkCardIndex"], [card["MaximumNetworkInterfaces"], "efa-only" in card.get("InterfaceTypes", ["efa-only"])]
        tail.append(plain(card["PeakBandwidthInGbps"]))
        if cards and cards[-1][2:] == tail and cards[-1][1] == index - 1:
            cards[-1][1] = index
        else:
            cards.append([index, index, *tail])
    return {
        "arch": answer["ProcessorInfo"]["SupportedArchitectures"][0],
        "cpu": answer["ProcessorInfo"].get("Manufacturer", ""),
        "vcpus": cpu["DefaultVCpus"],
        "cores": cpu["DefaultCores"],
        "threads_per_core": cpu["DefaultThreadsPerCore"],
        "memory_mib": answer["MemoryInfo"]["SizeInMiB"],
        "accelerator_name": device.get("Name", ""),
        "gpus": device.get("Count", 0),
        "neuron_cores": neuron.get("Count", 0) * neuron.get("CoreInfo", {}).get("Count", 0),
        "gpu_memory_mib": device.get("MemoryInfo", {}).get("SizeInMiB", 0),
        "wire_gbps": wire(network["NetworkPerformance"]),
        "efa_interfaces": network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
        "cards": cards,
        "nvme": {"count": disks.get("Count", 0), "size_gb": disks.get("SizeInGB", 0)},
        "boot_modes": sorted(answer["SupportedBootModes"]),
        "markets": sorted(answer["SupportedUsageClasses"]),
    }


def plain(number: float) -> float:
    """A whole number without its .0."""
    return int(number) if number == int(number) else number


def wire(text: str) -> float:
    """Gbit/s of `3200 Gigabit`, `4x 100 Gigabit`, `Up to 12.5 Gigabit`."""
    match = re.fullmatch(r"(?:Up to )?(?:(\d+)x )?([\d.]+) Gigabit", text)
    if not match:
        raise ValueError(f"NetworkPerformance is {text!r}, which tools/catalogue.py cannot read; teach it")
    return plain(int(match[1] or 1) * float(match[2]))


def read_api(path: Path) -> dict[str, dict[str, Any]]:
    """The answer in a file: {type: answer}."""
    raw = path.read_bytes()
    data = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    return {each["InstanceType"]: each for each in data["InstanceTypes"]} if "InstanceTypes" in data else data


def family_of(name: str) -> str:
    return name.rsplit(".", 1)[0]


def joined(kept: dict[str, Any], api: dict[str, Any]) -> dict[str, Any]:
    """{type: fields} of api.json, types.yml and what derives from both, as catalogue_data.py has it."""
    rows = {name: dict(fields) for name, fields in api.items()}
    for name, fields in kept["absent"].items():
        if name in rows:
            raise ValueError(f"{name} is in the answer now; take it out of `absent` in types.yml")
        rows[name] = {key: value for key, value in fields.items() if key not in ("why", "source")}
    for each in kept["corrections"]:
        for name in each["types"]:
            if each["field"] == "card_gbps":
                rows[name]["cards"] = [[*card[:4], each["value"]] for card in rows[name]["cards"]]
            else:
                rows[name][each["field"]] = each["value"]
    return {name: one(name, rows[name], kept) for name in sorted(rows, key=natural)}


def natural(name: str) -> list[Any]:
    """Sorts xlarge before 2xlarge before 12xlarge before metal."""
    family, size = name.rsplit(".", 1)
    number = re.match(r"(\d*)xlarge", size)
    return [family, int(number[1] or 1) if number else 999]


def one(name: str, row: dict[str, Any], kept: dict[str, Any]) -> dict[str, Any]:
    family, own = kept["families"][family_of(name)], kept["types"].get(name, {})
    hand = {"efa": 0, "rdma": "", "gpudirect_rdma": False, "nvlink": False, "topology_layers": 0, "nvswitch": False, "nvlink_domain": 1}
    hand |= {"sockets": 1, "full_speed_bytes": 4 << 30} | family | own
    device = kept["accelerators"][hand["accelerator"]]
    if row["accelerator_name"] != hand["accelerator"]:
        there, here = row["accelerator_name"], hand["accelerator"]
        raise ValueError(f"{name} has {there!r} in the answer and {here!r} in types.yml; correct one of them")
    with_efa = [card for first, last, _, efa, _ in row["cards"] if efa for card in range(first, last + 1)] if row["efa_interfaces"] else []
    attach = hand.get("efa_attach", with_efa)
    speed = {card: gbps for first, last, _, _, gbps in row["cards"] for card in range(first, last + 1)}
    modes = row["boot_modes"]
    return {
        "family": family_of(name),
        "arch": row["arch"],
        "cpu": row["cpu"],
        "vcpus": row["vcpus"],
        "cores": row["cores"],
        "sockets": hand["sockets"],
        "threads_per_core": row["threads_per_core"],
        "memory_mib": row["memory_mib"],
        "gpu_model": hand["accelerator"],
        "gpus": row["gpus"],
        "gpu_memory_mib": row["gpu_memory_mib"],
        "neuron_cores": row["neuron_cores"],
        "nvlink": device["nvlink"] if hand["nvlink"] else 0,
        "nvlinks": device["nvlinks"] if hand["nvlink"] else 0,
        "nvswitch": hand["nvswitch"],
        "nvlink_domain": hand["nvlink_domain"],
        # A family has EFA from some size on.
        "efa": hand["efa"] if attach else 0,
        "rdma": hand["rdma"] if attach else "",
        "gpudirect_rdma": bool(attach) and hand["gpudirect_rdma"],
        "efa_attach": [[first, last] for first, last in runs(attach)],
        "efa_also": hand.get("efa_also", []),
        "efa_gbps": hand.get("efa_gbps", plain(sum(speed[card] for card in attach))),
        "wire_gbps": row["wire_gbps"],
        "cards": row["cards"] if row["efa_interfaces"] else [[*card[:3], False, card[4]] for card in row["cards"]],
        "nvme": row["nvme"],
        "boot_mode": "both" if len(modes) > 1 else modes[0],
        "markets": row["markets"],
        "topology_layers": hand["topology_layers"],
        "full_speed_bytes": hand["full_speed_bytes"],
    }


def runs(numbers: list[int]) -> list[list[int]]:
    """[1, 2, 3, 7] -> [[1, 3], [7, 7]]."""
    out: list[list[int]] = []
    for number in numbers:
        if out and out[-1][1] == number - 1:
            out[-1][1] = number
        else:
            out.append([number, number])
    return out


def python(types: dict[str, Any], kept: dict[str, Any]) -> str:
    others = {name: [each["accelerator"], each["why"]] for each in kept["unsupported"] for name in each["types"]}
    types = {name: {key: value for key, value in each.items() if key not in PAGE_ONLY} for name, each in types.items()}
    text = f"{HEAD}TYPES = {types!r}\nACCELERATORS = {kept['accelerators']!r}\nBUSBW = {kept['busbw']!r}\nUNSUPPORTED = {others!r}\n"
    ruff = [sys.executable, "-m", "ruff", "format", "--quiet", "--stdin-filename", "catalogue_data.py", "-"]
    return subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def devices(types: dict[str, Any], kept: dict[str, Any]) -> str:
    """What a trainer needs to say its MFU and to estimate: devices by the word in their name, and who has them."""
    table = {
        "about": "Written by tools/catalogue.py from catalogue/: change that instead. peak_flops: dense, 1e12 a second; a missing dtype is "
        "unknown. names: whole words of what torch.cuda.get_device_name() says.",
        "devices": {
            name: {"names": each["names"], "nvlink_gbytes": each["nvlink"], "peak_flops": each["peak_flops"]}
            for name, each in kept["accelerators"].items()
        },
        "types": {
            name: {
                "device": each["gpu_model"],
                "devices": each["gpus"],
                "memory_gib": round(each["gpu_memory_mib"] / 1024, 1),
                "nvlink_gbytes": each["nvlink"],
                "nvlink_domain": each["nvlink_domain"],
                "network_gbits": each["efa_gbps"] or each["wire_gbps"],
                "host_memory_gib": round(each["memory_mib"] / 1024, 1),
            }
            for name, each in types.items()
        },
    }
    # One device and one type a line.
    lines = [f'  "about": {json.dumps(table["about"])}']
    for part in ("devices", "types"):
        rows = ",\n".join(f"    {json.dumps(name)}: {json.dumps(value)}" for name, value in table[part].items())  # type: ignore[attr-defined]
        lines.append(f'  "{part}": {{\n{rows}\n  }}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def page(types: dict[str, Any], kept: dict[str, Any]) -> str:
    lines = [TITLES, "| --- |" + " ---: |" * 2 + " --- |" + " ---: |" * 6 + " --- | --- | ---: |"]
    for name, each in types.items():
        peak = kept["accelerators"][each["gpu_model"]]["peak_flops"]
        attached = sum(last - first + 1 for first, last in each["efa_attach"])
        disks = f"{each['nvme']['count']} x {each['nvme']['size_gb']}" if each["nvme"]["count"] else "-"
        cells = [
            f"`{name}`",
            each["vcpus"],
            plain(each["memory_mib"] / 1024),
            f"{each['gpus']} x {each['gpu_model']}",
            plain(round(each["gpu_memory_mib"] / 1024, 1)),
            each["nvlink"] or "-",
            f"{attached}{' +' if each['gpudirect_rdma'] else ''}" if attached else "-",
            f"v{each['efa']}" if each["efa"] else "-",
            each["wire_gbps"],
            disks,
            f"{each['arch']} {each['cpu']}",
            each["boot_mode"],
            peak.get("bf16", "unknown" if not peak else "-"),
        ]
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    points = [
        f"| `{each['type']}` | {each['nodes']} | {each['collective']} | {each['bytes'] >> 20} MiB | {each['gbps']} | {each['source']} "
        f"| {each['date']} | {each['stack']} |"
        for each in kept["busbw"]
    ]
    others = [
        f"| {', '.join(f'`{name}`' for name in each['types'])} | {each['accelerator']} | {each['why']} |" for each in kept["unsupported"]
    ]
    return PAGE + "\n".join(lines) + "\n" + OTHERS + "\n".join(others) + "\n" + POINTS + "\n".join(points) + "\n"


def main(argv: list[str], root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--api", type=Path, metavar="FILE", help="make api.json anew from this answer of DescribeInstanceTypes")
    options = parser.parse_args(argv)
    kept = yaml.safe_load((root / "catalogue/types.yml").read_text())
    store = root / "catalogue/api.json"
    if options.api:
        answer = read_api(options.api)
        wanted = sorted((name for name in answer if family_of(name) in kept["families"]), key=natural)
        rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(from_api(answer[name]))}" for name in wanted)
        store.write_text("{\n" + rows + "\n}\n")
    types = joined(kept, json.loads(store.read_text()))
    wrong = []
    for path, text in (
        ("plugins/module_utils/hardware/catalogue_data.py", python(types, kept)),
        ("trainer/devices.json", devices(types, kept)),
        ("docs/catalogue.md", page(types, kept)),
    ):
        old = (root / path).read_text() if (root / path).exists() else ""
        if options.check and old != text:
            wrong.append(f"{path} is not current; run `make docs`")
        elif old != text:
            (root / path).write_text(text)
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
