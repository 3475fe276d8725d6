system           = "amzn-2023-ecs"
architecture     = "arm64"
source_ami_name  = "al2023-ami-ecs-hvm-2023.*-kernel-6.1-arm64"
source_ami_owner = "amazon"
ssh_username     = "ec2-user"
root_device      = "/dev/xvda"
instance_type    = "c7g.xlarge"
brings           = ["ecs_agent", "docker"]
