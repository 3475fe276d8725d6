# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The server of one cloud, and the process that cleans up after it."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import NodeContainerError
from ansible_collections.muster.fleet.plugins.module_utils.containers.image import NodeImage
from ansible_collections.muster.fleet.plugins.module_utils.paths import cache_dir, check_fleet_name
from localcloud.faults import Faults
from localcloud.machines import Machines
from localcloud.signature import Keys

HERE = Path(__file__).parent
# Replaces moto's own 1,300 AMIs of 2017; moto reads the variable when it is imported.
os.environ["MOTO_AMIS_PATH"] = str(HERE / "amis.json")

from moto.moto_server import werkzeug_app
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

from localcloud import account, batch, ec2, prometheus, ssm
from localcloud.cloudformation.api import CloudFormation

# moto would tell browsers that every web page may call it. Its variable would be too late where moto was imported before.
werkzeug_app.DISABLE_GLOBAL_CORS = True

AMIS = {"ami-0deb13000000000d1": "trixie", "ami-0deb12000000000d1": "bookworm"}
REGION = "us-east-1"
# linux/in.h: binds an address that does not exist yet.
IP_FREEBIND = 15
# Variables of a real account, which must not reach a command that runs with the local cloud.
FOREIGN = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE")


class Quiet(MotoRequestHandler):
    """Logs no requests."""

    def log(self, type: str, message: str, *args: object) -> None:
        """Log errors only."""
        if type == "error":
            super().log(type, message, *args)


class Cloud:
    """AWS on a loopback port, inside a `with` block. A second process removes what it started, also after a kill."""

    def __init__(self, name: str, port: int = 0, machines: Any = None) -> None:
        self.name = check_fleet_name(name)
        self._machines = machines
        self._port = port
        self.amis = list(AMIS)

    def __enter__(self) -> Cloud:
        self._cleaner = None
        if self._machines is None:
            self._machines = Machines(self.name)
            self._cleaner = start_cleaner(self.name)
        self._machines.images.update({ami: NodeImage(release=release) for ami, release in AMIS.items()})
        keys = Keys()
        faults = Faults(DomainDispatcherApplication(create_backend_app), keys, self._machines.kill)
        ec2.install(self._machines, faults)
        ssm.install()
        batch.install()
        account.install()
        prometheus.install()
        try:
            self._server = make_server("127.0.0.1", self._port, faults, threaded=True, request_handler=Quiet)
            self._servers = [self._server, self._for_instances(faults)]
            self._machines.api = "%s:%d" % self._servers[1].server_address[:2]
        except (OSError, SystemExit) as error:
            end_cleaner(self._cleaner)
            raise NodeContainerError(f"Port {self._port} cannot be served: leave --port out to take a free one.") from error
        self._threads = [threading.Thread(target=each.serve_forever, daemon=True) for each in self._servers]
        for each in self._threads:
            each.start()
        self.env = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._server.server_port}",
            "AWS_ACCESS_KEY_ID": keys.key,
            "AWS_SECRET_ACCESS_KEY": keys.secret,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            # Packer polls every 15 s; here everything is done when the call returns.
            "AWS_POLL_DELAY_SECONDS": "1",
        }
        self.stacks = faults.own["cloudformation"] = CloudFormation(self.env)
        return self

    def __exit__(self, *_: object) -> None:
        # A job that is tried again must not start containers behind the cleaner.
        self._machines.closed = True
        for server, thread in zip(self._servers, self._threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()
        end_cleaner(self._cleaner)

    def _for_instances(self, app: Any) -> Any:
        """The same API at the first address of the instances' network, which exists as soon as one of them does."""
        host, port = self._machines.gateway(), self._server.server_port
        with socket.socket() as bound:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)
            bound.bind((host, port))
            bound.listen(128)
            return make_server(host, port, app, threaded=True, request_handler=Quiet, fd=bound.fileno())

    @staticmethod
    def outside(env: Mapping[str, str]) -> dict[str, str]:
        """An environment without the variables of a real account."""
        return {key: value for key, value in env.items() if key not in FOREIGN}


def start_cleaner(name: str) -> subprocess.Popen:
    """Start the process that cleans up when this one ends: its standard input is closed then, even after a kill.

    Remove first what an earlier cloud of this name left when the machine lost its power.
    """
    path = cache_dir(os.environ) / "locks" / f"cloud-{name}"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as lock:
        deadline = time.monotonic() + 20
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise NodeContainerError(f"A local cloud called {name} is running: stop it, or give this one another --name.") from None
                time.sleep(0.2)
        Machines(name).clean()
        # The cleaner inherits the open file and with it the lock, until it ends.
        return subprocess.Popen(
            [sys.executable, "-m", "localcloud", "--clean-after", "--name", name],
            cwd=HERE.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[lock.fileno()],
            start_new_session=True,
        )


def end_cleaner(cleaner: subprocess.Popen | None) -> None:
    """Let the cleaner run, and wait until it has ended."""
    if cleaner:
        cleaner.communicate()


def clean_after(name: str, lives: IO[bytes]) -> int:
    """Wait until the other end of `lives` is closed, then clean up."""
    lives.read()
    try:
        Machines(name).clean()
    except NodeContainerError as error:
        print(f"localcloud: not all of {name} could be removed ({error}) The next local cloud of this name removes it.", file=sys.stderr)
        return 1
    return 0
