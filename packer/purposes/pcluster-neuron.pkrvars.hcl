purpose         = "pcluster-neuron"
components      = ["common", "kernel", "cloud_tools", "docker", "efa", "enroot_pyxis", "lustre_client", "neuron"]
groups          = ["muster_neuron", "muster_efa"]
volume_size_gib = 100
needs           = ["parallelcluster"]
