// Written by Muster (role cuda): what must compile without a GPU.
__global__ void twice(float *values) { values[threadIdx.x] *= 2; }
