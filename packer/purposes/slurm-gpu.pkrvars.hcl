purpose         = "slurm-gpu"
components      = ["common", "kernel", "lustre_client", "local_nvme", "nvidia_driver", "nvidia_fabric", "cuda", "gdrcopy", "efa", "nccl", "aws_ofi_nccl", "nccl_tests", "docker", "nvidia_container_toolkit", "slurm", "node_health", "enroot_pyxis", "dcgm", "cloud_tools"]
groups          = ["muster_controller", "muster_login", "muster_compute", "muster_gpu", "muster_efa"]
volume_size_gib = 100
