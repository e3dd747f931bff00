// The exponential function and its kin.

template <typename T>
__global__ void sigmoid(const T* x, T* y, int n) {
  for EACH(i, n) store(y, i, Wide<T>(1) / (Wide<T>(1) + exp(-load(x, i))));
}

template <typename T>
__global__ void hyperbolic_tangent(const T* x, T* y, int n) {
  for EACH(i, n) store(y, i, tanh(load(x, i)));
}

// tanh(log(1 + e^x)) is p / (p + q); e is e^-|x|.
template <typename F> struct MishRatio {
  F e, p, q;
  __device__ __forceinline__ explicit MishRatio(F x)
      : e(exp(-fabs(x))), p(x > 0 ? 1 + 2 * e : e * (e + 2)), q(2 * (x > 0 ? e * e : F(1))) {}
};

template <typename T>
__global__ void mish(const T* x, T* y, int n) {
  for EACH(i, n) {
    const Wide<T> value = load(x, i);
    const MishRatio<Wide<T>> at(value);
    store(y, i, value * (at.p / (at.p + at.q)));
  }
}

template <typename T>
__global__ void mish_gradient(const T* x, const T* dy, T* dx, int n) {
  for EACH(i, n) {
    const Wide<T> value = load(x, i);
    const MishRatio<Wide<T>> at(value);
    const Wide<T> logistic = (value > 0 ? Wide<T>(1) : at.e) / (1 + at.e);
    const Wide<T> tangent = at.p / (at.p + at.q), rest = at.q / (at.p + at.q);
    store(dx, i, load(dy, i) * (tangent + value * rest * (1 + tangent) * logistic));
  }
}
