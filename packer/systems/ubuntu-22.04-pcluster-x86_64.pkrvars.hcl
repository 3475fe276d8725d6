system           = "ubuntu-22.04-pcluster"
architecture     = "x86_64"
source_ami_name  = "aws-parallelcluster-3.16.3-ubuntu-2204-lts-hvm-x86_64-*"
source_ami_owner = "amazon"
ssh_username     = "ubuntu"
root_device      = "/dev/sda1"
instance_type    = "c7i.xlarge"
brings           = ["parallelcluster", "slurm", "enroot_pyxis", "lustre_client", "nvidia_driver", "nvidia_fabric", "cuda", "gdrcopy", "dcgm", "efa", "aws_ofi_nccl"]
