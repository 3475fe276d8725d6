# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A Kubernetes on this machine, as root.

python -m localkube up NAME [--nodes 2] [--type p5.48xlarge]
                                             starts it, and prints the variable for kubectl, k9s and helm
python -m localkube kubectl NAME get nodes   its own kubectl
python -m localkube run [--node node1] NAME ctr images ls
                                             a command on one of its nodes
python -m localkube down NAME                removes it
"""

from __future__ import annotations

import argparse
import os
import sys

from localkube import LocalKubeError, config, rehearsal
from localkube.cluster import Cluster
from localkube.images import archives, environment
from localkube.programs import find


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="localkube", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("up", "down", "kubectl", "run"):
        each = verbs.add_parser(verb)
        each.add_argument("name")
        if verb == "up":
            each.add_argument("--nodes", default="", help="2 without it, and a cluster that is up keeps its number")
            each.add_argument("--type", default="", help="the EC2 instance type that its nodes rehearse (docs/rehearsed_nodes.md)")
            each.add_argument("--label", action="append", default=[], metavar="NAME=VALUE", help="a label of all nodes")
            each.add_argument("--without-trainer", action="store_true", help="without the image of ranks and the environment with torch")
        if verb == "run":
            each.add_argument("--node", default="node1")
        if verb in ("kubectl", "run"):
            each.add_argument("words", nargs=argparse.REMAINDER)
    options = parser.parse_args(argv)
    try:
        cluster = Cluster(options.name)
        if options.verb == "up":
            kind = rehearsal.checked(options.type)
            wanted = config.node_count(options.nodes) if options.nodes else cluster.nodes() or 2
            if not options.without_trainer and not cluster.alive():
                environment(os.environ)
            stand_in = rehearsal.IMAGE if kind else ""
            images = [] if cluster.alive() else archives(os.environ, trainer=not options.without_trainer, device_plugin=stand_in)
            started = cluster.up(wanted, images, dict(each.split("=", 1) for each in options.label), kind)
            nodes = "1 node" if wanted == 1 else f"{wanted} nodes"
            rehearses = f", a REHEARSAL of {cluster.rehearses()} on stand-ins" if cluster.rehearses() else ""
            print(f"# The cluster {options.name} {'is up' if started else 'was up'}, with {nodes}{rehearses}.")
            print(f"export KUBECONFIG={cluster.kubeconfig}")
        elif options.verb == "down":
            print(f"# The cluster {options.name} {'is gone' if cluster.down() else 'was not there'}.")
        elif options.verb == "kubectl":
            cluster.argv("node1")
            kubectl = str(find("kubectl", os.environ))
            os.execv(kubectl, [kubectl, "--kubeconfig", str(cluster.kubeconfig), *options.words])
        else:
            inside = cluster.argv(options.node, *options.words)
            os.execvp(inside[0], inside)
    except (LocalKubeError, ValueError) as error:
        print(f"localkube: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        where = f" at {error.filename}" if error.filename else ""
        print(
            f"localkube: {options.verb} {options.name} failed: {error.strerror or error}{where}; correct that and try again.",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
