struct interface { const char *name; void *calls[32]; };
struct interface ncclNetPlugin_v6 = {"Libfabric"}, ncclNetPlugin_v8 = {"Libfabric"}, ncclNetPlugin_v10 = {"Libfabric"};
