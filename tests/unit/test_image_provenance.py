# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What is signed verifies, and nothing else does; over moto's KMS, S3 and Systems Manager, and with openssl's keys."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from local_cloud_api import AMI

from ansible_collections.muster.fleet.plugins.module_utils.aws import ami
from ansible_collections.muster.fleet.plugins.module_utils.aws import provenance as logic
from ansible_collections.muster.fleet.plugins.modules import image_provenance as module

HOME = "us-east-1"
MANIFEST = {"components": {}, "packages": {}, "stack": {"name": "debian-13", "sha256": "a" * 64}}


def openssl(*argv: object) -> None:
    subprocess.run(["openssl", *map(str, argv)], check=True, capture_output=True)


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Key pairs NAME.pem and NAME.pub.pem: ec, rsa, other; and ed25519 and locked, which cannot be used."""
    folder = tmp_path_factory.mktemp("keys")
    curve = ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
    kinds = {"ec": curve, "other": curve, "rsa": ("-algorithm", "RSA"), "ed25519": ("-algorithm", "ED25519")}
    for name, kind in kinds.items():
        openssl("genpkey", *kind, "-out", folder / f"{name}.pem")
        openssl("pkey", "-in", folder / f"{name}.pem", "-pubout", "-out", folder / f"{name}.pub.pem")
    openssl("genpkey", *curve, "-aes256", "-pass", "pass:x", "-out", folder / "locked.pem")
    return folder


@pytest.fixture
def house(served, machines, client, keys, tmp_path, *, call, monkeypatch) -> SimpleNamespace:
    """An AMI, its files, a bucket and the module."""
    for key, value in served.env.items():
        monkeypatch.setenv(key, value)
    client("s3").create_bucket(Bucket="images")
    ec2 = client("ec2")
    one = ec2.run_instances(ImageId=AMI, InstanceType="c6i.large", MinCount=1, MaxCount=1)["Instances"][0]["InstanceId"]
    image, other = (ec2.create_image(InstanceId=one, Name=name)["ImageId"] for name in ("slurm-1", "slurm-2"))
    (tmp_path / "manifest.json").write_text(json.dumps(MANIFEST))
    (tmp_path / "sbom.cdx.json").write_text("{}\n")

    def run(**options: object) -> dict:
        given = {"region": HOME, "image_id": image, **options}
        return call(module, **{key: value for key, value in given.items() if value is not None})

    def sign(**options: object) -> dict:
        files = {"manifest": tmp_path / "manifest.json", "sbom": tmp_path / "sbom.cdx.json"}
        given = {"state": "signed", "location": "s3://images/p/", **{key: str(value) for key, value in files.items()}, **options}
        return run(**({} if "kms_key_id" in options else {"private_key": str(keys / "ec.pem")}) | given)

    return SimpleNamespace(image=image, other=other, run=run, sign=sign, files=tmp_path, s3=client("s3"), ec2=ec2)


def tags(ec2, image: str) -> dict[str, str]:
    return ami.tags_of(ec2.describe_images(ImageIds=[image])["Images"][0])


def kms_key(client, spec: str = "ECC_NIST_P256") -> str:
    return client("kms").create_key(KeyUsage="SIGN_VERIFY", KeySpec=spec)["KeyMetadata"]["Arn"]


def public_half(client, key: str, path: Path) -> str:
    """What a person without access to KMS verifies with."""
    raw = client("kms").get_public_key(KeyId=key)["PublicKey"]
    path.with_suffix(".der").write_bytes(raw)
    openssl("pkey", "-pubin", "-inform", "DER", "-in", path.with_suffix(".der"), "-out", path)
    return str(path)


@pytest.mark.parametrize(
    ("kind", "location"),
    [("ec", "s3://images/p"), ("rsa", "ssm:/provenance"), ("ECC_NIST_P256", "ssm:/provenance"), ("RSA_2048", "s3://images")],
)
def test_what_is_signed_verifies_and_is_signed_once(house, client, keys, kind: str, location: str) -> None:
    if kind.isupper():
        key = kms_key(client, kind)
        signing = {"kms_key_id": key}
        trusted = [signing, {"public_key": public_half(client, key, house.files / "public.pem")}]
    else:
        signing = {"private_key": str(keys / f"{kind}.pem")}
        trusted = [signing, {"public_key": str(keys / f"{kind}.pub.pem")}]
    done = house.sign(location=location, **signing)
    assert (done["changed"], done["verified"]) == (True, True)
    assert tags(house.ec2, house.image)[logic.LOCATION_TAG] == location
    for each in trusted:
        seen = house.run(**each)
        assert (seen["verified"], seen["statement"], seen["path"]) == (True, done["statement"], done["path"])
    again = house.sign(location=location, **signing)
    assert (again["changed"], again["diff"]["before"]) == (False, again["diff"]["after"])


def test_the_statement_says_what_it_must(house) -> None:
    said = house.sign()["statement"]
    name = f"arn:aws:ec2:{HOME}::image/{house.image}"
    files = [(each["name"], each["uri"], each["digest"]["sha256"]) for each in said["subject"]]
    assert files == [
        ("/etc/muster/manifest.json", name, logic.digest((house.files / "manifest.json").read_bytes())),
        ("/etc/muster/sbom.cdx.json", name, logic.digest((house.files / "sbom.cdx.json").read_bytes())),
    ]
    assert (said["_type"], said["predicateType"]) == ("https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1")
    build = said["predicate"]["buildDefinition"]
    assert build["externalParameters"]["name"] == "slurm-1"
    assert build["resolvedDependencies"][0] == {"name": "debian-13", "digest": {"sha256": "a" * 64}}
    assert said["predicate"]["runDetails"]["builder"]["id"] == "urn:muster:packer"


def test_check_mode_signs_nothing(house, call, keys) -> None:
    would = house.sign(check_mode=True)
    assert (would["changed"], would["verified"], tags(house.ec2, house.image)) == (True, False, {})
    assert "Contents" not in house.s3.list_objects_v2(Bucket="images")


def object_of(house) -> tuple[dict, str]:
    key = f"p/{house.image}.dsse.json"
    return json.loads(house.s3.get_object(Bucket="images", Key=key)["Body"].read()), key


def put(house, data: bytes, tagged: bool = True) -> None:
    """Attacks of somebody who may write the bucket and the tags but does not have the key."""
    house.s3.put_object(Bucket="images", Key=f"p/{house.image}.dsse.json", Body=data)
    if tagged:
        value = {"Key": logic.DIGEST_TAG, "Value": "sha256:" + logic.digest(data)}
        house.ec2.create_tags(Resources=[house.image], Tags=[value])


def flipped(text: str, place: float) -> str:
    """The same Base64 text with one changed byte."""
    data = bytearray(base64.b64decode(text))
    data[int(place * (len(data) - 1))] ^= 1
    return base64.b64encode(bytes(data)).decode()


@pytest.mark.parametrize("part", ["payload", "signature"])
@pytest.mark.parametrize("key", ["file", "kms"])
def test_one_changed_byte_is_refused(house, client, keys, *, part: str, key: str) -> None:
    signing = {"private_key": str(keys / "ec.pem")} if key == "file" else {"kms_key_id": kms_key(client)}
    house.sign(**signing)
    where = f"s3://images/p/{house.image}.dsse.json"
    whole, _key = object_of(house)
    for place in (0, 0.3, 0.7, 1):
        envelope = json.loads(json.dumps(whole))
        if part == "payload":
            envelope["payload"] = flipped(envelope["payload"], place)
        else:
            envelope["signatures"][0]["sig"] = flipped(envelope["signatures"][0]["sig"], place)
        data = json.dumps(envelope).encode()
        if not place:
            put(house, data, tagged=False)
            said = f"The envelope at {where} is not the one that tag muster:provenance of AMI {house.image} names; do not launch it."
            assert house.run(**signing)["msg"] == said
        put(house, data)
        result = house.run(**signing)
        assert result["failed"] and result["msg"].startswith(f"The signature at {where} is not of key ")
        assert result["msg"].endswith(f"; do not launch AMI {house.image}.")


@pytest.mark.parametrize("place", [0, 70])
def test_a_changed_digest_in_the_tag_is_refused(house, keys, place: int) -> None:
    house.sign()
    found = list(tags(house.ec2, house.image)[logic.DIGEST_TAG])
    found[place] = "0" if found[place] != "0" else "1"
    house.ec2.create_tags(Resources=[house.image], Tags=[{"Key": logic.DIGEST_TAG, "Value": "".join(found)}])
    said = house.run(public_key=str(keys / "ec.pub.pem"))["msg"]
    assert said.startswith("The envelope at s3://images/p/") and "is not the one that tag muster:provenance" in said


def test_another_key_is_refused(house, client, keys) -> None:
    house.sign()
    for trusted in (
        {"public_key": str(keys / "other.pub.pem")},
        {"public_key": str(keys / "rsa.pub.pem")},
        {"kms_key_id": kms_key(client)},
    ):
        said = house.run(**trusted)["msg"]
        assert f"dsse.json is not of key {'arn:aws:kms' if 'kms_key_id' in trusted else 'sha256:'}" in said


def test_the_statement_of_another_image_is_refused(house, keys) -> None:
    house.sign(image_id=house.other)
    data = house.s3.get_object(Bucket="images", Key=f"p/{house.other}.dsse.json")["Body"].read()
    put(house, data)
    house.ec2.create_tags(Resources=[house.image], Tags=[{"Key": logic.LOCATION_TAG, "Value": "s3://images/p"}])
    where, other = f"s3://images/p/{house.image}.dsse.json", f"arn:aws:ec2:{HOME}::image/{house.other}"
    said = f"The statement at {where} is about {other}, not about {house.image}; do not launch it."
    assert house.run(public_key=str(keys / "ec.pub.pem"))["msg"] == said


@pytest.mark.parametrize("name", ["manifest", "sbom"])
def test_another_file_of_the_image_is_refused(house, keys, name: str) -> None:
    house.sign()
    (house.files / "other").write_text("{} \n")
    said = house.run(public_key=str(keys / "ec.pub.pem"), **{name: str(house.files / "other")})["msg"]
    path = {"manifest": "manifest.json", "sbom": "sbom.cdx.json"}[name]
    where = f"s3://images/p/{house.image}.dsse.json"
    assert said == f"/etc/muster/{path} of AMI {house.image} is not the file that the statement at {where} names; do not launch it."


@pytest.mark.parametrize(
    "data", [b"", b"{}", b'{"payload": "!", "payloadType": "application/vnd.in-toto+json", "signatures": [{"sig": ""}]}']
)
def test_what_is_no_envelope_is_refused(house, keys, data: bytes) -> None:
    house.sign()
    put(house, data)
    said = f"s3://images/p/{house.image}.dsse.json is not a signed statement; sign the image again."
    assert house.run(public_key=str(keys / "ec.pub.pem"))["msg"] == said


@pytest.mark.parametrize("kind", ["nothing", "predicateType", "_type"])
def test_a_signed_text_that_is_no_such_statement_is_refused(house, keys, tmp_path, kind: str) -> None:
    said = house.sign()["statement"]
    payload = json.dumps({"subject": []} if kind == "nothing" else {**said, kind: "https://example.com/other"}).encode()
    (tmp_path / "m").write_bytes(logic.message(payload))
    openssl("dgst", "-sha256", "-sign", keys / "ec.pem", "-out", tmp_path / "s", tmp_path / "m")
    put(house, logic.envelope(payload, "k", (tmp_path / "s").read_bytes()))
    assert house.run(public_key=str(keys / "ec.pub.pem"))["msg"].endswith("has no statement about an image; sign the image again.")


def test_none_is_refused_when_one_is_required(house, keys, monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[str] = []
    # Ansible shows it itself where its controller's side was imported, as other tests do.
    monkeypatch.setattr(module.AnsibleModule, "warn", lambda _self, text: warned.append(text))
    public = str(keys / "ec.pub.pem")
    said = f"AMI {house.image} in region {HOME} has no provenance (no tag muster:provenance)"
    assert house.run(public_key=public)["msg"] == said + "; sign it, or do not launch it."
    assert house.run(public_key=public, required=False)["verified"] is False
    assert warned == [said + "."]
    house.sign()
    house.s3.delete_object(Bucket="images", Key=f"p/{house.image}.dsse.json")
    gone = f"AMI {house.image} has no statement at s3://images/p/{house.image}.dsse.json; sign it, or do not launch it."
    assert house.run(public_key=public, required=False)["msg"] == gone


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"image_id": "ami-00000000000000000"}, f"Region {HOME} has no AMI ami-00000000000000000; is it the right region and account?"),
        ({"private_key": "/nonexistent"}, "/nonexistent cannot be read (No such file or directory); give a readable file on this machine."),
        ({"private_key": "ed25519.pem"}, "is not a private key of EC P-256 or RSA in PEM without a pass phrase; give one."),
        ({"private_key": "locked.pem"}, "is not a private key of EC P-256 or RSA in PEM without a pass phrase; give one."),
        ({"private_key": "ec.pub.pem"}, "is not a private key of EC P-256 or RSA in PEM without a pass phrase; give one."),
        ({"location": "/tmp"}, "Location '/tmp' is neither s3://BUCKET/PREFIX nor ssm:/PREFIX; give one of them."),
        ({"location": "s3://nowhere/p"}, f"PutObject failed in region {HOME} (NoSuchBucket: The specified bucket does not exist)."),
        ({"manifest": "/etc/hostname"}, "The manifest is not a JSON object; give the manifest.json that was kept when the image was made."),
        ({"kms_key_id": "alias/none"}, f"Region {HOME} has no KMS key alias/none; give one of that region."),
        ({"kms_key_id": "encrypting"}, "cannot sign images; create one of type ECC_NIST_P256 or RSA_2048 and above, for SIGN_VERIFY."),
    ],
)
def test_what_cannot_be_signed_is_refused_by_one_sentence(house, client, keys, *, options: dict, said: str) -> None:
    given = dict(options)
    if given.get("private_key", "/")[0] != "/":
        given["private_key"] = str(keys / given["private_key"])
    if given.get("kms_key_id") == "encrypting":
        given["kms_key_id"] = client("kms").create_key()["KeyMetadata"]["KeyId"]
    result = house.sign(**given)
    assert result["failed"] and result["msg"].endswith(said)
    assert tags(house.ec2, house.image) == {}


def test_a_denied_signature_is_named(house, client, fault) -> None:
    key = kms_key(client)
    fault(action="Sign", error="AccessDeniedException")
    assert house.sign(kms_key_id=key)["msg"].startswith(f"Sign is denied in region {HOME} (AccessDeniedException: ")
    assert tags(house.ec2, house.image) == {}
