system           = "amzn-2023-eks"
architecture     = "x86_64"
source_ami_name  = "amazon-eks-node-al2023-x86_64-standard-1.36-v*"
source_ami_owner = "602401143452"
ssh_username     = "ec2-user"
root_device      = "/dev/xvda"
instance_type    = "c7i.xlarge"
brings           = ["kubelet"]
