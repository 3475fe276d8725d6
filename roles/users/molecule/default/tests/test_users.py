# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What role users leaves on a node: the members of a group of a real directory, and nobody else of it."""

from __future__ import annotations

import json

# Types a password into su, which needs a terminal.
LOGIN = "(sleep 2; echo {word}) | runuser -u nobody -- script --quiet --return --command 'su - {user} -c whoami' /dev/null"


def test_members_are_users_with_their_numbers_and_homes(host):
    assert host.check_output("getent passwd ada grace | cut -d: -f1,3,4,6,7").splitlines() == [
        "ada:20001:30000:/fsx/home/ada:/bin/bash",
        "grace:20002:30000:/fsx/home/grace:/bin/bash",
    ]
    assert host.check_output("id -Gn ada") == "staff-of-example physics"
    for name in ("ada", "grace"):
        home = host.file(f"/fsx/home/{name}")
        assert (home.user, home.group, home.mode) == (name, "staff-of-example", 0o700)
    assert not host.file("/fsx/home/mallory").exists


def test_a_member_logs_in_with_the_password(host):
    assert host.check_output(LOGIN.format(user="ada", word="ada-password")).split()[-1] == "ada"
    assert host.run(LOGIN.format(user="ada", word="other")).rc != 0


def test_people_outside_the_groups_cannot_log_in(host):
    assert host.check_output("id -u mallory") == "20003"
    assert host.run(LOGIN.format(user="mallory", word="mallory-password")).rc != 0
    assert host.run("su - mallory -c whoami").rc != 0


def test_sssd_reads_nothing_without_tls_and_the_right_ca(host):
    """Ask SSSD itself, with an empty cache, after the CA was replaced."""
    conf = host.file("/etc/sssd/sssd.conf").content_string.splitlines()
    assert {"ldap_tls_reqcert=demand", "ldap_id_use_start_tls=true", "access_provider=simple"} <= set(conf)
    host.check_output("cp /etc/muster/directory-ca.pem /run/ca.right; cp /etc/ssl/certs/ca-certificates.crt /etc/muster/directory-ca.pem")
    fresh = "systemctl stop sssd; rm -f /var/lib/sss/db/* /var/lib/sss/mc/*; systemctl start sssd"
    host.check_output(fresh)
    try:
        assert host.run("getent passwd ada").rc == 2
        refused = host.run("python3 /usr/lib/muster/ldap-probe.py /etc/sssd/sssd.conf")
        assert "directory server ldaps://login-1 has a certificate that is not trusted" in refused.stderr
    finally:
        host.check_output(f"cp -p /run/ca.right /etc/muster/directory-ca.pem; {fresh}")
    # SSSD may have asked the directory before its own start was complete.
    assert host.check_output("timeout 40 sh -c 'until getent passwd ada; do sleep 1; done' | cut -d: -f3") == "20001"


def test_the_cache_answers_while_the_directory_is_down(host):
    host.check_output(LOGIN.format(user="ada", word="ada-password"))
    host.check_output("systemctl stop test-directory")
    try:
        assert host.check_output("id -u ada") == "20001"
        assert host.check_output(LOGIN.format(user="ada", word="ada-password")).split()[-1] == "ada"
        refused = host.run("python3 /usr/lib/muster/ldap-probe.py /etc/sssd/sssd.conf")
        assert (refused.rc, refused.stderr.strip()) == (1, "directory server ldaps://login-1 cannot be reached (Connection refused)")
    finally:
        host.check_output("systemctl start test-directory")
    assert host.check_output("python3 /usr/lib/muster/ldap-probe.py /etc/sssd/sssd.conf") == "ldaps://login-1 answers"


def test_only_root_reads_the_password_of_the_bind(host):
    conf = host.file("/etc/sssd/sssd.conf")
    mode = 0o600 if host.system_info.release.split(".")[0] == "12" else 0o640
    assert (conf.mode, conf.user, conf.group) == (mode, "root", "root")
    assert "ldap_default_authtok=" in conf.content_string


def test_sssd_starts_at_boot(host):
    assert host.service("sssd").is_enabled
    assert host.service("sssd").is_running


def test_manifest_names_the_packages(host):
    users = json.loads(host.file("/etc/muster/manifest.json").content_string)["components"]["users"]
    assert users["packages"]["sssd-ldap"] == host.package("sssd-ldap").version
