# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""AWS on this machine, until you stop it or for one command.

python -m localcloud                       serves, and prints the variables to export
python -m localcloud -- packer build …     runs the command with these variables and exits with its exit code
python -m localcloud --fault '{"dies": …}' orders a fault from the cloud that the variables name, see docs/localcloud.md
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import NodeContainerError
from localcloud.cloud import Cloud, clean_after
from localcloud.faults import PATH as FAULTS


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="localcloud", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="cloud", help="the name of its containers and network; several clouds can run at a time")
    parser.add_argument("--port", type=int, default=0, help="the port; a free one by default")
    parser.add_argument("--clean-after", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--fault", help="order a fault, as JSON, from the cloud that the environment names, and exit")
    parser.add_argument("command", nargs="*", help="the command to run, after --")
    options = parser.parse_args(argv)
    if options.clean_after:
        return clean_after(options.name, sys.stdin.buffer)
    if options.fault:
        return order(options.fault, os.environ)
    ended = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: ended.set())
    try:
        with Cloud(options.name, options.port) as cloud:
            if options.command:
                return run(options.command, {**cloud.outside(os.environ), **cloud.env}, ended)
            for name, value in cloud.env.items():
                print(f"export {name}={value}")
            print(
                f"# Faults: see docs/localcloud.md. AMIs: {', '.join(cloud.amis)}. Ctrl-C stops it and removes all that it started.",
                flush=True,
            )
            ended.wait()
    except (NodeContainerError, ValueError) as error:
        print(f"localcloud: {error}", file=sys.stderr)
        return 1
    return 0


def order(fault: str, env: Mapping[str, str]) -> int:
    """Order a fault from a running cloud, signed with the keys in the environment."""
    if "AWS_ENDPOINT_URL" not in env:
        print("localcloud: AWS_ENDPOINT_URL is not set; export what the local cloud printed.", file=sys.stderr)
        return 1
    request = AWSRequest("POST", f"{env['AWS_ENDPOINT_URL']}{FAULTS}", data=fault.encode())
    keys = Credentials(env.get("AWS_ACCESS_KEY_ID", ""), env.get("AWS_SECRET_ACCESS_KEY", ""))
    SigV4Auth(keys, "localcloud", "us-east-1").add_auth(request)
    try:
        urllib.request.urlopen(urllib.request.Request(request.url, fault.encode(), dict(request.headers)), timeout=60)
    except urllib.error.HTTPError as error:
        print(f"localcloud: {error.read().decode().strip()}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"localcloud: no cloud answers at {env['AWS_ENDPOINT_URL']}: {error}", file=sys.stderr)
        return 1
    return 0


def run(command: list[str], env: dict[str, str], ended: threading.Event) -> int:
    """Run a command and return its exit code. A signal that ends the cloud ends the command, which may take its time to clean up."""
    try:
        process = subprocess.Popen(command, env=env)
    except OSError as error:
        print(f"localcloud: {command[0]} cannot be run ({error.strerror}).", file=sys.stderr)
        return 127
    told = False
    while True:
        try:
            return process.wait(0.2)
        except subprocess.TimeoutExpired:
            if ended.is_set() and not told:
                process.send_signal(signal.SIGINT)
                told = True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
