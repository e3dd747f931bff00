// Copies between a matrix and a range of columns of a wider matrix.

template <typename T>
__global__ void copy_columns(const T* source, int source_begin, int source_width, T* target,
                             int target_begin, int target_width, unsigned int factor, int bits,
                             int columns, int n) {
  for EACH(i, n) {
    const int row = divide(i, factor, bits), column = i - row * columns;
    target[row * target_width + target_begin + column] =
        source[row * source_width + source_begin + column];
  }
}
