# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A good plugin and broken ones, as NCCL would find them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.hardware import nccl_plugin as logic
from ansible_collections.muster.fleet.plugins.modules import nccl_plugin_facts

LDCONFIG = """\
2 libs found in cache `/etc/ld.so.cache'
\tlibnccl-net-ofi.so (libc6,x86-64) => {plugin}
\tlibnccl.so.2 (libc6,x86-64) => {nccl}
"""
# As NCCL 2.22.3 asks, newest first.
ASKS = b"".join(b"ncclNetPlugin_v%d\0" % number for number in (8, 7, 6, 5))
OFI = {"NCCL_NET_PLUGIN": "ofi", "NCCL_NET": "Libfabric"}


def library(*defined: str, undefined: tuple[str, ...] = ()) -> bytes:
    """An ELF library that has only the table of its names."""
    strings, symbols = b"\0", struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
    for name in (*defined, *undefined):
        symbols += struct.pack("<IBBHQQ", len(strings), 0x11, 0, 5 if name in defined else 0, 0, 0)
        strings += name.encode() + b"\0"
    at = 64 + len(symbols)
    sections = b"".join(
        struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, offset, size, link, 0, 0, 0)
        for kind, offset, size, link in [(0, 0, 0, 0), (11, 64, len(symbols), 2), (3, at, len(strings), 0)]
    )
    head = b"\x7fELF\x02\x01\x01".ljust(40, b"\0") + struct.pack("<QIHHHHHH", at + len(strings), 0, 64, 0, 0, 64, 3, 2)
    return head + symbols + strings + sections


GOOD = library("ncclNetPlugin_v6", "ncclNetPlugin_v7", "ncclNetPlugin_v8", "ncclNetPlugin_v9", "ncclTunerPlugin_v3")


@pytest.fixture
def ask(call, monkeypatch, tmp_path: Path):
    """Run the module over a plugin, with stand-ins for ldconfig, ldd and the load."""

    def asked(plugin: bytes = GOOD, ldd: str = "", load=(0, "Libfabric\n", ""), cached: str = LDCONFIG, **options: object) -> dict:
        (tmp_path / "plugin.so").write_bytes(plugin)
        (tmp_path / "libnccl.so.2").write_bytes(ASKS)

        def run(_module, argv, **_other):
            if argv[-1] == "-p":
                return 0, cached.format(plugin=tmp_path / "plugin.so", nccl=tmp_path / "libnccl.so.2"), ""
            return (0, ldd, "") if argv[0] == "ldd" else load

        monkeypatch.setattr(nccl_plugin_facts.AnsibleModule, "run_command", run)
        monkeypatch.setattr(nccl_plugin_facts.AnsibleModule, "get_bin_path", lambda *_words: "/sbin/ldconfig")
        return call(nccl_plugin_facts, **({"environment": OFI} | options))

    return asked


def wrong(result: dict) -> dict:
    return {key: said for key, said in result["faults"].items() if said}


def test_a_good_plugin(ask) -> None:
    result = ask()
    assert wrong(result) == {}
    assert (result["library"], result["interfaces"], result["nccl_interfaces"]) == ("libnccl-net-ofi.so", [6, 7, 8, 9], [5, 6, 7, 8])
    assert result["transport"] == "Libfabric"


@pytest.mark.parametrize(
    ("change", "where", "said"),
    [
        (
            {"cached": "nothing"},
            "found",
            "The loader has no libnccl-net-ofi.so, which NCCL will look for; install the plugin or run ldconfig.",
        ),
        ({"environment": {"NCCL_NET_PLUGIN": "aws-ofi"}}, "found", "The loader has no libnccl-net-aws-ofi.so, which NCCL will look for;"),
        (
            {"ldd": "\tlibfabric.so.1 => not found\n\tlibc.so.6 => /lib/libc.so.6 (0x1)\n"},
            "libraries",
            "needs libfabric.so.1, which the loader",
        ),
        ({"plugin": library("other")}, "interface", "exports no ncclNetPlugin symbol, so it is not a plugin of NCCL."),
        ({"plugin": library(undefined=("ncclNetPlugin_v8",))}, "interface", "exports no ncclNetPlugin symbol"),
        ({"plugin": library("ncclNetPlugin_v11", "ncclNetPlugin_v12")}, "interface", "has versions 11, 12 of the interface and "),
        (
            {"load": (1, "", "Traceback\nOSError: undefined symbol: fi_getinfo@FABRIC_1.9\n")},
            "loads",
            "undefined symbol: fi_getinfo@FABRIC_1.9.",
        ),
        ({"load": (-11, "", "")}, "loads", "does not load: signal 11."),
        ({"environment": {"NCCL_NET_PLUGIN": "ofi"}}, "transport", "NCCL_NET is not set, so a plugin that fails would be replaced by TCP;"),
        (
            {"load": (0, "AWS Libfabric\n", "")},
            "transport",
            "NCCL_NET is Libfabric and the plugin calls itself AWS Libfabric, so every job",
        ),
    ],
)
def test_a_broken_plugin_has_its_sentence(ask, change, where, said) -> None:
    faults = wrong(ask(**change))
    assert list(faults) == [where]
    assert said in faults[where]


@pytest.mark.parametrize("broken", [b"no library at all", GOOD[:300], b""])
def test_a_plugin_that_is_half_there(ask, broken) -> None:
    faults = wrong(ask(plugin=broken))
    assert list(faults) == ["found"]
    assert faults["found"].endswith("install the plugin again.")


def test_the_environment_of_a_node_is_read_from_its_file(ask, tmp_path: Path) -> None:
    (tmp_path / "nccl.conf").write_text("# a comment\nNCCL_NET_PLUGIN=ofi\nNCCL_NET = libfabric\n")
    assert wrong(ask(environment={}, environment_file=str(tmp_path / "nccl.conf"))) == {}
    assert list(wrong(ask(environment={}, environment_file=str(tmp_path / "none")))) == ["found"]


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({}, "libnccl-net.so"),
        ({"NCCL_NET_PLUGIN": "ofi"}, "libnccl-net-ofi.so"),
        ({"NCCL_NET_PLUGIN": "/opt/x/libnccl-net-x.so"}, "/opt/x/libnccl-net-x.so"),
    ],
)
def test_what_nccl_looks_for(environment, name) -> None:
    assert logic.library_name(environment) == name
