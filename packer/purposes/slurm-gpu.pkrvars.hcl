purpose         = "slurm-gpu"
fleet_node      = true
components      = ["lustre_client", "aws_ofi_nccl", "enroot_pyxis", "cloud_tools"]
groups          = ["muster_controller", "muster_login", "muster_compute", "muster_gpu", "muster_efa"]
volume_size_gib = 100
