# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one script by which a node configures itself, however it was started: user data of EC2, lifecycle of HyperPod, post-install of
ParallelCluster and PCS.

It runs the collection that the image has (`configure`, then `verify_node`) against the node alone, and reports the verdict where
somebody looks: tags of the instance, the features of Slurm, the console. A node that fails takes no jobs.
"""

from __future__ import annotations

import json

STATE_TAG, REASON_TAG = "muster:state", "muster:reason"
# Where an image keeps the collection and its environment. Role common puts them there when an image is made.
HOME = "/opt/muster"
# `report` must not end the script: a node that may not tag itself, or that no Slurm knows, still writes its log and its console.
SCRIPT = r"""#!/bin/bash
# Configures this node by the Muster that its image has. Runs as root, without HOME or a terminal, as often as you like.
set -uo pipefail
export HOME=/root LC_ALL=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
home=${MUSTER_HOME:-@HOME@}
log=${MUSTER_LOG:-/var/log/muster-boot.log}
facts=${MUSTER_FACTS:-/etc/muster/node.json}
mkdir -p "$(dirname "$log")" "$(dirname "$facts")"
exec 9>"$facts.lock"
flock 9
cat >"$facts" <<'MUSTER_NODE'
@FACTS@
MUSTER_NODE
imds() {
  local token
  token=$(curl -sf -m 5 -X PUT -H "X-aws-ec2-metadata-token-ttl-seconds: 60" http://169.254.169.254/latest/api/token) || return 1
  curl -sf -m 5 -H "X-aws-ec2-metadata-token: $token" "http://169.254.169.254/latest/$1"
}
report() { # STATE REASON: the console first, because it needs nothing
  echo "muster: $1${2:+: $2}" | tee -a "$log" >"${MUSTER_CONSOLE:-/dev/console}" 2>/dev/null || true
  printf '{"state": "%s", "reason": "%s"}\n' "$1" "${2//\"/\'}" >"$facts.state"
  local id region
  if command -v aws >/dev/null && id=$(imds meta-data/instance-id) && region=$(imds meta-data/placement/region); then
    timeout 60 aws ec2 create-tags --region "$region" --resources "$id" \
      --tags "Key=muster:state,Value=$1" "Key=muster:reason,Value=${2:0:200}" >>"$log" 2>&1 || true
  fi
  if [ "$1" = failed ] && command -v scontrol >/dev/null; then
    timeout 60 scontrol update "nodename=$(hostname -s)" state=drain "reason=muster: ${2:0:200}" >>"$log" 2>&1 || true
  fi
}
collection='@COLLECTION@'
fetch() { # a collection that ansible-galaxy built, in the bucket of the cluster
  local folder
  folder=$(mktemp -d)
  aws s3 cp --only-show-errors "$collection" "$folder/collection.tar.gz" &&
    python3 -m venv "$home" && "$home/bin/pip" --quiet install ansible-core &&
    "$home/bin/ansible-galaxy" collection install --force -p "$home/collections" "$folder/collection.tar.gz"
}
report configuring
if [ ! -x "$home/bin/ansible-playbook" ] && [ -n "$collection" ] && ! fetch >>"$log" 2>&1; then
  report failed "$collection could not be installed; see $log"
  exit 1
fi
if [ ! -x "$home/bin/ansible-playbook" ]; then
  report failed "the image has no Muster in $home; name a collection in setup.collection, or another image"
  exit 1
fi
run() {
  ANSIBLE_COLLECTIONS_PATH=$home/collections "$home/bin/ansible-playbook" -i localhost, -c local \
    -e @"$facts" -e "{muster_phases: [$1]}" muster.fleet.stack </dev/null >>"$log" 2>&1
}
for phase in @PHASES@; do
  if ! run "$phase"; then
    why=$(grep -oE '"msg": "[^"]*|^.*muster\.fleet\.check.*failed.*|fatal: .*' "$log" | tail -1 | cut -c1-200)
    report failed "$phase: ${why:-see $log}"
    exit 1
  fi
done
report ready
"""


def facts(cluster, group):
    """The variables of stack.yml for a node of a group, alone."""
    found = {
        "muster_cluster_name": cluster["name"],
        "muster_cluster_group": group["name"],
        "muster_cluster_role": group["role"],
        "instance_type": group["type"],
        **cluster["setup"]["variables"],
    }
    if cluster["stack"]:
        found["muster_stack_name"] = cluster["stack"]
    return found


def script(cluster, group, phases=("configure", "verify_node")):
    """The script for a node group; the same text for the same group. phases: those of an image are install and verify_image."""
    known = SCRIPT.replace("@COLLECTION@", cluster["setup"]["collection"]).replace("@PHASES@", " ".join(phases))
    return known.replace("@HOME@", HOME).replace("@FACTS@", json.dumps(facts(cluster, group), indent=1, sort_keys=True))


def user_data(cluster, group):
    """The script as user data of EC2."""
    return script(cluster, group)
