system           = "amzn-2023-pcluster"
architecture     = "x86_64"
source_ami_name  = "aws-parallelcluster-3.16.3-amzn2023-hvm-x86_64-*"
source_ami_owner = "amazon"
ssh_username     = "ec2-user"
root_device      = "/dev/xvda"
instance_type    = "c7i.xlarge"
brings           = ["parallelcluster", "slurm", "enroot_pyxis", "lustre_client", "nvidia_driver", "nvidia_fabric", "cuda", "gdrcopy", "dcgm", "efa", "aws_ofi_nccl"]
