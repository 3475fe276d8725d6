# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What role docker sets up: a daemon with the role's configuration that runs containers."""

from __future__ import annotations

import json


def test_the_daemon_runs_with_the_configuration(host):
    config = json.loads(host.file("/etc/docker/daemon.json").content_string)
    assert config["live-restore"] is True
    assert config["log-driver"] == "local"
    told = json.loads(host.check_output("docker info --format '{{json .}}'"))
    assert (told["LiveRestoreEnabled"], told["LoggingDriver"], told["CgroupDriver"]) == (True, "local", "systemd")


def test_a_node_without_gpus_does_not_have_the_runtime_of_nvidia(host):
    assert "nvidia" not in host.check_output("docker info --format '{{json .Runtimes}}'")


def test_docker_starts_at_boot(host):
    assert host.service("docker").is_enabled
    assert host.service("docker").is_running


def test_the_check_leaves_no_image(host):
    assert host.check_output("docker image ls --quiet") == ""


def test_manifest_has_the_version(host):
    entry = json.loads(host.file("/etc/muster/manifest.json").content_string)["components"]["docker"]
    assert entry["packages"]["docker.io"] == host.package("docker.io").version
