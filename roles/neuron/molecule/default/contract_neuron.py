#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Makes a contract archive of AWS Neuron's repository in a mirror folder: contract_neuron.py FOLDER.

Names, dependencies and options as in AWS' repository, nothing of AWS in it; the driver's package has no source that DKMS could
build, and the repository is flat, because Debian's release names are not among AWS' suites. See .config/molecule/contract_archives.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / ".config/molecule"))

from contract_archives import LABEL, Archives, answers, deb

URL = "https://apt.repos.neuron.amazonaws.com"
VERSIONS = {
    "aws-neuronx-dkms": "2.27.4.0",
    "aws-neuronx-tools": "2.29.18.0",
    "aws-neuronx-collectives": "2.31.24.0",
    "aws-neuronx-runtime-lib": "2.31.24.0",
}


def make(folder: Path) -> Path:
    """Fill the folder, once; the path of its stack."""
    stack = folder / "contract.yml"
    if stack.exists():
        return stack
    archives = Archives(folder)
    try:
        tools = "/opt/aws/neuron/bin"
        files = {
            "aws-neuronx-dkms": {"/usr/src/aws-neuronx-2.27.4.0/README": LABEL.format("aws-neuronx-dkms") + "\n"},
            "aws-neuronx-tools": {f"{tools}/neuron-ls": answers("neuron-ls", "2.29.18.0", {"--version": "neuron-ls {version}"})},
            "aws-neuronx-collectives": {"/opt/aws/neuron/lib/libnccom.so.2": LABEL.format("aws-neuronx-collectives") + "\n"},
            "aws-neuronx-runtime-lib": {"/opt/aws/neuron/lib/libnrt.so.1": LABEL.format("aws-neuronx-runtime-lib") + "\n"},
        }
        archives.apt_repository(URL, [deb(name, version, files[name]) for name, version in VERSIONS.items()])
        source = {
            "repository": URL,
            "packages": list(VERSIONS),
            "signature": archives.put_key(f"{URL}/GPG-PUB-KEY-AMAZON-AWS-NEURON.PUB"),
        }
        archives.stack["neuron"] = {"version": "2.32.0", "sources": [source]}
    finally:
        archives.close()
    about = LABEL.format("AWS Neuron's repository")
    text = json.dumps({"schema": "muster.stack/1", "name": "contract", "extends": "debian-13", "about": about, **archives.stack}, indent=1)
    stack.write_text(f"# {about}. JSON is YAML.\n{text}\n")
    return stack


if __name__ == "__main__":
    print(make(Path(sys.argv[1]).resolve()))
