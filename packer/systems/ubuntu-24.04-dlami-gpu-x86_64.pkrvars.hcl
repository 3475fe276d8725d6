system           = "ubuntu-24.04-dlami-gpu"
architecture     = "x86_64"
source_ami_name  = "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) *"
source_ami_owner = "amazon"
ssh_username     = "ubuntu"
root_device      = "/dev/sda1"
instance_type    = "c7i.xlarge"
brings           = ["nvidia_driver", "nvidia_fabric", "cuda", "efa", "nccl", "aws_ofi_nccl", "docker", "nvidia_container_toolkit"]
