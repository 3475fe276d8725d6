purpose         = "slurm-cpu"
fleet_node      = true
components      = []
groups          = ["muster_controller", "muster_login", "muster_compute"]
volume_size_gib = 20
