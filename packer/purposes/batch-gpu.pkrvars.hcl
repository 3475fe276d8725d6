purpose         = "batch-gpu"
components      = ["common", "kernel", "docker", "efa", "nvidia_driver", "nvidia_fabric", "nvidia_container_toolkit"]
groups          = ["muster_gpu", "muster_efa"]
volume_size_gib = 100
needs           = ["ecs_agent"]
