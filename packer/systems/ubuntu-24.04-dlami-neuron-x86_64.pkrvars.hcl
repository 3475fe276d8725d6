system           = "ubuntu-24.04-dlami-neuron"
architecture     = "x86_64"
source_ami_name  = "Deep Learning Base Neuron AMI (Ubuntu 24.04) *"
source_ami_owner = "amazon"
ssh_username     = "ubuntu"
root_device      = "/dev/sda1"
instance_type    = "c7i.xlarge"
brings           = ["neuron", "efa"]
