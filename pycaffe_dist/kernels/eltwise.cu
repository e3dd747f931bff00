// Sums, products and maxima of arrays of one size; a kernel takes four at a time, of which all but
// the first may be missing.

template <typename V> struct Values { V a, b, c, d; };

template <typename T>
__global__ void weighted_sum(T* y, const T* a, const T* b, const T* c, const T* d, Wide<T> fa,
                             Wide<T> fb, Wide<T> fc, Wide<T> fd, Wide<T> slope, int n) {
  const auto values = [=](int i) {
    const Wide<T> none = 0;
    return Values<Wide<T>>{load(a, i), b ? load(b, i) : none, c ? load(c, i) : none,
                           d ? load(d, i) : none};
  };
  each_of_four(n, values, [=](int i, const Values<Wide<T>>& at) {
    const Wide<T> sum = at.a * fa + at.b * fb + at.c * fc + at.d * fd;
    store(y, i, sum > 0 ? sum : sum * slope);
  });
}

// The gradients of a weighted sum, of which the last one that is not null may be dy; with a `sign`,
// dy is multiplied by slope where sign is not positive.
template <typename T>
__global__ void sum_gradients(const T* dy, const T* sign, T* a, T* b, T* c, T* d, Wide<T> fa,
                              Wide<T> fb, Wide<T> fc, Wide<T> fd, Wide<T> slope, int n) {
  const auto gradient = [=](int i) {
    const Wide<T> value = load(dy, i);
    return sign && !(load(sign, i) > 0) ? value * slope : value;
  };
  each_of_four(n, gradient, [=](int i, Wide<T> value) {
    store(a, i, value * fa);
    if (b) store(b, i, value * fb);
    if (c) store(c, i, value * fc);
    if (d) store(d, i, value * fd);
  });
}

template <typename T>
__global__ void scaled_sum(const T* factors, const T* x, const T* b, T* y, unsigned int factor,
                           int bits, int n) {
  set_each(y, n, [=](int i) {
    return load(factors, divide(i, factor, bits)) * load(x, i) + load(b, i);
  });
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
