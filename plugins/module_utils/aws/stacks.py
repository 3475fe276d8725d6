# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stack of CloudFormation brought into a state: made, changed, removed, or described. A run that was killed goes on where it stopped."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time

from ansible_collections.muster.fleet.plugins.module_utils.aws.accounts import AwsError
from ansible_collections.muster.fleet.plugins.module_utils.aws.plan import CLUSTER_TAG, PART_TAG
from ansible_collections.muster.fleet.plugins.module_utils.aws.template_batch import PLACEHOLDER

CAPABILITIES = ["CAPABILITY_NAMED_IAM"]
MOST_BYTES = 51200
STEADY = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "IMPORT_COMPLETE")
BROKEN = ("ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "CREATE_FAILED")
LONGEST_PAUSE = 10
# What the reason of a failed resource says -> the remedy.
REMEDIES = (
    ("InsufficientInstanceCapacity", "there is no such capacity now; name another zone or type, or a reservation"),
    ("ReservationCapacityExceeded", "the reservation has no room; lower count, or enlarge the reservation"),
    ("InvalidCapacityReservation", "correct the id of the reservation"),
    ("VcpuLimitExceeded", "ask for a higher quota of EC2"),
    ("LimitExceeded", "ask for a higher quota, or remove what is not used"),
    ("InvalidKeyPair", "correct key_pair, or leave it out"),
    ("not authorized", "allow the action to this identity; docs/architectures.md has the policy"),
    ("AccessDenied", "allow the action to this identity; docs/architectures.md has the policy"),
    ("UnauthorizedOperation", "allow the action to this identity; docs/architectures.md has the policy"),
    ("already exists", "somebody else has this name; choose another"),
    ("ExpiredToken", "the credentials expired; log in and run again, which goes on from here"),
    ("BucketNotEmpty", "remove the objects, or give delete_data"),
)


class StackError(AwsError):
    """CloudFormation cannot bring a stack to the requested state. The text is one sentence with the remedy."""


class Stack:
    """One stack of a cluster. region: an accounts.Region; wanted: {name, part, template, parameters} of plan.stacks()."""

    def __init__(self, region, cluster, wanted, timeout=3600):
        self.region, self.cluster, self.wanted, self.timeout = region, cluster["name"], wanted, timeout
        self.name = wanted["name"]
        self.tags = [{"Key": CLUSTER_TAG, "Value": self.cluster}, {"Key": PART_TAG, "Value": wanted["part"]}]
        self.body = json.dumps(wanted["template"], separators=(",", ":"))
        if len(self.body) > MOST_BYTES:
            message = "The template of stack %s has %d bytes, and CloudFormation takes %d; make fewer nodes or node groups of it."
            raise StackError(message % (self.name, len(self.body), MOST_BYTES))
        self.given = [{"ParameterKey": key, "ParameterValue": value} for key, value in sorted(wanted["parameters"].items())]

    def call(self, action, **more):
        return self.region.call("cloudformation", action, **more)

    def look(self):
        """The stack as DescribeStacks shows it, or None."""
        try:
            return self.call("DescribeStacks", StackName=self.name)["Stacks"][0]
        except AwsError as error:
            if error.code == "ValidationError" and "does not exist" in str(error):
                return None
            raise

    def mine(self, found):
        """Refuse a stack that somebody else made under this name."""
        tags = {each["Key"]: each["Value"] for each in found.get("Tags", [])}
        # One that was only reviewed has no tags and no resources yet.
        if tags.get(CLUSTER_TAG) != self.cluster and found["StackStatus"] != "REVIEW_IN_PROGRESS":
            owner = "of cluster %s" % tags[CLUSTER_TAG] if CLUSTER_TAG in tags else "not made by Muster"
            message = "Region %s has a stack %s that is %s; give this cluster another name."
            raise StackError(message % (self.region.name, self.name, owner))

    def settled(self, found):
        """The stack when nothing changes it any more; None when it is gone."""
        until, pause = time.monotonic() + self.timeout, 0.2
        while found and found["StackStatus"].endswith("_IN_PROGRESS") and found["StackStatus"] != "REVIEW_IN_PROGRESS":
            if time.monotonic() > until:
                message = "Stack %s is still %s after %d s; run again to wait longer."
                raise StackError(message % (self.name, found["StackStatus"], self.timeout))
            time.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE)
            found = self.look()
        return found

    def why(self, found):
        """The reasons of the resources that failed last, with a remedy."""
        reasons: list[str] = []
        for each in self.call("DescribeStackEvents", StackName=found["StackId"])["StackEvents"]:
            reason = each.get("ResourceStatusReason") or ""
            if each["ResourceType"] == "AWS::CloudFormation::Stack":
                # A run of failures ends with the event that began it.
                if each["ResourceStatus"] in ("CREATE_IN_PROGRESS", "UPDATE_IN_PROGRESS", "DELETE_IN_PROGRESS") and reasons:
                    break
            elif each["ResourceStatus"].endswith("_FAILED") and reason and "cancelled" not in reason:
                reasons.append("%s: %s" % (each["LogicalResourceId"], " ".join(reason.split()).rstrip(".")))
        said = "; ".join(reversed(reasons)) or (found.get("StackStatusReason") or "no reason is given").rstrip(".")
        remedy = next((remedy for mark, remedy in REMEDIES if mark in said), "mend the cause and run again")
        return "%s; %s." % (said, remedy)

    def present(self, check=False):
        """Make or change the stack; {changed, changes, before, after, outputs}."""
        found = self.look()
        if found:
            self.mine(found)
            found = found if check else self.settled(found)
        if found and found["StackStatus"] == "REVIEW_IN_PROGRESS" and not check:
            self.call("DeleteStack", StackName=self.name)
            found = self.settled(self.look())
        if found is None or found["StackStatus"] == "REVIEW_IN_PROGRESS":
            return self._create(check)
        if found["StackStatus"] in BROKEN:
            message = "Stack %s is %s: %s Then remove it by verb=down, and run verb=up again."
            raise StackError(message % (self.name, found["StackStatus"], self.why(found)))
        if found["StackStatus"] not in STEADY and not found["StackStatus"].endswith("_IN_PROGRESS"):
            raise StackError("Stack %s is %s: %s" % (self.name, found["StackStatus"], self.why(found)))
        before = json.loads(json.dumps(self.call("GetTemplate", StackName=self.name)["TemplateBody"]))
        before = json.loads(before) if isinstance(before, str) else before
        known = {each["ParameterKey"]: each.get("ParameterValue", "") for each in found.get("Parameters", [])}
        given = {each["ParameterKey"]: each["ParameterValue"] for each in self.given}
        same = before == self.wanted["template"] and all(known.get(key) == value for key, value in given.items())
        states = {
            "before": {"parameters": known, "template": before},
            "after": {"parameters": {**known, **given}, "template": self.wanted["template"]},
        }
        if same:
            return {"changed": False, "changes": [], "outputs": outputs(found), **states}
        changes, apply = self._change_set()
        if changes is None:
            return {"changed": False, "changes": [], "outputs": outputs(found), **states}
        if check:
            self.call("DeleteChangeSet", StackName=self.name, ChangeSetName=apply)
            return {"changed": True, "changes": changes, "outputs": outputs(found), **states}
        self.call("ExecuteChangeSet", StackName=self.name, ChangeSetName=apply)
        found = self.settled(self.look())
        if found["StackStatus"] != "UPDATE_COMPLETE":
            raise StackError("Stack %s was not changed, and is as it was: %s" % (self.name, self.why(found)))
        return {"changed": True, "changes": changes, "outputs": outputs(found), **states}

    def _create(self, check):
        resources = self.wanted["template"]["Resources"]
        changes = [{"action": "Add", "resource": name, "type": each["Type"]} for name, each in resources.items()]
        states = {"before": {}, "after": {"parameters": self.wanted["parameters"], "template": self.wanted["template"]}}
        if check:
            return {"changed": True, "changes": changes, "outputs": {}, **states}
        more = {"TemplateBody": self.body, "Parameters": self.given, "Tags": self.tags, "Capabilities": CAPABILITIES}
        try:
            self.call("CreateStack", StackName=self.name, **more)
        except AwsError as error:
            if "No export named" in str(error):
                message = "Stack %s imports what no stack of region %s exports (%s); correct vpc.stack, or make the VPC first."
                raise StackError(message % (self.name, self.region.name, str(error).rstrip("."))) from error
            raise
        found = self.settled(self.look())
        if found is None or found["StackStatus"] != "CREATE_COMPLETE":
            raise StackError("Stack %s was not made: %s" % (self.name, self.why(found) if found else "somebody deleted it meanwhile."))
        return {"changed": True, "changes": changes, "outputs": outputs(found), **states}

    def _change_set(self):
        """([change], name) of a new change set; (None, name) when nothing would change."""
        name = "muster-%d" % time.time_ns()
        more = {"TemplateBody": self.body, "Parameters": self.given, "Tags": self.tags, "Capabilities": CAPABILITIES}
        self.call("CreateChangeSet", StackName=self.name, ChangeSetName=name, ChangeSetType="UPDATE", **more)
        until, pause = time.monotonic() + self.timeout, 0.2
        while True:
            found = self.call("DescribeChangeSet", StackName=self.name, ChangeSetName=name)
            if found["Status"] not in ("CREATE_PENDING", "CREATE_IN_PROGRESS"):
                break
            if time.monotonic() > until:
                raise StackError("The change set of stack %s is not ready after %d s; run again." % (self.name, self.timeout))
            time.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE)
        if found["Status"] == "FAILED":
            self.call("DeleteChangeSet", StackName=self.name, ChangeSetName=name)
            reason = found.get("StatusReason") or ""
            if "didn't contain changes" in reason or "No updates are to be performed" in reason:
                return None, name
            raise StackError("Stack %s cannot be changed: %s." % (self.name, reason.rstrip(".")))
        changes = [each["ResourceChange"] for each in found.get("Changes", [])]
        told = [
            {
                "action": each["Action"],
                "resource": each["LogicalResourceId"],
                "type": each["ResourceType"],
                **({"replacement": each["Replacement"]} if each.get("Replacement") else {}),
            }
            for each in changes
        ]
        return told, name

    def absent(self, check=False, keep=False):
        """Remove the stack and nothing that it did not make; {changed, kept}, kept: [{type, id}] of what stays with its data.

        keep: whether a stack with data stays as it is, so that the next verb=up finds the data in it.
        """
        found = self.look()
        if found is None:
            return {"changed": False, "kept": []}
        self.mine(found)
        self._check_imports(found)
        resources = self.call("DescribeStackResources", StackName=self.name)["StackResources"]
        retain = {name for name, each in self.wanted["template"]["Resources"].items() if each.get("DeletionPolicy") == "Retain"}
        kept = [
            {"type": each["ResourceType"], "id": each["PhysicalResourceId"]}
            for each in resources
            if each["LogicalResourceId"] in retain and each.get("PhysicalResourceId")
        ]
        if keep and kept and found["StackStatus"] in STEADY:
            return {"changed": False, "kept": kept}
        if check:
            return {"changed": True, "kept": kept}
        found = found if found["StackStatus"] == "DELETE_IN_PROGRESS" else self.settled(found)
        if found and found["StackStatus"] != "DELETE_IN_PROGRESS":
            self.call("DeleteStack", StackName=self.name)
        found = self.settled(self.look())
        if found and found["StackStatus"] != "DELETE_COMPLETE":
            raise StackError("Stack %s is %s and not removed: %s" % (self.name, found["StackStatus"], self.why(found)))
        return {"changed": True, "kept": kept}

    def _check_imports(self, found):
        """Refuse to remove a stack whose exports others use, before anything is deleted."""
        for each in found.get("Outputs", []):
            if "ExportName" not in each:
                continue
            try:
                users = self.call("ListImports", ExportName=each["ExportName"])["Imports"]
            except AwsError as error:
                if "not imported" not in str(error):
                    raise
                continue
            message = "Stack %s is in use by stack %s, which imports %s; remove that one first."
            raise StackError(message % (self.name, users[0], each["ExportName"]))


def outputs(found):
    return {each["OutputKey"]: each["OutputValue"] for each in found.get("Outputs", [])}


def store_key(region, secret, check=False):
    """Put a new private key into the secret of a Batch stack that holds none; True when it did. Its value is in no output and no log."""
    if region.call("secretsmanager", "GetSecretValue", SecretId=secret).get("SecretString", PLACEHOLDER) != PLACEHOLDER:
        return False
    if not check:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "key")
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "muster", "-f", path]
            try:
                subprocess.run(command, check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError) as error:
                raise StackError("ssh-keygen, which makes the key of the jobs, failed (%s); install OpenSSH's client." % error) from error
            with open(path, encoding="ascii") as file:
                region.call("secretsmanager", "PutSecretValue", SecretId=secret, SecretString=file.read())
    return True
