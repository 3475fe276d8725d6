purpose         = "slurm-cpu"
components      = ["common", "slurm", "node_health"]
groups          = ["muster_controller", "muster_login", "muster_compute"]
volume_size_gib = 20
