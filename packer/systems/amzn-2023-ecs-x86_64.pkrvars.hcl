system           = "amzn-2023-ecs"
architecture     = "x86_64"
source_ami_name  = "al2023-ami-ecs-hvm-2023.*-kernel-6.1-x86_64"
source_ami_owner = "amazon"
ssh_username     = "ec2-user"
root_device      = "/dev/xvda"
instance_type    = "c7i.xlarge"
brings           = ["ecs_agent", "docker"]
