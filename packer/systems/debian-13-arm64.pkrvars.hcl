system           = "debian-13"
architecture     = "arm64"
source_ami_name  = "debian-13-arm64-*"
source_ami_owner = "136693071363"
ssh_username     = "admin"
root_device      = "/dev/xvda"
instance_type    = "c7g.xlarge"
# A fleet on Debian has another stack by itself. Give it this one too: muster_stack_name.
stack            = "aws-2026.11"
