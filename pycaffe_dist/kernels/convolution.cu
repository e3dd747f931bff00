// Kernels of convolutions besides columns (im2col.cu) and matrix products: images side by side in
// one matrix, and direct kernels for groups of one input channel, as in depthwise convolutions.

// matrix (M, images, pixels) from x (images, M, pixels).
template <typename T>
__global__ void gather_images(const T* __restrict__ x, T* __restrict__ matrix, int images,
                              int channels, int pixels, int lines, int shift) {
  for EACH_ROW(line, lines, shift) {
    const int m = line / images, image = line - m * images;
    const T* source = x + ((long long)image * channels + m) * pixels;
    T* target = matrix + (long long)line * pixels;
    for EACH_IN_ROW(p, pixels, shift) target[p] = source[p];
  }
}

// The reverse, plus a bias that may be null; then negative results are multiplied by slope.
template <typename T, typename P>
__global__ void scatter_images(const T* __restrict__ matrix, const P* b, T* __restrict__ y,
                               Wide<T> slope, int images, int channels, int pixels, int lines,
                               int shift) {
  for EACH_ROW(line, lines, shift) {
    const int image = line / channels, m = line - image * channels;
    const Wide<T> bias = b ? Wide<T>(b[m]) : Wide<T>(0);
    const T* source = matrix + ((long long)m * images + image) * pixels;
    T* target = y + (long long)line * pixels;
    for EACH_IN_ROW(p, pixels, shift) {
      const Wide<T> value = load(source, p) + bias;
      store(target, p, value < 0 ? value * slope : value);
    }
  }
}

// In the direct kernels each input channel has `multiplier` output channels, so plane i of y
// belongs to plane i / multiplier of x.  The tables are the same as in im2col.cu.

// A thread for each output pixel.
template <typename T, typename P>
__global__ void direct_forward(const T* x, const P* w, const P* b, T* y, const int* starts,
                               Wide<T> slope, int outputs, int multiplier, int plane, int width,
                               int rows, int count, int row_taps, int kernel, int stride, int pad,
                               int dilation, int lines, int shift) {
  for EACH_ROW(line, lines, shift) {
    const int which = line / rows, r = line - which * rows, m = which % outputs;
    const T* source = x + (long long)(which / multiplier) * plane;
    const P* weights = w + m * row_taps * kernel;
    const Wide<T> bias = b ? Wide<T>(b[m]) : Wide<T>(0);
    for EACH_IN_ROW(o, count, shift) {
      Wide<T> sum = bias;
      for (int t = 0; t < row_taps; t++) {
        const int start = starts[t * rows + r];
        if (start < 0) continue;
        int column = o * stride - pad;
        for (int k = 0; k < kernel; k++, column += dilation) {
          if ((unsigned int)column < (unsigned int)width) {
            sum += load(source, start + column) * Wide<T>(weights[t * kernel + k]);
          }
        }
      }
      store(y, (long long)line * count + o, sum < 0 ? sum * slope : sum);
    }
  }
}

// A thread for each input pixel.
template <typename T, typename P>
__global__ void direct_data(const T* dy, const P* w, T* dx, const int* sources, const int* last,
                            int outputs, int multiplier, int height, int width, int rows,
                            int count, int row_taps, int kernel, int lines, int shift) {
  for EACH_ROW(line, lines, shift) {
    const int which = line / height, h = line - which * height;
    const T* source = dy + (long long)which * multiplier * rows * count;
    const P* weights = w + which % (outputs / multiplier) * multiplier * row_taps * kernel;
    for EACH_IN_ROW(i, width, shift) {
      Wide<T> sum = 0;
      for (int t = 0; t < row_taps; t++) {
        const int r = sources[t * height + h];
        if (r < 0) continue;
        for (int k = 0; k < kernel; k++) {
          const int o = last[k * width + i];
          if (o < 0) continue;
          for (int j = 0; j < multiplier; j++) {
            sum += load(source, ((long long)j * rows + r) * count + o) *
                   Wide<T>(weights[(j * row_taps + t) * kernel + k]);
          }
        }
      }
      store(dx, (long long)line * width + i, sum);
    }
  }
}

// One block for each output channel and part of the images; the images of a part should fit a
// cache, because they are read once for each tap. sums is (parts, outputs, taps); with `add` it is
// added to the old values.  1 << shift threads share a row.
template <typename T, typename P>
__global__ void direct_weights(const T* x, const T* dy, P* sums, const int* starts, int images,
                               int outputs, int multiplier, int plane, int width, int rows,
                               int count, int row_taps, int kernel, int stride, int pad,
                               int dilation, int parts, int shift, bool add) {
  const int lanes = blockDim.x >> shift, lane = threadIdx.x >> shift;
  for EACH_BLOCK(piece, parts * outputs) {
    const int part = piece / outputs, m = piece - part * outputs;
    const int first = (int)((long long)images * part / parts);
    const int lines = ((int)((long long)images * (part + 1) / parts) - first) * rows;
    for (int t = 0; t < row_taps; t++) {
      for (int k = 0; k < kernel; k++) {
        Wide<T> sum = 0;
        for (int line = lane; line < lines; line += lanes) {
          const int image = line / rows, r = line - image * rows;
          const int start = starts[t * rows + r];
          if (start < 0) continue;
          const int which = (first + image) * outputs + m;
          const T* source = x + (long long)(which / multiplier) * plane + start;
          const T* gradient = dy + ((long long)which * rows + r) * count;
          for EACH_IN_ROW(o, count, shift) {
            const int column = o * stride - pad + k * dilation;
            if ((unsigned int)column < (unsigned int)width) {
              sum += load(source, column) * load(gradient, o);
            }
          }
        }
        sum = block_sum(sum);
        const int target = (piece * row_taps + t) * kernel + k;
        if (threadIdx.x == 0) sums[target] = (add ? sums[target] : P(0)) + P(sum);
      }
    }
  }
}
