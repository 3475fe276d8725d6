purpose         = "dlami-gpu"
components      = ["common", "cloud_tools", "docker", "nvidia_container_toolkit", "enroot_pyxis", "lustre_client"]
groups          = ["muster_gpu"]
volume_size_gib = 120
needs           = ["nvidia_driver"]
# These images have no Slurm.
switches        = { enroot_pyxis_with_pyxis = false }
