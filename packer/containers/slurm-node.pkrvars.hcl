purpose    = "slurm-node"
components = ["common", "slurm"]
groups     = ["muster_controller", "muster_login", "muster_compute"]
command    = ["/sbin/init"]
