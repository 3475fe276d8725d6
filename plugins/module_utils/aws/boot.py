# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one script by which a node configures itself, however it was started: user data of EC2, lifecycle of HyperPod, post-install of
ParallelCluster and PCS.

It runs playbook boot.yml of the collection that the image has (`configure`, then `verify_node`) against an inventory with the node alone,
in the groups that its role and type give it, and reports the verdict where somebody looks: tags of the instance, Slurm, the console. A node
that fails takes no jobs. A node is ready only when the playbook wrote so as its last task.

An instance that Slurm started takes the name of its node first, and runs role slurm after all others.
"""

from __future__ import annotations

import json
import re

from ansible_collections.muster.fleet.plugins.module_utils.aws.cluster import accelerated, slurm_secret, started_by_slurm
from ansible_collections.muster.fleet.plugins.module_utils.aws.hosts import type_groups

STATE_TAG, REASON_TAG = "muster:state", "muster:reason"
NODE_TAG = "muster:slurm_node"  # what the ResumeProgram writes, playbooks/files/cloud_nodes.py
# Where an image keeps the collection and its environment. playbooks/tasks/image_muster.yml puts them there when an image is made.
HOME = "/opt/muster"
IMAGE_PHASES = ("install", "verify_image")
# ParallelCluster and HyperPod mount file systems on their nodes themselves, and Kubernetes has claims. Elsewhere roles lustre_client and
# storage do.
MOUNTED_BY_BOOT = ("ec2", "pcs")
LUSTRE_PATH, HOME_PATH = "/fsx", "/home"
# A variable of a script that only the stack of the file systems knows -> its export.
LUSTRE_EXPORTS = {
    "LUSTRE_DNSNAME": "FSxLustreFilesystemDNSname",
    "LUSTRE_MOUNTNAME": "FSxLustreFilesystemMountname",
    "OPENZFS_DNSNAME": "FSxOpenZFSFilesystemDNSname",
}
# `report` must not end the script: a node that may not tag itself, or that no Slurm knows, still writes its log and its console.
SCRIPT = r"""#!/bin/bash
# Configures this node by the Muster that its image has. Runs as root, without HOME or a terminal, as often as you like.
set -uo pipefail
slurm=/opt/slurm/bin:$(printf '%s:' /opt/aws/pcs/scheduler/slurm-*/bin)
export HOME=/root LC_ALL=C.UTF-8 PATH=${MUSTER_PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:${slurm%:}}
home=${MUSTER_HOME:-@HOME@}
log=${MUSTER_LOG:-/var/log/muster-boot.log}
facts=${MUSTER_FACTS:-/etc/muster/node.json}
folder=$(dirname "$facts")
inventory=$folder/node.ini
result=$folder/boot
mkdir -p "$(dirname "$log")" "$folder"
imds() {
  local token
  token=$(curl -sf -m 5 -X PUT -H "X-aws-ec2-metadata-token-ttl-seconds: 60" http://169.254.169.254/latest/api/token) || return 1
  curl -sf -m 5 -H "X-aws-ec2-metadata-token: $token" "http://169.254.169.254/latest/$1"
}
say() {
  echo "muster: $1" >>"$log"
  echo "muster: $1" 2>/dev/null >"${MUSTER_CONSOLE:-/dev/console}" || true # a container has no console
}
report() { # STATE REASON
  local id region why
  # One line without what JSON would have to escape.
  why=$(tr '"\134' "'/" <<<"${2:-}" | tr -d '\000-\010\013\014\016-\037' | tr '\n\t\r' '   ' | sed 's/ *$//' | cut -c1-1000)
  say "$1${why:+: $why}"
  printf '{"state": "%s", "reason": "%s"}\n' "$1" "$why" >"$facts.state"
  if command -v aws >/dev/null && id=$(imds meta-data/instance-id) && region=$(imds meta-data/placement/region); then
    timeout 60 aws ec2 create-tags --region "$region" --resources "$id" \
      --tags "[{\"Key\": \"muster:state\", \"Value\": \"$1\"}, {\"Key\": \"muster:reason\", \"Value\": \"${why:0:200}\"}]" >>"$log" 2>&1 ||
      say "the tags of $id could not be set; see $log"
  fi
  if [ "$1" = failed ] && command -v scontrol >/dev/null; then
    timeout 60 scontrol update "nodename=$(hostname -s)" state=drain "reason=muster: ${why:0:200}" >>"$log" 2>&1 ||
      say "this node could not be drained in Slurm; see $log"
  fi
}
fail() { # REASON
  report failed "$1"
  exit 1
}
collection='@COLLECTION@'
fetch() { # a collection that ansible-galaxy built, in the bucket of the cluster; it has the script and the hashes by which it is installed
  local folder
  folder=$(mktemp -d) &&
    aws s3 cp --only-show-errors "$collection" "$folder/collection.tar.gz" &&
    tar -xzf "$folder/collection.tar.gz" -C "$folder" playbooks/files/muster_home.sh playbooks/files/muster_home.txt &&
    sh "$folder/playbooks/files/muster_home.sh" "$home" "$folder/collection.tar.gz" "$folder/playbooks/files/muster_home.txt" &&
    rm -rf "$folder"
}
said() { # the first error from line `before` of the log on, or its last line
  { tail -n "+$before" "$log" | grep -m1 -E '^(\[ERROR\]|ERROR!?|fatal):' || grep -v '^ *$' "$log" | tail -n 1; } | cut -c1-300
}
{ exec 9>"$facts.lock"; } 2>/dev/null || fail "$facts.lock cannot be written"
flock 9 || fail "$facts.lock cannot be locked"
report configuring
before=$(($(wc -l <"$log") + 1))
if [ ! -e "$home/.muster-made" ]; then
  [ -n "$collection" ] || fail "the image has no Muster in $home; name a collection in setup.collection, or another image"
  fetch >>"$log" 2>&1 || fail "$collection could not be installed: $(said)"
fi
cat >"$facts" <<'MUSTER_NODE' || fail "$facts cannot be written"
@FACTS@
MUSTER_NODE
@JOIN@# Not localhost, which is no node to the playbooks.
node=$(hostname -s)
[[ $node =~ ^[A-Za-z0-9][A-Za-z0-9-]*$ && $node != localhost ]] ||
  fail "the node's name is '$node', which cannot be a host's; set one by hostnamectl"
{
  printf '%s ansible_connection=local\n' "$node"
  for group in @GROUPS@; do printf '[%s]\n%s\n' "$group" "$node"; done
} >"$inventory" || fail "$inventory cannot be written"
# No configuration of the image or of the folder where this runs counts.
cat >"$folder/node.cfg" <<MUSTER_CFG || fail "$folder/node.cfg cannot be written"
[defaults]
collections_path = $home/collections
gathering = explicit
inject_facts_as_vars = false
interpreter_python = auto_silent
nocolor = true
[inventory]
any_unparsed_is_failed = true
MUSTER_CFG
run() { # PHASES ARGUMENT... of ansible-playbook
  local code state='' reason=''
  before=$(($(wc -l <"$log") + 1))
  rm -f "$result" &&
    ANSIBLE_CONFIG=$folder/node.cfg "$home/bin/ansible-playbook" -i "$inventory" -e @"$facts" "${@:2}" \
      -e "{muster_phases: [$1], muster_boot_dir: '$folder'}" muster.fleet.boot </dev/null >>"$log" 2>&1
  code=$?
  # The playbook writes it at its end. Ansible ends well when no host is in a play, too.
  [ ! -s "$result" ] || { read -r state && read -r reason; } <"$result"
  if [ "$code" = 0 ] && [ "$state" = ready ]; then return; fi
  if [ -z "$state" ]; then reason="no task ran on $node, and ansible-playbook ended with $code: $(said)"; fi
  fail "$1: ${reason:-see $log}"
}
for phase in @PHASES@; do
  run "$phase"@MORE@
done
@SLURM@report ready
"""

# Slurm started this instance for one of its nodes. Its ResumeProgram writes the node's name into a tag when EC2 has answered the launch.
JOIN = r"""slurm_node='' joins=$folder/slurm
for _ in {1..60}; do
  slurm_node=$(imds meta-data/tags/instance/@NODE_TAG@) && break
  sleep "${MUSTER_PAUSE:-2}"
done
[[ $slurm_node =~ ^[A-Za-z0-9][A-Za-z0-9-]*$ ]] ||
  fail "the metadata has no tag @NODE_TAG@; let Slurm's ResumeProgram start this instance, with InstanceMetadataTags in its launch template"
hostnamectl set-hostname "$slurm_node" >>"$log" 2>&1 || hostname "$slurm_node" 2>>"$log" ||
  fail "the host cannot be named $slurm_node; see $log"
# cloud-init would give the old name back, and no DNS has the new one.
{ [ ! -d /etc/cloud/cloud.cfg.d ] || echo 'preserve_hostname: true' >/etc/cloud/cloud.cfg.d/99-muster-hostname.cfg; } 2>>"$log"
if address=$(imds meta-data/local-ipv4) && ! grep -qw -- "$slurm_node" /etc/hosts; then
  { printf '%s %s\n' "$address" "$slurm_node" >>/etc/hosts; } 2>>"$log" || say "/etc/hosts cannot be written"
fi
take_secret() { # what a node needs to join Slurm, through a pipe: the key is in no argument and no log
  local region
  (umask 077 && mkdir -p "$joins") && region=$(imds meta-data/placement/region) &&
    timeout 60 aws secretsmanager get-secret-value --region "$region" --secret-id '@SECRET@' --query SecretString --output text |
    "$home/bin/python" -c "$slurm_split" "$joins"
}
slurm_split='
import json, os, sys
os.umask(0o077)
try:
    found = json.load(sys.stdin)
    variables = found["variables"]
    metrics = found.get("metrics", {})
    hosts = {"controllers": variables["slurm_controller_hosts"], "watchers": metrics.get("watchers", [])}
    texts = {name: "".join(each + "\n" for each in names) for name, names in hosts.items()}
    texts.update({"munge.key": found["munge_key"], "variables.json": json.dumps(variables)})
    for name in ("metrics-cert.pem", "metrics-key.pem", "metrics-password"):
        texts[name] = metrics.get(name, "")
except (ValueError, KeyError, TypeError, AttributeError):
    sys.exit("the secret has no munge key and no variables; run playbooks/cloud_nodes.yml")
for name, text in texts.items():
    with open(os.path.join(sys.argv[1], name), "w") as file:
        file.write(text)
'
before=$(($(wc -l <"$log") + 1))
take_secret >>"$log" 2>&1 || fail "secret @SECRET@ could not be read: $(tail -n "+$before" "$log" | grep -m1 -v '^ *$' | cut -c1-300)"
"""
# What the fleet says wins over the document, which says it from the day of its launch template.
JOIN_MORE = (
    ' --limit "$node" -e @"$joins/variables.json" -e "slurm_secrets_dir=$joins monitoring_secrets_dir=$joins'
    ' efa_exporter_secrets_dir=$joins"'
)
# slurmd takes jobs as soon as it runs, so it comes last. The health checks look for its services only where the inventory has controllers
# of Slurm, and the exporters serve a fleet only where it has a host that watches; nothing runs there.
JOIN_LAST = (
    """{ printf '[muster_controller]\\n' && cat "$joins/controllers"; } >>"$inventory" || fail "$inventory cannot be written"
last=slurm more=node_health
if [ -s "$joins/watchers" ]; then
  { printf '[muster_monitoring]\\n' && cat "$joins/watchers"; } >>"$inventory" || fail "$inventory cannot be written"
  more='node_health efa_exporter monitoring'
fi
for each in $more; do
  if grep -q "\\"$each\\":" "$folder/manifest.json"; then last=$last,$each; fi
done
run 'configure, verify_node'%s -e "{muster_components: [$last]}"
"""
    % JOIN_MORE
)


def carriers(cluster):
    """The node groups whose nodes run the script. Nodes of EKS and Batch take their image as it is, and the role of ParallelCluster's
    login nodes cannot read a bucket."""
    if cluster["kind"] in ("batch", "eks"):
        return []
    return [each for each in cluster["nodes"] if cluster["kind"] != "parallelcluster" or each["role"] != "login"]


def groups(cluster, group):
    """The groups of a node of a node group, as the inventory plugins name them; those that no component asks for are left out."""
    have = accelerated(group["type"])
    found = type_groups(group["type"], have["accelerator"], bool(have["efa"])) if have else []
    return ["muster_" + group["role"], *(each for each in found if not each.startswith("muster_type_"))]


def facts(cluster, group):
    """The variables of boot.yml for a node of a group, alone."""
    found = {"instance_type": group["type"]}
    if cluster["storage"]["lustre"] and cluster["kind"] in MOUNTED_BY_BOOT:
        found["lustre_client_mounts"] = [{"source": "${LUSTRE_DNSNAME}@tcp:/${LUSTRE_MOUNTNAME}", "path": LUSTRE_PATH}]
    if cluster["storage"]["openzfs"] and cluster["kind"] in MOUNTED_BY_BOOT:
        found.update({"storage_source": "${OPENZFS_DNSNAME}:/fsx", "storage_path": HOME_PATH})
    found.update(cluster["setup"]["variables"])
    if cluster["stack"]:
        found["muster_stack_name"] = cluster["stack"]
    return found


def script(cluster, group):
    """The script for a node group; the same text for the same group."""
    joins = started_by_slurm(cluster, group)
    return _filled(cluster, groups(cluster, group), facts(cluster, group), ("configure", "verify_node"), joins)


def image_script(cluster):
    """The script that installs what any node of the cluster carries, on the machine of which the image is made."""
    carried = dict.fromkeys(each for group in cluster["nodes"] for each in groups(cluster, group))
    known = facts(cluster, cluster["nodes"][0])
    del known["instance_type"]
    types = [group["type"] for group in cluster["nodes"] if accelerated(group["type"])]
    if types:
        known["muster_image_types"] = list(dict.fromkeys(types))
    return _filled(cluster, carried, known, IMAGE_PHASES)


def _filled(cluster, carried, known, phases, joins=False):
    found = SCRIPT.replace("@JOIN@", JOIN if joins else "").replace("@SLURM@", JOIN_LAST if joins else "")
    found = found.replace("@MORE@", JOIN_MORE if joins else "")
    found = found.replace("@NODE_TAG@", NODE_TAG).replace("@SECRET@", slurm_secret(cluster["name"]))
    found = found.replace("@COLLECTION@", cluster["setup"]["collection"]).replace("@HOME@", HOME)
    found = found.replace("@GROUPS@", " ".join(carried)).replace("@PHASES@", " ".join(phases))
    return found.replace("@FACTS@", json.dumps(known, indent=1, sort_keys=True))


def user_data(cluster, group, form="%s"):
    """The script as user data in a template: text, or text joined with exports of the stack fsx. form: what is around it."""
    pieces = re.split(r"\$\{(%s)\}" % "|".join(LUSTRE_EXPORTS), form % script(cluster, group))
    if len(pieces) == 1:
        return pieces[0]
    exports = ["%s-fsx-%s" % (cluster["name"], LUSTRE_EXPORTS[name]) for name in pieces[1::2]]
    joined = pieces[:1]
    for export, piece in zip(exports, pieces[2::2]):
        joined += [{"Fn::ImportValue": export}, piece]
    return {"Fn::Join": ["", joined]}
