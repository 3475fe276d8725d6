# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from ansible_collections.muster.fleet.plugins.module_utils.jobs import document as job

SMALL = {"name": "train", "command": ["python", "-m", "trainer.train"]}


def test_defaults_are_filled_in():
    document = job.load(SMALL)
    assert set(document) == set(job.FIELDS)
    assert document["launcher"] == {"kind": "slurm", "mpi": "pmix", "launch": "srun", "partition": "", "options": {}, "profile": {}}


def test_identity_is_of_what_runs_and_not_of_how_it_is_written():
    same = {"command": ["python", "-m", "trainer.train"], "nodes": 1, "launcher": {"kind": "slurm"}, "name": "train", "env": None}
    assert job.identity(job.load(SMALL)) == job.identity(job.load(same))
    orders = [{"A": "1", "B": "2"}, {"B": "2", "A": "1"}]
    assert len({job.identity(job.load({**SMALL, "env": env})) for env in orders}) == 1
    assert job.identity(job.load(SMALL)) != job.identity(job.load({**SMALL, "env": {"A": "1"}}))


def test_a_document_without_a_launcher_takes_the_one_that_is_asked_for():
    assert job.load(SMALL, "jobset")["launcher"] == {"kind": "jobset", "profile": {}}
    with pytest.raises(job.JobError, match=r"is for the launcher slurm \(launcher.kind\), and batch was asked for"):
        job.load({**SMALL, "launcher": {"kind": "slurm"}}, "batch")
    with pytest.raises(job.JobError, match=r"kind bach is unknown; did you mean batch\?"):
        job.load(SMALL, "bach")


def test_a_job_that_completed_before_launchers_had_profiles_keeps_its_identity():
    assert job.identity(job.load(SMALL)) == "8934a8465f0dae6afc672f12ab76ec40b782c600f540343d25dc332c00563b1b"
    profiled = job.load({**SMALL, "launcher": {"profile": {"tool": "torch"}}})
    assert profiled["launcher"]["profile"] == {"tool": "torch", "ranks": [0], "delay": 30, "duration": 30}
    assert job.identity(profiled) != job.identity(job.load(SMALL))


def test_defaults_are_not_shared_between_documents():
    job.load(SMALL)["mounts"].append("/a:/b")
    assert job.load(SMALL)["mounts"] == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"comand": ["x"]}, "unknown field comand; did you mean command?"),
        ({"command": None}, "has no command"),
        ({"command": "python x"}, "command must be a list"),
        ({"command": []}, "command is empty"),
        ({"command": ["a\nb"]}, "line break"),
        ({"nodes": 0}, "nodes must be at least 1, not 0"),
        ({"nodes": "two"}, "nodes must be a whole number"),
        ({"nodes": True}, "nodes must be a whole number"),
        ({"name": "Has Space"}, "a name is 1 to 40"),
        ({"name": "../up"}, "a name is 1 to 40"),
        ({"schema": "muster.job/2"}, "this version of Muster reads muster.job/1"),
        ({"image": "a", "venv": "/b"}, "both image and venv"),
        ({"mounts": ["/a:/b"]}, "mounts without an image"),
        ({"venv": "relative"}, "absolute path"),
        ({"env": {"NOT-A-NAME": "1"}}, "not a name of an environment variable"),
        ({"env": {"A": "1\n2"}}, "line break"),
        ({"launcher": {"kind": "slrum"}}, "did you mean slurm?"),
        ({"launcher": {"partiton": "x"}}, "did you mean partition?"),
        ({"launcher": {"kind": "batch", "mpi": "none"}}, "launcher.mpi is for slurm, and batch has no such field"),
        ({"launcher": {"profile": {"tool": "nsyss"}}}, "did you mean nsys?"),
        ({"launcher": {"profile": {"tool": "nsys", "ranks": [1]}}}, "launcher.profile.ranks must be below 1, the number of ranks"),
        ({"launcher": {"profile": {"tool": "nsys", "duration": 0}}}, "a duration of 1 or more"),
        ({"launcher": {"profile": {"tol": "nsys"}}}, "did you mean tool?"),
        ({"launcher": {"mpi": "pmi2"}}, "launcher.mpi pmi2 is unknown"),
        ({"secrets": {"T": {"from": "file", "path": "relative"}}}, "absolute path"),
        ({"secrets": {"T": {"from": "env", "name": "A B"}}}, "names no environment variable"),
        ({"retries": -1}, "retries must be 0 or more"),
        ({"time_limit": 10**12}, "time_limit must be at most 527040 minutes (366 days), not 1000000000000"),
        ({"env": {"SLURM_NTASKS": "9"}}, "env has SLURM_NTASKS, which Slurm sets itself"),
        ({"env": {"SBATCH_PARTITION": "x"}}, "env has SBATCH_PARTITION, which Slurm sets itself"),
        ({"secrets": {"SLURM_JWT": {"from": "env", "name": "A"}}}, "secrets has SLURM_JWT, which Slurm sets itself"),
        ({"env": {"PET_NNODES": "9"}}, "env has PET_NNODES, which the launcher sets itself; remove it."),
        ({"env": {"RANK": "0"}}, "env has RANK, which the launcher sets itself"),
        ({"env": {"LOCAL_WORLD_SIZE": "1"}}, "env has LOCAL_WORLD_SIZE, which the launcher sets itself"),
        ({"env": {"MASTER_PORT": "1"}}, "env has MASTER_PORT, which the launcher sets itself"),
        ({"secrets": {"PET_RDZV_ID": {"from": "env", "name": "A"}}}, "secrets has PET_RDZV_ID, which the launcher sets itself"),
        ({"launcher": {"kind": "sagemaker"}, "env": {"SM_NUM_GPUS": "1"}}, "env has SM_NUM_GPUS, which SageMaker sets itself"),
        ({"env": {"A": "x" * (128 << 10)}}, "env A has 131075 bytes, and Linux takes 131072; write it to a file"),
        ({"command": ["x", "x" * (128 << 10)]}, "word 2 of command has 131073 bytes, and Linux takes 131072"),
        ({"env": {f"A{number}": "x" * 100_000 for number in range(11)}}, "command and env have 1100"),
    ],
)
def test_a_wrong_document_is_answered_by_one_sentence(change, sentence):
    with pytest.raises(job.JobError) as error:
        job.load({**SMALL, **change})
    assert sentence in str(error.value)
    assert str(error.value).count("\n") == 0


@pytest.mark.parametrize("gpus", ["8", "some", -1, 1.5, True, [8]])
def test_gpus_are_all_or_a_number(gpus):
    with pytest.raises(job.JobError, match=r"gpus_per_node must be all or a (whole )?number"):
        job.load({**SMALL, "gpus_per_node": gpus})


@pytest.mark.parametrize(
    ("wanted", "nodes", "have", "gets"),
    [
        ("all", 2, {"a": 8, "b": 8}, 8),
        ("all", 2, {"a": 8, "b": 8, "c": 0}, 8),
        ("all", 3, {"a": 8, "b": 8, "c": 0}, 0),
        ("all", 2, {"a": 8, "b": 4}, 4),
        ("all", 1, {}, 0),
        (2, 1, {"a": 8}, 2),
        (0, 1, {"a": 8}, 0),
    ],
)
def test_a_job_gets_all_gpus_of_its_nodes_unless_it_says_otherwise(wanted, nodes, have, gets):
    document = job.load({**SMALL, "nodes": nodes, "gpus_per_node": wanted})
    assert job.gpus_per_node(document, have) == gets
    job.check_gpus(document, have)


def test_a_job_without_gpus_runs_everywhere():
    job.check_gpus(job.load({**SMALL, "gpus_per_node": 0}), {})


def test_more_gpus_than_the_nodes_have_are_refused():
    document = job.load({**SMALL, "nodes": 2, "gpus_per_node": 8})
    job.check_gpus(document, {"a": 8, "b": 8})
    with pytest.raises(
        job.JobError, match=r"wants 8 GPUs on each of 2 nodes, and 1 of the 2 nodes there have so many \(the largest has 8\)"
    ):
        job.check_gpus(document, {"a": 8, "b": 4})


def test_a_secret_given_by_value_is_refused_and_not_repeated():
    for value in ("hunter2", {"from": "file", "path": "/a", "value": "hunter2"}, {"value": "hunter2"}):
        with pytest.raises(job.JobError) as error:
            job.load({**SMALL, "secrets": {"T": value}})
        assert "must be a reference" in str(error.value)
        assert "hunter2" not in str(error.value)


def test_secrets_on_the_store_s_file_system_are_those_that_can_be_checked_before():
    files = {"A": "/fsx/home/muster/.token", "B": "/etc/token", "C": "/fsx/../etc/token"}
    secrets = {name: {"from": "file", "path": path} for name, path in files.items()} | {"D": {"from": "env", "name": "D"}}
    assert job.shared_secrets(job.load({**SMALL, "secrets": secrets}), "/fsx/muster/jobs") == {"A": "/fsx/home/muster/.token"}


def test_more_ranks_than_cpus_is_refused():
    document = job.load({**SMALL, "nodes": 2, "procs_per_node": 2})
    job.check_fits(document, {"a": 2, "b": 4})
    with pytest.raises(job.JobError, match="2 ranks of 1 CPUs on each of 2 nodes, and 1 of the 2 nodes"):
        job.check_fits(document, {"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ({"c1": "2026-12-01T11:00:00Z", "c2": None, "c3": "2026-12-01T11:00:00Z", "c4": 1796000000}, ["2026-12-01T11:00:00Z", 1796000000]),
        ({"c1": None}, []),
        ({}, []),
    ],
)
def test_a_job_is_told_when_its_nodes_are_taken_away(nodes, told):
    tasks = yaml.safe_load((Path(__file__).parents[2] / "playbooks/tasks/run_job.yml").read_text())
    [task] = [task for task in tasks if "block" in task]
    text = task["block"][0]["muster.fleet.slurm_job"]["stop_at"]
    hostvars = {name: {"muster_stop_at": at} if at else {} for name, at in nodes.items()}
    variables = {"groups": {"muster_compute": list(nodes)} if nodes else {}, "hostvars": hostvars}
    assert Templar(loader=DataLoader(), variables=variables).template(trust_as_template(text)) == told


def test_variables_that_only_resemble_a_launchers_own_are_the_users():
    env = {"SM_CHANNEL_TRAIN": "/data", "OMPI_MCA_pml": "ob1", "RANKS": "4", "MASTER": "a"}
    assert job.load({**SMALL, "env": env})["env"] == env
