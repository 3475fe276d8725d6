# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""AWS on this machine, until you stop it or for one command.

python -m localcloud                       serves, and prints the variables to export
python -m localcloud -- packer build …     runs the command with these variables and exits with its exit code
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading

from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import NodeContainerError
from localcloud.cloud import Cloud, clean_after


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="localcloud", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="cloud", help="the name of its containers and network; several clouds can run at a time")
    parser.add_argument("--port", type=int, default=0, help="the port; a free one by default")
    parser.add_argument("--clean-after", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("command", nargs="*", help="the command to run, after --")
    options = parser.parse_args(argv)
    if options.clean_after:
        return clean_after(options.name, sys.stdin.buffer)
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
