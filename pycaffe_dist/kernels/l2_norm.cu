// Division by the L2 norm over channels at each position: x and dy are (images, channels,
// positions), norms (images, positions).  A thread for each position.

template <typename T, typename P>
__global__ void divide_by_norms(const T* x, const P* scale, P eps, P* norms, T* y, int channels,
                                int positions, unsigned int factor, int bits, int n) {
  for EACH(i, n) {
    const int image = divide(i, factor, bits);
    const long long start = (long long)image * channels * positions + (i - image * positions);
    P sum = eps;
    for (int c = 0; c < channels; c++) {
      const P value = load(x, start + (long long)c * positions);
      sum += value * value;
    }
    const P norm = sqrt(sum);
    norms[i] = norm;
    for (int c = 0; c < channels; c++) {
      const long long at = start + (long long)c * positions;
      store(y, at, Wide<T>(load(x, at) / norm * scale[c]));
    }
  }
}

template <typename T, typename P>
__global__ void norms_gradient(const T* x, const T* dy, const P* scale, const P* norms, T* dx,
                               int channels, int positions, unsigned int factor, int bits,
                               int n) {
  for EACH(i, n) {
    const int image = divide(i, factor, bits);
    const long long start = (long long)image * channels * positions + (i - image * positions);
    const P inverse = 1 / norms[i];
    P sum = 0;
    for (int c = 0; c < channels; c++) {
      const long long at = start + (long long)c * positions;
      sum += P(load(x, at)) * P(load(dy, at));
    }
    sum *= inverse * inverse;
    for (int c = 0; c < channels; c++) {
      const long long at = start + (long long)c * positions;
      store(dx, at, Wide<T>(scale[c] * (load(dy, at) - load(x, at) * sum) * inverse));
    }
  }
}

// A block for each channel.
template <typename T, typename P>
__global__ void scale_gradient(const T* x, const T* dy, const P* norms, double* total,
                               int channels, int positions, unsigned int factor, int bits,
                               int n) {
  for EACH_BLOCK(c, channels) {
    double sum = 0;
    for EACH_THREAD(i, n) {
      const int image = divide(i, factor, bits);
      const long long row = (long long)image * channels + c;
      const long long at = row * positions + (i - image * positions);
      sum += load(x, at) * load(dy, at) / norms[i];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) total[c] = sum;
  }
}
