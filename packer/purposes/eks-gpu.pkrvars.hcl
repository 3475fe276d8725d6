purpose         = "eks-gpu"
components      = ["common", "kernel", "efa", "nvidia_driver", "nvidia_fabric"]
groups          = ["muster_gpu", "muster_efa"]
volume_size_gib = 60
needs           = ["kubelet"]
