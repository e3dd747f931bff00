// The bias of convolutions and inner products: one parameter for each channel.

// y = y + b, then times slope where the sum is negative.  A row is a channel of an image; b may be
// null.
template <typename T, typename P>
__global__ void add_bias(T* y, const P* b, Wide<T> slope, int channels, int pixels, int rows,
                         int shift) {
  for EACH_ROW(row, rows, shift) {
    const Wide<T> bias = b ? Wide<T>(b[row % channels]) : Wide<T>(0);
    T* own = y + (long long)row * pixels;
    const auto value = [=](int p) { return load(own, p) + bias; };
    const int lane = threadIdx.x & ((1 << shift) - 1);
    four_at_a_time(lane, 1 << shift, pixels, value, [=](int p, Wide<T> sum) {
      store(own, p, sum < 0 ? sum * slope : sum);
    });
  }
}

// The sums of dy over pixels and a part of the images, one block for each part and channel; with
// `add` they are added to the old values.  1 << shift threads share a row, and `sum_of_row` sums
// their elements of the row that starts at an index.
template <typename P, typename Row>
__device__ __forceinline__ void sum_planes(P* sums, int images, int channels, int pixels, int parts,
                                           int shift, bool add, const Row& sum_of_row) {
  const int lanes = blockDim.x >> shift, lane = threadIdx.x >> shift;
  for EACH_BLOCK(piece, parts * channels) {
    const int part = piece / channels, m = piece - part * channels;
    const int stop = (int)((long long)images * (part + 1) / parts);
    P sum = 0;
    for (int n = (int)((long long)images * part / parts) + lane; n < stop; n += lanes) {
      sum += sum_of_row((long long)(n * channels + m) * pixels);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums[piece] = (add ? sums[piece] : P(0)) + sum;
  }
}

template <typename T, typename P>
__global__ void channel_sums(const T* dy, P* sums, int images, int channels, int pixels, int parts,
                             int shift, bool add) {
  sum_planes(sums, images, channels, pixels, parts, shift, add, [=](long long start) {
    Wide<T> sum = 0;
    // Several loads at a time, as in four_at_a_time.
#pragma unroll 4
    for EACH_IN_ROW(p, pixels, shift) sum += load(dy, start + p);
    return sum;
  });
}

// The same for dy that is first multiplied by slope where sign is not positive, and stored.
template <typename T, typename P>
__global__ void rectified_sums(const T* sign, T* dy, P* sums, Wide<T> slope, int images,
                               int channels, int pixels, int parts, int shift, bool add) {
  sum_planes(sums, images, channels, pixels, parts, shift, add, [=](long long start) {
    const T* signs = sign + start;
    T* own = dy + start;
    Wide<T> sum = 0;
    const auto value = [=](int p) { return load(own, p) * (load(signs, p) > 0 ? 1 : slope); };
    const int lane = threadIdx.x & ((1 << shift) - 1);
    four_at_a_time(lane, 1 << shift, pixels, value, [=, &sum](int p, Wide<T> gradient) {
      store(own, p, gradient);
      sum += gradient;
    });
    return sum;
  });
}

// The same if channels have one pixel: neighbouring threads sum neighbouring channels.
template <typename T, typename P>
__global__ void column_sums(const T* dy, P* sums, int images, int channels, int parts, bool add,
                            int n) {
  for EACH(piece, n) {
    const int part = piece / channels, m = piece - part * channels;
    const int stop = (int)((long long)images * (part + 1) / parts);
    Wide<T> sum = 0;
    for (int i = (int)((long long)images * part / parts); i < stop; i++) {
      sum += load(dy, (long long)i * channels + m);
    }
    sums[piece] = (add ? sums[piece] : P(0)) + P(sum);
  }
}

// The sums of all parts, always in the same order; with `add` they are added to the old values.
template <typename P>
__global__ void add_parts(const P* parts, P* sums, int count, bool add, int n) {
  for EACH(i, n) {
    P sum = parts[i];
    for (int part = 1; part < count; part++) sum += parts[(long long)part * n + i];
    sums[i] = (add ? sums[i] : P(0)) + sum;
  }
}
