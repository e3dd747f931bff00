// Per-channel shifts, scales and sums of data (outer, channels, inner).  Vectors of one value for
// each channel are parameters, P; divisions by inner and channels are products.

template <typename T, typename P>
__global__ void affine(const T* x, T* y, const P* shift, const P* scale, const P* bias,
                       unsigned int inner_factor, int inner_bits, unsigned int channels_factor,
                       int channels_bits, int channels, int n) {
  for EACH(i, n) {
    const int row = divide(i, inner_factor, inner_bits);
    const int c = row - divide(row, channels_factor, channels_bits) * channels;
    const Wide<T> centred = load(x, i) - Wide<T>(load(shift, c));
    store(y, i, centred * Wide<T>(load(scale, c)) + Wide<T>(load(bias, c)));
  }
}

template <typename T, typename P>
__global__ void normalize_gradient(const T* x, const T* dy, T* dx, const P* shift, const P* scale,
                                   const P* offset, const P* slope, unsigned int inner_factor,
                                   int inner_bits, unsigned int channels_factor, int channels_bits,
                                   int channels, int n) {
  for EACH(i, n) {
    const int row = divide(i, inner_factor, inner_bits);
    const int c = row - divide(row, channels_factor, channels_bits) * channels;
    const Wide<T> centred = load(x, i) - Wide<T>(load(shift, c));
    const Wide<T> gradient =
        load(dy, i) - Wide<T>(load(offset, c)) - centred * Wide<T>(load(slope, c));
    store(dx, i, gradient * Wide<T>(load(scale, c)));
  }
}

// Two sums for each channel over each of `parts` stretches of its elements, (parts, channels):
// those of dy and of dy·(x - shift).  Without dy it is x - pivot for both, and the pivot, in place
// of the shift, is the channel's first element: then nothing cancels in the variance.
template <typename T, typename P>
__global__ void sums(const T* x, const T* dy, const P* shift, double* first, double* second,
                     unsigned int inner_factor, int inner_bits, int channels, int inner, int count,
                     int stretch, int parts) {
  for EACH_BLOCK(block, channels * parts) {
    const int part = block / channels, c = block - part * channels;
    const Wide<T> centre = dy ? Wide<T>(load(shift, c)) : load(x, c * inner);
    const int end = min(count, (part + 1) * stretch);
    Wide<T> sum = 0, product = 0;
    for (int j = part * stretch + threadIdx.x; j < end; j += blockDim.x) {
      const int n = divide(j, inner_factor, inner_bits);
      const int at = (n * channels + c) * inner + (j - n * inner);
      const Wide<T> value = load(x, at) - centre;
      const Wide<T> gradient = dy ? load(dy, at) : value;
      sum += gradient;
      product += gradient * value;
    }
    const double total = block_sum(double(sum)), total_product = block_sum(double(product));
    if (threadIdx.x == 0) first[block] = total, second[block] = total_product;
  }
}

// The same where inner is 1, and neighbours in memory are of different channels: a block has 32
// channels and some rows at a time.
template <typename T, typename P>
__global__ void sums_of_columns(const T* x, const T* dy, const P* shift, double* first,
                                double* second, int channels, int count, int stretch) {
  __shared__ double sums[8][32], products[8][32];
  const int c = blockIdx.x * 32 + threadIdx.x, part = blockIdx.y;
  const int end = min(count, (part + 1) * stretch);
  Wide<T> sum = 0, product = 0;
  if (c < channels) {
    const Wide<T> centre = dy ? Wide<T>(load(shift, c)) : load(x, c);
    for (int n = part * stretch + threadIdx.y; n < end; n += 8) {
      const Wide<T> value = load(x, n * channels + c) - centre;
      const Wide<T> gradient = dy ? load(dy, n * channels + c) : value;
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

// The sums over all stretches.
__global__ void total_sums(const double* first, const double* second, double* sum, double* product,
                           int channels, int parts) {
  for EACH_BLOCK(c, channels) {
    double total = 0, total_product = 0;
    for EACH_THREAD(part, parts) {
      total += first[part * channels + c];
      total_product += second[part * channels + c];
    }
    total = block_sum(total), total_product = block_sum(total_product);
    if (threadIdx.x == 0) sum[c] = total, product[c] = total_product;
  }
}

// Means and variances from the sums about the pivots.
template <typename T>
__global__ void moments(const T* x, const double* first, const double* second, double* mean,
                        double* variance, int channels, int inner, int count, int parts) {
  for EACH_BLOCK(c, channels) {
    double total = 0, squares = 0;
    for EACH_THREAD(part, parts) {
      total += first[part * channels + c];
      squares += second[part * channels + c];
    }
    total = block_sum(total) / count, squares = block_sum(squares) / count;
    if (threadIdx.x == 0) {
      mean[c] = double(load(x, c * inner)) + total;
      variance[c] = max(squares - total * total, 0.0);
    }
  }
}
