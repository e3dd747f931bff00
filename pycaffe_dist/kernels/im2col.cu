// Unfolding of images into columns and back, for any number of axes.
//
// All axes but the last are joined to one, of rows: `starts` (taps, output rows) has the beginning
// of the input row under a kernel row, or -1 in the padding; `sources` (taps, input rows) has the
// output row whose kernel row lies on an input row, or -1; `last` (kernel, columns) has the same
// for output columns.  An element of columns lies at (channel·taps + tap)·row + image·step + pixel,
// so that images may follow each other, or lie side by side in one matrix.

// A thread for each channel, image and output pixel, for all taps; divisions by pixels, images and
// count are done as products.
template <typename T>
__global__ void im2col(const T* __restrict__ x, T* __restrict__ columns, const int* starts,
                       unsigned int pixels_factor, int pixels_bits, unsigned int images_factor,
                       int images_bits, unsigned int count_factor, int count_bits, int images,
                       int channels, int plane, int width, int rows, int count, int row_taps,
                       int kernel, int stride, int pad, int dilation, long long row, long long step,
                       int n) {
  const int pixels = rows * count;
  for EACH(i, n) {
    const int which = divide(i, pixels_factor, pixels_bits), p = i - which * pixels;
    const int c = divide(which, images_factor, images_bits), image = which - c * images;
    const int r = divide(p, count_factor, count_bits);
    const int left = (p - r * count) * stride - pad;
    const T* source = x + ((long long)image * channels + c) * plane;
    T* target = columns + (long long)c * row_taps * kernel * row + image * step + p;
    for (int t = 0; t < row_taps; t++) {
      const int start = starts[t * rows + r];
      for (int k = 0; k < kernel; k++, target += row) {
        const int column = left + k * dilation;
        const bool inside = start >= 0 && (unsigned int)column < (unsigned int)width;
        store(target, 0, inside ? load(source, start + column) : Wide<T>(0));
      }
    }
  }
}

// The sum of all columns that a pixel was copied to; a thread for each pixel.
template <typename T>
__global__ void col2im(const T* columns, T* x, const int* sources, const int* last,
                       int channels, int height, int width, int rows, int count, int row_taps,
                       int kernel, long long row, long long step, int lines, int shift) {
  for EACH_ROW(line, lines, shift) {
    const int h = line % height, which = line / height;
    const int c = which % channels, image = which / channels;
    T* target = x + (((long long)image * channels + c) * height + h) * width;
    const T* source = columns + (long long)c * row_taps * kernel * row + image * step;
    for EACH_IN_ROW(w, width, shift) {
      Wide<T> sum = 0;
      for (int t = 0; t < row_taps; t++) {
        const int r = sources[t * height + h];
        if (r < 0) continue;
        for (int k = 0; k < kernel; k++) {
          const int o = last[k * width + w];
          if (o >= 0) sum += load(source, (t * kernel + k) * row + r * count + o);
        }
      }
      store(target, w, sum);
    }
  }
}
