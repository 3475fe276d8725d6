# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""playbooks/tasks/service_job.yml: what the run folder keeps of a job whose result was stored before the run."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from playbook import ROOT, run_playbook

from ansible_collections.muster.fleet.plugins.module_utils.jobs import document as job

PLAY = """\
- hosts: localhost
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact: {muster_run_dir: "{{ folder }}/run", cacheable: true}
    - ansible.builtin.include_tasks: "{{ service_job }}"
"""


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    """Leads to an API server that knows no job. A request that would change something is an error."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = json.dumps({"message": "not found", "details": {"name": self.path.split("/")[-1]}}).encode()
            self.send_response(404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        made = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        }
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(made))
        yield tmp_path / "kubeconfig"
        server.shutdown()


def test_the_run_folder_says_that_a_result_was_stored(tmp_path: Path, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    document = job.load({"name": "hello", "command": ["true"], "image": "a/b:1"}, "pytorchjob")
    store = tmp_path / f"state/muster/unit/jobs/hello-{job.identity(document)[:12]}"
    store.mkdir(parents=True)
    kept = {"schema": "muster.job_result/1", "name": "hello", "job_id": "hello-1", "state": "COMPLETED", "nodes": ["n1"], "stored": False}
    (store / "result.json").write_text(json.dumps(kept))
    (store / "output.txt").write_text("Batch 7 Loss: 2.5, Speed: 9.0 samples/sec, lr: 0.1\n")
    (tmp_path / "play.yml").write_text(PLAY)
    variables = {
        "folder": str(tmp_path),
        "service_job": str(ROOT / "playbooks/tasks/service_job.yml"),
        "muster_fleet": "unit",
        "run_job_document": document,
        "run_job_target": {"kubeconfig": str(kubeconfig), "context": "here", "instance_type": ""},
        "verb": "result",
        "ansible_python_interpreter": sys.executable,
    }
    done = run_playbook(tmp_path, "-i", "localhost,", "-c", "local", tmp_path / "play.yml", "-e", json.dumps(variables))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "run/jobs/hello/result.json").read_text())
    assert found == {**kept, "stored": True}, "the report would show it as a result of this run"
    assert json.loads((store / "result.json").read_text()) == kept, "the store's own copy stays"
    assert (tmp_path / "run/jobs/hello/output.txt").read_text() == (store / "output.txt").read_text()
    assert "hello (hello-1): COMPLETED" in done.stdout
    assert "changed=0" in done.stdout
