// Sums along the rows of a matrix: of its elements (`what` is 0), their magnitudes (1), or their
// squares (2).

// One block for each of `parts` stretches of each row.
template <typename T>
__global__ void sum_stretches(const T* x, int what, double* sums, int rows, int columns,
                              int stretch, int parts) {
  for EACH_BLOCK(block, rows * parts) {
    const int row = block / parts, part = block - row * parts;
    const int end = min(columns, (part + 1) * stretch);
    Wide<T> sum = 0;
    // Several loads at a time, as in four_at_a_time.
#pragma unroll 4
    for (int i = part * stretch + threadIdx.x; i < end; i += blockDim.x) {
      const Wide<T> value = load(x, (long long)row * columns + i);
      sum += what == 2 ? value * value : what == 1 ? fabs(value) : value;
    }
    const double total = block_sum(double(sum));
    if (threadIdx.x == 0) sums[block] = total;
  }
}

// The sums over all stretches of each row.
template <typename P>
__global__ void join_stretches(const double* sums, double coefficient, P* y, int rows, int parts) {
  for EACH(row, rows) {
    double total = 0;
    for (int part = 0; part < parts; part++) total += sums[row * parts + part];
    store(y, row, Wide<P>(total * coefficient));
  }
}
