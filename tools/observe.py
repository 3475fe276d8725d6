# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Writes what is made from the alarms and dashboards: runbooks, Grafana's JSON, objects for Kubernetes and AWS. --check compares."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from ansible_collections.muster.fleet.plugins.module_utils.observe import alarms, dashboards

ROOT = Path(__file__).parents[1]


def kubernetes() -> str:
    """What the operator of Prometheus takes: where the exporters are, and the alarms."""
    labels = [
        {"targetLabel": "fleet", "replacement": "kubernetes"},
        {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "instance"},
    ]
    watched = {
        "dcgm": ("gpu-operator", {"app": "nvidia-dcgm-exporter"}, "gpu-metrics"),
        "efa": ("kube-system", {"app": "efa-exporter"}, "metrics"),
    }
    made = [
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "ServiceMonitor",
            "metadata": {"name": f"muster-{name}", "labels": {"release": "prometheus"}},
            "spec": {
                "jobLabel": "muster",
                "namespaceSelector": {"matchNames": [namespace]},
                "selector": {"matchLabels": chosen},
                "endpoints": [{"port": port, "interval": "15s", "relabelings": [*labels, {"targetLabel": "job", "replacement": name}]}],
            },
        }
        for name, (namespace, chosen, port) in watched.items()
    ]
    rules = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "muster", "labels": {"release": "prometheus"}},
        "spec": {"groups": alarms.groups()},
    }
    head = "# Made by tools/observe.py; `make docs` writes it anew. docs/observe.md says what it is.\n"
    return head + "---\n".join(yaml.safe_dump(each, sort_keys=False, width=140) for each in [*made, rules])


def files() -> dict[str, str]:
    """{path in the checkout: text}."""
    boards = {f"roles/monitoring/files/dashboards/{board.uid}.json": dashboards.grafana(board) for board in dashboards.BOARDS}
    return {"docs/runbooks.md": alarms.runbooks(), "kubernetes/monitoring/muster.yaml": kubernetes(), **boards}


def main() -> int:
    made = files()
    old = [path for path, text in made.items() if not (ROOT / path).is_file() or (ROOT / path).read_text(encoding="utf-8") != text]
    if "--check" in sys.argv[1:]:
        for path in old:
            print(f"{path} is not what alarms and dashboards say; run make docs.", file=sys.stderr)
        return 1 if old else 0
    for path in old:
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(made[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
