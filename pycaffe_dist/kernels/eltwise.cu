// Sums, products and maxima of arrays of one size; a kernel takes four at a time, of which all but
// the first may be missing.

template <typename T>
__global__ void weighted_sum(T* y, const T* a, const T* b, const T* c, const T* d, Wide<T> fa,
                             Wide<T> fb, Wide<T> fc, Wide<T> fd, Wide<T> slope, int n) {
  const auto weighted = [=](int, Wide<T> va, Wide<T> vb, Wide<T> vc, Wide<T> vd) {
    const Wide<T> sum = va * fa + vb * fb + vc * fc + vd * fd;
    return sum > 0 ? sum : sum * slope;
  };
  set_each(y, n, weighted, a, b, c, d);
}

struct SetGradients {
  template <typename W, typename T, typename... Targets>
  __device__ __forceinline__ void operator()(W width, int i, const T* dy, const T* sign,
                                             Wide<T> slope, Targets... targets) const {
    const auto gradients = load_few(width, dy, i), signs = load_few(width, sign, i);
    set(width, i, gradients, signs, slope, targets...);
  }

 private:
  template <typename W, typename Values, typename V>
  __device__ __forceinline__ void set(W, int, const Values&, const Values&, V) const {}

  template <typename W, typename Values, typename V, typename T, typename... Others>
  __device__ __forceinline__ void set(W width, int i, const Values& gradients, const Values& signs,
                                      V slope, T* target, V factor, Others... others) const {
    const auto own = [=](int, V gradient, V sign_of) {
      return (sign_of > 0 ? gradient : gradient * slope) * factor;
    };
    if (target) set_few(width, target, i, own, gradients, signs);
    set(width, i, gradients, signs, slope, others...);
  }
};

// The gradients of a weighted sum, of which the last one that is not null may be dy; with a `sign`,
// dy is multiplied by slope where sign is not positive.
template <typename T>
__global__ void sum_gradients(const T* dy, const T* sign, T* a, T* b, T* c, T* d, Wide<T> fa,
                              Wide<T> fb, Wide<T> fc, Wide<T> fd, Wide<T> slope, int n) {
  const Wide<T> factor = sign ? slope : Wide<T>(1);
  const bool aligned = are_aligned(dy, sign, a, b, c, d);
  each_few<T>(n, aligned, SetGradients(), dy, sign, factor, a, fa, b, fb, c, fc, d, fd);
}

template <typename T>
__global__ void scaled_sum(const T* factors, const T* x, const T* b, T* y, unsigned int factor,
                           int bits, int n) {
  const auto sum = [=](int i, Wide<T> value, Wide<T> addend) {
    return load(factors, divide(i, factor, bits)) * value + addend;
  };
  set_each(y, n, sum, x, b);
}

template <typename T>
__global__ void product(T* y, const T* a, const T* b, const T* c, const T* d, int n) {
  for EACH(i, n) {
    Wide<T> result = load(a, i) * load(b, i);
    if (c) result *= load(c, i);
    if (d) result *= load(d, i);
    store(y, i, result);
  }
}

// The winner of the first two, and of that winner and a later value.
template <typename T>
__global__ void maximum(T* y, int* winner, const T* a, const T* b, int n) {
  for EACH(i, n) {
    const Wide<T> first = load(a, i), second = load(b, i);
    winner[i] = !(first > second);
    store(y, i, first > second ? first : second);
  }
}

template <typename T>
__global__ void larger(T* y, int* winner, const T* a, int index, int n) {
  for EACH(i, n) {
    const Wide<T> value = load(a, i);
    if (value > load(y, i)) {
      winner[i] = index;
      store(y, i, value);
    }
  }
}

template <typename T>
__global__ void maximum_gradient(const T* dy, const int* winner, int index, T* dx, int n) {
  for EACH(i, n) store(dx, i, winner[i] == index ? load(dy, i) : Wide<T>(0));
}
