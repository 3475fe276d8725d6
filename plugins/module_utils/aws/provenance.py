# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The provenance of an image: an in-toto statement of SLSA's type, in a DSSE envelope.

The same image always gives the same bytes, so that nothing is signed twice.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
PAYLOAD = "application/vnd.in-toto+json"
BUILD_TYPE = "urn:muster:image:1"
# The AMI's tags: the envelope's sha256 and its path.
DIGEST_TAG = "muster:provenance"
LOCATION_TAG = "muster:provenance_at"
# KMS signs messages up to this size without a digest.
MOST_MESSAGE = 4096


class ProvenanceError(ValueError):
    """A statement is missing or wrong; the text is one sentence for the user."""


def digest(data):
    """sha256 of bytes."""
    return hashlib.sha256(data).hexdigest()


def arn(region, image_id):
    """The name of an AMI in a statement."""
    partition = "aws-cn" if region.startswith("cn-") else "aws-us-gov" if region.startswith("us-gov-") else "aws"
    return "arn:%s:ec2:%s::image/%s" % (partition, region, image_id)


def statement(image, region, manifest, sbom, builder):
    """The statement's bytes. `image` is an entry of DescribeImages; `manifest` and `sbom` are the contents of the image's files."""
    try:
        stack = json.loads(manifest).get("stack") or {}
    except (ValueError, AttributeError):
        raise ProvenanceError("The manifest is not a JSON object; give the manifest.json that was kept when the image was made.") from None
    name = arn(region, image["ImageId"])
    files = (("/etc/muster/manifest.json", manifest), ("/etc/muster/sbom.cdx.json", sbom))
    depends = [{"name": stack["name"], "digest": {"sha256": stack["sha256"]}}] if stack.get("sha256") else []
    if image.get("SourceImageId"):
        depends.append({"uri": arn(image.get("SourceImageRegion") or region, image["SourceImageId"])})
    document = {
        "_type": STATEMENT,
        "subject": [{"name": path, "uri": name, "digest": {"sha256": digest(content)}} for path, content in files],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"name": image.get("Name", ""), "architecture": image.get("Architecture", "")},
                "resolvedDependencies": depends,
            },
            "runDetails": {"builder": {"id": builder}, "metadata": {"finishedOn": image["CreationDate"]}},
        },
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def message(payload):
    """The bytes that are signed for a payload (DSSE's pre-authentication encoding)."""
    kind = PAYLOAD.encode()
    out = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
    if len(out) > MOST_MESSAGE:
        raise ProvenanceError(
            "The statement has %d bytes and KMS signs at most %d; give the image or builder a shorter name." % (len(out), MOST_MESSAGE)
        )
    return out


def envelope(payload, key_id, signature):
    """The envelope's bytes."""
    signatures = [{"keyid": key_id, "sig": base64.b64encode(signature).decode()}]
    document = {"payload": base64.b64encode(payload).decode(), "payloadType": PAYLOAD, "signatures": signatures}
    return (json.dumps(document, sort_keys=True) + "\n").encode()


def opened(data, where):
    """(payload, signature) of an envelope, which is not verified yet."""
    try:
        document = json.loads(data)
        if document["payloadType"] != PAYLOAD or len(document["signatures"]) != 1:
            raise ValueError("it is of another kind")
        return tuple(base64.b64decode(text, validate=True) for text in (document["payload"], document["signatures"][0]["sig"]))
    except (ValueError, KeyError, TypeError, binascii.Error):
        raise ProvenanceError("%s is not a signed statement; sign the image again." % where) from None


def check_statement(payload, image_id, region, files, where):
    """Refuse a statement of a valid signature that is about another image or other files. `files` are contents by path."""
    try:
        document = json.loads(payload)
        subject = {each["name"]: (each["uri"], each["digest"]["sha256"]) for each in document["subject"]}
        kinds = (document["_type"], document["predicateType"], document["predicate"]["buildDefinition"]["buildType"])
    except (ValueError, KeyError, TypeError):
        raise ProvenanceError("%s has no statement about an image; sign the image again." % where) from None
    if kinds != (STATEMENT, PREDICATE, BUILD_TYPE) or not subject:
        raise ProvenanceError("%s has no statement about an image; sign the image again." % where)
    for uri, _found in subject.values():
        if uri != arn(region, image_id):
            raise ProvenanceError("The statement at %s is about %s, not about %s; do not launch it." % (where, uri, image_id))
    for path, content in files.items():
        if subject.get(path, ("", ""))[1] != digest(content):
            raise ProvenanceError(
                "%s of AMI %s is not the file that the statement at %s names; do not launch it." % (path, image_id, where)
            )


def envelope_path(location, image_id):
    """(service, bucket, name) of an image's envelope under a location such as s3://bucket/prefix or ssm:/prefix."""
    name = "%s.dsse.json" % image_id
    if location.startswith("s3://") and location[5:].split("/")[0]:
        bucket, _slash, prefix = location[5:].partition("/")
        prefix = prefix.strip("/")
        return "s3", bucket, "%s/%s" % (prefix, name) if prefix else name
    if location.startswith("ssm:/"):
        return "ssm", "", "%s/%s" % (location[4:].rstrip("/"), image_id)
    raise ProvenanceError("Location %r is neither s3://BUCKET/PREFIX nor ssm:/PREFIX; give one of them." % location)


def algorithm(key, algorithms):
    """The algorithm with which a KMS key signs."""
    for each in ("ECDSA_SHA_256", "RSASSA_PSS_SHA_256"):
        if each in algorithms:
            return each
    raise ProvenanceError("KMS key %s cannot sign images; create one of type ECC_NIST_P256 or RSA_2048 and above, for SIGN_VERIFY." % key)
