# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Serves the hardware counters of a node's EFA devices as node_amazonefa_* metrics, read from /sys at each scrape.

The names are those of awsome-distributed-ai's exporter, so that its dashboards work. That one never reads the counters of devices.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading

sys.path.insert(0, "/usr/lib/muster")
import muster_endpoint

PREFIX = "node_amazonefa_"
VENDOR = "0x1d0f"
# As the driver names them, in hw_counters of a device.
OF_DEVICES = {
    "alloc_pd_err": "Failed allocations of a protection domain.",
    "alloc_ucontext_err": "Failed allocations of a user context.",
    "cmds_err": "Admin commands that failed.",
    "completed_cmds": "Admin commands that completed.",
    "create_ah_err": "Failed creations of an address handle.",
    "create_cq_err": "Failed creations of a completion queue.",
    "create_qp_err": "Failed creations of a queue pair.",
    "keep_alive_rcvd": "Keep-alive events from the device.",
    "mmap_err": "Failed mappings of device memory.",
    "no_completion_cmds": "Admin commands without a completion.",
    "reg_mr_err": "Failed registrations of memory.",
    "submitted_cmds": "Admin commands that were submitted.",
}
# In hw_counters of a port.
OF_PORTS = {
    "impaired_remote_conn_events": "Connections to remotes that became impaired.",
    "lifespan": "Milliseconds for which the kernel keeps what it read from the device.",
    "rdma_read_bytes": "Bytes read by RDMA.",
    "rdma_read_resp_bytes": "Bytes sent as responses to RDMA reads.",
    "rdma_read_wr_err": "RDMA reads that ended with an error.",
    "rdma_read_wrs": "RDMA reads that completed.",
    "rdma_write_bytes": "Bytes written by RDMA.",
    "rdma_write_recv_bytes": "Bytes received by RDMA writes of others.",
    "rdma_write_wr_err": "RDMA writes that ended with an error.",
    "rdma_write_wrs": "RDMA writes that completed.",
    "recv_bytes": "Bytes received by receives.",
    "recv_wrs": "Receives that completed.",
    "retrans_bytes": "Bytes sent again.",
    "retrans_pkts": "Packets sent again.",
    "retrans_timeout_events": "Timeouts after which packets were sent again.",
    "rx_bytes": "Bytes received.",
    "rx_drops": "Packets that arrived and were dropped.",
    "rx_pkts": "Packets received.",
    "send_bytes": "Bytes sent by sends.",
    "send_wrs": "Sends that completed.",
    "tx_bytes": "Bytes sent.",
    "tx_pkts": "Packets sent.",
    "unresponsive_remote_events": "Remotes that did not respond.",
}
COUNTERS = {**OF_DEVICES, **OF_PORTS}
GAUGES = {"lifespan"}


def read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read().strip()


def attribute(path: str) -> str:
    """An attribute that may be missing."""
    try:
        return read(path)
    except (OSError, ValueError):
        return ""


def listed(folder: str) -> list:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def is_efa(device: str) -> bool:
    """Tell whether EFA's driver has the device; where /sys names no driver, whether it is a device of EFA."""
    driver = os.path.join(device, "device/driver")
    if os.path.islink(driver):
        return os.path.basename(os.path.realpath(driver)) == "efa"
    return attribute(os.path.join(device, "device/vendor")) == VENDOR and attribute(os.path.join(device, "device/device")).startswith(
        "0xefa"
    )


class Efa:
    """The collector. A counter that cannot be read is left out of this scrape and counted."""

    def __init__(self, sys_root: str = "/sys") -> None:
        self.root = sys_root
        self.errors: dict = {}
        self.lock = threading.Lock()

    def values(self, folder: str, device: str) -> dict:
        """{counter: value} of a folder hw_counters."""
        found = {}
        for name in listed(folder):
            if name in COUNTERS:
                try:
                    found[name] = int(read(os.path.join(folder, name)))
                except (OSError, ValueError):
                    with self.lock:
                        self.errors[device] += 1
        return found

    def collect(self):
        """The families of metrics as muster_endpoint takes them."""
        classes = os.path.join(self.root, "class/infiniband")
        devices = [name for name in listed(classes) if is_efa(os.path.join(classes, name))]
        samples: dict = {name: [] for name in COUNTERS}
        info, ports_up = [], []
        driver = attribute(os.path.join(self.root, "module/efa/version"))
        for name in devices:
            at = os.path.join(classes, name)
            with self.lock:
                self.errors.setdefault(name, 0)
            pci = attribute(os.path.join(at, "device/device"))
            info.append(
                (
                    {
                        "device": name,
                        "firmware_version": attribute(os.path.join(at, "fw_ver")),
                        "driver_version": driver,
                        "pci_device": pci,
                    },
                    1,
                )
            )
            for counter, value in self.values(os.path.join(at, "hw_counters"), name).items():
                if counter in OF_DEVICES:
                    samples[counter].append(({"device": name}, value))
            for port in listed(os.path.join(at, "ports")):
                of_port = {"device": name, "port": port}
                ports_up.append((of_port, int(attribute(os.path.join(at, "ports", port, "state")).startswith("4:"))))
                for counter, value in self.values(os.path.join(at, "ports", port, "hw_counters"), name).items():
                    samples[counter].append((of_port, value))
        with self.lock:
            errors = [({"device": name}, count) for name, count in sorted(self.errors.items())]
        yield PREFIX + "devices", "gauge", "EFA devices of the node.", [({}, len(devices))]
        yield PREFIX + "info", "gauge", "An EFA device; always 1.", info
        yield PREFIX + "port_up", "gauge", "Whether the port is active.", ports_up
        yield PREFIX + "read_errors_total", "counter", "Counters that could not be read, since the exporter started.", errors
        for counter, text in COUNTERS.items():
            yield PREFIX + counter, "gauge" if counter in GAUGES else "counter", text, samples[counter]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--listen", default="127.0.0.1:9109", help="HOST:PORT")
    parser.add_argument("--secrets", default="", help="folder with cert.pem, key.pem and password, needed for an address that others reach")
    parser.add_argument("--sys", default="/sys", help="where sysfs is")
    given = parser.parse_args()
    return muster_endpoint.serve("muster-efa-exporter", Efa(given.sys).collect, given.listen, given.secrets)


if __name__ == "__main__":
    sys.exit(main())
