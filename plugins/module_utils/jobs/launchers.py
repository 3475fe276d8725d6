# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each launcher gives its service, as files: for the store of a job, and for people who hand it over themselves."""

from __future__ import annotations

import json

from ansible_collections.muster.fleet.plugins.module_utils.jobs import batch, kubernetes, sagemaker, sbatch, torchrun
from ansible_collections.muster.fleet.plugins.module_utils.jobs.document import KUBERNETES


def files(document, identity, target):
    """{file name: text} of a job that does not run here: manifest.json, request.json, job.sbatch and such. Raises JobError.

    document, identity: as document.load() and identity() give them; target: as target.load() gives it.
    """
    kind = document["launcher"]["kind"]
    if kind == "slurm":
        gpus = 0 if document["gpus_per_node"] == "all" else document["gpus_per_node"]
        folder = "/fsx/muster/jobs/%s-%s" % (document["name"], identity[:12])
        return {"job.sbatch": sbatch.render_sbatch(document, identity, folder, (), gpus)}
    if kind in KUBERNETES:
        return {"manifest.json": _text(kubernetes.render(document, identity, target))}
    if kind == "batch":
        return {"%s.json" % name: _text(request) for name, request in batch.render(document, identity, target).items()}
    if kind == "sagemaker":
        return {"request.json": _text(sagemaker.render(document, identity, target))}
    return {"%s.sh" % each["host"]: each["script"] for each in torchrun.render(document, identity, target)}


def _text(value):
    return json.dumps(value, indent=1) + "\n"
