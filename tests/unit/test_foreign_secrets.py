# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A run that would replace a secret of a live cluster is refused: the play of provision.yml on two hosts whose /etc is a folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ansible_collections.muster.fleet.plugins.filter.foreign_secrets import foreign_secrets

ROOT = Path(__file__).parents[2]
SECRET = {"name": "munge key", "paths": ["/etc/k"], "here": "/s/k", "known": ["ours", "ours.next"], "users": "Slurm"}


@pytest.mark.parametrize(
    ("sums", "says"),
    [
        ({"c": "ours /etc/k", "n": "ours.next /etc/k"}, ""),
        ({"c": "", "n": ""}, ""),
        ({"c": "theirs /etc/k", "n": "ours /etc/k"}, "c has another munge key than /s/k, so another machine provisions this cluster. "),
        ({"c": "theirs /etc/k", "n": "theirs /etc/k"}, "c, n have another munge key than /s/k, "),
        # A node of another cluster gets the key of this one.
        ({"c": "ours /etc/k", "n": "theirs /etc/k"}, ""),
        # Without the controller (--limit) the node decides.
        ({"n": "theirs /etc/k"}, "n has another munge key "),
        # A file of another secret is none of this one.
        ({"c": "theirs /etc/other", "n": ""}, ""),
    ],
)
def test_who_has_another_secret(sums: dict[str, str], says: str) -> None:
    said = foreign_secrets(sums, [SECRET], ["c"])
    assert (len(said), says in "".join(said)) == (bool(says), True)


def test_each_secret_is_compared_by_itself() -> None:
    jwt = {**SECRET, "name": "key of tokens", "paths": ["/etc/j"], "known": []}
    sums = {"c": "ours /etc/k\ntheirs /etc/j"}
    [said] = foreign_secrets(sums, [SECRET, jwt], ["c"])
    assert said.startswith("c has another key of tokens than ") and said.endswith("or remove /etc/j there if no Slurm uses it.")


FILES = {
    "munge key": ("munge/munge.key", "munge.key"),
    "key of Slurm's tokens": ("slurm/jwt_hs256.key", "jwt_hs256.key"),
    "password of the metrics": ("prometheus/muster/password", "metrics-password"),
}


@pytest.fixture
def compare(tmp_path: Path):
    """A function that runs the play with the files of /etc below a folder, and returns what it said."""
    [play] = [
        each
        for each in yaml.safe_load((ROOT / "playbooks/parts/provision.yml").read_text())
        if each["name"] == "Refuse to give a cluster other secrets"
    ]
    play.update(become=False, vars_files=[str(ROOT / "playbooks/vars/day2.yml")])
    text = yaml.safe_dump([play])
    assert text.count("/etc/") == 4
    (tmp_path / "play.yml").write_text(text.replace("/etc/", f"{tmp_path}/etc/"))
    host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    groups = {"muster_controller": {"hosts": {"c": host}}, "muster_compute": {"hosts": {"n": host}}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": groups}}))
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    env = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "XDG_STATE_HOME": str(tmp_path / "state"), "PWD": str(tmp_path)}

    def run(nodes: dict[str, str], here: dict[str, str], *more: str) -> str:
        """nodes, here: the secrets by name, as the hosts and this machine have them."""
        for (on_node, mine), name in zip(FILES.values(), FILES, strict=True):
            for path, text in ((tmp_path / "etc" / on_node, nodes.get(name)), (tmp_path / "state/muster/f/secrets" / mine, here.get(name))):
                path.parent.mkdir(parents=True, exist_ok=True)
                if text is not None:
                    path.write_text(text)
        command = [program, "-i", str(tmp_path / "hosts.yml"), str(tmp_path / "play.yml"), "-e", "muster_fleet=f", *more]
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=300)
        said = " ".join(done.stdout.split())
        assert (done.returncode == 0) == ("another machine provisions" not in said), done.stdout + done.stderr
        return said

    return run


OURS = dict.fromkeys(FILES, "ours")


def test_a_machine_without_the_secrets_of_tokens_and_metrics_replaces_none(compare) -> None:
    said = compare(OURS, {"munge key": "ours\n"}, "-e", '{"slurm_rest": {"port": 6820}}')
    assert "another munge key" not in said
    assert "c, n have another key of Slurm's tokens than " in said
    assert "c, n have another password of the metrics than " in said


def test_the_same_secrets_are_no_fault_with_or_without_a_new_line(compare) -> None:
    nodes = {**OURS, "password of the metrics": "ours\n"}
    said = compare(nodes, {**OURS, "munge key": "ours\n"}, "-e", '{"slurm_rest": {"port": 6820}}')
    assert "another machine provisions" not in said


def test_a_key_of_the_site_s_own_is_left_alone(compare) -> None:
    said = compare({**OURS, "key of Slurm's tokens": "the site's"}, OURS)
    assert "another machine provisions" not in said
