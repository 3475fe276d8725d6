// The process that holds the namespaces of a pod.
module muster/localkube/pause

go 1.24.0
