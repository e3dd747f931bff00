// The logistic function.

template <typename T>
__global__ void sigmoid(const T* x, T* y, int n) {
  for EACH(i, n) store(y, i, Wide<T>(1) / (Wide<T>(1) + exp(-load(x, i))));
}
