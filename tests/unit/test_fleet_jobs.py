# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The jobs that prove a fleet follow from the instance types of its nodes."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleFilterError

from ansible_collections.muster.fleet.plugins.filter.jobs import FilterModule, real_files
from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue
from ansible_collections.muster.fleet.plugins.module_utils.jobs import document as documents
from ansible_collections.muster.fleet.plugins.module_utils.jobs import fleet
from trainer.devices import machine_of
from trainer.estimate.search import best
from trainer.models import shape_of

ROOT = Path(__file__).parents[2]
TRAINER = {"venv": "/opt/muster/venv", "env": {"PYTHONPATH": "/fsx/muster/trainer/1"}}


def nodes(*types: str) -> dict[str, str]:
    return {f"node-{number}": kind for number, kind in enumerate(types, 1)}


def collectives(*types: str, asked: dict | None = None, **more) -> list[dict]:
    have = nodes(*types)
    return fleet.collectives(fleet.parts(list(have), have, **more), asked or {}, TRAINER, "/opt/nccl-tests")


def training(*types: str, asked: dict | None = None, **more) -> list[dict]:
    have = nodes(*types)
    return fleet.training(fleet.parts(list(have), have, **more), asked or {}, TRAINER)


def value(job: dict, flag: str) -> str:
    command = job["document"]["command"]
    return command[command.index(flag) + 1]


# (gpus, largest message, model, CPUs of a rank), kept by hand: the catalogue could be wrong as well.
EXPECTED = {
    "p5.48xlarge": (8, "16G", "llama-3.1-8b", 24),
    "p4d.24xlarge": (8, "8G", "llama-3.2-1b", 12),
    "p4de.24xlarge": (8, "16G", "llama-3.1-8b", 12),
    "g5.xlarge": (1, "4G", "reference", 4),
    "g5.12xlarge": (4, "4G", "reference", 12),
    "p6-b300.48xlarge": (8, "64G", "llama-3.1-8b", 24),
    "p6e-gb200.36xlarge": (4, "16G", "llama-3.1-8b", 36),
}


def test_the_folder_of_nccl_tests_is_the_default_of_its_role() -> None:
    defaults = yaml.safe_load((ROOT / "roles/nccl_tests/defaults/main.yml").read_text())
    have = nodes("p5.48xlarge", "p5.48xlarge")
    program = fleet.collectives(fleet.parts(list(have), have), {}, TRAINER)[0]["document"]["command"][0]
    assert program.startswith(defaults["nccl_tests_prefix"] + "/bin/")


def test_launchers_of_operators_run_on_kubernetes_and_others_on_themselves() -> None:
    found = {kind: FilterModule().filters()["job_service"](kind) for kind in documents.LAUNCHERS}
    assert {kind for kind, service in found.items() if service == "kubernetes"} == {"pytorchjob", "trainjob", "mpijob", "jobset"}
    assert {kind for kind, service in found.items() if service == kind} == {"slurm", "batch", "sagemaker", "torchrun"}


@pytest.mark.parametrize("kind", EXPECTED)
def test_gpu_nodes_run_nccl_with_a_rank_for_each_gpu(kind):
    gpus, largest, model, cpus = EXPECTED[kind]
    jobs = collectives(kind, kind)
    assert [job["op"] for job in jobs] == fleet.OPS
    for job in jobs:
        wanted = job["document"]
        assert (wanted["nodes"], wanted["procs_per_node"], wanted["gpus_per_node"]) == (2, gpus, gpus)
        assert wanted["command"][0] == f"/opt/nccl-tests/bin/{job['op']}_perf"
        assert (value(job, "-e"), value(job, "-c"), job["ranks"], job["skip"], job["real"]) == (largest, "1", 2 * gpus, "", None)
    [job] = training(kind, kind)
    wanted = job["document"]
    assert (wanted["procs_per_node"], wanted["gpus_per_node"], wanted["cpus_per_proc"]) == (gpus, gpus, cpus)
    assert (value(job, "--backend"), value(job, "--model"), job["real"]) == ("nccl", model, None)


@pytest.mark.parametrize("kind", ["", "c7i.8xlarge", "trn1.32xlarge"])
def test_nodes_without_nvidia_gpus_run_on_gloo(kind):
    [job] = collectives(kind, kind)
    assert job["document"]["command"][:3] == ["python", "-m", "trainer.collectives"]
    assert (value(job, "--backend"), job["ranks"], "gpus_per_node" in job["document"]) == ("gloo", 2, False)
    [job] = training(kind, kind)
    assert (value(job, "--backend"), value(job, "--model"), job["document"]["name"]) == ("gloo", "tiny", "train")


def test_one_rank_measures_nothing():
    assert [job["skip"] for job in collectives("")] == ["one rank: nothing crossed a wire"]
    assert {job["skip"] for job in collectives("g5.xlarge")} == {"one rank: nothing crossed a wire"}


def test_a_fleet_of_several_types_has_jobs_for_each():
    jobs = training("p5.48xlarge", "g5.xlarge", "p5.48xlarge", "c7i.8xlarge")
    seen = [(job["document"]["name"], job["hosts"], job["document"]["launcher"]["partition"], value(job, "--backend")) for job in jobs]
    assert seen == [
        ("train-p5.48xlarge", ["node-1", "node-3"], "p5.48xlarge", "nccl"),
        ("train-g5.xlarge", ["node-2"], "g5.xlarge", "nccl"),
        ("train-c7i_8xlarge", ["node-4"], "c7i_8xlarge", "gloo"),
    ]


def test_nodes_that_failed_get_no_job_and_their_type_keeps_its_partition():
    [job] = training("p5.48xlarge", "g5.xlarge", "p5.48xlarge", hosts=["node-1"])
    launcher = job["document"]["launcher"]
    assert (job["document"]["nodes"], launcher["partition"], launcher["options"]) == (1, "p5.48xlarge", {"exclude": "node-3"})
    assert "#SBATCH --exclude=node-3\n" in real_files(job["document"])["real.sbatch"]
    for job in collectives("", "", "", hosts=["node-2", "node-3"]):
        assert job["document"]["launcher"]["options"] == {"exclude": "node-1"}


def test_the_users_settings_replace_the_derived_ones():
    [job] = training("p5.48xlarge", asked={"model": "llama-3.2-1b", "procs_per_node": 2, "lr": "1e-4", "partition": "mine"})
    assert (value(job, "--model"), value(job, "--lr"), value(job, "--min_lr")) == ("llama-3.2-1b", "0.0001", "1e-05")
    assert (job["document"]["gpus_per_node"], job["document"]["launcher"]["partition"]) == (2, "mine")
    [job] = collectives(
        "p5.48xlarge", "p5.48xlarge", asked={"ops": ["all_reduce"], "max_bytes": "1G", "floors": [{"min_size": 1, "busbw": 2.0}]}
    )
    assert (value(job, "-e"), job["floors"]) == ("1G", [{"min_size": 1, "busbw": 2.0}])
    [job] = collectives("p5.48xlarge", asked={"backend": "gloo", "procs_per_node": 2})
    assert value(job, "--backend") == "gloo"


def test_nccl_s_inspector_runs_where_it_is_asked_for_and_installed() -> None:
    asked = {"inspector": {"prefix": "/opt/nccl", "lacks": []}}
    for job in collectives("p5.48xlarge", "p5.48xlarge", asked=asked):
        command = job["document"]["command"]
        run = job["op"] in ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
        assert job["inspector"] == {"run": run, "reason": ""}, "the others send and receive"
        assert command[: 1 + run] == ["/opt/nccl/bin/nccl-inspector"] * run + [f"/opt/nccl-tests/bin/{job['op']}_perf"]
    assert all(job["inspector"] == {"run": False, "reason": ""} for job in collectives("p5.48xlarge", "p5.48xlarge"))
    assert [job["inspector"]["reason"] for job in collectives("", "", asked=asked)] == [""], "gloo has no NCCL"

    def reason(kind: str = "slurm", asked: object = None, **more: object) -> str:
        have = nodes("p5.48xlarge", "p5.48xlarge")
        job = fleet.collectives(fleet.parts(list(have), have, **more), {"inspector": asked}, TRAINER, kind=kind)[0]
        assert not job["inspector"]["run"] and "inspector" not in str(job["document"]["command"])
        return job["inspector"]["reason"]

    lacks = {"prefix": "/opt/nccl", "lacks": ["node-2"]}
    assert reason(asked=lacks) == "node-2 without it; set nccl_inspector and provision again"
    assert reason(rehearsed=["node-1"], asked=lacks) == "a rehearsal has no NCCL that measures"
    assert reason("mpijob", asked=True).startswith("it writes files")


def test_a_rehearsal_trains_on_cpus_and_keeps_the_job_of_the_type():
    kind = "p5.48xlarge"
    [job] = training(kind, kind, rehearsed=["node-1", "node-2"])
    [real] = training(kind, kind)
    assert (value(job, "--backend"), value(job, "--model"), job["document"]["procs_per_node"]) == ("gloo", "tiny", 1)
    assert job["real"] == real["document"]
    for job, real in zip(collectives(kind, kind, rehearsed=["node-1", "node-2"]), collectives(kind, kind), strict=True):
        assert job["real"] == real["document"]
        assert (job["document"]["procs_per_node"], job["document"]["command"][0], job["ranks"]) == (1, f"{job['op']}_perf", 16)
        assert (value(job, "-g"), job["type"]) == ("8", kind)


@pytest.mark.parametrize("launcher", ["pytorchjob", "jobset", "mpijob"])
def test_a_rehearsal_on_kubernetes_measures_on_cpus_and_keeps_the_jobs_of_the_type(launcher):
    have = nodes("p5.48xlarge", "p5.48xlarge")
    image = {"image": "a/b:1"}
    parts = fleet.parts(list(have), have, rehearsed=list(have))
    [job] = fleet.collectives(parts, {"max_bytes": "16M"}, image, "", launcher)
    real = fleet.collectives(fleet.parts(list(have), have), {"max_bytes": "16M"}, image, "", launcher)
    assert (value(job, "--backend"), job["type"], job["ranks"], job["document"]["launcher"]["kind"]) == ("gloo", "", 2, launcher)
    assert job["real"] == [each["document"] for each in real] and len(real) == 6
    files = real_files(job["real"], {"rehearsal": True, "instance_type": "p5.48xlarge"})
    assert json.loads(files["real.json"]) == job["real"]
    items = json.loads(files["real.manifest.json"])["items"]
    assert [each["kind"] for each in items] == ["MPIJob"] * 6
    assert '"memory": "1878206Mi"' in files["real.manifest.json"]
    # Nothing of the type's would run where nodes have no GPUs of NVIDIA.
    neuron = nodes("trn1.32xlarge")
    [job] = fleet.collectives(fleet.parts(list(neuron), neuron, rehearsed=list(neuron)), {}, image, "", launcher)
    assert job["real"] == [] and real_files(job["real"]) == real_files(None) == {}


@pytest.mark.parametrize("kind", ["", "p5.48xlage", "trn1.32xlarge"])
def test_a_gpu_node_of_an_unknown_type_is_refused(kind):
    parts = FilterModule().filters()["fleet_parts"]
    with pytest.raises(AnsibleFilterError, match=r"The GPU node node-1 has the instance_type .*, from which no job follows; name its type"):
        parts(["node-1"], {"node-1": kind}, None, [], ["node-1"])


@pytest.mark.parametrize("kind", catalogue.names())
def test_every_type_has_valid_jobs_and_a_model_that_fits(kind):
    for job in collectives(kind, kind) + training(kind, kind):
        documents.load(job["document"])
    have = catalogue.instance_type(kind)
    if have["accelerator"] == "nvidia":
        [job] = training(kind)
        wanted = dict.fromkeys(
            (
                "tensor_parallel_degree",
                "pipeline_parallel_degree",
                "context_parallel_degree",
                "expert_parallel_degree",
                "hybrid_shard_degree",
            ),
            1,
        )
        wanted |= {"train_batch_size": 1, "gradient_accumulation_steps": 1, "sharding_strategy": "full", "activation_checkpointing": "none"}
        assert best(shape_of(value(job, "--model"), None, {}), machine_of(kind), 1, wanted).fits


def test_the_script_of_the_type():
    [job] = training("p5.48xlarge", "p5.48xlarge", rehearsed=["node-1", "node-2"])
    script = real_files(job["real"])["real.sbatch"]
    for line in ("#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=8", "#SBATCH --gpus-per-node=8", "#SBATCH --cpus-per-task=24"):
        assert line + "\n" in script
    assert "--backend nccl" in script


@pytest.mark.parametrize("rank", ["0", "1"])
def test_on_kubernetes_the_first_rank_makes_the_data(rank: str, tmp_path: Path) -> None:
    have = nodes("", "")
    trainer = {"image": "localhost/trainer:1"}
    [job] = fleet.training(fleet.parts(list(have), have), {"folder": str(tmp_path)}, trainer, "pytorchjob")
    document = documents.load({**job["document"], "mounts": []}, None)
    assert document["launcher"]["kind"] == "pytorchjob"
    (tmp_path / "bin").mkdir()
    stub = tmp_path / "bin/python"  # says how it was called, and makes the data where it is asked to
    stub.write_text("""#!/bin/sh
echo "$@"
[ "$3" != prepare-data ] || { mkdir -p "$5" && : >"$5/index.json"; }
""")
    stub.chmod(0o755)
    if rank == "1":
        (tmp_path / f"data-{job['settings']['tokens']}").mkdir()
        (tmp_path / f"data-{job['settings']['tokens']}/index.json").touch()
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "RANK": rank, "MUSTER_JOB_DIR": "/checkpoints/train-1"}
    said = subprocess.run(document["command"], env=env, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.split()[2] for line in said] == (["prepare-data", "train"] if rank == "0" else ["train"])
    assert said[-1].endswith("--checkpoint_dir /checkpoints/train-1")


def documents_of(page: str) -> dict[str, dict]:
    """The job documents of a page of docs/, by name."""
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    found = [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)]
    return {each["name"]: each for each in found if "command" in each}


def test_documents_about_data_are_taken_by_every_launcher_that_has_their_fields() -> None:
    for document in documents_of("trainer_running.md").values():
        loaded = documents.load({**document, "venv": "/opt/trainer"}, None)
        assert (loaded["nodes"], loaded["gpus_per_node"]) == (4, 0)


def test_the_ranks_of_the_warm_up_read_every_file_once(tmp_path: Path) -> None:
    names = [f"part {number}\n.bin" for number in range(40)]
    (tmp_path / "data/deep").mkdir(parents=True)
    for number, name in enumerate(names):
        (tmp_path / "data" / ("deep" if number % 2 else "") / name).touch()
    (tmp_path / "bin").mkdir()
    stub = tmp_path / "bin/cat"
    stub.write_text(f"""#!/bin/sh\nfor file; do printf '%s\\0' "$file" >>{tmp_path}/read; done\n""")
    stub.chmod(0o755)
    *command, folder = documents_of("trainer_running.md")["warm-up"]["command"]
    assert folder == "/fsx/c4"
    shares = []
    for rank in range(3):
        (tmp_path / "read").unlink(missing_ok=True)
        env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "RANK": str(rank), "WORLD_SIZE": "3"}
        subprocess.run([*command, str(tmp_path / "data")], env=env, check=True)
        shares.append([Path(each).name for each in (tmp_path / "read").read_text().split("\0")[:-1]])
    assert sorted(name for share in shares for name in share) == sorted(names)
    assert [len(share) for share in shares] == [14, 13, 13]
    gone = subprocess.run([*command, str(tmp_path / "nothing")], env=env, capture_output=True, text=True, check=False)
    assert gone.returncode != 0 and "No such file" in gone.stderr


def test_the_matrix_is_a_job_for_each_combination():
    asked = {"ops": ["all_reduce", "sendrecv"], "node_counts": [1, 2, 2], "datatypes": ["float", "bfloat16"]}
    jobs = collectives("p5.48xlarge", "p5.48xlarge", "p5.48xlarge", asked=asked)
    assert [
        (job["document"]["name"], job["document"]["nodes"], job["ranks"], value(job, "-d"), job["datatype"], job["op"]) for job in jobs
    ] == [
        ("nccl-all_reduce-1n-float", 1, 8, "float", "float", "all_reduce"),
        ("nccl-sendrecv-1n-float", 1, 8, "float", "float", "sendrecv"),
        ("nccl-all_reduce-1n-bfloat16", 1, 8, "bfloat16", "bfloat16", "all_reduce"),
        ("nccl-sendrecv-1n-bfloat16", 1, 8, "bfloat16", "bfloat16", "sendrecv"),
        ("nccl-all_reduce-2n-float", 2, 16, "float", "float", "all_reduce"),
        ("nccl-sendrecv-2n-float", 2, 16, "float", "float", "sendrecv"),
        ("nccl-all_reduce-2n-bfloat16", 2, 16, "bfloat16", "bfloat16", "all_reduce"),
        ("nccl-sendrecv-2n-bfloat16", 2, 16, "bfloat16", "bfloat16", "sendrecv"),
    ]
    for job in jobs:
        documents.load(job["document"])
    # The ranks on one node without a GPU are one, and measure nothing.
    gloo = collectives("", "", asked={"node_counts": [1, 2], "datatypes": ["half"]})
    assert [(job["document"]["name"], job["skip"] != "") for job in gloo] == [("collectives-1n-half", True), ("collectives-2n-half", False)]


@pytest.mark.parametrize("count", [3, 0])
def test_a_number_of_nodes_that_the_fleet_lacks_is_refused(count):
    kind = "p5.48xlarge"
    says = f"muster_collectives.node_counts has {count}, and jobs may use 2 nodes of {kind}; give numbers from 1 to 2."
    with pytest.raises(documents.JobError, match=says):
        collectives(kind, kind, asked={"node_counts": [2, count]})


def test_a_data_type_that_gloo_lacks_is_refused():
    with pytest.raises(documents.JobError, match="datatypes has f8e4m3, which backend gloo does not measure; take int8, "):
        collectives("", "", asked={"datatypes": ["float", "f8e4m3"]})
    assert collectives("p5.48xlarge", asked={"datatypes": ["f8e4m3"]})


def test_gloo_measures_the_types_that_are_offered():
    [names] = re.findall(r"^DTYPES = .* in \((.*)\)}$", (ROOT / "trainer/collectives.py").read_text(), re.MULTILINE)
    assert sorted(fleet.GLOO_TYPES) == sorted(ast.literal_eval(f"[{names}]"))
    options = yaml.safe_load((ROOT / "playbooks/meta/argument_specs.yml").read_text())["argument_specs"]["site"]["options"]
    assert options["muster_collectives"]["options"]["datatypes"]["choices"] == fleet.NCCL_TYPES
