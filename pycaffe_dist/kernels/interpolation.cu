// Bilinear interpolation of planes whose corners stay in place.

// `lines` rows of y, each `width` long.
template <typename T, typename P>
__global__ void interpolate(const T* x, T* y, const int* index, const P* fraction,
                            const int* columns, const P* parts, int rows, int row_length,
                            int offset, int next_row, int next_column, int height, int width,
                            int lines, int shift) {
  for EACH_ROW(line, lines, shift) {
    const int plane = line / height, o = line - plane * height;
    const T* above = x + ((long long)plane * rows + offset + index[o]) * row_length + offset;
    const T* below = above + (long long)next_row * row_length;
    const Wide<T> part = load(fraction, o);
    for EACH_IN_ROW(w, width, shift) {
      const int left = columns[w], right = left + next_column;
      const Wide<T> across = load(parts, w);
      const Wide<T> a = load(above, left) + across * (load(above, right) - load(above, left));
      const Wide<T> b = load(below, left) + across * (load(below, right) - load(below, left));
      store(y, (long long)line * width + w, a + part * (b - a));
    }
  }
}

// A row of the window's gradient for each line; its points are summed over the points of y that
// they took part in.
template <typename T, typename P>
__global__ void gradient(const T* dy, T* dx, const P* fraction, const int* start, const P* parts,
                         const int* starts, int rows, int row_length, int offset, int window_rows,
                         int window_columns, int height, int width, int lines, int shift) {
  for EACH_ROW(line, lines, shift) {
    const int plane = line / window_rows, h = line - plane * window_rows;
    const T* source = dy + (long long)plane * height * width;
    T* to = dx + ((long long)plane * rows + offset + h) * row_length + offset;
    for EACH_IN_ROW(w, window_columns, shift) {
      Wide<T> total = 0;
      for (int o = start[max(h - 1, 0)]; o < start[h + 1]; o++) {
        Wide<T> sum = 0;
        for (int k = starts[max(w - 1, 0)]; k < starts[w + 1]; k++) {
          const Wide<T> part = load(parts, k);
          sum += (k < starts[w] ? part : 1 - part) * load(source, (long long)o * width + k);
        }
        const Wide<T> part = load(fraction, o);
        total += (o < start[h] ? part : 1 - part) * sum;
      }
      store(to, w, total);
    }
  }
}
