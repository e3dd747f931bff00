// The indices of the largest values along the middle axis of (outer, n, inner).

// Whether value a at index i comes before value b at index k: the larger first, of equal ones the
// last, and NaNs at the end.
template <typename V> __device__ __forceinline__ bool comes_first(V a, int i, V b, int k) {
  const bool a_is_nan = a != a, b_is_nan = b != b;
  if (a_is_nan || b_is_nan) return a_is_nan == b_is_nan ? i > k : b_is_nan;
  return a > b || (a == b && i > k);
}

// A block for each row.  Each round finds the first value after the one that the last round found.
template <typename T>
__global__ void largest(const T* x, long long* places, int n, int inner, int count, int rows) {
  __shared__ Wide<T> values[256];
  __shared__ int indices[256];
  const int t = threadIdx.x;
  for EACH_BLOCK(row, rows) {
    const int sample = row / inner, i = row - sample * inner;
    const T* source = x + (long long)sample * n * inner + i;
    Wide<T> last = 0;
    int taken = -1;
    for (int round = 0; round < count; round++) {
      Wide<T> best = 0;
      int at = -1;
      for EACH_THREAD(c, n) {
        const Wide<T> value = load(source, (long long)c * inner);
        const bool is_left = taken < 0 || comes_first(last, taken, value, c);
        if (is_left && (at < 0 || comes_first(value, c, best, at))) best = value, at = c;
      }
      values[t] = best;
      indices[t] = at;
      __syncthreads();
      for (int half = floor_power_of_two(max(1, (int)blockDim.x - 1)); half > 0; half /= 2) {
        const int other = t + half;
        if (t < half && other < blockDim.x && indices[other] >= 0 &&
            (indices[t] < 0 || comes_first(values[other], indices[other], values[t], indices[t]))) {
          values[t] = values[other];
          indices[t] = indices[other];
        }
        __syncthreads();
      }
      last = values[0];
      taken = indices[0];
      __syncthreads();  // all know the winner before the next round writes
      if (t == 0) places[((long long)sample * count + round) * inner + i] = taken;
    }
  }
}
