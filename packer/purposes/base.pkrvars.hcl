purpose         = "base"
components      = ["common"]
volume_size_gib = 20
