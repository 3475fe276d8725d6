# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a cluster's parts give their services and tools, as files: templates of CloudFormation, parameters, boot scripts, the files of
pcluster, eksctl and SageMaker, and create.sh with what a user types."""

from __future__ import annotations

import json
import re
import shlex

from ansible_collections.muster.fleet.plugins.module_utils.aws import boot, eks, hyperpod, parallelcluster, pcs, plan, yaml_text
from ansible_collections.muster.fleet.plugins.module_utils.aws.cluster import KINDS, ClusterError
from ansible_collections.muster.fleet.plugins.module_utils.aws.values import Values

VARIABLE = re.compile(r"\$\{([A-Z][A-Z0-9_]*)\}")
HEAD = r"""#!/bin/bash
# Makes cluster @NAME@, of kind @KIND@: what you would type, in order. Muster rendered this from the cluster document and never ran it.
set -euo pipefail
cd "$(dirname "$0")"
export AWS_REGION=@REGION@
mkdir -p filled
output() { # STACK KEY
  local found
  found=$(aws cloudformation describe-stacks --stack-name "$1" --query "Stacks[0].Outputs[?OutputKey=='$2'].OutputValue" --output text)
  # Without any outputs the AWS CLI prints None.
  [ -n "$found" ] && [ "$found" != None ] || { echo "stack $1 has no output $2" >&2; exit 1; }
  printf '%s\n' "$found"
}
fill() { # FILE VARIABLE...
  envsubst "$(printf "\${%s} " "${@:2}")" <"$1" >"filled/$1"
}
"""
DEPLOY = "aws cloudformation deploy --stack-name %s --template-file %s.template.json"
MOST_BYTES = 51200  # of a template that is sent with the request
DEPLOY_MORE = " --capabilities CAPABILITY_NAMED_IAM --no-fail-on-empty-changeset --tags muster:cluster=%s muster:part=%s"


def files(cluster):
    """{file name: text} of all parts of a checked cluster document."""
    if cluster["kind"] in plan.RENDERED:
        return _rendered(cluster)
    found = {}
    for part in plan.parts(cluster):
        for each in plan.stacks(cluster, part):
            found.update(_stack(each))
    found.update(_boot(cluster))
    return found


def own_files(cluster):
    """{file name: text} of what the tool or service of a kind reads, without the stacks before it and boot scripts."""
    values = Values(cluster)
    return {name: text_of(name, each) for name, each in _own(cluster, values).items()}


def text_of(name, value):
    """A document as the text of a file: YAML, JSON, or the text itself."""
    if isinstance(value, str):
        return value
    if name.endswith(".json"):
        return json.dumps(value, indent=1) + "\n"
    return yaml_text.dump(value)


def _own(cluster, values):
    kind = cluster["kind"]
    if kind not in plan.RENDERED:
        return {name: text for each in plan.stacks(cluster, KINDS[kind]) for name, text in _stack(each).items()}
    if kind == "parallelcluster":
        return parallelcluster.files(cluster, values)
    if kind == "eks":
        return eks.files(cluster, values)
    if kind == "pcs":
        return _stack(pcs.stack(cluster))
    return {**hyperpod.files(cluster, values), **_stack(hyperpod.stack(cluster))}


def _rendered(cluster):
    values, found = Values(cluster), {}
    own = {name: text_of(name, each) for name, each in _own(cluster, values).items()}
    stacks = [each for part in plan.before(cluster) for each in plan.stacks(cluster, part)]
    for each in stacks:
        found.update(_stack(each))
    found.update(own)
    scripts = _boot(cluster)
    if "build-image.yaml" in own and cluster["setup"]["collection"]:
        scripts["install-image.sh"] = boot.image_script(cluster)
    found.update(scripts)
    found["create.sh"] = _create(cluster, values, stacks, own, scripts)
    return found


def _stack(stack):
    return {
        "%s.template.json" % stack["name"]: text_of(".json", stack["template"]),
        "%s.parameters.json" % stack["name"]: text_of(".json", stack["parameters"]),
    }


def _boot(cluster):
    return {"boot-%s.sh" % group["name"]: boot.script(cluster, group) for group in boot.carriers(cluster)}


def _create(cluster, values, stacks, own, scripts):
    """create.sh: the stacks before the cluster, its scripts in the bucket, its files with their ids, its tool."""
    kind, command = cluster["kind"], plan.tool(cluster)[1]
    head = HEAD.replace("@NAME@", cluster["name"]).replace("@KIND@", kind).replace("@REGION@", cluster["region"])
    lines = [head.rstrip("\n")]
    lines += [_deploy(cluster, each) for each in stacks]
    if cluster["setup"]["collection"] and boot.carriers(cluster):
        lines.append(_collection(cluster["setup"]["collection"]))
    if kind == "parallelcluster":
        lines += [_copy(name, parallelcluster.script(cluster, name)) for name in scripts]
        lines += _fill(values, own, ["parallelcluster.yaml"])
        if "build-image.yaml" in own:
            line = "# An image of its own: pcluster build-image --image-id %s --image-configuration build-image.yaml"
            lines.append(line % cluster["name"])
        lines.append(command)
    elif kind == "pcs":
        lines.append(_deploy(cluster, {**pcs.stack(cluster), "part": "pcs"}))
    elif kind == "eks":
        lines += [*_fill(values, own, ["eksctl.yaml"]), command, *_claim(values, own)]
        if "autoscaler.yaml" in own:
            lines.append("kubectl apply -f autoscaler.yaml")
    else:
        lines.append(_deploy(cluster, {**hyperpod.stack(cluster), "part": "hyperpod"}))
        lifecycle = [name for name in ("provisioning_parameters.json",) if name in own]
        lines += _fill(values, own, lifecycle)
        where = hyperpod.folder(cluster)
        lines += [_copy(name, "%s/%s" % (where, name)) for name in ("on_create.sh", *scripts)]
        lines += [_copy("filled/" + name, "%s/%s" % (where, name)) for name in lifecycle]
        if "eksctl.yaml" in own:
            lines += [*_fill(values, own, ["eksctl.yaml"]), "eksctl create cluster -f filled/eksctl.yaml"]
            lines.append("# HyperPod asks for its Helm chart in the cluster first; its guide for EKS has the command.")
        lines += [*_fill(values, own, ["create-cluster.json"]), command, *_claim(values, own)]
    return "\n".join(lines) + "\n"


def _deploy(cluster, stack):
    given = ["%s=%s" % item for item in stack["parameters"].items()]
    line = DEPLOY % (stack["name"], stack["name"]) + DEPLOY_MORE % (cluster["name"], stack["part"])
    if len(text_of(".json", stack["template"])) > MOST_BYTES:
        if not cluster["storage"]["bucket"]:
            message = (
                "Cluster %s: the template of stack %s is larger than %d bytes, so that it goes by way of a bucket; add storage.bucket."
            )
            raise ClusterError(message % (cluster["name"], stack["name"], MOST_BYTES))
        line += " --s3-bucket %s --s3-prefix muster/%s/templates" % (cluster["storage"]["bucket"], cluster["name"])
    return line + (" \\\n  --parameter-overrides " + " ".join(shlex.quote(each) for each in given) if given else "")


def _collection(where):
    """Stop before nodes start that would find no collection: its bucket may be one that the lines before have just made."""
    bucket, key = where[len("s3://") :].split("/", 1)
    line = "aws s3api head-object --bucket %s --key %s >/dev/null || {\n  echo '%s' >&2\n  exit 1\n}"
    message = "%s cannot be read, and nodes install it when they boot; run aws s3 cp COLLECTION.tar.gz %s, then create.sh again."
    return line % (bucket, key, message % (where, where))


def _copy(name, where):
    return "aws s3 cp --only-show-errors %s %s" % (name, where)


def _fill(values, own, names):
    """Lines that ask for the ids that files name, and write the files with them."""
    lines = []
    for name in names:
        wanted = sorted(set(VARIABLE.findall(own[name])))
        for variable in wanted:
            lines.append("%s=$(%s)" % (variable, values.commands[variable]))
        if wanted:
            lines.append("export " + " ".join(wanted))
            lines.append("fill %s %s" % (name, " ".join(wanted)))
        else:
            lines.append("cp %s filled/%s" % (name, name))
    return lines


def _claim(values, own):
    """The claim on the file system that a stack made, or else on one that the driver makes."""
    name = next((each for each in ("claim-static.yaml", "claim-dynamic.yaml") if each in own), "")
    return [*_fill(values, own, [name]), "kubectl apply -f filled/%s" % name] if name else []
