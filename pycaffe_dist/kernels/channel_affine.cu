// Per-channel shifts, scales and sums of data (outer, channels, inner).  Vectors of one value for
// each channel are parameters, P; divisions by inner and channels are done as products.

struct SetAndKeep {
  template <typename W, typename T, typename Make>
  __device__ __forceinline__ void operator()(W width, int i, const T* x, T* y, T* kept,
                                             const Make& make) const {
    const auto before = load_few(width, x, i);
    if (kept) store_few(width, kept, i, before);
    set_few(width, y, i, make, before);
  }
};

// Results that are not positive are multiplied by slope; `kept`, which may be null, gets a copy of
// x.
template <typename T, typename P>
__global__ void affine(const T* x, T* y, T* kept, const P* shift, const P* scale, const P* bias,
                       Wide<T> slope, unsigned int inner_factor, int inner_bits,
                       unsigned int channels_factor, int channels_bits, int channels, int n) {
  const auto of = [=](int i, Wide<T> value) {
    const int row = divide(i, inner_factor, inner_bits);
    const int c = row - divide(row, channels_factor, channels_bits) * channels;
    const Wide<T> centred = value - Wide<T>(load(shift, c));
    const Wide<T> result = centred * Wide<T>(load(scale, c)) + Wide<T>(load(bias, c));
    return result > 0 ? result : result * slope;
  };
  each_few<T>(n, are_aligned(x, y, kept), SetAndKeep(), x, y, kept, of);
}

// With a `bias`, dy is first multiplied by rectifier_slope where `affine` has no positive result.
template <typename T, typename P>
__global__ void normalize_gradient(const T* x, const T* dy, T* dx, const P* shift, const P* scale,
                                   const P* offset, const P* slope, const P* bias,
                                   Wide<T> rectifier_slope, unsigned int inner_factor,
                                   int inner_bits, unsigned int channels_factor, int channels_bits,
                                   int channels, int n) {
  const auto of = [=](int i, Wide<T> value, Wide<T> gradient) {
    const int row = divide(i, inner_factor, inner_bits);
    const int c = row - divide(row, channels_factor, channels_bits) * channels;
    const Wide<T> centred = value - Wide<T>(load(shift, c));
    const Wide<T> factor = Wide<T>(load(scale, c));
    if (bias && !(centred * factor + Wide<T>(load(bias, c)) > 0)) gradient *= rectifier_slope;
    return (gradient - Wide<T>(load(offset, c)) - centred * Wide<T>(load(slope, c))) * factor;
  };
  set_each(dx, n, of, x, dy);
}

// Two sums for each channel over each of `parts` stretches of its elements, (parts, channels): of
// dy and of dy·(x - shift).  Without dy they are of x - pivot and its square; the pivot is the
// channel's first element, so that the variance loses no digits to cancellation, and is stored. With
// a `bias`, dy is first multiplied by slope where `affine` has no positive result.
template <typename T, typename P>
__global__ void sums(const T* x, const T* dy, const P* shift, const P* scale, const P* bias,
                     Wide<T> slope, double* first, double* second, double* pivot,
                     unsigned int inner_factor, int inner_bits, int channels, int inner, int count,
                     int stretch, int parts) {
  const int together = 4;  // loads at a time, as in four_at_a_time
  for EACH_BLOCK(block, channels * parts) {
    const int part = block / channels, c = block - part * channels;
    const Wide<T> centre = dy ? Wide<T>(load(shift, c)) : load(x, c * inner);
    const Wide<T> factor = bias ? Wide<T>(load(scale, c)) : Wide<T>(0);
    const Wide<T> added = bias ? Wide<T>(load(bias, c)) : Wide<T>(0);
    if (pivot && part == 0 && threadIdx.x == 0) pivot[c] = centre;
    const int end = min(count, (part + 1) * stretch);
    Wide<T> sum = 0, product = 0;
    for (int start = part * stretch; start < end; start += together * blockDim.x) {
      Wide<T> values[together], gradients[together];
#pragma unroll
      for (int k = 0; k < together; k++) {
        const int j = start + k * blockDim.x + threadIdx.x;
        const int n = divide(j, inner_factor, inner_bits);
        const int place = j < end ? (n * channels + c) * inner + (j - n * inner) : -1;
        values[k] = place >= 0 ? load(x, place) : centre;
        gradients[k] = dy && place >= 0 ? load(dy, place) : Wide<T>(0);
      }
#pragma unroll
      for (int k = 0; k < together; k++) {
        const Wide<T> value = values[k] - centre;
        Wide<T> gradient = dy ? gradients[k] : value;
        if (bias && !(value * factor + added > 0)) gradient *= slope;
        sum += gradient;
        product += gradient * value;
      }
    }
    const double total = block_sum(double(sum)), total_product = block_sum(double(product));
    if (threadIdx.x == 0) first[block] = total, second[block] = total_product;
  }
}

// The same if inner is 1, so that neighbours in memory belong to different channels: a block has 32
// channels and some rows at a time.
template <typename T, typename P>
__global__ void sums_of_columns(const T* x, const T* dy, const P* shift, const P* scale,
                                const P* bias, Wide<T> slope, double* first, double* second,
                                double* pivot, int channels, int count, int stretch) {
  __shared__ double sums[8][32], products[8][32];
  const int c = blockIdx.x * 32 + threadIdx.x, part = blockIdx.y;
  const int end = min(count, (part + 1) * stretch);
  Wide<T> sum = 0, product = 0;
  if (c < channels) {
    const Wide<T> centre = dy ? Wide<T>(load(shift, c)) : load(x, c);
    const Wide<T> factor = bias ? Wide<T>(load(scale, c)) : Wide<T>(0);
    const Wide<T> added = bias ? Wide<T>(load(bias, c)) : Wide<T>(0);
    if (pivot && part == 0 && threadIdx.y == 0) pivot[c] = centre;
    for (int n = part * stretch + threadIdx.y; n < end; n += 8) {
      const Wide<T> value = load(x, n * channels + c) - centre;
      Wide<T> gradient = dy ? load(dy, n * channels + c) : value;
      if (bias && !(value * factor + added > 0)) gradient *= slope;
      sum += gradient;
      product += gradient * value;
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  products[threadIdx.y][threadIdx.x] = product;
  __syncthreads();
  if (threadIdx.y == 0 && c < channels) {
    double total = 0, total_product = 0;
    for (int k = 0; k < 8; k++) {
      total += sums[k][threadIdx.x];
      total_product += products[k][threadIdx.x];
    }
    first[part * channels + c] = total;
    second[part * channels + c] = total_product;
  }
}

// The sums over all stretches, and what follows from them: the gradients of a bias and a scale (set,
// or added to), and the terms of normalize_gradient.  All but the sums may be null.
template <typename P>
__global__ void join_sums(const double* first, const double* second, double* sum, double* product,
                          const P* factor, P* bias, P* scale, bool add_bias, bool add_scale,
                          const P* deviation, bool spread, P* offset, P* slope, double count,
                          int channels, int parts) {
  for EACH_BLOCK(c, channels) {
    double total = 0, total_product = 0;
    for EACH_THREAD(part, parts) {
      total += first[part * channels + c];
      total_product += second[part * channels + c];
    }
    total = block_sum(total), total_product = block_sum(total_product);
    if (threadIdx.x > 0) continue;
    sum[c] = total, product[c] = total_product;
    const double own = factor ? total_product * load(factor, c) : total_product;
    if (bias) store(bias, c, Wide<P>((add_bias ? load(bias, c) : Wide<P>(0)) + total));
    if (scale) store(scale, c, Wide<P>((add_scale ? load(scale, c) : Wide<P>(0)) + own));
    if (!offset) continue;
    const double inverse = load(deviation, c);
    store(offset, c, Wide<P>(total / count));
    store(slope, c, Wide<P>(spread ? total_product / count * inverse * inverse : 0));
  }
}

// Means and variances from the sums about the pivots, and what follows from them: running sums (one
// weight for all channels), shifts, scales, and these times a factor.  All but mean and variance
// may be null.
template <typename P>
__global__ void join_statistics(const double* first, const double* second, const double* pivot,
                                double* mean, double* variance, P* means, P* variances, P* weight,
                                double keep, double share, double unbiased, double eps, P* shift,
                                P* scale, const P* factor, P* product, int count, int channels,
                                int parts) {
  for EACH_BLOCK(c, channels) {
    double total = 0, squares = 0;
    for EACH_THREAD(part, parts) {
      total += first[part * channels + c];
      squares += second[part * channels + c];
    }
    total = block_sum(total) / count, squares = block_sum(squares) / count;
    if (threadIdx.x > 0) continue;
    const double own = pivot[c] + total, spread = max(squares - total * total, 0.0);
    mean[c] = own, variance[c] = spread;
    if (means) {
      store(means, c, Wide<P>(load(means, c) * keep + own * share));
      store(variances, c, Wide<P>(load(variances, c) * keep + spread * unbiased * share));
      if (weight && c == 0) store(weight, 0, Wide<P>(load(weight, 0) * keep + share));
    }
    if (!shift) continue;
    const Wide<P> inverse = Wide<P>(1 / sqrt(spread + eps));
    store(shift, c, Wide<P>(own));
    store(scale, c, inverse);
    if (product) store(product, c, factor ? inverse * load(factor, c) : inverse);
  }
}
