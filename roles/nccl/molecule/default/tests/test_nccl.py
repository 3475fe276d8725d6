# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Debian's NCCL finds the environment of a p5.48xlarge itself, in a process without a login shell."""

from __future__ import annotations

ENVIRONMENT = """\
NCCL_SOCKET_IFNAME=^lo,docker,veth
NCCL_DEBUG=INFO
NCCL_NET=Libfabric
NCCL_NET_PLUGIN=ofi
"""
START = "import ctypes; ctypes.CDLL('libnccl.so.2').ncclGetUniqueId(ctypes.create_string_buffer(128))"


def test_nccl_reads_the_environment_in_every_process(host):
    said = host.run(f'env -i NCCL_DEBUG=INFO python3 -c "{START}"')
    assert "NCCL_SOCKET_IFNAME set by environment to ^lo,docker,veth" in said.stdout + said.stderr


def test_a_user_s_own_value_wins(host):
    said = host.run(f'env -i NCCL_DEBUG=INFO NCCL_SOCKET_IFNAME=eth0 python3 -c "{START}"')
    assert "NCCL_SOCKET_IFNAME set by environment to eth0" in said.stdout + said.stderr


def test_the_file_has_the_variables_of_the_filter(host):
    assert host.file("/etc/nccl.conf").content_string == "# Written by Muster (role nccl).\n" + ENVIRONMENT


def test_a_login_shell_has_the_environment(host):
    shown = host.check_output("env -i bash -lc 'env' | grep ^NCCL_ | sort")
    assert shown.splitlines() == sorted(ENVIRONMENT.splitlines())


def test_a_login_shell_keeps_a_value_that_is_set(host):
    assert host.check_output("env -i NCCL_DEBUG=TRACE bash -lc 'echo $NCCL_DEBUG'") == "TRACE"
