#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: image_provenance
short_description: Sign the provenance of an AMI, and verify it
version_added: 0.1.0
description:
  - With O(state=signed) makes an in-toto statement with a SLSA v1 provenance over the digests of the AMI's manifest and SBOM, signs it,
    keeps it as a DSSE envelope in S3 or Systems Manager, and tags the AMI with the envelope's digest and location.
  - With O(state=verified) checks whether the envelope is the one that the AMI's tag names, is signed by the given key, and is about this
    AMI. What does not fit is an error. The key that an envelope names is never trusted.
  - A copy in another region is another AMI and needs its own signature.
author:
  - The Muster developers (@muster-fleet)
extends_documentation_fragment:
  - muster.fleet.aws
options:
  image_id:
    description: The AMI.
    type: str
    required: true
  state:
    description: Whether to sign or to verify.
    type: str
    choices: [signed, verified]
    default: verified
  manifest:
    description: The image's V(manifest.json), a file on this machine. Required to sign; when given to verify, it must be the signed one.
    type: path
  sbom:
    description: The image's V(sbom.cdx.json), likewise.
    type: path
  location:
    description: V(s3://BUCKET/PREFIX) or V(ssm:/PREFIX). Without it, verification reads the location from the AMI's tag.
    type: str
  kms_key_id:
    description: Id, ARN or alias of an asymmetric KMS key for signing, ECC_NIST_P256 or RSA. The key never leaves KMS.
    type: str
  private_key:
    description: The PEM file of a private key on this machine, EC P-256 or RSA, without a pass phrase. C(openssl) reads it.
    type: path
  public_key:
    description: The PEM file of the public key for verification, of a private key or of a KMS key.
    type: path
  required:
    description: With V(false) an AMI without a statement passes with a warning. A statement that does not fit always fails.
    type: bool
    default: true
  builder:
    description: A URI of the builder of the image.
    type: str
    default: urn:muster:packer
attributes:
  check_mode:
    description: Reports whether it would be signed.
    support: full
  diff_mode:
    description: Shows the statement and the tags.
    support: full
"""

EXAMPLES = r"""
- name: Sign an image with a key that never leaves KMS
  muster.fleet.image_provenance:
    region: us-east-1
    image_id: ami-0123456789abcdef0
    state: signed
    manifest: image/manifest.json
    sbom: image/sbom.cdx.json
    location: s3://my-images/provenance
    kms_key_id: alias/image-signing

- name: Refuse any other image
  muster.fleet.image_provenance:
    region: us-east-1
    image_id: ami-0123456789abcdef0
    public_key: keys/image-signing.pem
"""

RETURN = r"""
verified:
  description: Whether the AMI has a statement that fits.
  returned: success
  type: bool
path:
  description: The path of the envelope.
  returned: when there is one
  type: str
statement:
  description: The statement.
  returned: when there is one
  type: dict
"""

import json
import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.aws import ami
from ansible_collections.muster.fleet.plugins.module_utils.aws import provenance as logic
from ansible_collections.muster.fleet.plugins.module_utils.aws.accounts import ARGUMENTS, Accounts, AwsError, Region

PADDING = ["-sigopt", "rsa_padding_mode:pss", "-sigopt", "rsa_pss_saltlen:%s"]
NOTHING = ("NoSuchKey", "NoSuchBucket", "ParameterNotFound", "404")
NO_KEY = ("NotFoundException", "InvalidArnException")


def read(path):
    try:
        with open(path, "rb") as handle:
            return handle.read()
    except OSError as error:
        raise logic.ProvenanceError("%s cannot be read (%s); give a readable file on this machine." % (path, error.strerror)) from error


class KmsKey:
    """A key in KMS."""

    def __init__(self, region, key):
        self.region = region
        try:
            about = region.call("kms", "DescribeKey", KeyId=key)["KeyMetadata"]
        except AwsError as error:
            if error.code not in NO_KEY:
                raise
            raise logic.ProvenanceError("Region %s has no KMS key %s; give one of that region." % (region.name, key)) from error
        if about["KeyState"] != "Enabled":
            raise logic.ProvenanceError("KMS key %s is %s; give one that is enabled." % (key, about["KeyState"]))
        self.name = about["Arn"]
        self.algorithm = logic.algorithm(key, about.get("SigningAlgorithms") or ())

    def sign(self, message):
        """A signature."""
        return self._call("Sign", Message=message)["Signature"]

    def fits(self, message, signature):
        """Whether a signature is from this key."""
        try:
            return self._call("Verify", Message=message, Signature=signature)["SignatureValid"]
        except AwsError as error:
            if error.code == "KMSInvalidSignatureException":
                return False
            raise

    def _call(self, action, **more):
        return self.region.call("kms", action, KeyId=self.name, MessageType="RAW", SigningAlgorithm=self.algorithm, **more)


class FileKey:
    """A key in a file, which openssl reads; only its path appears on a command line."""

    def __init__(self, module, path, private):
        self.module = module
        self.path = path
        read(path)
        # Give an empty pass phrase, or openssl would ask for one on the terminal.
        source = ["-in", path, "-passin", "pass:"] if private else ["-pubin", "-in", path]
        rc, out, _err = self._run("pkey", *source, "-pubout", "-text_pub", "-noout")
        self.padding = PADDING if "Modulus:" in out else []
        if rc != 0 or not ("Modulus:" in out or "prime256v1" in out):
            kind = "private" if private else "public"
            raise logic.ProvenanceError("%s is not a %s key of EC P-256 or RSA in PEM without a pass phrase; give one." % (path, kind))
        self.public = path
        if private:
            self.public = self._file("public.pem")
            self._run("pkey", *source, "-pubout", "-out", self.public)
        self.name = "sha256:" + logic.digest(read(self.public).strip())

    def _file(self, name, content=b""):
        path = os.path.join(self.module.tmpdir, name)
        with open(path, "wb") as handle:
            handle.write(content)
        return path

    def _run(self, *argv):
        return self.module.run_command(["openssl", *argv], handle_exceptions=True)

    def sign(self, message):
        """A signature."""
        target = self._file("signature")
        files = ["-out", target, self._file("message", message)]
        rc, _out, err = self._run("dgst", "-sha256", "-sign", self.path, *self._options("digest"), *files)
        if rc != 0:
            raise logic.ProvenanceError("openssl cannot sign with %s (%s)." % (self.path, " ".join(err.split())))
        return read(target)

    def fits(self, message, signature):
        """Whether a signature is from this key."""
        files = ["-signature", self._file("signature", signature), self._file("message", message)]
        return self._run("dgst", "-sha256", "-verify", self.public, *self._options("auto"), *files)[0] == 0

    def _options(self, salt):
        return [each.replace("%s", salt) for each in self.padding]


def key_of(module, region):
    """The trusted key."""
    options = module.params
    if options["kms_key_id"]:
        return KmsKey(region, options["kms_key_id"])
    return FileKey(module, options["private_key"] or options["public_key"], bool(options["private_key"]))


def fetch(region, service, bucket, name):
    """An envelope's bytes, or None."""
    try:
        if service == "s3":
            return region.call("s3", "GetObject", Bucket=bucket, Key=name)["Body"].read()
        return region.call("ssm", "GetParameter", Name=name)["Parameter"]["Value"].encode()
    except AwsError as error:
        if error.code in NOTHING:
            return None
        raise


def store(region, service, bucket, name, data):
    if service == "s3":
        region.call("s3", "PutObject", Bucket=bucket, Key=name, Body=data, ContentType="application/json")
    else:
        region.call("ssm", "PutParameter", Name=name, Value=data.decode(), Type="String", Overwrite=True)


def verify(region, image, key, files, found):
    """The statement of an envelope that fits the AMI; ProvenanceError names the fault. `found` is the envelope and its path."""
    (data, where), image_id = found, image["ImageId"]
    if "sha256:" + logic.digest(data) != ami.tags_of(image).get(logic.DIGEST_TAG):
        raise logic.ProvenanceError(
            "The envelope at %s is not the one that tag %s of AMI %s names; do not launch it." % (where, logic.DIGEST_TAG, image_id)
        )
    payload, signature = logic.opened(data, where)
    if not key.fits(logic.message(payload), signature):
        raise logic.ProvenanceError("The signature at %s is not of key %s; do not launch AMI %s." % (where, key.name, image_id))
    logic.check_statement(payload, image_id, region.name, files, where)
    return payload


def contents(options):
    """The given files' contents, by their paths in the image."""
    named = (("/etc/muster/manifest.json", options["manifest"]), ("/etc/muster/sbom.cdx.json", options["sbom"]))
    return {path: read(given) for path, given in named if given}


def main():
    module = AnsibleModule(
        argument_spec={
            **ARGUMENTS,
            "image_id": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["signed", "verified"], "default": "verified"},
            "manifest": {"type": "path"},
            "sbom": {"type": "path"},
            "location": {"type": "str"},
            "kms_key_id": {"type": "str"},
            "private_key": {"type": "path", "no_log": False},
            "public_key": {"type": "path", "no_log": False},
            "required": {"type": "bool", "default": True},
            "builder": {"type": "str", "default": "urn:muster:packer"},
        },
        mutually_exclusive=[("kms_key_id", "private_key", "public_key")],
        required_one_of=[("kms_key_id", "private_key", "public_key")],
        required_if=[("state", "signed", ("manifest", "sbom", "location"))],
        supports_check_mode=True,
    )
    try:
        ami.check_image_id(module.params["image_id"])
        region = Region(Accounts(module.params, who="image_provenance"))
        run(module, region, module.params)
    except (ami.AmiError, logic.ProvenanceError, AwsError) as error:
        module.fail_json(msg=str(error))


def run(module, region, options):
    """Sign or verify."""
    image_id = options["image_id"]
    if options["state"] == "signed" and options["public_key"]:
        raise logic.ProvenanceError("A public key cannot sign; give kms_key_id or private_key.")
    image = region.image(image_id)
    tags = ami.tags_of(image)
    location = options["location"] or tags.get(logic.LOCATION_TAG)
    if logic.DIGEST_TAG not in tags and options["state"] == "verified":
        said = "AMI %s in region %s has no provenance (no tag %s)" % (image_id, region.name, logic.DIGEST_TAG)
        if options["required"]:
            raise logic.ProvenanceError(said + "; sign it, or do not launch it.")
        module.warn(said + ".")
        module.exit_json(changed=False, verified=False)
    if not location:
        raise logic.ProvenanceError("Tag %s of AMI %s is missing; give the location." % (logic.LOCATION_TAG, image_id))
    key = key_of(module, region)
    files = contents(options)
    path = logic.envelope_path(location, image_id)
    where = "s3://%s/%s" % path[1:] if path[0] == "s3" else "ssm:%s" % path[2]
    data = fetch(region, *path)
    if options["state"] == "verified":
        if data is None:
            raise logic.ProvenanceError("AMI %s has no statement at %s; sign it, or do not launch it." % (image_id, where))
        payload = verify(region, image, key, files, (data, where))
        module.exit_json(changed=False, verified=True, path=where, statement=json.loads(payload))
    payload = logic.statement(image, region.name, *files.values(), options["builder"])
    logic.message(payload)
    try:
        done = data is not None and tags.get(logic.LOCATION_TAG) == location
        done = done and verify(region, image, key, files, (data, where)) == payload
    except logic.ProvenanceError:
        done = False
    before = {name: tags.get(name, "") for name in (logic.DIGEST_TAG, logic.LOCATION_TAG)}
    after = before
    if not done:
        after = {**before, logic.LOCATION_TAG: location, logic.DIGEST_TAG: "of a new signature"}
        if not module.check_mode:
            data = logic.envelope(payload, key.name, key.sign(logic.message(payload)))
            after[logic.DIGEST_TAG] = "sha256:" + logic.digest(data)
            store(region, *path, data)
            named = [{"Key": name, "Value": value} for name, value in after.items()]
            region.call("ec2", "CreateTags", Resources=[image_id], Tags=named)
    document = json.loads(payload)
    module.exit_json(
        changed=not done,
        verified=done or not module.check_mode,
        path=where,
        statement=document,
        diff={"before": before, "after": {**after, "statement": document} if not done else after},
    )


if __name__ == "__main__":
    main()
