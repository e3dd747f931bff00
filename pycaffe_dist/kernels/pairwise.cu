// Distances of each row of x (rows, depth) to each row of w (others, depth).  T and P may be of
// different widths; sums are of the type of parameters.

template <typename T, typename P, typename Y>
__global__ void distances(const T* x, const P* w, int magnitudes, Y* y, int others, int depth,
                          unsigned int factor, int bits, int n) {
  for EACH(i, n) {
    const int row = divide(i, factor, bits);
    const long long of_x = (long long)row * depth;
    const long long of_w = (long long)(i - row * others) * depth;
    Wide<T> total = 0;
    for (int k = 0; k < depth; k++) {
      const Wide<T> difference = load(x, of_x + k) - load(w, of_w + k);
      total += magnitudes ? (difference < 0 ? -difference : difference) : difference * difference;
    }
    store(y, i, total);
  }
}

template <typename T, typename P, typename Y>
__global__ void magnitudes_gradient(const T* x, const P* w, const Y* dy, int turned, T* dx,
                                    int rows, int others, int depth, unsigned int factor, int bits,
                                    int n) {
  for EACH(i, n) {
    const int row = divide(i, factor, bits);
    const int k = i - row * depth;
    const Wide<T> value = load(x, i);
    Wide<T> total = load(dx, i);
    for (int other = 0; other < others; other++) {
      const long long at = turned ? (long long)other * rows + row : (long long)row * others + other;
      const Wide<T> difference = value - load(w, (long long)other * depth + k);
      total += load(dy, at) * ((difference > 0) - (difference < 0));
    }
    store(dx, i, total);
  }
}
