# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A proof: Slurm of Debian testing serves its own metrics, and the fleet's Prometheus scrapes them beside those of muster-exporter.

Run by `make proofs`, or `pytest --engine tests/proof/slurm_openmetrics.py`; about four minutes on two cores. Where the archive has no
testing suite it ends with 75, which counts as not run.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from e2e_fleet import Fleet

from ansible_collections.muster.fleet.plugins.module_utils.observe import dashboards, scrape

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
NAME = "openmetrics"
# Many queries in one process.
ASK = """
import importlib.machinery, importlib.util, json, sys
loader = importlib.machinery.SourceFileLoader("watch", "/usr/lib/muster/muster-watch")
watch = importlib.util.module_from_spec(importlib.util.spec_from_loader("watch", loader))
loader.exec_module(watch)
print(json.dumps([watch.ask("query", query=each)["result"] for each in json.loads(sys.argv[1])]))
"""


class Watched(Fleet):
    """The fleet of this proof."""

    def head(self, *argv: str, user: str = "root") -> str:
        return self.ansible("controller-1", *argv, user=user)

    def queries(self, expressions: list[str]) -> list[list[dict]]:
        return json.loads(self.head("python3", "-c", ASK, json.dumps(expressions)))


@pytest.fixture(scope="module")
def fleet(artifacts) -> Watched:
    """A controller that watches itself and a compute node, with a job that runs."""
    folder = artifacts.folder(NAME)
    inventory = folder / "inventory"
    inventory.mkdir()
    options = {"plugin": "muster.fleet.local_fleet", "fleet": NAME, "compute": 1, "memory": "2048"}
    (inventory / "local_fleet.yml").write_text(json.dumps(options))
    for each in ("monitoring.yml", "group_vars"):
        (inventory / each).symlink_to(ROOT / "inventory/local" / each)
    made = Watched(folder, NAME, inventory)
    local = yaml.safe_load((ROOT / "inventory/local/group_vars/all.yml").read_text())
    given = {
        "muster_components": ["common", "slurm", "monitoring"],
        "muster_monitoring": True,
        "monitoring_interval": "5s",
        "slurm_apt_source": {"suite": "testing", "check_valid_until": False},
        # Debian's packages of 26.05 are built without PMIx.
        "slurm_config": {**local["slurm_config"], "MpiDefault": "pmi2", "MetricsType": "metrics/openmetrics"},
        "muster_allow_not_run": [
            *local["__local_not_run"],
            "slurm.pmix_plugin",
            "slurm_cluster.pmix_offered",
            "slurm_cluster.pmix_ranks",
        ],
    }
    if not Path("/sys/fs/cgroup/cgroup.controllers").exists():
        given["slurm_cgroup_config"] = {"CgroupPlugin": "cgroup/v1"}
    artifacts.leave(f"fleet {NAME}", lambda: made.run("playbooks/local_down.yml").check_returncode())
    done = made.run("playbooks/local_up.yml")
    assert done.returncode == 0, done.stdout[-5000:]
    own = "$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -n 1)"
    fetch = f"apt-get -qq update; /usr/lib/apt/apt-helper download-file {own}dists/testing/InRelease /tmp/r 2>&1"
    suite = made.ansible("controller-1", "sh", "-c", fetch, check=False)
    if "Fetched" not in suite:
        made.run("playbooks/local_down.yml")
        pytest.exit(f"The archive of these nodes has no testing suite, so nothing is proven: {suite[-300:]}", returncode=75)
    done = made.run("playbooks/provision.yml", "-e", json.dumps(given), timeout=1200)
    assert done.returncode == 0, done.stdout[-5000:]
    for name, count in (("runs", 1), ("waits", 2)):
        made.head("sbatch", f"--job-name={name}", "--mem=64", f"--nodes={count}", "--wrap=sleep 3600", user="muster")
    made.head("sbatch", "--wait", "--job-name=over", "--mem=64", "--wrap=hostname", user="muster")
    return made


def test_prometheus_scrapes_slurm_itself(fleet: Watched) -> None:
    release = re.search(r"(\d+)\.(\d+)\.", fleet.head("sinfo", "--version"))
    assert release and (int(release[1]), int(release[2])) >= (25, 11)
    [up] = fleet.queries(["up"])
    wanted = {("node", "compute-1"), *((job, "controller-1") for job in ("node", "muster", "prometheus", "alertmanager", *scrape.OWN))}
    assert {(each["metric"]["job"], each["metric"]["instance"]): each["value"][1] for each in up} == dict.fromkeys(wanted, "1")


# What Slurm says itself, and what muster-exporter makes of its JSON.
SAME = {
    "slurm_jobs_running": 'sum(muster_slurm_jobs{state="running"})',
    "slurm_jobs_pending": 'sum(muster_slurm_jobs{state="pending"})',
    'slurm_partition_jobs_pending{partition="main"}': 'sum(muster_slurm_jobs{state="pending", partition="main"})',
    "slurm_nodes": "sum(muster_slurm_nodes)",
    "slurm_nodes_down": "sum(muster_slurm_node_down)",
    'slurm_node_cpus{node="compute-1"}': 'muster_slurm_node_cpus{node="compute-1"}',
    'slurm_node_cpus_alloc{node="compute-1"}': 'muster_slurm_node_cpus_allocated{node="compute-1"}',
    "slurm_agent_queue_size": "muster_slurm_agent_queue_size",
}


def test_both_say_the_same_of_jobs_and_nodes(fleet: Watched) -> None:
    def agree() -> bool:
        answers = fleet.queries([*SAME, *SAME.values()])
        values = [float(each[0]["value"][1]) if len(each) == 1 else None for each in answers]
        own, made = values[: len(SAME)], values[len(SAME) :]
        print(dict(zip(SAME, zip(own, made, strict=True), strict=True)))
        return None not in values and own == made and own[:2] == [1, 1]

    fleet.wait_for("one job that runs and one that waits, in both", agree)


def test_every_query_of_the_board_of_slurm_has_data(fleet: Watched) -> None:
    asked = [each for each in dashboards.queries() if each[0].uid == "muster-slurm"]
    wanted = [dashboards.plain(expression, NAME, "1m") for _board, _panel, expression in asked]
    assert len(wanted) > 10

    def without() -> list[str]:
        return [panel.title for (_board, panel, _expression), found in zip(asked, fleet.queries(wanted), strict=True) if not found]

    fleet.wait_for("data of every query", lambda: not without())
