// The exponential function and its kin.

template <typename T>
__global__ void sigmoid(const T* x, T* y, int n) {
  for EACH(i, n) store(y, i, Wide<T>(1) / (Wide<T>(1) + exp(-load(x, i))));
}

template <typename T>
__global__ void exponentials(const T* x, T* y, int n) {
  for EACH(i, n) store(y, i, exp(load(x, i)));
}

template <typename T>
__global__ void hyperbolic_tangent(const T* x, T* y, int n) {
  for EACH(i, n) store(y, i, tanh(load(x, i)));
}

template <typename T>
__global__ void softplus(const T* x, T* y, int n) {
  for EACH(i, n) {
    Wide<T> value = load(x, i);
    store(y, i, (value > 0 ? value : Wide<T>(0)) + log1p(exp(value > 0 ? -value : value)));
  }
}
