# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the modules that run a job once have in common: their options, and how they answer."""

from __future__ import annotations

import json
import os

from ansible_collections.muster.fleet.plugins.module_utils.jobs import document as documents
from ansible_collections.muster.fleet.plugins.module_utils.jobs import run as jobs
from ansible_collections.muster.fleet.plugins.module_utils.jobs import target as targets
from ansible_collections.muster.fleet.plugins.module_utils.jobs.launchers import files as files_of

# plugins/doc_fragments/job.py documents them.
OPTIONS = {
    "state": {"type": "str", "choices": list(jobs.STATES), "default": "finished"},
    "rerun": {"type": "bool", "default": False},
    "retry": {"type": "bool", "default": False},
    "timeout": {"type": "int", "default": 3600},
    "pending_timeout": {"type": "int", "default": 300},
    "poll": {"type": "int", "default": 5},
}
SERVICE_OPTIONS = {
    **OPTIONS,
    "job": {"type": "dict", "required": True},
    "target": {"type": "dict", "default": {}},
    "store": {"type": "path", "default": "~/.local/state/muster/jobs"},
}


def settings(params):
    """The options that every Service takes."""
    return {field: params[field] for field in ("timeout", "poll", "pending_timeout")}


def load(job, kinds):
    """The checked document of a module that serves the launchers `kinds`, the first for a document that names none. Raises JobError."""
    launcher = job.get("launcher")
    named = launcher.get("kind") if isinstance(launcher, dict) else None
    document = documents.load(job, None if named else kinds[0])
    if document["launcher"]["kind"] not in kinds:
        message = "Job %s is for the launcher %s (launcher.kind), and this module serves %s; use that launcher's module."
        raise documents.JobError(message % (document["name"], document["launcher"]["kind"], ", ".join(kinds)))
    return document


def answer(module, facts, service, files, shown, **more):
    """Bring the job to the state that the module's options ask for, and end the module.

    facts: what the answer has in any case; files: {name: text} for the store; shown: the file of them that a diff shows; more: arguments of
    jobs.bring(). The errors of a service beside RunError are the caller's.
    """
    before = service.store.read(shown)
    params = module.params
    chosen = {"state": params["state"], "rerun": params["rerun"], "retry": params["retry"]}
    try:
        changed, found, written = jobs.bring(service, files=files, check_mode=module.check_mode, **chosen, **more)
    except jobs.RunError as error:
        facts.update(error.facts)
        module.fail_json(
            msg=str(error), changed=error.changed, remedy=error.remedy, log=facts.get("output", ""), result=error.facts, **facts
        )
    except OSError as error:
        module.fail_json(msg="The store %s cannot be used: %s; mount it or set store." % (params["store"], error), **facts)
    if written:
        path = os.path.join(service.store.folder, shown)
        facts["diff"] = {"before": before, "after": written[shown], "before_header": path, "after_header": path}
    module.exit_json(changed=changed, result=found or {}, **{**facts, **(found or {})})


def run_in_service(module, kinds, make, errors, refine=lambda target, store, document, identity: {}):
    """The whole of a module for a service that keeps jobs elsewhere.

    kinds: the launchers that the module serves, the first for a document that names none; make(document, identity, target, settings) -> the
    Service; errors: exceptions whose text is one sentence; refine(target, store, document,
    identity) -> more of the answer, after it has changed the target.
    """
    params = module.params
    facts: dict = {}
    try:
        document = load(params["job"], kinds)
        kind = document["launcher"]["kind"]
        identity = documents.identity(document)
        target = targets.load(kind, params["target"])
        folder = os.path.join(params["store"], "%s-%s" % (document["name"], identity[:12]))
        store = jobs.Store(folder)
        facts.update(document=document, folder=folder)
        facts.update(refine(target, store, document, identity))
        rendered = files_of(document, identity, target)
        files = {"job.json": json.dumps(document, indent=1) + "\n", **rendered}
        common = {"name": document["name"], "identity": identity, "store": store, **settings(params)}
        service = make(document, identity, target, common)
        service.asked = targets.gpus_of(document, target)
        answer(module, facts, service, files, next(iter(rendered)))
    except errors as error:
        module.fail_json(msg=str(error), **facts)
