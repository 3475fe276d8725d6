# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What the playbooks of the stack print for a person: whether it works on a type, and what a host has of it, which is this machine here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from playbook import run_playbook

INVENTORY = {
    "all": {"hosts": {"here": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False}}}
}


def play(playbook: str, folder: Path, **variables: object) -> subprocess.CompletedProcess[str]:
    """Run it from a folder of the user's own against this machine."""
    (folder / "hosts.json").write_text(json.dumps(INVENTORY))
    return run_playbook(folder, "-i", folder / "hosts.json", f"playbooks/{playbook}.yml", "-e", json.dumps(variables))


def test_a_person_is_told_the_rule_the_reason_and_what_would_work(tmp_path: Path) -> None:
    asked = {"types": ["g7.8xlarge"], "system": "ubuntu24.04", "stack": "aws-2026.11-580"}
    done = play("stack_explain", tmp_path, muster_explain=asked)
    said = re.sub(r"\s+", " ", done.stdout)
    assert done.returncode == 0, done.stdout
    assert "g7.8xlarge does not work with stack aws-2026.11-580 on ubuntu24.04." in said
    assert (
        "refused: nvidia_driver must be 595 or later and is 580.178.04, because RTX PRO 4500 Server came with branch 595 (rule g7-driver)"
        in said
    )
    assert "would work: nvidia_driver >= 595 (rule g7-driver;" in said
    assert "Stacks with which it works: aws-2026.11." in said


def test_a_stack_or_a_type_that_cannot_be_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "site.yml").write_text("{schema: muster.stack/1, name: site, extends: debian-13, docker: {verison: '1'}}")
    for asked, sentence in (
        ({"stack": str(tmp_path / "site.yml")}, "Stack site: component docker has the unknown key verison; the nearest is version."),
        ({"types": ["p5.48xlrage"]}, "p5.48xlarge"),
    ):
        done = play("stack_explain", tmp_path, muster_explain=asked)
        assert done.returncode != 0
        assert sentence in re.sub(r"\s+", " ", done.stdout + done.stderr)


def test_what_a_host_has_is_a_table_and_json_beside_a_container(tmp_path: Path) -> None:
    # The container is this machine once more, so that both columns are alike.
    done = play("stack_facts", tmp_path, muster_facts={"container": ["env"], "json": "stack.json"})
    assert done.returncode == 0, done.stdout
    assert re.search(r"component +manifest +host +container +said by", done.stdout)
    release = os.uname().release
    assert re.search(rf"running_kernel +- +{re.escape(release)} +{re.escape(release)} +uname -r", done.stdout)
    told = json.loads((tmp_path / "stack.json").read_text())["here"]
    assert told["host"]["running_kernel"] == {"version": release, "source": "uname -r"}
    assert sorted(told) == ["container", "drift", "expected", "host"]
