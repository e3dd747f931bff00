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

// The same with 16 bytes at a time, which all sizes count.
__global__ void copy_wide_columns(const unsigned long long* source, int source_begin,
                                  int source_width, unsigned long long* target, int target_begin,
                                  int target_width, unsigned int factor, int bits, int columns,
                                  int n) {
  typedef Bytes16<unsigned long long, 2> Unit;
  const Unit* from = reinterpret_cast<const Unit*>(source) + source_begin;
  Unit* to = reinterpret_cast<Unit*>(target) + target_begin;
  for EACH(i, n) {
    const int row = divide(i, factor, bits), column = i - row * columns;
    to[row * target_width + column] = from[row * source_width + column];
  }
}
