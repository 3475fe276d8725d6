# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The seal removes what an image must not carry, keeps what it must, and lists what it has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from ansible_collections.muster.fleet.plugins.module_utils.node import image_seal as logic
from ansible_collections.muster.fleet.plugins.modules import image_seal as module

ROOT = Path(__file__).parents[2]
MANIFEST = {
    "schema": "muster.manifest/1",
    "stack": {"name": "debian-13", "sha256": "ab" * 32},
    "components": {"slurm": {"version": "24.11.5", "inputs_sha256": "cd" * 32, "artefacts": [], "packages": {}}},
    "packages": {"libstdc++6": "14.2.0-19", "slurmd": "1:24.11.5-4+deb13u1"},
}
SECRETS = (
    "etc/ssh/ssh_host_ed25519_key",
    "etc/munge/munge.key",
    "etc/munge/munge.key.previous",
    "etc/slurm/jwt_hs256.key",
    "etc/slurm/muster-database-key.pem",
    "etc/slurm/slurmdbd.conf",
    "var/lib/slurm/slurmctld/jwt.key",
    "etc/prometheus/muster/password",
    "etc/prometheus/muster/key.pem",
    "etc/prometheus/alertmanager.yml",
    "etc/prometheus/prometheus.yml",
    "etc/muster/metrics/password",
    "etc/grafana/provisioning/datasources/muster.yaml",
    "etc/sssd/sssd.conf",
    "var/lib/sss/db/cache_muster.ldb",
    "var/lib/sss/secrets/secrets.ldb",
    "root/.ssh/authorized_keys",
    "home/admin/.ssh/authorized_keys",
    "home/admin/.bash_history",
    "root/.aws/credentials",
    "root/.ssh/id_ed25519",
    "home/admin/.ssh/id_rsa.pub",
    "home/admin/.ssh/known_hosts.old",
    "home/admin/.netrc",
    "home/admin/.git-credentials",
    "root/.docker/config.json",
    "home/admin/.cache/huggingface/token",
    "root/.kube/config",
    "var/crash/_usr_sbin_slurmd.crash",
    "var/lib/systemd/coredump/core.slurmd.zst",
    "var/mail/root",
    "tmp/.hidden",
    "tmp/left/file",
    "var/tmp/left",
    "var/log/amazon/ssm/errors/errors.log",
    "var/lib/apt/lists/Packages",
    "var/lib/cloud/instance/user-data.txt",
    "var/log/journal/abc/system.journal",
    "var/log/apt/history.log.1.gz",
    "var/cache/apt/archives/slurmd.deb",
    "var/cache/apt/pkgcache.bin",
    "var/cache/dnf/repo.solv",
)
EMPTIED = ("etc/machine-id", "var/log/wtmp", "var/log/apt/history.log")
KEPT = (
    "etc/slurm/muster-database-ca.pem",
    "etc/prometheus/site/a.rules.yml",
    "etc/muster/directory-ca.pem",
    "etc/ssh/sshd_config",
    "etc/slurm/slurm.conf",
    "home/admin/.ssh/config",
    "home/admin/.bashrc",
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A file system as a build leaves it."""
    for each in (*SECRETS, *EMPTIED, *KEPT):
        (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / each).write_text("s3cret")
    (tmp_path / "etc/muster").mkdir(exist_ok=True)
    (tmp_path / "etc/muster/manifest.json").write_text(json.dumps(MANIFEST))
    return tmp_path


@pytest.fixture
def seal(call, root: Path):
    return lambda **more: call(module, system="Debian", version="13", root=str(root), **more)


def test_nothing_of_the_builder_is_left(seal, root: Path) -> None:
    result = seal()
    assert result["changed"]
    assert [each for each in SECRETS if (root / each).exists()] == []
    assert [(root / each).read_text() for each in EMPTIED] == [""] * len(EMPTIED)
    assert [(root / each).read_text() for each in KEPT] == ["s3cret"] * len(KEPT)
    assert "s3cret" not in json.dumps(result)
    assert str(root / "etc/munge/munge.key") in result["diff"]["before"]


def test_the_module_does_not_remove_itself(seal, root: Path, monkeypatch) -> None:
    """Ansible runs a module from a folder in /tmp."""
    own = root / "tmp/ansible_payload_x/payload.zip"
    own.parent.mkdir(parents=True)
    own.write_text("code")
    monkeypatch.syspath_prepend(str(own))
    assert str(own.parent) not in seal()["removed"]
    assert own.exists()


def test_a_second_time_changes_nothing(seal) -> None:
    seal()
    again = seal()
    assert (again["changed"], again["removed"], again["emptied"]) == (False, [], [])


def test_a_dry_run_names_it_and_takes_nothing(seal, root: Path) -> None:
    assert seal(check_mode=True)["removed"] == seal(check_mode=True)["removed"] != []
    assert all((root / each).read_text() == "s3cret" for each in SECRETS)
    assert not (root / "etc/muster/sbom.cdx.json").exists()


def test_what_stays_is_named(seal, root: Path, monkeypatch) -> None:
    monkeypatch.setattr(logic, "_try", lambda *_: None)
    result = seal()
    assert result["failed"]
    assert f"{root}/etc/grafana/provisioning/datasources/muster.yaml cannot be removed from the image" in result["msg"]


def test_without_a_component_it_is_no_image(seal, root: Path) -> None:
    (root / "etc/muster/manifest.json").unlink()
    assert "has no component" in seal()["msg"]
    assert (root / SECRETS[0]).exists()


def test_the_list_names_components_and_packages(seal, root: Path) -> None:
    seal()
    found = json.loads((root / "etc/muster/sbom.cdx.json").read_text())
    assert (found["bomFormat"], found["specVersion"], found["serialNumber"][:9]) == ("CycloneDX", "1.6", "urn:uuid:")
    by_name = {each["name"]: each for each in found["components"]}
    assert by_name["slurm"]["version"] == "24.11.5"
    assert by_name["libstdc++6"]["purl"].startswith("pkg:deb/debian/libstdc%2B%2B6@14.2.0-19?arch=")
    assert by_name["slurmd"]["purl"].endswith("&distro=debian-13")
    assert "@1%3A24.11.5-4%2Bdeb13u1?" in by_name["slurmd"]["purl"]
    assert {"name": "muster:stack_name", "value": "debian-13"} in found["metadata"]["properties"]


def secret_files() -> list[str]:
    """The files that roles write under `secrets`, and those that only their owner or group may read."""
    found = set()

    def look(value: object) -> None:
        if isinstance(value, list):
            for each in value:
                look(each)
        elif isinstance(value, dict):
            private = str(value.get("mode", "0644")).endswith("0") and value.get("state", "file") == "file"
            if private and isinstance(value.get("dest"), str):
                found.add(value["dest"])
            for each in value.values():
                look(each)

    for path in sorted((ROOT / "roles").glob("*/vars/main.yml")):
        variables = yaml.safe_load(path.read_text()) or {}
        look(variables)
        for name, value in variables.items():
            if name.endswith("_secrets") and isinstance(value, list):
                found.update(each["dest"] for each in value if isinstance(each, dict) and each.get("mode") != "0644")
    return sorted(each.replace("{{ __monitoring_folder }}", "/etc/prometheus/muster") for each in found)


def test_the_seal_knows_each_secret_that_a_role_writes(tmp_path: Path) -> None:
    files = [each for each in secret_files() if each.startswith("/")]
    assert {"/etc/munge/munge.key", "/etc/slurm/jwt_hs256.key", "/etc/prometheus/muster/password", "/etc/muster/metrics/key.pem"} <= {
        *files
    }
    for each in files:
        (tmp_path / each[1:]).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / each[1:]).write_text("s3cret")
    logic.clean(str(tmp_path))
    assert [each for each in files if (tmp_path / each[1:]).exists()] == []
