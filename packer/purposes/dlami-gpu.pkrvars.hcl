purpose         = "dlami-gpu"
components      = ["common", "cloud_tools", "docker", "nvidia_container_toolkit", "enroot_pyxis", "lustre_client"]
groups          = ["muster_gpu"]
volume_size_gib = 120
