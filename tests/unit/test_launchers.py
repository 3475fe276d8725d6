# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What each launcher makes of a job document."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from botocore.session import get_session
from botocore.validate import ParamValidator

from ansible_collections.muster.fleet.plugins.module_utils.jobs import batch, kubernetes, sagemaker, start, target, torchrun
from ansible_collections.muster.fleet.plugins.module_utils.jobs import document as job
from ansible_collections.muster.fleet.plugins.module_utils.jobs.launchers import files

STACK = {"aws_ofi_nccl": {"version": "1.19.0"}, "efa": {"version": "1.48.0"}, "nccl": {"version": "2.30.4"}}
TRAIN = {
    "name": "train.8b",
    "command": ["python", "-m", "trainer", "train", "--lr", "1e-4", "$(HOME)", "it's $$"],
    "image": "registry/trainer:1",
    "nodes": 4,
    "procs_per_node": 8,
    "cpus_per_proc": 12,
    "time_limit": 90,
    "env": {"NCCL_DEBUG": "TRACE", "GREETING": "a $(b) c"},
    "mounts": ["/data:/data:ro"],
}
HOSTS = [{"name": f"node-{number}", "address": f"10.0.0.{number}", "ssh": ["ssh", f"node-{number}"]} for number in range(1, 5)]
KINDS = [*job.LAUNCHERS]
NEEDS: dict[str, dict[str, Any]] = {
    "batch": {"queue": "gpu", "execution_role": "arn:aws:iam::123456789012:role/execution"},
    "sagemaker": {"role": "arn:aws:iam::123456789012:role/train", "output": "s3://bucket/jobs"},
    "torchrun": {"hosts": HOSTS},
}


def aim(kind: str, **change: Any) -> dict[str, Any]:
    on_p5 = {} if kind == "slurm" else {"instance_type": "p5.48xlarge", "stack": STACK}
    return target.load(kind, {**on_p5, **NEEDS.get(kind, {}), **change})


def fitting(kind: str) -> dict[str, Any]:
    """TRAIN as far as the launcher can express it."""
    left = {"sagemaker": ("mounts",), "torchrun": ("mounts", "image")}.get(kind, ())
    return {field: value for field, value in TRAIN.items() if field not in left}


def loaded(kind: str, **change: Any) -> tuple[dict[str, Any], str]:
    document = job.load({**fitting(kind), **change}, kind)
    return document, job.identity(document)


def rendered(kind: str, where: dict[str, Any] | None = None, **change: Any) -> str:
    document, identity = loaded(kind, **change)
    return "".join(files(document, identity, where or aim(kind)).values())


# Field -> a value beside the one of TRAIN. Each changes what the service gets, or is refused by a sentence that has the field's name.
OTHER = {
    "name": "other",
    "command": ["true"],
    "image": "registry/other:2",
    "venv": "/opt/venv",
    "nodes": 3,
    "procs_per_node": 4,
    "cpus_per_proc": 2,
    "gpus_per_node": 4,
    "env": {"A": "1"},
    "secrets": {"TOKEN": {"from": "file", "path": "/data/token"}},
    "mounts": ["/scratch:/scratch"],
    "time_limit": 7,
    "retries": 2,
    "launcher": {"profile": {"tool": "nsys"}},
}


def without_name(text: str, kind: str) -> str:
    """A rendering without the identity and what derives from it, which every change of a document changes."""
    return re.sub(r"--master-port=\d+", "", re.sub(r"[0-9a-f]{12}\b|\b[0-9a-f]{64}\b", "", text))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("field", [field for field in job.FIELDS if field != "schema"])
def test_every_field_of_the_document_is_rendered_or_refused_by_name(kind: str, field: str) -> None:
    change = {field: OTHER[field]}
    if field == "venv":
        change["image"] = ""
        change["mounts"] = []
    where = aim(kind, image="registry/default:1") if field == "venv" and kind != "slurm" else aim(kind)
    before = without_name(rendered(kind), kind)
    try:
        after = without_name(rendered(kind, where, **change), kind)
    except job.JobError as error:
        said = {"gpus_per_node": "GPUs", "secrets": "secret"}.get(field, field)
        assert said in str(error), str(error)
        assert str(error).count("\n") == 0
        return
    if field == "venv":
        assert "/opt/venv" in after
    assert after != before


@pytest.mark.parametrize("kind", KINDS)
def test_a_secret_is_a_reference_in_every_rendering(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = "hf_0123456789secret"
    monkeypatch.setenv("TOKEN", value)
    (tmp_path / "token").write_text(value)
    references = {
        "file": {"from": "file", "path": "/data/token"},
        "env": {"from": "env", "name": "TOKEN"},
        "kubernetes": {"from": "kubernetes", "secret": "hf", "key": "token"},
        "secretsmanager": {"from": "secretsmanager", "id": "arn:aws:secretsmanager:us-east-1:123456789012:secret:hf"},
    }
    for source, reference in references.items():
        try:
            text = rendered(kind, secrets={"TOKEN": reference})
        except job.JobError as error:
            assert source not in job.SECRETS_OF[kind] or kind == "sagemaker", str(error)
            assert "TOKEN" in str(error)
            continue
        assert source in job.SECRETS_OF[kind]
        assert value not in text
        assert "TOKEN" in text


def test_the_target_says_where_a_secret_of_the_document_is_kept_there() -> None:
    secrets = {"TOKEN": {"from": "file", "path": "/fsx/home/muster/.token"}}
    kept = {"TOKEN": {"from": "kubernetes", "secret": "hf", "key": "token"}}
    text = rendered("jobset", aim("jobset", secrets=kept), secrets=secrets)
    assert '"secretKeyRef"' in text and "/fsx/home" not in text
    with pytest.raises(job.JobError, match="no mount brings into the container"):
        rendered("jobset", secrets=secrets)
    with pytest.raises(job.JobError, match=r"batch takes secrets from secretsmanager or file, and TOKEN is from kubernetes; say where"):
        rendered("batch", secrets=kept)


@pytest.mark.parametrize("kind", job.KUBERNETES)
def test_a_pod_has_the_devices_volumes_and_environment_of_its_type_and_stack(kind: str) -> None:
    document, identity = loaded(kind)
    manifest = kubernetes.render(document, identity, aim(kind, namespace="ml", queue="team"))
    assert (manifest["metadata"]["namespace"], manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]) == ("ml", "team")
    text = json.dumps(manifest)
    for part in (
        '"nvidia.com/gpu": 8, "vpc.amazonaws.com/efa": 32, "hugepages-2Mi": "5120Mi"',
        '"emptyDir": {"medium": "Memory", "sizeLimit": "65536Mi"}',
        '"mountPath": "/dev/shm"',
        '"claimName": "fsx-claim"',
        '"mountPath": "/checkpoints"',
        '{"name": "mount-0", "mountPath": "/data", "readOnly": true}',
        '{"name": "NCCL_NET_PLUGIN", "value": "ofi"}',
        '{"name": "NCCL_DEBUG", "value": "TRACE"}',
        '"node.kubernetes.io/instance-type": "p5.48xlarge"',
        '"topologyKey": "kubernetes.io/hostname"',
        '"activeDeadlineSeconds": 5400',
    ):
        assert part in text, part
    assert '"requests": {"cpu": "172", "memory": "1878206Mi"}' in text
    # A rehearsal has the type's devices, and CPUs and memory of this machine.
    pod = json.dumps(kubernetes.render(document, identity, aim(kind, rehearsal=True)))
    assert '"nvidia.com/gpu": 8, "vpc.amazonaws.com/efa": 32, "hugepages-2Mi": "5120Mi"}, "requests": {"cpu": "1"}' in pod
    # Kubernetes would replace $(NAME) in a word and a value.
    assert '"a $$(b) c"' in text
    assert '"$$(HOME)", "it\'s $$$$"' in text


@pytest.mark.parametrize(
    ("text", "kept"), [("$(A)", "$$(A)"), ("$$(A)", "$$$$(A)"), ("$A ${B}", "$A ${B}"), ("$$", "$$$$"), ("$((1 + 1))", "$$((1 + 1))")]
)
def test_kubernetes_leaves_words_as_they_are(text: str, kept: str) -> None:
    assert kubernetes.literal(text) == kept
    # As the expansion of k8s.io/kubernetes/third_party/forked/golang/expansion does it, for variables that it does not know.
    assert re.sub(r"\$(\$|\([^)]*\))", lambda found: "$" if found.group(1) == "$" else found.group(), kept) == text


@pytest.mark.parametrize(
    ("kind", "change", "where", "sentence"),
    [
        ("trainjob", {"retries": 1}, {}, "has retries, which a TrainJob leaves to its runtime"),
        ("pytorchjob", {"launcher": {"rendezvous": "etcd-v2"}}, {}, "muster_target.etcd is ''; set it to HOST:PORT"),
        ("pytorchjob", {}, {"etcd": "etcd:2379"}, "meets by c10d; set launcher.rendezvous to etcd-v2"),
        ("pytorchjob", {"image": "", "mounts": []}, {}, "has no image, and pytorchjob runs containers"),
        ("jobset", {"gpus_per_node": 16}, {}, "wants 16 GPUs on each node, and p5.48xlarge has 8"),
        ("jobset", {"gpus_per_node": 1}, {"instance_type": ""}, "wants 1 GPUs on each node, and a target without instance_type has 0"),
        ("jobset", {"cpus_per_proc": 99}, {}, "wants 792 CPUs on each node, and p5.48xlarge has 192"),
        ("jobset", {"mounts": ["data:/data"]}, {}, "the mount data:/data must be /PATH/ON/NODE:/PATH/IN/CONTAINER"),
        ("jobset", {"procs_per_node": 99}, {"instance_type": "trn1.32xlarge"}, "wants 99 ranks on each node, and trn1.32xlarge has 32"),
        ("batch", {"command": ["ssh-key", "Ref::key"]}, {}, "has the placeholder Ref::key, which Batch would not replace"),
        ("batch", {"env": {"AWS_BATCH_X": "1"}}, {}, "env has AWS_BATCH_X, and Batch keeps that prefix"),
        ("batch", {"retries": 10}, {}, "has 10 retries, and Batch takes 9"),
        ("sagemaker", {"mounts": ["/a:/a"]}, {}, "has mounts, and a training job of SageMaker sees no path of its host"),
        ("sagemaker", {"gpus_per_node": 4}, {}, "has all of its instances; set gpus_per_node to all"),
        ("sagemaker", {"env": {"A": "x" * 513}}, {}, "env A has 513 characters, and SageMaker takes 512"),
        ("sagemaker", {"launcher": {"channels": {"c4": "/data"}}}, {}, "launcher.channels.c4 must begin with s3:// or fsx://"),
        ("sagemaker", {"launcher": {"channels": {"c4": "fsx://fs-0123456789abcdef0/fsx"}}}, {}, "reads from FSx, which SageMaker"),
        ("sagemaker", {}, {"output": "/tmp"}, "muster_target.output must begin with s3://"),
        ("torchrun", {"image": "a/b:1"}, {}, "has image, and the launcher torchrun runs on the hosts themselves"),
        ("torchrun", {"nodes": 5}, {}, "wants 5 nodes, and muster_target has 4 hosts"),
    ],
)  # fmt: skip
def test_what_a_launcher_cannot_do_is_refused_by_one_sentence(kind: str, change: dict, where: dict, sentence: str) -> None:
    with pytest.raises(job.JobError) as error:
        rendered(kind, aim(kind, **where), **change)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "data", "sentence"),
    [
        ("jobst", {}, "The launcher jobst is unknown; did you mean jobset?"),
        ("jobset", {"namspace": "x"}, "muster_target has the unknown field namspace for jobset; did you mean namespace?"),
        ("jobset", {"namespace": 1}, "muster_target.namespace must be text, not 1"),
        ("jobset", {"rehearsal": "yes"}, "muster_target.rehearsal must be true or false, not 'yes'"),
        ("batch", {"memory_mib": True}, "muster_target.memory_mib must be a whole number, not True"),
        ("batch", {"rehearsal": True}, "muster_target has the unknown field rehearsal for batch"),
        ("batch", {}, "muster_target has no queue, which batch needs"),
        ("jobset", {"instance_type": "p5.49xlarge"}, "The catalogue has no instance type p5.49xlarge; the nearest are p5.4"),
        ("jobset", {"secrets": {"T": "hunter2"}}, "muster_target: the secret T must be a reference"),
    ],
)
def test_a_wrong_target_is_answered_by_one_sentence(kind: str, data: dict, sentence: str) -> None:
    with pytest.raises(job.JobError) as error:
        target.load(kind, data)
    assert sentence in str(error.value)
    assert "hunter2" not in str(error.value)


def faults(service: str, action: str, request: dict) -> str:
    """What botocore's model says of a request; it accepts any text for an enum, so those of the instance type are compared here."""
    shape = get_session().get_service_model(service).operation_model(action).input_shape
    return ParamValidator().validate(request, shape).generate_report()


def test_a_batch_job_is_what_batch_takes() -> None:
    document, identity = loaded("batch", retries=2, secrets={"TOKEN": {"from": "secretsmanager", "id": "arn:x"}})
    requests = batch.render(document, identity, aim("batch"))
    assert faults("batch", "RegisterJobDefinition", requests["definition"]) == ""
    assert faults("batch", "SubmitJob", requests["submit"]) == ""
    nodes = requests["definition"]["nodeProperties"]
    [group] = nodes["nodeRangeProperties"]
    container = group["container"]
    assert (nodes["numNodes"], nodes["mainNode"], group["targetNodes"], container["instanceType"]) == (4, 0, "0:3", "p5.48xlarge")
    assert {"type": "GPU", "value": "8"} in container["resourceRequirements"]
    devices = [each["hostPath"] for each in container["linuxParameters"]["devices"]]
    assert devices == [f"/dev/infiniband/uverbs{card}" for card in range(32)]
    assert container["linuxParameters"]["sharedMemorySize"] == 65536
    assert container["secrets"] == [{"name": "TOKEN", "valueFrom": "arn:x"}]
    assert (requests["definition"]["retryStrategy"], requests["definition"]["timeout"]) == (
        {"attempts": 3},
        {"attemptDurationSeconds": 5400},
    )
    with pytest.raises(job.JobError, match=r"set muster_target\.execution_role"):
        batch.render(document, identity, aim("batch", execution_role=""))


def test_a_training_job_is_what_sagemaker_takes() -> None:
    channels = {"c4": {"uri": "s3://data/c4", "mode": "FastFile"}, "fsx": "fsx://fs-0123456789abcdef0/fsx/tokens"}
    document, identity = loaded("sagemaker", name="a" * 40, retries=2, launcher={"channels": channels, "spot": True})
    request = sagemaker.render(document, identity, aim("sagemaker", subnets=["subnet-1"], security_groups=["sg-1"]))
    assert faults("sagemaker", "CreateTrainingJob", request) == ""
    shape = get_session().get_service_model("sagemaker").operation_model("CreateTrainingJob").input_shape
    assert request["ResourceConfig"]["InstanceType"] in shape.members["ResourceConfig"].members["InstanceType"].enum
    limits = shape.members["AlgorithmSpecification"].members["ContainerArguments"].member.metadata["max"]
    assert all(len(word) <= limits for word in request["AlgorithmSpecification"]["ContainerArguments"])
    assert all(len(value) <= 2500 for value in request["HyperParameters"].values())
    assert re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", sagemaker.job_name(document, identity, 99))
    assert request["CheckpointConfig"] == {
        "S3Uri": f"s3://bucket/jobs/checkpoints/{request['TrainingJobName']}",
        "LocalPath": "/opt/ml/checkpoints",
    }
    assert request["StoppingCondition"] == {"MaxRuntimeInSeconds": 5400, "MaxWaitTimeInSeconds": 10800}
    assert [each["ChannelName"] for each in request["InputDataConfig"]] == ["c4", "fsx"]
    line = "Batch 90 Loss: 7.24291, Speed: 9.41 samples/sec, lr: 0.000010"
    found = {each["Name"]: re.search(each["Regex"], line) for each in request["AlgorithmSpecification"]["MetricDefinitions"]}
    assert (found["loss"][1], found["speed"][1], found["validation_loss"]) == ("7.24291", "9.41", None)  # type: ignore[index]


def say(tmp_path: Path, name: str, body: str) -> None:
    (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
    (tmp_path / name).chmod(0o755)


SAY_WORDS = 'printf "%s|" "$@"'


def test_the_boot_of_a_training_job_starts_the_words_of_the_document(tmp_path: Path) -> None:
    document, identity = loaded("sagemaker", command=["printf", "a b", "$HOME", "it's", "x" * 6000])
    request = sagemaker.render(document, identity, aim("sagemaker"))
    assert len(request["HyperParameters"]) > 2 and all(len(value) <= 2500 for value in request["HyperParameters"].values())
    (tmp_path / "resourceconfig.json").write_text(json.dumps({"current_host": "algo-2", "hosts": ["algo-2", "algo-1", "algo-3", "algo-4"]}))
    say(tmp_path, "torchrun", SAY_WORDS)
    # The files lie in another folder here; the script has the folder's name in it, in a piece of JSON.
    text = {key: value.replace("/opt/ml/input/config/", f"{tmp_path}/") for key, value in request["HyperParameters"].items()}
    (tmp_path / "hyperparameters.json").write_text(json.dumps(text))
    boot = [*request["AlgorithmSpecification"]["ContainerEntrypoint"], *request["AlgorithmSpecification"]["ContainerArguments"]]
    boot = [word.replace("/opt/ml/input/config/", f"{tmp_path}/") for word in boot]
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(boot, env=environment, capture_output=True, text=True, check=True)
    start_words = "--nnodes=4|--nproc-per-node=8|--node-rank=1|--master-addr=algo-1|--master-port=29500|--no-python|--|"
    assert done.stdout == f"{start_words}printf|a b|$HOME|it's|{'x' * 6000}|"


@pytest.mark.parametrize(
    ("index", "main", "code", "seen"),
    [
        ("2", "10.0.0.9", 0, "--node-rank=2|--master-addr=10.0.0.9|"),
        ("0", "", 0, "--node-rank=0|--master-addr=10.9.8.7|"),
        ("1", "", 69, ""),
    ],
)
def test_a_batch_node_finds_the_main_node(tmp_path: Path, index: str, main: str, code: int, seen: str) -> None:
    document, identity = loaded("batch")
    container = batch.render(document, identity, aim("batch"))["definition"]["nodeProperties"]["nodeRangeProperties"][0]["container"]
    say(tmp_path, "torchrun", SAY_WORDS)
    say(tmp_path, "hostname", "echo 10.9.8.7 172.17.0.1")
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "AWS_BATCH_JOB_NODE_INDEX": index, "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0"}
    if main:
        environment["AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"] = main
    done = subprocess.run(container["command"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert seen in done.stdout
    assert code == 0 or "node 1 does not know the address of the main node" in done.stderr


def test_an_mpi_launcher_starts_the_ranks_on_the_hosts_of_its_file(tmp_path: Path) -> None:
    document, identity = loaded("mpijob", command=["printf", "%s,", "a b", "$HOME"], nodes=2)
    manifest = kubernetes.render(document, identity, aim("mpijob"))
    pod = manifest["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    # What Kubernetes makes of $$(, and the file and folder of this test.
    words = [word.replace("$$(", "$(").replace("/etc/mpi/hostfile", f"{tmp_path}/hostfile") for word in [*pod["command"], *pod["args"]]]
    (tmp_path / "hostfile").write_text("localhost slots=8\n")
    body = 'if [ "$1" = --version ]; then echo "mpirun (Open MPI) 5.0.7"; exit; fi\nprintf "%s " "$@" > "$0.seen"\n'
    body += 'while [ "$1" != bash ]; do shift; done\n"$@"'
    say(tmp_path, "mpirun", body)
    say(tmp_path, "ssh", 'printf "%s\\n" "$*" >> "$0.seen"; exit 255')
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "SIZE": "16", "LOCAL_SIZE": "8"}
    environment = {f"OMPI_COMM_WORLD_{name}": value for name, value in ranks.items()} | {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": "/x"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "a b,$HOME,", "")
    seen = (tmp_path / "mpirun.seen").read_text()
    assert "-n 16 --hostfile" in seen and "--map-by ppr:8:node --prtemca plm_ssh_args" in seen and "-x NCCL_NET_PLUGIN" in seen
    # The workers end by themselves, so that their nodes are free and their pods stay.
    assert (tmp_path / "ssh.seen").read_text() == "-n -o StrictHostKeyChecking=no -o ConnectionAttempts=30 localhost kill 1\n"
    assert manifest["spec"]["runPolicy"]["cleanPodPolicy"] == "Running"
    # SSH gives a rank no variable of the image.
    assert "-x PATH " in seen and "PYTHONPATH" not in seen


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    found = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(found and int(found[1], 16) >> (number - 1) & 1)


def test_an_mpi_launcher_that_fails_or_is_ended_leaves_the_workers(tmp_path: Path) -> None:
    document, identity = loaded("mpijob", nodes=2)
    manifest = kubernetes.render(document, identity, aim("mpijob"))
    pod = manifest["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    words = [word.replace("$$(", "$(").replace("/etc/mpi/hostfile", f"{tmp_path}/hostfile") for word in [*pod["command"], *pod["args"]]]
    (tmp_path / "hostfile").write_text("localhost slots=8\n")
    say(tmp_path, "ssh", 'printf "%s\\n" "$*" >> "$0.seen"')
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": "/x"}
    for ending, code in {"exit 3": 3, f"trap 'echo saved; exit 7' TERM; touch {tmp_path}/runs; sleep 30 & wait": 7}.items():
        say(tmp_path, "mpirun", f'if [ "$1" = --version ]; then echo "mpirun (Open MPI) 5.0.7"; exit; fi\n{ending}')
        with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True) as launcher:
            if code == 7:
                while not ((tmp_path / "runs").exists() and catches(launcher.pid, signal.SIGTERM)):
                    time.sleep(0.02)
                launcher.terminate()
            assert launcher.stdout is not None
            said = launcher.stdout.readline() if code == 7 else ""
            assert (launcher.wait(20), said) == (code, "saved\n" if code == 7 else "")
            with contextlib.suppress(ProcessLookupError):
                os.killpg(launcher.pid, signal.SIGKILL)
    assert not (tmp_path / "ssh.seen").exists()


@pytest.mark.parametrize(
    ("before", "said"),  # the command before which the signal comes, as a pattern
    [
        ("getent?hosts*", ""),  # while the workers' names are not served yet
        ("main=??", "saved\n"),  # mpirun runs, and its number is not kept yet
        ("code=0", "saved\n"),
    ],
)
def test_a_signal_at_any_moment_ends_an_mpi_launcher(tmp_path: Path, before: str, said: str) -> None:
    document, identity = loaded("mpijob", nodes=2)
    pod = kubernetes.render(document, identity, aim("mpijob"))["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    words = [word.replace("$$(", "$(").replace("/etc/mpi/hostfile", f"{tmp_path}/hostfile") for word in [*pod["command"], *pod["args"]]]
    (tmp_path / "hostfile").write_text("localhost slots=8\n")
    # Bash reads this file first. The trap runs before each command, and waits until mpirun can take the signal.
    ready = f"until [ -e {tmp_path}/runs ] || [[ $BASH_COMMAND = getent* ]]; do :; done"
    (tmp_path / "signal").write_text(f"trap 'if [[ $BASH_COMMAND = {before} ]]; then {ready}; kill -TERM $$; fi' DEBUG\n")
    ending = f"trap 'echo saved; exit 143' TERM; touch {tmp_path}/runs; sleep 20 & wait"
    say(tmp_path, "mpirun", f'if [ "$1" = --version ]; then echo "mpirun (Open MPI) 5.0.7"; exit; fi\n{ending}')
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": "/x", "BASH_ENV": str(tmp_path / "signal")}
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True) as launcher:
        try:
            # A shell that the signal itself ends has -15: as process 1 of a pod it would go on.
            assert launcher.wait(10) == 143
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(launcher.pid, signal.SIGKILL)
        assert launcher.stdout is not None and launcher.stdout.read() == said


def test_a_host_starts_its_ranks_with_the_words_and_the_environment(tmp_path: Path) -> None:
    document, identity = loaded("torchrun", command=["printf", "a b", "$HOME", "it's"], nodes=2, retries=1, venv="/opt/venv")
    scripts = torchrun.render(document, identity, aim("torchrun"))
    assert [each["host"] for each in scripts] == ["node-1", "node-2"]
    say(tmp_path, "torchrun", f'{SAY_WORDS}; echo "$NCCL_DEBUG,$NCCL_NET_PLUGIN,$VIRTUAL_ENV"')
    done = subprocess.run(
        ["bash"], input=scripts[1]["script"], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=True
    )
    assert re.fullmatch(
        r"--nnodes=2\|--nproc-per-node=8\|--max-restarts=1\|--node-rank=1\|--master-addr=10\.0\.0\.1\|--master-port=2\d{4}\|--no-python\|--\|"
        r"printf\|a b\|\$HOME\|it's\|TRACE,ofi,/opt/venv\n",
        done.stdout,
    )
    words = scripts[1]["start"]
    assert words[0] == "systemd-run" and "--property=RuntimeMaxSec=5400" in words and "--property=User=muster" in words


def test_a_host_file_has_the_hosts_in_the_order_of_the_ranks() -> None:
    document, identity = loaded("torchrun", nodes=3)
    given = files(document, identity, aim("torchrun", hosts=[HOSTS[2], *HOSTS[:2], HOSTS[3]]))
    assert list(given) == ["node-3.sh", "node-1.sh", "node-2.sh", "hostfile"]
    assert given["hostfile"] == "10.0.0.3 slots=8\n10.0.0.1 slots=8\n10.0.0.2 slots=8\n"
    assert "--node-rank=0" in given["node-3.sh"] and "--master-addr=10.0.0.3" in given["node-2.sh"]


def test_fewer_gpus_than_a_host_has_hide_the_others() -> None:
    document, identity = loaded("torchrun", gpus_per_node=2)
    assert "export CUDA_VISIBLE_DEVICES=0,1\n" in torchrun.render(document, identity, aim("torchrun"))[0]["script"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_profile_wraps_the_ranks_that_it_names(kind: str) -> None:
    text = rendered(kind, launcher={"profile": {"tool": "nsys", "ranks": [3, 0], "delay": 5, "duration": 7}})
    assert "nsys profile" in text and "--delay=5 --duration=7" in text and " 0 3 " in text
    assert "nsys" not in rendered(kind)


OPTIMISER = """
import types, sys, time
hooks = []
module = types.ModuleType("torch.optim.optimizer")
module.register_optimizer_step_post_hook = hooks.append
class Profile:
    def start(self): print("start", flush=True)
    def stop(self): print("stop", flush=True)
    def export_chrome_trace(self, path): open(path, "w").write("{}")
profiler = types.ModuleType("torch.profiler")
profiler.profile = Profile
torch = types.ModuleType("torch")
torch.profiler = profiler
sys.modules.update({"torch": torch, "torch.profiler": profiler, "torch.optim.optimizer": module})
time.sleep(0.5)
for _ in range(int(sys.argv[1])):
    for hook in hooks:
        hook(None, (), {})
    time.sleep(0.3)
"""


@pytest.mark.parametrize(
    ("rank", "steps", "printed", "said"),
    [("1", 6, "start\nstop\n", ""), ("1", 1, "start\nstop\n", ""), ("1", 0, "", "no optimizer step"), ("0", 6, "", "")],
)  # fmt: skip
def test_torchs_profiler_runs_from_the_delay_for_the_duration(tmp_path: Path, rank: str, steps: int, printed: str, said: str) -> None:
    """By stand-ins for torch."""
    profile = {"tool": "torch", "ranks": [1], "delay": 0, "duration": 1}
    document, _identity = loaded("jobset", launcher={"profile": profile})
    (tmp_path / "train.py").write_text(OPTIMISER)
    environment = {"PATH": "/usr/bin:/bin", "RANK": rank, "MUSTER_JOB_DIR": str(tmp_path)}
    words = ["bash", "-c", start.profiled(document), "rank", sys.executable, str(tmp_path / "train.py"), str(steps)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == printed
    assert said in done.stderr and bool(said) == bool(done.stderr)
    assert (tmp_path / "profile/rank-1.json").exists() == bool(printed)


def test_a_rank_without_nsys_ends_by_one_sentence(tmp_path: Path) -> None:
    document, _identity = loaded("jobset", launcher={"profile": {"tool": "nsys"}})
    say(tmp_path, "hostname", "echo node-7")
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "RANK": "0", "MUSTER_JOB_DIR": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-c", start.profiled(document), "rank", "true"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 78
    assert done.stderr == "muster: launcher.profile: node-7 has no nsys; install Nsight Systems or use the tool torch\n"
