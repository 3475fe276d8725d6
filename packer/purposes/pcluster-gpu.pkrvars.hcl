purpose         = "pcluster-gpu"
components      = ["common", "kernel", "cloud_tools", "docker", "efa", "nvidia_driver", "nvidia_fabric", "nvidia_container_toolkit", "cuda", "gdrcopy", "nccl", "aws_ofi_nccl", "enroot_pyxis", "lustre_client"]
groups          = ["muster_gpu", "muster_efa"]
volume_size_gib = 100
needs           = ["parallelcluster"]
