// The exponential function and its kin.

template <typename T>
__global__ void sigmoid(const T* x, T* y, int n) {
  for EACH(i, n) store(y, i, Wide<T>(1) / (Wide<T>(1) + exp(-load(x, i))));
}

template <typename T>
__global__ void hyperbolic_tangent(const T* x, T* y, int n) {
  for EACH(i, n) store(y, i, tanh(load(x, i)));
}
