// Lookups of rows in a table, and sums of rows by index.

template <typename T, typename P>
__global__ void gather(const P* table, const long long* indices, T* rows, unsigned int factor,
                       int bits, int columns, int n) {
  for EACH(i, n) {
    const int row = divide(i, factor, bits);
    store(rows, i, Wide<T>(load(table, indices[row] * columns + (i - row * columns))));
  }
}

// One block for each row of the total, so that every sum has the order of the indices.  A block
// looks through all indices, one for each thread at a time.
template <typename T, typename P>
__global__ void scatter_add(const T* rows, const long long* indices, P* total, int count,
                            int columns, int places) {
  __shared__ bool is_here[256];
  __shared__ int any;
  for EACH_BLOCK(place, places) {
    for (int start = 0; start < count; start += blockDim.x) {
      const int index = start + threadIdx.x;
      const bool hit = index < count && indices[index] == place;
      if (threadIdx.x == 0) any = 0;
      is_here[threadIdx.x] = hit;
      __syncthreads();
      if (hit) any = 1;
      __syncthreads();
      if (any) {
        for (int k = 0; k < blockDim.x; k++) {
          if (!is_here[k]) continue;
          for EACH_THREAD(c, columns) {
            const long long at = (long long)place * columns + c;
            const long long from = (long long)(start + k) * columns + c;
            store(total, at, load(total, at) + Wide<P>(load(rows, from)));
          }
        }
      }
      __syncthreads();
    }
  }
}
