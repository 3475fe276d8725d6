# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""docs/from-awsome.md: whatever it offers instead of a thing of the AWS reference exists, and it leaves nothing of the reference out."""

from __future__ import annotations

import re

import pytest
from doc_names import ROOT, flags, missing, of_templates, table_rows

from trainer.arguments import REPLACED

PAGE = ROOT / "docs/from-awsome.md"
ROWS = list(table_rows(PAGE, "Here"))
REFUSED = re.compile(r"(?:^|: |\. )?(?:not taken|missing): [^.].*[.)]$")

# What the reference has, by the parts of its inventory.
ROLES = (
    "base packages aws_cliv2 docker nvidia_docker aws_efa aws_efa_ofi aws_lustre nvidia_driver nvidia_cuda nvidia_gdrcopy nvidia_nccl"
    " nvidia_enroot_pyxis observability neuron_driver pytorch_neuron"
)
ROLE_VARIABLES = (
    "base_sysctl packages_install packages_install_exclude packages_remove packages_update packages_update_exclude allow_reboot username"
    " aws_efa_version aws_efa_archive aws_efa_url aws_efa_work_dir enable_gpus aws_lustre_version aws_lustre_package aws_lustre_mounts"
    " nvidia_driver_version install_nvidia_fabric_manager cuda_version cudnn_version nccl_tag nccl_repo install_nccl_tests pyxis_version"
    " enroot_version dcgm_container_tag"
)
PACKER = (
    "ami ami_base ami_pcluster_cpu ami_pcluster_gpu ami_pcluster_neuron ami_dlami_gpu ami_dlami_neuron ami_eks_gpu ami_name ami_version"
    " parallel_cluster_version eks_version aws_region instance_type inventory_directory playbook_file ssh_username PACKER_ON_ERROR"
    " BaseAmiId SemanticVersion SlurmVersion BuildSchedule PublishToSsm SsmParameterPrefix EnableLifecyclePolicy"
    " LifecycleDeprecateAfterWeeks"
)
TRAINER = (
    "train_batch_size val_batch_size max_steps max_training_steps seed same_seed bf16 grad_clip weight_decay beta1 beta2"
    " activation_checkpointing intermediate_size num_key_value_heads logging_freq tensorboard_dir peak_tflops_per_gpu max_context_width"
    " vocab_size hidden_width num_layers num_heads resid_pdrop embd_pdrop attn_pdrop summary_first_pdrop initializer_range model_type"
    " rotary_pct rotary_emb_base offload_activations activation_loading_horizon limit_all_gathers sharding_strategy cpu_offload lr min_lr"
    " lr_decay_style lr_decay_iters warmup plateau dataset dataset_config_name tokenizer resume_from_checkpoint checkpoint_dir epochs"
    " checkpoint_freq validation_freq validation_batches"
)
TEMPLATES = (
    "0.private-bucket.yaml 1.vpc-multi-az.yaml 2.vpc-one-az.yaml 0.aws-batch-distributed-training.yaml"
    " 0.aws-batch-distributed-training-p5.yaml aws-batch-distributed-training-p6.yaml parallelcluster-prerequisites.yaml"
    " cluster-vanilla.yaml sagemaker-hyperpod.yaml pcs-ml-cluster-deploy-all.yaml pcs-ready-dlami-with-enroot-pyxis.yaml"
)
PARAMETERS = (
    "S3BucketName VPCName AvailabilityZones NumberOfAZs CreatePublicSubnets CreateS3Endpoint CreateDynamoDBEndpoint SubnetsAZ"
    " VPCStackParameter AMI CapacityReservationId CapacityReservationResourceGroup CapacityBlockId EC2KeyPair CreatePlacementGroup Capacity"
    " PerUnitStorageThroughput Compression LustreVersion HomeCapacity HomeThroughput PrimarySubnetAZ SecondarySubnetAZ"
)
OUTPUTS = (
    "ECRRepository ECRRepositoryUrl JobDefinitionSingleInstance JobDefinitionMultiInstance DistributedDeepLearningJQ SSHKeySecretArn -VPC"
    " -PublicSubnet -PrivateSubnet -PrivateSubnets -SecurityGroup -FSXSecurityGroup"
)
LIFECYCLE = (
    "enable_docker_enroot_pyxis enable_observability enable_pam_slurm_adopt enable_sssd enable_mount_s3 enable_fsx_openzfs"
    " enable_slurm_log_rotation shared_users.txt resource_config.json provisioning_parameters.json hyperpod-precheck.py validate-config.py"
)
MANIFESTS = "IMAGE_URI INSTANCE_TYPE NUM_NODES GPU_PER_NODE EFA_PER_NODE FI_PROVIDER HF_TOKEN"
FOLDERS = (
    "0.common 0.s3 1.vpc_network 2.aws-parallelcluster 3.aws-batch 4.amazon-eks 5.sagemaker-hyperpod 6.ldap_server 7.sagemaker-hyperpod-eks"
    " 8.accounting-database architectures/aws-pcs efa-cheatsheet.md efa-versions.py 1.pytorch-env-validation 3.efa-node-exporter"
    " 4.prometheus-grafana 5.nsight conftest.py"
)
CASES = (
    "pytorch/FSDP pytorch/ddp cpu-ddp pytorch/deepspeed pytorch/distillation pytorch/mosaicml-composer pytorch/neuronx-distributed"
    " pytorch/optimum-neuron pytorch/picotron pytorch/torchtitan pytorch/trl pytorch/verl pytorch/openrlhf pytorch/slime megatron/nemo-rl"
    " pytorch/nvrx pytorch/nanoVLM pytorch/openvla pytorch/openvla-oft pytorch/vjepa2 pytorch/vjepa2.1 pytorch/pointworld"
    " pytorch/dreamzero pytorch/cosmos3 pytorch/nvidia-isaac-lab pytorch/vllm pytorch/nvidia-dynamo megatron/megatron-lm"
    " megatron/megatron-bridge megatron/nemo nemo-run megatron/nemo1.0 nemo-launcher megatron/bionemo jax 23.SMHP-esm2"
)
DECIDED = (
    "Aurora, Image Builder, training plans, nccom, NVSHMEM, Slinky, Terraform, LDAP, HyperPodPyTorchJob, expert-parallel, HyperPod,"
    " ComputeDomain, Ray, verl, OpenRLHF, nemo-rl, vLLM, easy-ssh, Syne Tune, Training Compiler, hosting"
)
ALL = [
    *(ROLES + " " + ROLE_VARIABLES + " " + PACKER + " " + TEMPLATES + " " + PARAMETERS + " " + OUTPUTS + " " + LIFECYCLE).split(),
    *(MANIFESTS + " " + FOLDERS + " " + CASES).split(),
    *(f"--{name}" for name in TRAINER.split()),
]


@pytest.mark.parametrize(("heading", "cells"), ROWS, ids=[f"{heading}: {cells[0][:40]}" for heading, cells in ROWS])
def test_what_a_row_names_exists(heading: str, cells: list[str]) -> None:
    assert len(cells) == 3, f"{heading}: {cells[0]} has {len(cells)} cells"
    thing, here, remark = cells
    assert not missing(here), f"{heading}: {thing}: {missing(here)}"
    if here == "-":
        assert REFUSED.search(remark), f"{heading}: {thing} is neither here nor refused with a reason"
    else:
        assert re.search(r"`|\]\(", here), f"{heading}: {thing} leads nowhere"


def test_a_reason_is_a_sentence() -> None:
    for heading, (thing, _here, remark) in ROWS:
        if remark.startswith(("not taken", "missing")):
            assert REFUSED.search(remark), f"{heading}: {thing}: write why it is {remark.split(':')[0]}"


def test_nothing_of_the_reference_is_left_out() -> None:
    named = {name for _heading, cells in ROWS for name in re.findall(r"`([^`]+)`", cells[0])}
    assert not [name for name in ALL if name not in named]
    assert len(ALL) > 200


def test_each_decision_is_written_down() -> None:
    decided = " ".join(cells[0] for heading, cells in ROWS if heading == "Decided")
    assert not [name for name in DECIDED.split(", ") if name.strip() not in decided]


def test_a_name_that_still_works_is_offered_under_itself() -> None:
    """A flag of the reference is a flag here, or trainer/arguments.py says what replaces it, and then the row says so too."""
    for heading, (thing, here, remark) in ROWS:
        for name in re.findall(r"`([^`]+)`", thing):
            if heading == "The trainer" and name.startswith("--"):
                if name in REPLACED:
                    assert "No effect" in remark or "refused" in remark, name
                else:
                    assert name in flags() and f"`{name}`" in here, name
            elif name in of_templates():
                assert f"`{name}`" in here, f"{heading}: {name} is a parameter or output here too"


def test_errors_of_every_source_document_are_listed() -> None:
    documents = [cells[0] for _heading, cells in table_rows(PAGE, "It says")]
    for name in ("main README", "Batch", "FSDP on EKS", "EKS with DLC", "SageMaker workshop"):
        assert name in documents
    assert len(documents) >= 30
    page = PAGE.read_text()
    for fact in ("`2.vpc-oneaz.yaml`", "eight A100", "8192, as its published", "deploys P4's file", "ECR check greps"):
        assert fact in page


@pytest.mark.parametrize(
    "cell",
    [
        "`roles/nothing`",
        "`--nothing`",
        "`muster.fleet.nothing`",
        "`common_nothing`",
        "stack `nothing`",
        "`NothingParameter`",
        "`${NOTHING}`",
    ],
)
def test_a_name_that_does_not_exist_is_found(cell: str) -> None:
    assert len(missing(cell)) == 1
