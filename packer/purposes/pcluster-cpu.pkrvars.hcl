purpose         = "pcluster-cpu"
components      = ["common", "cloud_tools", "docker", "enroot_pyxis", "lustre_client"]
volume_size_gib = 50
needs           = ["parallelcluster"]
