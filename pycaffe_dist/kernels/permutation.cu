// Copies with axes in another order, and with one axis reversed.

// Where a block of a permutation begins; `outer` has size, step in x and step in y of each axis.
struct Places {
  long long x, y;

  __device__ Places(int block, const long long* outer, int axes) : x(0), y(0) {
    for (int axis = axes - 1; axis >= 0; axis--) {
      const int size = int(outer[3 * axis]), rest = block / size, index = block - rest * size;
      x += index * outer[3 * axis + 1];
      y += index * outer[3 * axis + 2];
      block = rest;
    }
  }
};

template <typename T>
__global__ void copy_rows(const T* x, T* y, const long long* outer, int axes, int inner,
                          int blocks, int shift) {
  for EACH_ROW(block, blocks, shift) {
    const Places at(block, outer, axes);
    for EACH_IN_ROW(i, inner, shift) y[at.y + i] = x[at.x + i];
  }
}

// A block transposes a square of 32 by 32 elements with its 32 by 8 threads.
template <typename T>
__global__ void transpose(const T* x, T* y, const long long* outer, int axes, int rows,
                          int columns, long long row_step, long long column_step, int down,
                          int across, int squares) {
  __shared__ T square[32][33];
  for EACH_BLOCK(unit, squares) {
    const int tile = unit % (down * across), top = tile / across * 32, left = tile % across * 32;
    const Places at(unit / (down * across), outer, axes);
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32;
    for (int row = first; row < 32; row += 8) {
      if (top + row < rows && left + lane < columns) {
        square[row][lane] = x[at.x + (top + row) * row_step + left + lane];
      }
    }
    __syncthreads();
    for (int column = first; column < 32; column += 8) {
      if (left + column < columns && top + lane < rows) {
        y[at.y + (left + column) * column_step + top + lane] = square[lane][column];
      }
    }
    __syncthreads();
  }
}

template <typename T>
__global__ void reverse(const T* x, T* y, int size, int inner, int rows, int shift) {
  for EACH_ROW(row, rows, shift) {
    const int n = row / size, k = row - n * size;
    const long long to = ((long long)n * size + size - 1 - k) * inner;
    for EACH_IN_ROW(i, inner, shift) y[to + i] = x[(long long)row * inner + i];
  }
}
