purpose         = "slurm-cpu"
components      = ["common", "slurm"]
groups          = ["muster_controller", "muster_login", "muster_compute"]
volume_size_gib = 20
