# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The exporter as a service on a node that rehearses p5.48xlarge: what it serves, to whom, under which limits, and that it returns."""

from __future__ import annotations

import re

PROBE = "python3 /usr/lib/muster/muster_endpoint.py https://127.0.0.1:9109/metrics /etc/muster/metrics"


def test_it_serves_the_counters_of_all_devices(host):
    text = host.check_output(PROBE)
    assert "node_amazonefa_devices 32" in text.splitlines()
    assert len(re.findall(r'^node_amazonefa_rx_bytes\{device="rdmap[^"]+",port="1"\} 0$', text, re.MULTILINE)) == 32
    assert len(re.findall(r'^node_amazonefa_submitted_cmds\{device="rdmap[^"]+"\} 0$', text, re.MULTILINE)) == 32


def test_a_counter_that_rises_is_seen(host):
    [device] = re.findall(r'^node_amazonefa_tx_bytes\{device="(rdmap16s29)"', host.check_output(PROBE), re.MULTILINE) or ["rdmap16s29"]
    counter = f"/run/muster-rehearsal/sys/class/infiniband/{device}/ports/1/hw_counters/tx_bytes"
    host.check_output(f"echo 18446744073709551615 >{counter}")
    assert f'node_amazonefa_tx_bytes{{device="{device}",port="1"}} 18446744073709551615' in host.check_output(PROBE)


def test_nobody_without_the_password_is_answered(host):
    script = 'import ssl, urllib.request as u; u.urlopen("https://127.0.0.1:9109/metrics", context=ssl._create_unverified_context())'
    assert "401" in host.run(f"python3 -c '{script}'").stderr
    assert host.run("python3 -c 'import urllib.request as u; u.urlopen(\"http://127.0.0.1:9109/metrics\", timeout=3)'").rc != 0
    assert {host.file(f"/etc/muster/metrics/{name}").mode for name in ("key.pem", "password")} == {0o600}
    password = host.file("/etc/muster/metrics/password").content_string.strip()
    assert password not in host.check_output("ps ax -o args; journalctl --no-pager -u muster-efa-exporter")


def test_it_has_no_rights(host):
    shown = dict(line.split("=", 1) for line in host.check_output("systemctl show muster-efa-exporter").splitlines() if "=" in line)
    assert (shown["DynamicUser"], shown["NoNewPrivileges"], shown["ProtectSystem"], shown.get("CapabilityBoundingSet", "")) == (
        "yes",
        "yes",
        "strict",
        "",
    )
    assert host.check_output(f"stat -c %u /proc/{shown['MainPID']}") != "0"
    rated = host.check_output("systemd-analyze security --no-pager muster-efa-exporter | tail -n 1")
    assert float(re.findall(r"([\d.]+) \w+", rated)[0]) < 2.5, rated
    assert host.run("systemd-analyze verify /etc/systemd/system/muster-efa-exporter.service").stderr == ""


def test_killed_it_comes_back(host):
    before = host.check_output("systemctl show --property=MainPID --value muster-efa-exporter")
    host.check_output("systemctl kill --signal=KILL muster-efa-exporter")
    host.check_output(f"timeout 30 sh -c 'until {PROBE} >/dev/null 2>&1; do sleep 0.5; done'")
    assert host.check_output("systemctl show --property=MainPID --value muster-efa-exporter") not in (before, "0")
