purpose         = "dlami-neuron"
components      = ["common", "cloud_tools", "docker", "enroot_pyxis", "lustre_client"]
groups          = ["muster_neuron"]
volume_size_gib = 120
needs           = ["neuron"]
# These images have no Slurm.
switches        = { enroot_pyxis_with_pyxis = false }
